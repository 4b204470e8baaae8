"""Weight versions of sampled tokens: marks that an engine read too late, what the trainer states, and the lag.

An engine says of every token what decided its version, and when. A mark that lies between that and the token's step
decides instead; so it does not matter in which order marks and rollout records come.

A span is (start, end, version), version None: unknown. Dimensions: ``_N`` tokens of one record.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from logprobe.monitor.metrics.lag import is_number

Span = tuple[int, int, str | None]
Spans = tuple[Span, ...]
_EARLIEST: Final = -(1 << 63)  # no moment decided: nothing was known
_NAN: Final = float("nan")


class Mark(NamedTuple):
    """A mark of a version. `moment` on the monotonic clock of `machine`, `wall` on the wall clock, in microseconds."""

    moment: int
    wall: int | None
    machine: str | None
    replica: str | None
    adapter: str | None
    version: str | None


class Decision(NamedTuple):
    """Tokens up to `end` have their version by what happened at `at`; `last` is their last step."""

    end: int | None
    at: int | None
    last: int | None


class Decided(NamedTuple):
    """Versions of one rollout record and the engine's decisions that led to them, see
    `collectors.spool.schema.ROLLOUT`."""

    spans: Spans
    decisions: tuple[Decision, ...]
    n_tokens: int
    machine: str | None
    clock_offset: int | None
    engine_started: int | None
    replica: str | None
    adapter: str | None


class Marks:
    """Marks of a run, in the order of each clock."""

    def __init__(self) -> None:
        self._own: dict[str, list[Mark]] = {}  # by machine
        self._walls: list[Mark] = []

    def add(self, mark: Mark) -> None:
        """Take in a mark."""
        if mark.machine is not None:
            own = self._own.setdefault(mark.machine, [])
            own.insert(bisect_left(own, mark.moment, key=_moment), mark)
        if mark.wall is not None:
            self._walls.insert(bisect_left(self._walls, mark.wall, key=_wall), mark)

    def late_for(self, record: Decided) -> list[tuple[int, str | None]]:
        """Return the moments and versions of all marks that may decide about a record; none unless one is late."""
        last = record.decisions[-1].last if record.decisions else None
        if last is None or record.engine_started is None:
            return []
        for decision in record.decisions:
            first = record.engine_started if decision.at is None else max(record.engine_started, decision.at + 1)
            if decision.last is not None and any(self._between(record, first, min(decision.last, last))):
                everything = self._between(record, record.engine_started, last)
                return sorted(everything, key=lambda mark: (mark[0], mark[1] is None, mark[1]))
        return []

    def _between(self, record: Decided, first: int, last: int) -> Iterator[tuple[int, str | None]]:
        """Yield the marks about a record from one moment of its machine's clock to another."""
        if record.machine is not None:
            for mark in _range(self._own.get(record.machine, ()), first, last, _moment):
                if _is_about(mark, record):
                    yield mark.moment, mark.version
        if (offset := record.clock_offset) is not None:
            for mark in _range(self._walls, first + offset, last + offset, _wall):
                if (mark.machine is None or mark.machine != record.machine) and _is_about(mark, record):
                    yield _wall(mark) - offset, mark.version


def _moment(mark: Mark) -> int:
    return mark.moment


def _wall(mark: Mark) -> int:
    return mark.wall if mark.wall is not None else _EARLIEST


def _range(marks: Sequence[Mark], first: int, last: int, key: Any) -> Sequence[Mark]:
    return marks[bisect_left(marks, first, key=key) : bisect_right(marks, last, key=key)]


def _is_about(mark: Mark, record: Decided) -> bool:
    """Return whether a mark is about a record. An engine's mark of no version says that its weights are unknown, and
    those of all adapters with them."""
    of_adapter = mark.adapter == record.adapter or (mark.version is None and mark.adapter is None)
    return of_adapter and (mark.replica is None or mark.replica in _names(record.replica))


def _names(replica: str | None) -> tuple[str, ...]:
    """Return the names of a replica: its own, and that of the engine that it is one of, ``-dp<number>``."""
    if replica is None:
        return ()
    engine, found, number = replica.rpartition("-dp")
    return (replica, engine) if found and number.isascii() and number.isdigit() else (replica,)


def resolved(record: Decided, marks: Sequence[tuple[int, str | None]], times_N: NDArray[np.int64] | None) -> Spans:
    """Return the spans of a record against `marks`, ascending.

    `times_N`: when the steps of its tokens began. Without them, tokens of which some belong to a late mark have an
    unknown version. Nothing is known of a record that does not fit together.

    >>> record = Decided(((0, 3, "1"),), (Decision(3, 10, 30),), 3, "host", 0, 5, None, None)
    >>> resolved(record, [(15, "2")], np.array([12, 20, 30]))
    ((0, 1, '1'), (1, 3, '2'))
    """
    count = record.n_tokens
    ends = [decision.end for decision in record.decisions if decision.end is not None]
    lasts = [decision.last for decision in record.decisions if decision.last is not None]
    whole = len(ends) == len(record.decisions) and [0, *ends] == sorted({0, *ends}) and ends[-1] == count
    if not whole or (len(lasts) < len(ends) if times_N is None else len(times_N) != count):
        return ()
    sizes = np.diff([0, *ends])
    decided_N = np.repeat([_EARLIEST if d.at is None else d.at for d in record.decisions], sizes)
    lasts_N = times_N if times_N is not None else np.repeat(lasts, sizes)
    versions_N = np.full(count, None, object)
    for start, end, version in record.spans:
        versions_N[start:end] = version
    for moment, version in marks:
        reached_N = (lasts_N >= moment) & (decided_N < moment)
        versions_N[reached_N] = None if times_N is None else version
        decided_N[reached_N] = moment
    return tuple(_runs(versions_N.tolist()))


