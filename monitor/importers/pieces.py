"""Writing pieces of source files into the spool, each once: a marker first, then the rows under the numbers that the marker fixed.

A marker is a `health` record with the place of the piece (file, first and last unit), the SHA-256 of its content, and the number of its
first segment. Whoever finds a marker writes exactly those of its segments that are not in the store yet.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.spool.schema import SCHEMAS
from logprobe.collectors.spool.segments import SpoolWriter, run_dir
from logprobe.monitor.analysis.slices import Source
from logprobe.monitor.home import Home
from logprobe.monitor.importers.parsing import SHOWN, Known, Piece
from logprobe.monitor.importers.source import Format, Stamp


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


class ChangedError(ConfigurationError):
    """A piece whose content is not what was imported."""

    def __init__(self, path: Path, marker: Marker, run: str) -> None:
        super().__init__(
            f"{path}: units {marker.start + 1} to {marker.end} have changed since they were imported into {run!r}; "
            "import the file into another run"
        )


class PieceWriter:
    """Writes pieces of files of one format into one run."""

    def __init__(self, home: Home, run: str, form: Format, reader: Source) -> None:
        """Reads what was imported before; the spool has to be ingested. Raises what the reader raises."""
        self._home, self._run = home, run
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

    def known(self, markers: Iterable[Marker]) -> tuple[Known, ...]:
        """What to ask for of pieces that have markers."""
        return tuple(Known(marker.end - marker.start, marker.time, not self.whole(marker)) for marker in markers)

    def again(self, path: Path, marker: Marker, piece: Piece, report: ImportReport) -> None:
        """Writes what is missing of a known piece. Raises `OSError`, and `ChangedError` when it is not what was imported."""
        if piece.sha256 != marker.sha256:
            raise ChangedError(path, marker, self._run)
        report.known += piece.end - piece.start
        for number, kind in marker.segments:
            if number not in self._stored:
                self._write(number, kind, piece.tables[kind], report)

    def new(self, piece: Piece, stamp: Stamp, report: ImportReport) -> Marker:
        """Writes a piece, and says under which numbers. `stamp`: of its file. Raises `OSError`."""
        marker = Marker(
            file=piece.file,
            start=piece.start,
            end=piece.end,
            sha256=piece.sha256,
            sequence=self._next,
            time=stamp.time,
            kinds=tuple(sorted(piece.tables)),
            offset=piece.offset,
            size=stamp.size,
            changed=stamp.changed,
            last=piece.last,
        )
        self._write(marker.sequence, "health", _health_table(_announcement(marker, piece)))
        for number, kind in marker.segments:
            self._write(number, kind, piece.tables[kind], report)
        self._next += 1 + len(marker.kinds)
        report.units += piece.end - piece.start
        report.bad_units += piece.bad_units
        report.bad += piece.bad[: max(0, SHOWN - len(report.bad))]
        return marker

    def note(self, event: str, severity: str, message: str) -> None:
        """Writes a `health` record of the import. Raises `OSError`."""
        self._write(self._next, "health", _health_table([_health(event, severity, message)]))
        self._next += 1

    def _write(self, number: int, kind: str, table: pa.Table, report: ImportReport | None = None) -> None:
        SpoolWriter(self._home.path, self._run, self._writer, after=number - 1).write(kind, table)
        self._stored.add(number)
        if report is not None:
            report.rows = dict(Counter(report.rows) + Counter({kind: table.num_rows}))


def _announcement(marker: Marker, piece: Piece) -> list[dict[str, Any]]:
    place = f"{marker.file}, units {marker.start + 1} to {marker.end}"
    rows = [{**_health("imported", "info", place), "details": json.dumps(asdict(marker), sort_keys=True)}]
    if piece.bad_units:
        text = f"{place}: {piece.bad_units} left out, e.g. {piece.bad[0]}"
        lost = {"count": piece.bad_units, "details": json.dumps({"bad": piece.bad})}
        rows.append({**_health("import_bad_rows", "warning", text), **lost})
    return rows


def _health(event: str, severity: str, message: str) -> dict[str, Any]:
    row = {"component": "import", "event": event, "severity": severity, "message": message}
    return {"time": datetime.now(UTC), "count": 1, "sequences": 0, "tokens": 0, **row}


def _health_table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=SCHEMAS["health"])
