"""Determine the weight versions of sampled tokens and of loaded weights.

An engine states for each token the event that decided its version, as far as the engine knows, and the event's time. A
later mark that precedes the token's step overrides it. The order in which marks and rollout records arrive therefore
does not matter.

A span is (start, end, version), with version None if unknown. Dimensions: ``_N`` tokens of one record.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Span = tuple[int, int, str | None]
Spans = tuple[Span, ...]
Change = tuple[int, str | None]  # from this moment on, weights are of this version
_EARLIEST: Final = -(1 << 63)  # no moment decided: nothing was known
PATIENCE: Final = 5_000_000  # a mark so soon after weights were seen to have changed is about that
_LOOK_BACK: Final = 60_000_000  # and further, until there is a mark


class Mark(NamedTuple):
    """A mark of a version. `moment` is on the monotonic clock of `machine`, `wall` on the wall clock, in microseconds.

    `of`: record of an engine whose weights may have changed at `moment` without another mark.
    """

    moment: int
    wall: int | None
    machine: str | None
    replica: str | None
    adapter: str | None
    version: str | None
    step: int | None = None
    of: Seen | None = None


class Seen(NamedTuple):
    """An engine's record about its weights, see `collectors.spool.schema.SEEN`. Times are in microseconds.

    The record describes an update from `began` to `ended`, or with `reading` the weights that a worker read. `version`:
    the engine's own label since `decided`. `since`, `until`: interval in which a mark names weights that changed
    unannounced.
    """

    reading: bool
    version: str | None
    touched: bool
    began: int
    ended: int
    decided: int | None
    machine: str | None
    clock_offset: int | None
    clock_set: int | None
    engine_started: int | None
    replica: str | None
    adapter: str | None
    moment: int | None
    since: int | None
    until: int | None


class Named(NamedTuple):
    """Version of an engine's record according to the marks. `at`: wall-clock time of the mark that decided."""

    version: str | None
    step: int | None = None
    at: int | None = None
    update: bool = True
    unannounced: bool = False


class Decision(NamedTuple):
    """The event at `at` that decided the version of the tokens up to `end`.

    `first` and `last`: times of the first and the last step of these tokens.
    """

    end: int | None
    at: int | None
    first: int | None
    last: int | None


class Decided(NamedTuple):
    """Versions of one rollout record with the engine's decisions, see `collectors.spool.schema.ROLLOUT`."""

    spans: Spans
    decisions: tuple[Decision, ...]
    n_tokens: int
    machine: str | None
    clock_offset: int | None
    clock_set: int | None
    engine_started: int | None
    replica: str | None
    adapter: str | None


About: TypeAlias = Decided | Seen  # an engine's record: marks are about its machine's clock, replica and adapter


