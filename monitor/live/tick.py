"""One tick: add the new records and recompute each step that they change from all of its records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from logprobe.monitor.live.attempts import Older, older
from logprobe.monitor.live.frozen import without_frozen
from logprobe.monitor.live.memory import Memory, Run, Step, StepKey
from logprobe.monitor.live.newest import Newest
from logprobe.monitor.live.recall import meet, names_met_elsewhere, recall
from logprobe.monitor.live.records import Arrived
from logprobe.monitor.live.sequences import link
from logprobe.monitor.live.step_rows import counts, pair_lists, slice_lists
from logprobe.monitor.live.steps import newest_counted, settle, step_sums
from logprobe.monitor.metrics.catalog import KEYS, evaluate

STEPS_PER_BATCH: Final = 256  # bounds memory
MOST_RECORDS: Final = 200_000  # of live runs in memory, some 1 kB each, 2 kB with all pairs
MOST_NAMES: Final = 10_000_000  # of records that only the store has, 16 bytes each
MOST_LIST_BYTES: Final = 64 << 20  # of tokens of each side that may still be compared


@dataclass(frozen=True, slots=True)
class Computed:
    """Metrics of steps [G] as one array per key, NaN for null, with the steps' summaries."""

    steps: Sequence[StepKey]
    values: Mapping[str, NDArray[np.float64]]
    tokens: NDArray[np.int64]
    sequences: NDArray[np.int64]
    times: Sequence[int]  # of the newest record, in microseconds, or `NONE`
    stored: Sequence[bool]  # whether the store has rows of the step
    counts: Mapping[str, NDArray[np.int64]]  # where r came from
    pairs: pa.ListArray
    slices: pa.ListArray


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a tick: new records, changed steps with their metrics, and runs with news."""

    arrived: Mapping[str, Arrived]
    placed: Mapping[str, Sequence[tuple[Step, range]]]  # training records that arrived, by record kind
    steps: Sequence[Step]
    runs: Sequence[Run]
    computed: Sequence[Computed]
    late: Mapping[StepKey, int] = field(default_factory=dict)  # records of frozen steps that came too late
    thawed: Sequence[StepKey] = ()  # frozen steps that a later attempt trains again

    def written(self) -> None:
        """Mark everything as stored."""
        for step in self.steps:
            step.aside = {} if step.older is None else dict(step.older.by)
            step.touched.clear()
            step.fresh.clear()
            step.stored = True
        for run in self.runs:
            run.respanned.clear()
            run.renamed.clear()


@dataclass
class Live:
    """Live runs."""

    memory: Memory = field(default_factory=Memory)
    newest: Newest = field(default_factory=Newest)
    ticks: int = 0

    def forget(self, names: Iterable[str]) -> None:
        """Remove some runs from memory. They are read back at their next news."""
        names = list(names)
        for name in names:
            self.memory.runs.pop(name, None)
        self.newest.forget(names)

    def written(self, outcome: Outcome, revisions: Sequence[pa.Table]) -> None:
        """Mark an outcome as stored. `revisions`: those that `writing.write` returned."""
        self.newest.add(outcome, revisions)
        outcome.written()

    def keep(self, *, records: int = MOST_RECORDS, names: int = MOST_NAMES, lists: int = MOST_LIST_BYTES) -> None:
        """Release memory beyond the limits: the oldest lists, and the runs without news for longest."""
        for some in (self.memory.training_lists, self.memory.rollout_lists):
            some.keep(lists)
        sizes = {run: run.records() for run in self.memory.runs.values()}
        for run in _oldest(sizes, records):
            run.leave()
        index = {run: 0 if run.past is None else len(run.past) for run in self.memory.runs.values()}
        self.forget([run.name for run in _oldest(index, names) if run.used < self.ticks])

    def add(self, arrived: Mapping[str, Arrived]) -> Outcome:
        """Add usable rows by record kind and compute the steps that they change."""
        names = sorted({name for some in arrived.values() for name in some.stored["run"].unique().to_pylist()})
        meet(self.memory, names)
        arrived, late, thawed = without_frozen(self.memory, arrived)
        outcome = self._outcome(names, arrived, self.memory.add(arrived))
        return replace(outcome, late=late, thawed=thawed)

    def again(self, steps: Iterable[StepKey]) -> Outcome:
        """Compute steps again from their stored records."""
        wanted = sorted(steps)
        names = sorted({name for name, _ in wanted})
        meet(self.memory, names)
        self.memory.placed = {}
        for name, number in wanted:
            if (run := self.memory.runs.get(name)) is not None and run.past is not None:
                run.recall.add(number)
        return self._outcome(names, {}, set(wanted))

    def _outcome(self, names: Sequence[str], arrived: Mapping[str, Arrived], dirty: set[StepKey]) -> Outcome:
        self.ticks += 1
        runs = [run for name in names if (run := self.memory.runs.get(name)) is not None]
        for run in runs:
            run.used = self.ticks
        changed: set[Step] = set()
        while True:
            dirty |= recall(self.memory, runs)
            known = [(run, number) for name, number in dirty if (run := self.memory.runs.get(name)) is not None]
            steps = {step for run, number in known if (step := run.steps.get(number)) is not None}
            steps = steps.union(changed, *map(_attempts_changed, runs))
            settle(steps)
            changed.update(link(self.memory, sorted(steps, key=_key), runs))
            if not any(names_met_elsewhere(run) for run in runs):
                break
        some = sorted(changed, key=_key)
        computed = [_computed(some[first : first + STEPS_PER_BATCH]) for first in range(0, len(some), STEPS_PER_BATCH)]
        return Outcome(arrived, self.memory.placed, some, runs, computed)


def _oldest(sizes: Mapping[Run, int], most: int) -> Iterator[Run]:
    """Yield the runs to remove until the others have at most `most` in total. Runs without news for longest come
    first."""
    beyond = sum(sizes.values()) - most
    for run in sorted(sizes, key=lambda run: (run.used, run.name)) if beyond > 0 else ():
        if beyond <= 0:
            break
        beyond -= sizes[run]
        yield run


def _attempts_changed(run: Run) -> set[Step]:
    """Return the steps of a restarted run in which the set of replaced records has changed."""
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
    slices, bits = slice_lists(steps)
    return Computed(
        steps=[_key(step) for step in steps],
        values={key: values[key] for key in KEYS},
        tokens=sums.expected.astype(np.int64),
        sequences=sums.groups.count().astype(np.int64),
        times=[newest_counted(step) for step in steps],
        stored=[step.stored for step in steps],
        counts={**counts(steps), **bits},
        pairs=pair_lists(steps, sums),
        slices=slices,
    )
