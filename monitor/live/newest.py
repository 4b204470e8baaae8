"""Sums of the newest steps of live runs in memory, as ticks have written them, so that judgements need no statement.

A judgement reads them from the store after a start, and of a run that has returned to a checkpoint.

Dimensions: ``_G`` steps, ``_R`` slices of steps.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from logprobe.monitor.live.step_rows import BITS

if TYPE_CHECKING:
    from logprobe.monitor.live.tick import Computed, Outcome

STEPS: Final = 256  # of a run: a judgement that is further behind reads the store
_CHUNKS: Final = 32  # of a run: likewise; a chunk of one step takes 9 kB, and each further step 0.4 kB
_RUNS: Final = 2_000
_BACKEND_SUMS: Final = {  # column of ``diagnosis_steps`` → sum of the pair
    "abs_d": "sum_abs_d",
    "k3": "sum_k3",
    "ratio_m1": "sum_ratio_m1",
    "t": "sum_policy",
    "r": "sum_behaviour",
    "t2": "sum_policy2",
    "r2": "sum_behaviour2",
    "tr": "sum_policy_behaviour",
    **{name: name for name in ("c_nn", "c_aa", "c_an", "c_qq", "c_qn")},
}
_BACKEND_COUNTS: Final = {  # the same of counts
    "compared": "compared",
    "n": "n",
    "n_compared": "n_expected",
    "n_up": "n_positive_d",
    "n_down": "n_negative_d",
    "n_same": "n_zero_d",
    "nonfinite_rollout": "n_nonfinite_behaviour",
    "nonfinite_trainer": "n_nonfinite_policy",
    "positive_rollout": "n_positive_behaviour",
    "zero_rollout": "n_zero_behaviour",
    "zero_trainer": "n_zero_policy",
}
_OTHER_PAIRS: Final = ("update", "reference")
_SLICE_GROUPS: Final = ("version", "replica", "cached", "in_flight")
_SLICE_SUMS: Final = ("sequences", "n", "k3", "abs_d", "c_nn", "c_aa", "c_an")
Columns = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class NewSteps:
    """Steps of a run that were computed since a revision.

    Attributes:
        steps: columns of ``diagnosis_steps`` without the run [G], ascending.
        slices: columns of ``diagnosis_slices`` without the run [R], in its order.
        configs: true if configuration records have arrived.
        weights: true if what is known of weight versions has changed.
        readings: true if what is known of fingerprints of weights has changed.
    """

    steps: Columns
    slices: Columns
    configs: bool
    weights: bool
    readings: bool


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Steps of a run in one tick that have sequences.

    `newest`: newest revision of the run, whatever its steps have. `revisions`: of each step [G]. `slices`: sorted by
    step [R].
    """

    newest: int
    revisions: NDArray[np.int64]
    steps: Columns
    slices: Columns

    def where(self, keep_G: NDArray[np.bool_]) -> _Chunk:
        if keep_G.all():
            return self
        keep_R = np.isin(self.slices["step"], self.steps["step"][keep_G])
        return _Chunk(
            self.newest,
            self.revisions[keep_G],
            {name: column[keep_G] for name, column in self.steps.items()},
            {name: column[keep_R] for name, column in self.slices.items()},
        )


@dataclass(slots=True)
class _Run:
    """Newest steps of a run. `since`: revision from which on they are complete. The others: tick of the last news."""

    since: int
    configs: int
    weights: int
    readings: int
    newest: int = -1
    chunks: deque[_Chunk] = field(default_factory=deque)

    def add(self, chunk: _Chunk) -> None:
        self.newest = chunk.newest
        if len(chunk.revisions):
            self.chunks.append(chunk)
        while len(self.chunks) > _CHUNKS or sum(len(each.revisions) for each in self.chunks) > STEPS:
            self.since = int(self.chunks.popleft().revisions.max())