class Marks:
    """Marks of a run, sorted by each clock."""

    def __init__(self) -> None:
        self._own: dict[str, list[Mark]] = {}  # by machine
        self._walls: list[Mark] = []
        self.changes: list[Mark] = []  # of what engines saw change
        self._loads: dict[
            tuple[str | None, ...], list[tuple[int, int]]
        ] = {}  # of an adapter: moments of load and files

    def add(self, mark: Mark) -> None:
        """Add a mark."""
        if mark.machine is not None:
            own = self._own.setdefault(mark.machine, [])
            own.insert(bisect_left(own, mark.moment, key=_moment), mark)
        if mark.wall is not None:
            self._walls.insert(bisect_left(self._walls, mark.wall, key=_wall), mark)
        if mark.of is not None:
            self.changes.append(mark)
            if mark.adapter is not None and mark.of.since is not None:
                insort(self._loads.setdefault(_adapter(mark.of), []), (mark.moment, mark.of.since))

    def about(self, record: Decided) -> list[list[Change]]:
        """Return for each decision of a record the marks that override it, ascending, or nothing if no decision has
        any."""
        last, started = record.decisions[-1].last if record.decisions else None, record.engine_started
        if last is None or started is None:
            return []
        found = []
        for decision in record.decisions:
            first = started if decision.at is None else max(started, decision.at + 1)
            until = first - 1 if decision.last is None else min(decision.last, last)
            changes = self._since_last(record, first, decision.first, until)
            changes += [change for change in self._unplaced(record) if first <= change[0] <= until]
            found.append(sorted(changes, key=lambda change: (change[0], change[1] is None, change[1])))
        return found if any(found) else []

    def _since_last(self, record: Decided, first: int, begin: int | None, until: int) -> list[Change]:
        """Return the marks that concern tokens from `begin` to `until`.

        If no adapter load has shifted a mark, only the last ones before `begin` are included.
        """
        whole = begin is None or _adapter(record) in self._loads
        back = until if begin is None else _LOOK_BACK
        while True:
            low = first if whole or begin is None else max(first, begin - back)
            changes = [(moment, mark.version) for moment, mark in self._between(record, low, until)]
            if low == first or any(moment <= (begin or 0) for moment, _ in changes):
                return changes
            back *= 8

    def name(self, seen: Seen) -> Named:
        """Return the version of an engine's record, by the engine's own label and the marks."""
        started = seen.engine_started
        at = seen.began if seen.reading else seen.ended
        if started is None:
            return Named(seen.version)
        first = started if seen.decided is None else max(started, seen.decided + 1)
        last = self._last(seen, first, at)
        decided, named = seen.decided, Named(seen.version)
        if last is not None:
            decided, mark = last
            named = Named(mark.version, mark.step, decided + (seen.clock_offset or 0))
        if any(decided is None or decided < moment for moment, _ in self._unplaced(seen)):
            named = Named(None)
        if not seen.reading:  # a pause alone is none
            before = seen._replace(reading=True, ended=seen.began, moment=None)
            return named._replace(update=seen.touched or self.name(before).version != named.version)
        if self._last(seen, seen.began + 1, seen.ended) is not None:  # which is it?
            named = Named(None)
        return named._replace(unannounced=self._is_unannounced(seen))

    def _is_unannounced(self, seen: Seen) -> bool:
        """Return whether weights of a known version changed without a load, a label or a mark."""
        if seen.moment is None or seen.since is None or seen.until is None or seen.adapter is not None:
            return False
        before = seen._replace(began=seen.moment - 1, ended=seen.moment - 1, moment=None)
        known = self.name(before).version is not None
        return known and not any(self._naming(seen, seen.since, seen.until + PATIENCE))

    def _last(self, seen: About, first: int, last: int) -> tuple[int, Mark] | None:
        found = list(self._between(seen, first, last))
        return max(found, key=lambda each: (each[0], each[1].version is None, each[1].version), default=None)

    def _between(self, record: About, first: int, last: int) -> Iterator[tuple[int, Mark]]:
        """Yield the marks that concern a record between two moments of its machine's clock, each with its effective
        time.

        A mark of an adapter whose files were read later takes effect at that time. Until then, requests use the
        previous files.
        """
        newest: dict[int, tuple[int, Mark]] = {}  # by load
        for moment, mark in self._placed(record, first, last):
            if mark.of is not None and any(self._naming(mark.of, mark.of.since, mark.of.until)):
                continue
            loaded = None if mark.of is not None else self._loaded(record, moment)
            if loaded is None:
                yield moment, mark
                continue
            yield moment, mark._replace(version=None)
            newest[loaded] = max(newest.get(loaded, (moment, mark)), (moment, mark), key=_of_moment)
        for loaded, (moment, mark) in newest.items():
            unknown = any(each.version is None for _, each in self._placed(record, moment + 1, loaded - 1))
            if loaded <= last and not unknown:
                yield loaded, mark

    def _loaded(self, record: About, moment: int) -> int | None:
        """Return the load time of the adapter that a mark at `moment` concerns, if the files preceded the mark and the
        load followed it."""
        loads = () if record.adapter is None else self._loads.get(_adapter(record), ())
        index = bisect_right(loads, moment, key=_of_moment)
        return loads[index][0] if index < len(loads) and loads[index][1] < moment else None

    def _naming(self, change: Seen, since: int | None, until: int | None) -> Iterator[Mark]:
        """Yield the marks that name the weights of a change seen by an engine."""
        if since is not None and until is not None:
            for _, mark in self._placed(change, since + 1, until):
                if mark.version is not None:
                    yield mark

    def _placed(self, record: About, first: int, last: int) -> Iterator[tuple[int, Mark]]:
        if record.machine is not None:
            for mark in _range(self._own.get(record.machine, ()), first, last, _moment):
                if _is_about(mark, record):
                    yield mark.moment, mark
        if (offset := record.clock_offset) is not None:
            if record.clock_set is not None:
                first = max(first, record.clock_set)
            for mark in _range(self._walls, first + offset, last + offset, _wall):
                if _is_foreign(mark, record) and _is_about(mark, record):
                    yield _wall(mark) - offset, mark

    def _unplaced(self, record: About) -> list[Change]:
        """Return the moments from which marks of other machines make the versions of a record unknown.

        After its wall clock was set, such marks cannot be ordered.
        """
        if record.clock_set is None or record.engine_started is None:
            return []
        if not any(_is_foreign(mark, record) and _is_about(mark, record) for mark in self._walls):
            return []
        begin = record.engine_started
        if isinstance(record, Decided) and record.decisions and record.decisions[0].first is not None:
            begin = record.decisions[0].first
        return [(begin, None), (max(begin, record.clock_set), None)]


def _moment(mark: Mark) -> int:
    return mark.moment


def _of_moment(each: tuple[int, Any]) -> int:
    return each[0]


def _adapter(record: About) -> tuple[str | None, ...]:
    return record.machine, record.replica, record.adapter