def _runs(versions: Sequence[str | None]) -> Iterator[Span]:
    starts = [at for at in range(len(versions)) if at == 0 or versions[at] != versions[at - 1]]
    for start, end in pairwise([*starts, len(versions)]):
        yield start, end, versions[start]


class Stated(NamedTuple):
    """Weights that sampled tokens [start, end), and those under the mask among them, as a trainer knows them."""

    start: int
    end: int
    sampled_start: int
    sampled_end: int
    version: str | None


class Piece(NamedTuple):
    """Tokens [start, end), and their version as engine and trainer have it; None: unknown."""

    start: int
    end: int
    engine: str | None
    stated: str | None


def pieces(spans: Spans | None, stated: Sequence[Stated], alignment: str | None) -> list[Piece]:
    """Return what engine and trainer say side by side, in tokens of the engine's record.

    Without an `alignment` the engine's spans are not known to be about these tokens, and places are those under the
    mask.
    """
    ours = spans or () if alignment is not None else ()
    theirs = [
        (s.start, s.end, s.version) if alignment == "all" else (s.sampled_start, s.sampled_end, s.version)
        for s in stated
    ]
    edges = sorted({edge for start, end, _ in (*ours, *theirs) for edge in (start, end)})
    return [Piece(start, end, _version_at(ours, start), _version_at(theirs, start)) for start, end in pairwise(edges)]


def _version_at(spans: Iterable[Span], place: int) -> str | None:
    return next((version for start, end, version in spans if start <= place < end), None)


def known_spans(found: Sequence[Piece]) -> Spans:
    """Return the version of every token, from engine or trainer, whichever knows it, and None where the two differ."""
    return tuple((p.start, p.end, _agreed(p.engine, p.stated)) for p in found)


def _agreed(engine: str | None, stated: str | None) -> str | None:
    if engine is None or stated is None or engine == stated:
        return stated if engine is None else engine
    return None


def counts(found: Sequence[Piece]) -> tuple[int, int]:
    """Return of how many tokens both say the version, and of how many of these they say different ones."""
    both = [p for p in found if p.engine is not None and p.stated is not None]
    return sum(p.end - p.start for p in both), sum(p.end - p.start for p in both if p.engine != p.stated)


def by_version(spans: Spans | None, n: int) -> dict[str | None, int]:
    """Return how many of the first `n` tokens each version sampled; tokens without a span are of no known version."""
    tokens: dict[str | None, int] = {}
    for start, end, version in spans or ():
        tokens[version] = tokens.get(version, 0) + max(min(end, n) - max(start, 0), 0)
    uncovered = n - sum(tokens.values())
    if uncovered > 0:
        tokens[None] = tokens.get(None, 0) + uncovered
    return {version: count for version, count in tokens.items() if count > 0}


@dataclass(frozen=True, slots=True)
class Order:
    """Order of labels: of each its place in the order of appearance, its step, and the time at which it was
    published."""

    places: Mapping[str, int]
    steps: Mapping[str, int]
    seconds: Mapping[str, float]

    @classmethod
    def of(cls, records: Iterable[Mapping[str, Any]]) -> Order:
        """Digest weight records of a run (``version, step, time`` in microseconds, ``source``).

        The trainer's own time of a version counts before an engine's.
        """
        timed = sorted(records, key=_place)
        places: dict[str, int] = {}
        steps: dict[str, int] = {}
        seconds: dict[str, float] = {}
        for record in timed:
            places.setdefault(record["version"], len(places))
            if record["step"] is not None:
                steps.setdefault(record["version"], record["step"])
        for record in sorted(timed, key=lambda r: r["source"] != "trainer"):
            if record["time"] is not None:
                seconds.setdefault(record["version"], record["time"] / 1e6)
        return cls(places, steps, seconds)

    def lag(self, ours: str | None, theirs: str | None) -> tuple[float, float, float]:
        """Return by how many versions, steps and seconds one label is behind another, NaN where unknown."""
        if ours is None or theirs is None:
            return _NAN, _NAN, _NAN
        numbers = is_number(ours) and is_number(theirs)
        versions = float(ours) - float(theirs) if numbers else _difference(self.places, ours, theirs)
        return versions, _difference(self.steps, ours, theirs), _difference(self.seconds, ours, theirs)


def _place(record: Mapping[str, Any]) -> tuple[Any, ...]:
    """By time, and never by which came first."""
    time, step = record["time"], record["step"]
    return time is None, time or 0, step is None, step or 0, record["version"]


def _difference(values: Mapping[str, float], ours: str, theirs: str) -> float:
    return float(values[ours]) - float(values[theirs]) if ours in values and theirs in values else _NAN
