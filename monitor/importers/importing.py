"""Source files → spool, each piece once.

A file is taken in pieces of some hundred units. Before a piece is written, its marker is: a `health` record with the place of the
piece (file, first and last unit), the SHA-256 of its content, and the number of its first segment. A run of the importer that finds
a marker writes exactly the segments that are not in the store yet, under the numbers that the marker gave them. So an import that
was killed goes on where it stopped, a second one adds nothing, and a log that has grown adds what is new. A piece whose content has
changed is an error, never a second copy.
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import json
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from logprobe.collectors.errors import ConfigurationError, HomeBusyError
from logprobe.collectors.schema import SCHEMAS
from logprobe.collectors.spool import SpoolWriter
from logprobe.monitor.home import Home
from logprobe.monitor.importers.rows import BadRowError, Row
from logprobe.monitor.importers.source import Format, Place, Unit, files
from logprobe.monitor.slices import Source

PIECE_UNITS: Final = 256
# What a value of an unexpected type or shape provokes in a format's reading of it.
_MALFORMED: Final = (LookupError, TypeError, ValueError, ArithmeticError, struct.error)
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


@dataclass(slots=True)
class ImportReport:
    """What one import did. `bad`: what was left out, as ``file:line: why``; at most 20 of `bad_units`."""

    files: int = 0
    units: int = 0  # lines, rows or samples that are new
    known: int = 0  # imported before
    rows: dict[str, int] = field(default_factory=dict)  # written, by record kind
    bad_units: int = 0
    bad: list[str] = field(default_factory=list)


class Importer:
    """Imports files of one format into one run."""

    def __init__(self, home: Home, run: str, form: Format, reader: Source) -> None:
        """Reads what was imported before; the spool has to be ingested. Raises what the reader raises."""
        self._home, self._run, self._form = home, run, form
        self._writer = f"import-{form.name}"
        details = reader.read("import_chunks", run=run, writer=self._writer)["details"].to_pylist()
        segments = reader.read("import_segments", run=run, writer=self._writer)
        self._stored = set(segments["sequence"].to_pylist())
        self._closed = any(segments["closed"].to_pylist())
        self._markers = [Marker(**{**json.loads(text), "kinds": tuple(json.loads(text)["kinds"])}) for text in details]
        ends = [marker.sequence + len(marker.kinds) for marker in self._markers]
        self._next = max([0, *self._stored, *ends]) + 1

    def run(self, root: Path, progress: Callable[[ImportReport, str], None] = lambda *_: None) -> ImportReport:
        """Writes what is new below `root`; `progress` hears of every file.

        Raises:
            ConfigurationError: nothing to import there, or what was imported before has changed since.
            OSError: a file cannot be read, or the spool not be written.
        """
        report = ImportReport()
        for path, name in files(root, self._form.patterns, without=self._home.path):
            self._file(path, name, report)
            report.files += 1
            progress(report, name)
        if not self._closed and (self._markers or report.units):
            self._write(self._next, "health", [_health("closed", "info", "import finished")])
        return report

    def _file(self, path: Path, name: str, report: ImportReport) -> None:
        units = self._form.read(path)
        position = 0
        for marker in sorted((m for m in self._markers if m.file == name), key=lambda m: m.start):
            piece = list(itertools.islice(units, marker.end - marker.start))
            if len(piece) < marker.end - marker.start or _digest(piece) != marker.sha256:
                raise ConfigurationError(
                    f"{path}: units {marker.start + 1} to {marker.end} have changed since they were imported into "
                    f"{self._run!r}; import the file into another run"
                )
            self._again(path, marker, piece, report)
            position = marker.end
        while piece := list(itertools.islice(units, PIECE_UNITS)):
            self._new(path, name, position, piece, report)
            position += len(piece)

    def _again(self, path: Path, marker: Marker, piece: Sequence[Unit], report: ImportReport) -> None:
        report.known += len(piece)
        missing = [
            (number, kind)
            for number, kind in enumerate(marker.kinds, marker.sequence + 1)
            if number not in self._stored
        ]
        if missing:
            rows = self._rows(path, marker.file, marker.start, piece, ImportReport())
            for number, kind in missing:
                self._write(number, kind, _timed(rows[kind], marker.time), report)

    def _new(self, path: Path, name: str, start: int, piece: Sequence[Unit], report: ImportReport) -> None:
        ours = ImportReport()
        rows = self._rows(path, name, start, piece, ours)
        marker = Marker(
            file=name,
            start=start,
            end=start + len(piece),
            sha256=_digest(piece),
            sequence=self._next,
            time=datetime.fromtimestamp(path.stat().st_mtime, UTC).isoformat(),
            kinds=tuple(sorted(rows)),
        )
        self._write(marker.sequence, "health", _announcement(marker, ours))
        for number, kind in enumerate(marker.kinds, marker.sequence + 1):
            self._write(number, kind, _timed(rows[kind], marker.time), report)
        self._next += 1 + len(marker.kinds)
        report.units += len(piece)
        report.bad_units += ours.bad_units
        report.bad += ours.bad[: _SHOWN - len(report.bad)]

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
            return f"not as the format has it ({type(error).__name__}: {error})"

    def _write(self, number: int, kind: str, rows: list[dict[str, Any]], report: ImportReport | None = None) -> None:
        table = pa.Table.from_pylist(rows, schema=SCHEMAS[kind])
        SpoolWriter(self._home.path, self._run, self._writer, after=number - 1).write(kind, table)
        if report is not None:
            report.rows = dict(Counter(report.rows) + Counter({kind: len(rows)}))


@contextmanager
def alone(home: Home) -> Iterator[None]:
    """One import at a time and home. Raises `HomeBusyError` when another is at work."""
    home.create()
    with (home.path / "import.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HomeBusyError(f"{home.path}: another import is at work; wait for its end") from None
        yield


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


def _digest(piece: Sequence[Unit]) -> str:
    total = hashlib.sha256()
    for unit in piece:
        total.update(len(unit.content).to_bytes(8, "big"))
        total.update(unit.content)
    return total.hexdigest()


def _timed(rows: list[dict[str, Any]], time: str) -> list[dict[str, Any]]:
    otherwise = datetime.fromisoformat(time)
    return [{**row, "time": row.get("time") or otherwise} for row in rows]