def _wall(mark: Mark) -> int:
    return mark.wall if mark.wall is not None else _EARLIEST


def _range(marks: Sequence[Mark], first: int, last: int, key: Any) -> Sequence[Mark]:
    return marks[bisect_left(marks, first, key=key) : bisect_right(marks, last, key=key)]


def _is_foreign(mark: Mark, record: About) -> bool:
    return mark.machine is None or mark.machine != record.machine


def _is_about(mark: Mark, record: About) -> bool:
    """Return whether a mark concerns a record.

    An engine's mark without a version makes the version of its weights and of all adapters unknown.
    """
    of_adapter = mark.adapter == record.adapter or (mark.version is None and mark.adapter is None)
    return of_adapter and (mark.replica is None or mark.replica in _names(record.replica))


def _names(replica: str | None) -> tuple[str, ...]:
    """Return the names of a replica: its own, and that of its engine before the suffix ``-dp<number>``."""
    if replica is None:
        return ()
    engine, found, number = replica.rpartition("-dp")
    return (replica, engine) if found and number.isascii() and number.isdigit() else (replica,)


def resolved(record: Decided, marks: Sequence[Sequence[Change]], times_N: NDArray[np.int64] | None) -> Spans:
    """Return the spans of a record after applying the marks of each decision, see `Marks.about`.

    `times_N`: start times of the tokens' steps. Without them, a mark within a decision makes the version of its tokens
    unknown. An inconsistent record has no spans.

    >>> record = Decided(((0, 3, "1"),), (Decision(3, 10, 12, 30),), 3, "host", 0, None, 5, None, None)
    >>> resolved(record, [[(15, "2")]], np.array([12, 20, 30]))
    ((0, 1, '1'), (1, 3, '2'))
    """
    count = record.n_tokens
    ends = [decision.end for decision in record.decisions if decision.end is not None]
    whole = len(ends) == len(record.decisions) and [0, *ends] == sorted({0, *ends}) and ends[-1] == count
    lasts = [decision.last for decision in record.decisions if decision.last is not None]
    if not whole or (len(lasts) < len(ends) if times_N is None else len(times_N) != count):
        return ()
    versions_N = np.full(count, None, object)
    for start, end, version in record.spans:
        versions_N[start:end] = version
    for (start, end), decision, changes in zip(pairwise([0, *ends]), record.decisions, marks, strict=True):
        of_decision = versions_N[start:end]
        for moment, version in changes:
            if decision.first is not None and moment <= decision.first:
                of_decision[:] = version
            else:
                of_decision[slice(None) if times_N is None else times_N[start:end] >= moment] = (
                    None if times_N is None else version
                )
    return tuple(_runs(versions_N.tolist()))


def _runs(versions: Sequence[str | None]) -> Iterator[Span]:
    starts = [at for at in range(len(versions)) if at == 0 or versions[at] != versions[at - 1]]
    for start, end in pairwise([*starts, len(versions)]):
        yield start, end, versions[start]


class Stated(NamedTuple):
    """Version of the tokens [start, end), and of those under the mask among them, as the trainer states it."""

    start: int
    end: int
    sampled_start: int
    sampled_end: int
    version: str | None


class Piece(NamedTuple):
    """Tokens [start, end) with their version according to engine and trainer, None if unknown."""

    start: int
    end: int
    engine: str | None
    stated: str | None


def pieces(spans: Spans | None, stated: Sequence[Stated], alignment: str | None) -> list[Piece]:
    """Return the versions of engine and trainer side by side, in tokens of the engine's record.

    Without an `alignment`, the engine's spans are ignored and positions count the tokens under the mask.
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
    """Return the version of each token according to engine or trainer, or None where the two differ."""
    return tuple((p.start, p.end, _agreed(p.engine, p.stated)) for p in found)


def _agreed(engine: str | None, stated: str | None) -> str | None:
    if engine is None or stated is None or engine == stated:
        return stated if engine is None else engine
    return None


def counts(found: Sequence[Piece]) -> tuple[int, int]:
    """Return the number of tokens whose version both sides state, and the number of differences among them."""
    both = [p for p in found if p.engine is not None and p.stated is not None]
    return sum(p.end - p.start for p in both), sum(p.end - p.start for p in both if p.engine != p.stated)


def by_version(spans: Spans | None, n: int) -> dict[str | None, int]:
    """Return the number of the first `n` tokens by version. Tokens without a span have version None."""
    tokens: dict[str | None, int] = {}
    for start, end, version in spans or ():
        tokens[version] = tokens.get(version, 0) + max(min(end, n) - max(start, 0), 0)
    uncovered = n - sum(tokens.values())
    if uncovered > 0:
        tokens[None] = tokens.get(None, 0) + uncovered
    return {version: count for version, count in tokens.items() if count > 0}