class Newest:
    """Newest steps of live runs. Ticks add; any thread may read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[str, _Run] = {}
        self.tick = 0

    def forget(self, runs: Iterable[str]) -> None:
        """Forget some runs. They are read from the store until their next step."""
        with self._lock:
            for run in runs:
                self._runs.pop(run, None)

    def add(self, outcome: Outcome, revisions: Sequence[pa.Table]) -> None:
        """Add a committed outcome. `revisions`: rows of ``live_summaries`` of each of its computed batches."""
        chunks = [
            each
            for computed, given in zip(outcome.computed, revisions, strict=True)
            for each in _chunks(computed, given)
        ]
        gone = {run.name for run in outcome.runs if run.begun}
        with self._lock:
            self.tick += 1
            for name, first, chunk in chunks:
                if name not in gone:
                    run = self._runs.pop(name, None)
                    self._runs[name] = run = run or _Run(first - 1, self.tick, self.tick, self.tick)
                    run.add(chunk)
            for name in gone:
                self._runs.pop(name, None)
            self._note(outcome)
            while len(self._runs) > _RUNS:
                self._runs.pop(next(iter(self._runs)))

    def _note(self, outcome: Outcome) -> None:
        """Note runs with new configurations, weight versions and fingerprints."""
        renamed = {run.name for run in outcome.runs if run.renamed}
        for name in renamed | _runs_of(outcome, "weights"):
            if (run := self._runs.get(name)) is not None:
                run.weights = self.tick
        for name in renamed | _runs_of(outcome, "weights", with_known="fingerprint"):
            if (run := self._runs.get(name)) is not None:
                run.readings = self.tick
        for name in _runs_of(outcome, "config"):
            if (run := self._runs.get(name)) is not None:
                run.configs = self.tick

    def since(self, name: str, revision: int, tick: int, *, upto: int) -> NewSteps | None:
        """Return the news of a run, or None if the store must be asked.

        Args:
            name: name of the run.
            revision: revision of the newest known step.
            tick: value of `tick` when configurations and weights were read.
            upto: revision of the newest step that the store has.
        """
        with self._lock:
            run = self._runs.get(name)
            if run is None or run.since > revision or run.newest < upto:
                return None
            changed = run.configs > tick, run.weights > tick, run.readings > tick
            chunks = list(run.chunks)
        found: list[_Chunk] = []
        seen = np.empty(0, np.int64)
        for chunk in reversed(chunks):  # the newest of a step that was computed again
            some = chunk.where((chunk.revisions > revision) & ~np.isin(chunk.steps["step"], seen))
            if len(some.revisions):
                found.append(some)
                seen = np.concatenate([seen, some.steps["step"]])
        return NewSteps(_joined([each.steps for each in found]), _joined([each.slices for each in found]), *changed)


def _runs_of(outcome: Outcome, kind: str, *, with_known: str | None = None) -> set[str]:
    """Return the runs of the records of a kind, or of those with a value in a column."""
    if (arrived := outcome.arrived.get(kind)) is None:
        return set()
    rows = arrived.stored if with_known is None else arrived.stored.filter(arrived.stored[with_known].is_valid())
    return set(rows["run"].unique().to_pylist())


def _joined(parts: Sequence[Columns]) -> Columns:
    """Return the rows of all parts, sorted by step. Rows of one step keep their order."""
    if len(parts) == 1:
        return parts[0]
    joined = {name: np.concatenate([part[name] for part in parts]) for name in (parts[0] if parts else ())}
    order: Any = np.argsort(joined["step"], kind="stable") if joined else []
    return {name: column[order] for name, column in joined.items()}


def _chunks(computed: Computed, revisions: pa.Table) -> list[tuple[str, int, _Chunk]]:
    """Return the steps with sequences by run, each with the run's oldest revision."""
    of = {(row["run"], row["step"]): row["revision"] for row in revisions.to_pylist()}
    revision_G = np.array([of[key] for key in computed.steps], np.int64)
    steps, (slices, place_R) = _steps(computed), _slices(computed)
    runs = [run for run, _ in computed.steps]
    found = []
    for run in dict.fromkeys(runs):
        first = runs.index(run)
        last = first + runs.count(run)
        of_run, rows = slice(first, last), slice(*np.searchsorted(place_R, [first, last]))
        chunk = _Chunk(
            int(revision_G[of_run].max()),
            revision_G[of_run],
            {name: column[of_run] for name, column in steps.items()},
            {name: column[rows] for name, column in slices.items()},
        )
        found.append((run, int(revision_G[of_run].min()), chunk.where(computed.sequences[of_run] > 0)))
    return found


def _steps(computed: Computed) -> Columns:
    """Return the columns of ``diagnosis_steps`` [G]."""
    count = len(computed.steps)
    flat, place_P = computed.pairs.flatten(), _places(computed.pairs)
    pair_P = flat.field("pair").to_numpy(zero_copy_only=False)

    def column(pair: str, name: str, missing: Any) -> NDArray[Any]:
        chosen = pair_P == pair
        values = np.full(count, missing)
        values[place_P[chosen]] = flat.field(name).to_numpy(zero_copy_only=False)[chosen]
        return values

    steps: dict[str, NDArray[Any]] = {
        "step": np.array([step for _, step in computed.steps], np.int64),
        "n_expected": computed.tokens,
        "sequences": computed.sequences,
        "tokens": computed.tokens,
        **{ours: column("backend", theirs, 0) for ours, theirs in _BACKEND_COUNTS.items()},
        **{ours: column("backend", theirs, np.nan) for ours, theirs in _BACKEND_SUMS.items()},
        **{name: values for name, values in computed.counts.items() if name not in BITS},
    }
    sides = ("n_sentinel_behaviour", "n_sentinel_policy")
    steps["sentinel"] = sum((column("backend", side, 0) for side in sides), np.zeros(count, np.int64))
    for pair in _OTHER_PAIRS:
        n, k3 = column(pair, "n", 0), column(pair, "sum_k3", np.nan)
        steps[pair] = np.divide(k3, n, out=np.full(count, np.nan), where=n > 0)
    return steps


def _slices(computed: Computed) -> tuple[Columns, NDArray[np.intp]]:
    """Return the columns of ``diagnosis_slices`` [R], and the place of each row's step."""
    flat, place_R = computed.slices.flatten(), _places(computed.slices)
    numbers = np.array([step for _, step in computed.steps], np.int64)
    return {
        "step": numbers[place_R],
        "lag": flat.field("lag").cast(pa.float64()).fill_null(np.nan).to_numpy(zero_copy_only=False),
        **{name: np.array(flat.field(name).to_pylist(), np.object_) for name in _SLICE_GROUPS},
        **{name: flat.field(name).to_numpy(zero_copy_only=False).astype(np.float64) for name in _SLICE_SUMS},
    }, place_R


def _places(lists: pa.ListArray) -> NDArray[np.intp]:
    """Return the place of the list that each value is in."""
    lengths = np.diff(lists.offsets.to_numpy())
    return np.repeat(np.arange(len(lengths)), lengths)
