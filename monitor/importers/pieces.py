"""Writing pieces of source files into the spool, each once: a marker first, then the rows under the numbers that the marker fixed.

A marker is a `health` record with the place of the piece (file, first and last unit), the SHA-256 of its content, and the number of its
first segment. Whoever finds a marker writes exactly those of its segments that are not in the store yet.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from logprobe.collectors.spool.schema import SCHEMAS
from logprobe.collectors.spool.segments import SpoolWriter, run_dir
from logprobe.monitor.analysis.slices import Source
from logprobe.monitor.home import Home
from logprobe.monitor.importers.rows import BadRowError, Row
from logprobe.monitor.importers.source import Format, Place, Stamp, Unit

PIECE_UNITS: Final = 256
_PIECE_BYTES: Final = 64 << 20  # a piece ends with the unit that takes it beyond
# What a value of an unexpected type or shape provokes in a format's reading of it.
_MALFORMED: Final = (LookupError, TypeError, ValueError, ArithmeticError, RecursionError, struct.error)
_SHOWN: Final = 20  # bad units named in a report; all are counted


@dataclass(frozen=True, slots=True)
class Marker:
    """One piece of a source file: units [start, end), and where its segments stand."""

    file: str
    start: int
    end: int
    sha256: str
    sequence: int  # of the marker's own segment; those of `kinds` follow
    time: str  # ISO 8601: of rows that say none themselves, the file's last change when it was first seen
    kinds: tuple[str, ...]
    offset: int = 0  # bytes of the file up to the piece's end, where lines are read
    size: int = 0  # of the file when it was read, and the time of its last change in nanoseconds
    changed: int = 0
    last: bool = False  # the file ended with this piece

    @property
    def segments(self) -> Iterator[tuple[int, str]]:
        """Numbers and kinds of the rows' segments."""
        return enumerate(self.kinds, self.sequence + 1)


@dataclass(slots=True)
class ImportReport:
    """What one import did. `bad`: what was left out, as ``file:line: why``; at most 20 of `bad_units`."""

    files: int = 0
    units: int = 0  # lines, rows or samples that are new
    known: int = 0  # imported before
    rows: dict[str, int] = field(default_factory=dict)  # written, by record kind
    bad_units: int = 0
    bad: list[str] = field(default_factory=list)


class PieceWriter:
    """Writes pieces of files of one format into one run."""

    def __init__(self, home: Home, run: str, form: Format, reader: Source) -> None:
        """Reads what was imported before; the spool has to be ingested. Raises what the reader raises."""
        self._home, self._run, self._form = home, run, form
        self._writer = f"import-{form.name}"
        details = reader.read("import_chunks", run=run, writer=self._writer)["details"].to_pylist()
        segments = reader.read("import_segments", run=run, writer=self._writer)
        self._stored = set(segments["sequence"].to_pylist())
        self.closed = any(segments["closed"].to_pylist())
        self.markers = [Marker(**{**json.loads(text), "kinds": tuple(json.loads(text)["kinds"])}) for text in details]
        ends = [marker.sequence + len(marker.kinds) for marker in self.markers]
        self._next = max([0, *self._stored, *ends]) + 1

    @property
    def folder(self) -> Path:
        """Where its segments wait for the ingest."""
        return run_dir(self._home.path, self._run) / self._writer

    def whole(self, marker: Marker) -> bool:
        """Whether all segments of a piece are written."""
        return all(number in self._stored for number, _ in marker.segments)

    def again(self, path: Path, marker: Marker, piece: Sequence[Unit], report: ImportReport) -> None:
        """Writes what is missing of a known piece. Raises `OSError`."""
        report.known += len(piece)
        missing = [(number, kind) for number, kind in marker.segments if number not in self._stored]
        if missing:
            rows = self._rows(path, marker.file, marker.start, piece, ImportReport())
            for number, kind in missing:
                self._write(number, kind, _timed(rows[kind], marker.time), report)

    def new(self, path: Path, place: Marker, piece: Sequence[Unit], report: ImportReport) -> None:
        """Writes a piece; `place` says where it stands, and gets its numbers here. Raises `OSError`."""
        ours = ImportReport()
        rows = self._rows(path, place.file, place.start, piece, ours)
        marker = Marker(**{**_fields(place), "sequence": self._next, "kinds": tuple(sorted(rows))})
        self._write(marker.sequence, "health", _announcement(marker, ours))
        for number, kind in marker.segments:
            self._write(number, kind, _timed(rows[kind], marker.time), report)
        self._next += 1 + len(marker.kinds)
        report.units += len(piece)
        report.bad_units += ours.bad_units
        report.bad += ours.bad[: max(0, _SHOWN - len(report.bad))]

    def note(self, event: str, severity: str, message: str) -> None:
        """Writes a `health` record of the import. Raises `OSError`."""
        self._write(self._next, "health", [_health(event, severity, message)])
        self._next += 1

    def _rows(
        self, path: Path, name: str, start: int, piece: Sequence[Unit], report: ImportReport
    ) -> dict[str, list[dict[str, Any]]]:
        rows: dict[str, list[dict[str, Any]]] = {}
        for position, unit in enumerate(piece, start):
            found = self._parsed(unit, Place(path, name, position))
            if isinstance(found, str):
                report.bad_units += 1
                if len(report.bad) < _SHOWN:
                    report.bad.append(f"{name}:{position + 1}: {found}")
                continue
            for kind, row in found:
                rows.setdefault(kind, []).append(row)
        return rows

    def _parsed(self, unit: Unit, place: Place) -> list[Row] | str:
        """The rows of a unit, or what is wrong with it."""
        if unit.error is not None:
            return unit.error
        try:
            return list(self._form.parse(unit.value, place))
        except BadRowError as error:
            return str(error)
        except _MALFORMED as error:
            return f"does not match the format ({type(error).__name__}: {error})"

    def _write(self, number: int, kind: str, rows: list[dict[str, Any]], report: ImportReport | None = None) -> None:
        table = pa.Table.from_pylist(rows, schema=SCHEMAS[kind])
        SpoolWriter(self._home.path, self._run, self._writer, after=number - 1).write(kind, table)
        self._stored.add(number)
        if report is not None:
            report.rows = dict(Counter(report.rows) + Counter({kind: len(rows)}))


