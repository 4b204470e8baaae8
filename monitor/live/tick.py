"""One tick: what has arrived since the last one, and the steps that it changes, computed whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from logprobe.monitor.live.attempts import Older, older
from logprobe.monitor.live.memory import Memory, Run, Step, StepKey
from logprobe.monitor.live.read import Read, Reading
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


@dataclass
class Live:
    """Live runs and the segments that are part of them."""

    memory: Memory = field(default_factory=Memory)
    segments: set[str] = field(default_factory=set)

    def tick(self, arrived: Iterable[Read]) -> list[Computed]:
        """Take in segments, each once whatever its file is called, and compute the steps that they change."""
        new = []
        for read in arrived:
            if read.segment.segment_id not in self.segments:
                self.segments.add(read.segment.segment_id)
                new.append(read)
        return self.add(Reading(segments=new).tables()) if new else []

    def add(self, tables: Mapping[str, pa.Table]) -> list[Computed]:
        """Take in usable rows by record kind, and compute the steps that they change."""
        dirty = self.memory.add(tables)
        steps = {step for name, number in dirty if (step := self.memory.runs[name].steps.get(number)) is not None}
        names = sorted({name for table in tables.values() for name in table["run"].unique().to_pylist()})
        runs = [run for name in names if (run := self.memory.runs.get(name)) is not None]
        steps = steps.union(*map(_attempts_changed, runs))
        settle(steps)
        changed = link(self.memory, sorted(steps, key=_key), runs)
        return [
            _computed(sorted(changed, key=_key)[first : first + STEPS_PER_BATCH])
            for first in range(0, len(changed), STEPS_PER_BATCH)
        ]


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
