"""Marks that an engine read too late, or never: the versions of its tokens are corrected when both have arrived.

An engine says of every token what decided its version, and when. A mark that lies between that and the token's step
decides instead; so it does not matter in which order marks and rollout records come, and doing it twice changes
nothing. Steps that trained on corrected tokens are computed again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from logprobe.collectors.errors import QueryError
from logprobe.collectors.spool.schema import DECISION, SPAN
from logprobe.monitor import queries
from logprobe.monitor.ingest.backoff import RunBackoff
from logprobe.monitor.store.store import Store

_EARLIEST: Final = -(1 << 63)  # nothing was known
_WRITES: Final = ("versions_update", "versions_dirty", "versions_open", "versions_queue_join")
_CORRECTED: Final = pa.schema(
    [
        ("run", pa.string()),
        ("segment_id", pa.string()),
        ("row", pa.int32()),
        ("spans", pa.list_(SPAN)),
        ("decisions", pa.list_(DECISION)),
    ]
)


class LateMarks:
    """Corrects what ingest has queued. One per store, used by one thread at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._resting = RunBackoff()

    @property
    def problem(self) -> str | None:
        """What is wrong with runs whose raw tokens cannot be read: they rest. None: there are none."""
        return self._resting.problem

    def run_once(self) -> int:
        """Works the queue off; → rollout records that were corrected. Raises `StoreError`."""
        resting = self._resting.now()
        high = queries.versions_high(self._store.kept, resting=resting).to_pylist()[0]["high"]
        if high is None:
            return 0
        with self._store.holding_files():
            due = queries.versions_due(self._store, high=high)
            rows = self._of_each_run(
                due.filter(pc.invert(pc.is_in(due["run"], pa.array(resting, pa.string())))), resting
            )
        corrected = pa.Table.from_pylist(rows, schema=_CORRECTED)
        with self._store.transaction() as cursor:
            for name in _WRITES if rows else ():
                self._store.execute(cursor, name, corrected)
            self._store.execute(cursor, "versions_done", high=high, resting=resting)
        return len(rows)

    def _of_each_run(self, due: pa.Table, resting: list[str]) -> list[dict[str, object]]:
        """Corrected rows; where tokens cannot be read, those of each run by itself: a run at fault rests and holds up
        no other."""
        try:
            steps = self._steps(due)
        except QueryError as error:
            runs = due["run"].unique().to_pylist()
            if len(runs) > 1:
                return [
                    row for run in runs for row in self._of_each_run(due.filter(pc.equal(due["run"], run)), resting)
                ]
            self._resting.add(runs[0], error)
            resting.append(runs[0])
            return []
        return [_corrected(row, steps.get(number)) for number, row in enumerate(due.to_pylist())]

    def _steps(self, due: pa.Table) -> dict[int, NDArray[np.int64]]:
        """Number of a row → when the steps of its tokens began; rows without raw tokens are left out."""
        keys = due.select(["segment_id", "row"]).append_column("number", pa.array(np.arange(due.num_rows)))
        if due["raw_file"].null_count == due.num_rows:
            return {}
        paths = self._store.raw_places(rollout=due["raw_file"])["rollout_files"]
        steps = queries.versions_steps(self._store, keys, files=paths)
        return {
            number: np.asarray(times, np.int64)
            for number, times in zip(steps["number"].to_pylist(), steps["step_times"].to_pylist(), strict=True)
            if times is not None
        }


def _corrected(row: Mapping[str, Any], times: NDArray[np.int64] | None) -> dict[str, object]:
    key = {name: row[name] for name in ("run", "segment_id", "row")}
    if not _fit(
        row, times
    ):  # written by something else than a plugin: nothing is known of its tokens, and nobody asks again
        return key | {"spans": [], "decisions": []}
    return key | resolve(row["spans"] or [], row["decisions"], row["marks"], times)


def _fit(row: Mapping[str, Any], times: NDArray[np.int64] | None) -> bool:
    """Whether what a record says of its tokens is about so many tokens as it has."""
    ends = [decision["end"] for decision in row["decisions"]]
    whole = None not in ends and [0, *ends] == sorted({0, *ends}) and ends[-1] == row["n_tokens"]
    return whole and (times is None or len(times) == row["n_tokens"])


def resolve(
    spans: Sequence[Mapping[str, Any]],
    decisions: Sequence[Mapping[str, Any]],
    marks: Sequence[Mapping[str, Any]],
    times_N: NDArray[np.int64] | None,
) -> dict[str, object]:
    """Spans and decisions of one record against all `marks`, ascending in ``moment``.

    `times_N`: when the steps of its tokens began. Without them, tokens of which some belong to a late mark have an
    unknown version.

    >>> spans, decisions = [{"start": 0, "end": 3, "version": "1"}], [{"end": 3, "at": 10, "last": 30}]
    >>> resolved = resolve(spans, decisions, [{"moment": 15, "version": "2"}], np.array([12, 20, 30]))
    >>> [(span["end"], span["version"]) for span in resolved["spans"]]
    [(1, '1'), (3, '2')]
    """
    count = decisions[-1]["end"]
    versions_N, decided_N = _as_recorded(spans, decisions, count)
    lasts_N = np.repeat([d["last"] for d in decisions], np.diff([0, *(d["end"] for d in decisions)]))
    for mark in marks:
        moment = mark["moment"]
        reached_N = ((lasts_N if times_N is None else times_N) >= moment) & (decided_N < moment)
        versions_N[reached_N] = None if times_N is None else mark["version"]
        decided_N[reached_N] = moment
    return {
        "spans": _runs(versions_N, count),
        "decisions": _decisions(decided_N, lasts_N if times_N is None else times_N),
    }


def _as_recorded(
    spans: Sequence[Mapping[str, Any]], decisions: Sequence[Mapping[str, Any]], count: int
) -> tuple[NDArray[np.object_], NDArray[np.int64]]:
    versions_N = np.full(count, None, object)
    for span in spans:
        versions_N[span["start"] : span["end"]] = span["version"]
    decided_N = np.full(count, _EARLIEST, np.int64)
    start = 0
    for decision in decisions:
        decided_N[start : decision["end"]] = _EARLIEST if decision["at"] is None else decision["at"]
        start = decision["end"]
    return versions_N, decided_N


def _runs(versions_N: NDArray[np.object_], count: int) -> list[dict[str, object]]:
    starts = [index for index in range(count) if index == 0 or versions_N[index] != versions_N[index - 1]]
    ends = [*starts[1:], count]
    return [{"start": start, "end": end, "version": versions_N[start]} for start, end in zip(starts, ends, strict=True)]


def _decisions(decided_N: NDArray[np.int64], lasts_N: NDArray[np.int64]) -> list[dict[str, object]]:
    ends = [*(np.flatnonzero(np.diff(decided_N)) + 1).tolist(), len(decided_N)]
    at = [int(decided_N[end - 1]) for end in ends]
    return [
        {"end": end, "at": None if moment == _EARLIEST else moment, "last": int(lasts_N[end - 1])}
        for end, moment in zip(ends, at, strict=True)
    ]