def place_of(name: str, start: int, piece: Sequence[Unit], stamp: Stamp, *, last: bool) -> Marker:
    """Where a piece stands that has no numbers yet."""
    return Marker(
        file=name,
        start=start,
        end=start + len(piece),
        sha256=digest(piece),
        sequence=0,
        time=datetime.fromtimestamp(stamp.changed / 1e9, UTC).isoformat(),
        kinds=(),
        offset=piece[-1].end,
        size=stamp.size,
        changed=stamp.changed,
        last=last,
    )


def pieces(units: Iterator[Unit]) -> Iterator[tuple[list[Unit], bool]]:
    """The units in pieces, each with whether it is the last one."""
    piece = _piece(units)
    while piece:
        following = next(units, None)
        yield piece, following is None
        piece = [] if following is None else _piece(itertools.chain([following], units))


def digest(piece: Sequence[Unit]) -> str:
    """SHA-256 of the content of a piece."""
    total = hashlib.sha256()
    for unit in piece:
        total.update(len(unit.content).to_bytes(8, "big"))
        total.update(unit.content)
    return total.hexdigest()


def _fields(marker: Marker) -> dict[str, Any]:
    return {name: getattr(marker, name) for name in Marker.__slots__}


def _announcement(marker: Marker, report: ImportReport) -> list[dict[str, Any]]:
    place = f"{marker.file}, units {marker.start + 1} to {marker.end}"
    rows = [{**_health("imported", "info", place), "details": json.dumps(asdict(marker), sort_keys=True)}]
    if report.bad_units:
        text = f"{place}: {report.bad_units} left out, e.g. {report.bad[0]}"
        lost = {"count": report.bad_units, "details": json.dumps({"bad": report.bad})}
        rows.append({**_health("import_bad_rows", "warning", text), **lost})
    return rows


def _health(event: str, severity: str, message: str) -> dict[str, Any]:
    row = {"component": "import", "event": event, "severity": severity, "message": message}
    return {"time": datetime.now(UTC), "count": 1, "sequences": 0, "tokens": 0, **row}


def _piece(units: Iterator[Unit]) -> list[Unit]:
    piece: list[Unit] = []
    size = 0
    for unit in itertools.islice(units, PIECE_UNITS):
        piece.append(unit)
        size += unit.size
        if size > _PIECE_BYTES:
            break
    return piece


def _timed(rows: list[dict[str, Any]], time: str) -> list[dict[str, Any]]:
    otherwise = datetime.fromisoformat(time)
    return [{**row, "time": row.get("time") or otherwise} for row in rows]
