"""Units of a source file → pieces: rows of the wire contract as Arrow tables, and what a marker says of them. Pure.

A piece depends on the file alone, so it is the same whoever computes it: a process of this machine, or a node of a Ray cluster.
"""

from __future__ import annotations

import hashlib
import itertools
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from logprobe.collectors.spool.schema import SCHEMAS
from logprobe.monitor.importers.rows import BadRowError, Row
from logprobe.monitor.importers.source import Format, Place, Unit

PIECE_UNITS: Final = 256
SHOWN: Final = 20  # bad units that are named; all are counted
_PIECE_BYTES: Final = 64 << 20  # a piece ends with the unit that takes it beyond
# What a value of an unexpected type or shape provokes in a format's reading of it.
_MALFORMED: Final = (LookupError, TypeError, ValueError, ArithmeticError, RecursionError, struct.error)


@dataclass(frozen=True, slots=True)
class Known:
    """A piece that was imported before. `time`: as in `Wanted`; `rows`: whether some of them were not written."""

    units: int
    time: str
    rows: bool


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked of a file: the pieces that are known, to be compared, and those that follow.

    Attributes:
        path: of the file.
        name: relative to what is imported.
        time: ISO 8601, of rows of new pieces that say none themselves.
        known: in their order, the first of them from `position` on.
        position: how many units come before.
        offset: of a file that is read by lines, how many bytes come before; 0: `position` units are read and left out.
        ended: as in `source.ReadOn`.
    """

    path: Path
    name: str
    time: str
    known: tuple[Known, ...] = ()
    position: int = 0
    offset: int = 0
    ended: bool = True


@dataclass(frozen=True, slots=True)
class Piece:
    """Units [start, end) of a file.

    Attributes:
        file: its name.
        start: of the first unit.
        end: after the last one.
        sha256: of the content.
        offset: bytes of the file up to the piece's end, where lines are read.
        last: whether the file ended with it.
        tables: rows by record kind; empty for a known piece all of whose rows were written.
        bad_units: units that were left out.
        bad: why, as ``file:unit: why``; at most `SHOWN`.
    """

    file: str
    start: int
    end: int
    sha256: str
    offset: int = 0
    last: bool = False
    tables: dict[str, pa.Table] = field(default_factory=dict)
    bad_units: int = 0
    bad: tuple[str, ...] = ()


def pieces(form: Format, wanted: Wanted, units: Iterator[Unit]) -> Iterator[Piece]:
    """The pieces of a file that are asked for. `units`: from byte `wanted.offset` on."""
    position = wanted.position
    if not wanted.offset:
        units = itertools.islice(units, position, None)
    for known in wanted.known:
        found = list(itertools.islice(units, known.units))
        yield _piece(form, wanted, position, found, known.time if known.rows else None)
        position += len(found)
    for found, last in _cut(units):
        yield _piece(form, wanted, position, found, wanted.time, last=last)
        position += len(found)


def _piece(
    form: Format, wanted: Wanted, start: int, units: Sequence[Unit], time: str | None, *, last: bool = False
) -> Piece:
    """`time`: of rows without one; None: no rows are asked for."""
    rows: dict[str, list[dict[str, Any]]] = {}
    bad: list[str] = []
    for position, unit in enumerate(units if time is not None else (), start):
        found = _parsed(form, unit, Place(wanted.path, wanted.name, position))
        if isinstance(found, str):
            bad.append(f"{wanted.name}:{position + 1}: {found}")
            continue
        for kind, row in found:
            rows.setdefault(kind, []).append(row)
    return Piece(
        file=wanted.name,
        start=start,
        end=start + len(units),
        sha256=_digest(units),
        offset=units[-1].end if units else 0,
        last=last,
        tables={kind: _table(kind, found, time or "") for kind, found in rows.items()},
        bad_units=len(bad),
        bad=tuple(bad[:SHOWN]),
    )


def _parsed(form: Format, unit: Unit, place: Place) -> list[Row] | str:
    """The rows of a unit, or what is wrong with it."""
    if unit.error is not None:
        return unit.error
    try:
        return list(form.parse(unit.value, place))
    except BadRowError as error:
        return str(error)
    except _MALFORMED as error:
        return f"does not match the format ({type(error).__name__}: {error})"


def _table(kind: str, rows: Sequence[dict[str, Any]], time: str) -> pa.Table:
    otherwise = datetime.fromisoformat(time)
    return pa.Table.from_pylist([{**row, "time": row.get("time") or otherwise} for row in rows], schema=SCHEMAS[kind])


def _digest(units: Sequence[Unit]) -> str:
    """SHA-256 of their content."""
    total = hashlib.sha256()
    for unit in units:
        total.update(len(unit.content).to_bytes(8, "big"))
        total.update(unit.content)
    return total.hexdigest()


def _cut(units: Iterator[Unit]) -> Iterator[tuple[list[Unit], bool]]:
    """The units of one piece after the other, each with whether it is the last one."""
    found = _next(units)
    while found:
        following = next(units, None)
        yield found, following is None
        found = [] if following is None else _next(itertools.chain([following], units))


def _next(units: Iterator[Unit]) -> list[Unit]:
    found: list[Unit] = []
    size = 0
    for unit in itertools.islice(units, PIECE_UNITS):
        found.append(unit)
        size += unit.size
        if size > _PIECE_BYTES:
            break
    return found
