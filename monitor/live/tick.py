"""One tick: what has arrived since the last one, and the steps that it changes, computed whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from logprobe.monitor.live.attempts import Older, older
from logprobe.monitor.live.memory import Memory, Run, Step, StepKey
from logprobe.monitor.live.read import Read, Reading
from logprobe.monitor.live.records import Arrived
from logprobe.monitor.live.sequences import link
from logprobe.monitor.live.steps import newest, settle, step_sums
from logprobe.monitor.metrics.catalog import KEYS, evaluate

STEPS_PER_BATCH: Final = 256  # bounds memory


@dataclass(frozen=True, slots=True)
class Computed:
    """Metrics of steps [G]: of each key an array, NaN for null; and what their summaries say."""

    steps: Sequence[StepKey]
    values: Mapping[str, NDArray[np.float64]]
    tokens: NDArray[np.int64]
    sequences: NDArray[np.int64]
    times: Sequence[int]  # of the newest record, in microseconds, or `NONE`


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a tick took in, the steps that it changed, the runs with news, and the metrics of the steps."""

    arrived: Mapping[str, Arrived]
    steps: Sequence[Step]
    runs: Sequence[Run]
    computed: Sequence[Computed]

    def written(self) -> None:
        """Note that the store has it all."""
        for step in self.steps:
            step.written = len(step.trained)
            step.aside = {} if step.older is None else dict(step.older.by)
            step.touched.clear()
        for run in self.runs:
            run.written = len(run.sampled)
            run.respanned.clear()


@dataclass
class Live:
    """Live runs and the segments that are part of them."""

    memory: Memory = field(default_factory=Memory)
    segments: set[str] = field(default_factory=set)

    def tick(self, read: Iterable[Read]) -> Outcome:
        """Take in segments, each once whatever its file is called, and compute the steps that they change."""
        new = []
        for each in read:
            if each.segment.segment_id not in self.segments:
                self.segments.add(each.segment.segment_id)
                new.append(each)
        tables = Reading(segments=new).tables() if new else {}
        return self.add({kind: Arrived.of(kind, table) for kind, table in tables.items()})

    def add(self, arrived: Mapping[str, Arrived]) -> Outcome:
        """Take in usable rows by record kind, and compute the steps that they change."""
        dirty = self.memory.add(arrived)
        steps = {step for name, number in dirty if (step := self.memory.runs[name].steps.get(number)) is not None}
        names = sorted({name for some in arrived.values() for name in some.stored["run"].unique().to_pylist()})
        runs = [run for name in names if (run := self.memory.runs.get(name)) is not None]
        steps = steps.union(*map(_attempts_changed, runs))
        settle(steps)
        changed = sorted(link(self.memory, sorted(steps, key=_key), runs), key=_key)
        computed = [
            _computed(changed[first : first + STEPS_PER_BATCH]) for first in range(0, len(changed), STEPS_PER_BATCH)
        ]
        return Outcome(arrived, changed, runs, computed)


def _attempts_changed(run: Run) -> set[Step]:
    """Steps of a run that was begun more than once of which other records are left behind now."""
    steps = [step for step in run.steps.values() if len(step.trained)] if run.begun else []
    return {step for step in steps if not _same(step.older, older(step.number, step.trained, run.begun, run.last))}


def _same(before: Older | None, now: Older | None) -> bool:
    if before is None or now is None:
        return before is now
    return np.array_equal(before.rows_S, now.rows_S) and before.began == now.began


def _key(step: Step) -> StepKey:
    return step.run.name, step.number


def _computed(steps: Sequence[Step]) -> Computed:
    sums = step_sums(steps)
    values = evaluate(sums)
    return Computed(
        steps=[_key(step) for step in steps],
        values={key: values[key] for key in KEYS},
        tokens=sums.expected.astype(np.int64),
        sequences=sums.groups.count().astype(np.int64),
        times=[newest(step) for step in steps],
    )
