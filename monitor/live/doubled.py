"""Detect sequences that the store has twice, on arrival of the second copy.

A copy has the same sample, call time in microseconds, rank or replica, and tokens, but another segment. A sample that
is trained again in a later step or call is no copy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from logprobe.monitor.live.memory import Memory, Run, Step
from logprobe.monitor.live.rows import NONE, Rows

_TRAINED: Final = ("sample", "time", "rank", "n_total", "n_expected", "token_hash")
_SAMPLED: Final = ("sample", "time", "replica", "n_tokens", "token_hash")
_SCHEMA: Final = pa.schema(
    [(name, pa.string()) for name in ("run", "kind", "segment_id", "example", "first_in")]
    + [(name, pa.int64()) for name in ("sequences", "tokens", "first_step", "last_step")]
    + [("found_at", pa.timestamp("us", "UTC"))]
)


class Copy(NamedTuple):
    """One record that has arrived again.

    `first_in`: segment with the earlier copy. `step`: training step, or None for rollouts.
    """

    run: str
    kind: str
    segment: str
    sample: str
    tokens: int
    step: int | None
    first_in: str


def copies(memory: Memory) -> list[Copy]:
    """Return the newest records of `Memory.add` that have an earlier copy or a copy among themselves.

    `recall` has already read back every record that they may be a copy of.
    """
    found: list[Copy] = []
    new = {kind: _by_step(placed) for kind, placed in memory.placed.items()}
    for kind, steps in new.items():
        for step, rows in steps.items():  # of two kinds that come together, training records are the first
            later = new.get("statistics", {}).get(step, set()) if kind == "training" else set()
            found += _trained(kind, step, rows, later)
    return found + [copy for run, numbers in memory.sampled for copy in _sampled(run, set(numbers))]


def _by_step(placed: Iterable[tuple[Step, range]]) -> dict[Step, set[int]]:
    steps: dict[Step, set[int]] = {}
    for step, rows in placed:
        steps.setdefault(step, set()).update(rows)
    return steps


def table(found: Iterable[Copy], now: datetime) -> pa.Table:
    """Return copies as rows of the store, one per segment that contains any."""
    by_segment: dict[tuple[str, str, str], list[Copy]] = {}
    for copy in found:
        by_segment.setdefault((copy.run, copy.kind, copy.segment), []).append(copy)
    rows = [
        {
            "run": run,
            "kind": kind,
            "segment_id": segment,
            "sequences": len(some),
            "tokens": sum(copy.tokens for copy in some),
            "first_step": min((copy.step for copy in some if copy.step is not None), default=None),
            "last_step": max((copy.step for copy in some if copy.step is not None), default=None),
            "example": min(copy.sample for copy in some),
            "first_in": min(copy.first_in for copy in some),
            "found_at": now,
        }
        for (run, kind, segment), some in by_segment.items()
    ]
    return pa.Table.from_pylist(rows, _SCHEMA)


def _trained(kind: str, step: Step, new: set[int], later: set[int]) -> Iterator[Copy]:
    """Yield the copies among the rows `new` of a step. Rows in `later` are ignored. Comparing call times usually
    suffices."""
    trained = step.trained
    times_S, segments_S, rows = trained["time"], trained["segment"], sorted(new)
    before_S = step.counted_S
    before_S[[*new, *later]] = False
    calls = Counter(time for time, _ in set(zip(times_S[rows].tolist(), segments_S[rows].tolist(), strict=True)))
    there = set(times_S[before_S & np.isin(times_S, np.fromiter(calls, np.int64))].tolist())
    again = [time for time, segments in calls.items() if time != NONE and (segments > 1 or time in there)]
    if not again:
        return
    before_S[rows] = step.counted_S[rows]
    alike = np.flatnonzero(before_S & np.isin(times_S, np.array(again))).tolist()
    for row, first_in in _again(segments_S, _keys(trained, _TRAINED, alike), new):
        yield Copy(
            step.run.name,
            kind,
            segments_S[row],
            trained["sample"][row],
            int(trained["n_total"][row]),
            step.number,
            first_in,
        )


def _sampled(run: Run, numbers: set[int]) -> Iterator[Copy]:
    sampled = run.sampled
    for name in {sampled["sample"][number] for number in numbers}:
        if len(some := run.by_name[name]) > 1:
            alike = [number for number in some if sampled["time"][number] != NONE]
            for number, first_in in _again(sampled["segment"], _keys(sampled, _SAMPLED, alike), numbers):
                tokens = int(sampled["n_tokens"][number])
                yield Copy(run.name, "rollout", sampled["segment"][number], name, tokens, None, first_in)


def _keys(rows: Rows, names: Sequence[str], places: Sequence[int]) -> Mapping[tuple[Any, ...], list[int]]:
    """Return places grouped by the values that identify a copy."""
    found: dict[tuple[Any, ...], list[int]] = {}
    if not places:
        return found
    for place, key in zip(places, zip(*(rows[name][places].tolist() for name in names), strict=True), strict=True):
        found.setdefault(key, []).append(place)
    return found


def _again(
    segments: NDArray[np.object_], keys: Mapping[tuple[Any, ...], list[int]], new: set[int]
) -> Iterator[tuple[int, str]]:
    """Yield new places that have a copy in another segment, with the segment of the first copy.

    An earlier record comes first. Of records that arrive together, the one with the lower segment id comes first.
    """
    for some in keys.values():
        before = min((segments[place] for place in some if place not in new), default=None)
        together = min((segments[place] for place in some if place in new), default=None)
        for place in some if len(some) > 1 else ():
            if place in new:
                first = [before] if before is not None else []
                first += [together] if together is not None and together < segments[place] else []
                if first:
                    yield place, min(first)
