"""Import of files with log-probs as segments of a run, each record exactly once.

A file's first record names its writer, so that a moved file is recognised. Its numbered segments are a note with the
time of records without one, the records in pieces, and the end. A segment that the store has is compared by checksum
and not written again. A second import therefore adds nothing, and an interrupted one is completed. A longer file adds
its new records. A file with other records under the same names is refused.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.spool.schema import SCHEMAS
from logprobe.collectors.spool.segments import SpoolWriter
from logprobe.monitor import queries
from logprobe.monitor.exporters import bundle
from logprobe.monitor.home import Home
from logprobe.monitor.importers import reading
from logprobe.monitor.importers.frameworks import BadRecordError, Framework, Place, Row, framework_of
from logprobe.monitor.importers.reading import Unit
from logprobe.monitor.queries import Source
from logprobe.monitor.service.deleting import IMPORTS, listed
from logprobe.monitor.store.archive_identity import IDENTITY

SUFFIXES: Final = (".jsonl", ".parquet", ".pt", ".logprobe")  # of files that a folder is searched for
SHOWN: Final = 20  # bad records that are named; all are counted
_LOOKED_AT: Final = 1000  # records of a file, for the first one with log-probs
_PIECE_ROWS: Final = 256
_PIECE_BYTES: Final = 64 << 20  # a piece ends with the record that takes it beyond
_EVALUATION: Final = re.compile(r"eval_\d+\.pt")  # slime and miles: its samples are numbered like those of training


@dataclass(slots=True)
class ImportReport:
    """Outcome of an import.

    Attributes:
        files: number of files imported now or earlier.
        rows: number of written records by kind.
        known: number of records imported earlier.
        bad_units: number of invalid records.
        bad: at most `SHOWN` faults of invalid records, as ``file:record: reason``.
        refused: refused files, each with reason and remedy.
        left_out: number of unread files in the named folders, by ending or reason.
        warnings: faults of files that were imported.
    """

    files: int = 0
    rows: dict[str, int] = field(default_factory=dict)
    known: int = 0
    bad_units: int = 0
    bad: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Found:
    """Files to import, in natural order (step 2 before step 10), and the number of others by ending or reason."""

    files: list[Path]
    left_out: dict[str, int]


def files_of(paths: Iterable[Path], *, without: Path) -> Found:
    """Find the named files and those in folders. Omit data directories, including `without`.

    Raises `ConfigurationError` if no file remains.
    """
    found: list[Path] = []
    left_out: Counter[str] = Counter()
    for path in paths:
        if not path.exists():
            raise ConfigurationError(f"{path} does not exist; check FILE")
        if not path.is_dir():
            found.append(path)
            continue
        homes = {without, *(mark.parent.resolve() for mark in path.rglob(IDENTITY))}
        below = [file for file in path.rglob("*") if homes.isdisjoint([file.resolve(), *file.resolve().parents])]
        reasons = {file: _unread(file) for file in below if file.is_symlink() or not file.is_dir()}
        read = [file for file, reason in reasons.items() if reason is None]
        left_out.update(reason for reason in reasons.values() if reason is not None)
        if not read:
            there = f" ({listed_by_reason(left_out)})" if left_out else ""
            raise ConfigurationError(f"{path}: no file there ends in {', '.join(SUFFIXES)}{there}; name the files")
        found += read
    return Found(sorted(dict.fromkeys(found), key=lambda path: _natural(str(path))), dict(left_out.most_common()))


def _unread(file: Path) -> str | None:
    """Return the reason for which a file in a folder is not read, or None if it is."""
    if file.is_dir():
        return "link to a folder"
    if not file.is_file():
        return "broken link" if file.is_symlink() else "special file"
    if _EVALUATION.search(file.name):
        return "evaluation (eval_N.pt)"
    return None if file.suffix in SUFFIXES else file.suffix or "without an ending"


def listed_by_reason(counts: Mapping[str, int]) -> str:
    """Return the numbers of files by ending or reason as text.

    >>> listed_by_reason({".gz": 2, "link to a folder": 1})
    '2 .gz, 1 link to a folder'
    """
    return ", ".join(f"{count:,} {reason}" for reason, count in counts.items())


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


class Importer:
    """Importer of files into one run. The caller ingests the spool first."""

    def __init__(self, home: Home, run: str, source: Source) -> None:
        """Read the earlier import. Raises the errors of `source`, `RunDeletedError`."""
        listed(home).refuse(run)
        self.home, self.run = home, run
        self.report = ImportReport()
        self.stored: dict[str, dict[int, Mapping[str, Any]]] = {}  # by writer and number
        for row in queries.import_segments(source, run=run).to_pylist():
            self.stored.setdefault(row["writer"], {})[row["sequence"]] = row
        self.recorded = frozenset(queries.import_recorded(source, run=run)["step"].to_pylist())
        self._open: list[_File] = []

    def add(self, path: Path) -> None:
        """Import a file.

        Raises:
            ConfigurationError: the file is unreadable, has no log-probs, exceeds a limit, or changed since its import.
                Records before the fault are imported.
            OSError: the spool cannot be written.
        """
        bad: list[str] = []
        with reading.memory_limit(path):
            rows = _Rows(_rows_of(path, bad))
            if rows.first is None:
                why = f" ({bad[0]})" if bad else ""
                raise ConfigurationError(f"{path}: none of its records can be used{why}; see docs/import-export.md")
            file = _File(self, path, _writer(path, *rows.first), bad)
            file.take(rows)
        self._open.append(file)
        self.report.files += 1
        self.report.bad_units += len(bad)
        self.report.bad += bad[: max(0, SHOWN - len(self.report.bad))]

    def finish(self) -> ImportReport:
        """Record the end of all files. Raises `OSError`."""
        for file in self._open:  # not before: between two files the run has not ended
            file.end()
        return self.report


def _writer(path: Path, kind: str, row: Mapping[str, Any]) -> str:
    """Return the writer's name of a file, from the trainer's or engine's name in its first record.

    Files of several ranks may begin alike, except debug dumps: ranks of one data-parallel group dump the same samples.
    """
    rank = None if path.suffix == ".pt" else row.get("rank")
    name = json.dumps([kind, row.get("step"), row.get("sample_id"), *([] if rank is None else [rank])], default=str)
    return f"{IMPORTS}{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def _rows_of(path: Path, bad: list[str]) -> Iterator[Row]:
    """Read the rows of a file. Add unusable records to `bad`, with the reason."""
    if path.suffix == ".logprobe":
        yield from bundle.records(path)
        return
    units = reading.units(path)
    head = []
    framework = None
    for unit in itertools.islice(units, _LOOKED_AT):
        head.append(unit)
        if unit.value is not None and (framework := framework_of(unit.value)) is not None:
            break
    if framework is None:
        raise ConfigurationError(_without_logprobs(path, head))
    for position, unit in enumerate(itertools.chain(head, units)):
        try:
            yield _row(framework, unit, Place(path, position))
        except BadRecordError as error:
            bad.append(f"{path.name}:{position + 1}: {error}")


def _row(framework: Framework, unit: Unit, place: Place) -> Row:
    if unit.value is None:
        raise BadRecordError(unit.error)
    other = None if framework.claims(unit.value) else framework_of(unit.value)
    if other is not None:  # its log-probs would be lost
        raise BadRecordError(f"has the columns of {other.name}, the file begins with {framework.name}; split the file")
    return framework.row(unit.value, place)


def _without_logprobs(path: Path, head: Sequence[Unit]) -> str:
    """Return the error text for a file without log-probs, with its content and the remedy."""
    if (known := reading.other_format(path)) is not None:
        there = known
    elif not head:
        there = f"it has no {'row' if path.suffix == '.parquet' else 'complete line'}"
    elif names := next((list(unit.value) for unit in head if unit.value), None):
        there = f"it has {', '.join(names[:5])}{' …' if len(names) > 5 else ''}"  # noqa: PLR2004 - enough to know it by
    else:
        there = f"no line was understood: {head[0].error}"
    return (
        f"{path} holds no log-probs of tokens ({there}); import the framework's token files (docs/import-export.md), or "
        "record the run (docs/recording.md)"
    )


class _Rows:
    """Rows in order, read in pieces."""

    def __init__(self, rows: Iterator[Row]) -> None:
        self._rows = rows
        self._waiting: list[Row] = []
        self.first = self._peek(0)

    def _peek(self, place: int) -> Row | None:
        while len(self._waiting) <= place and (row := next(self._rows, None)) is not None:
            self._waiting.append(row)
        return self._waiting[place] if place < len(self._waiting) else None

    def piece(self, most: int = _PIECE_ROWS) -> list[Row]:
        """Return the next rows of one kind, or none at the end. The rows remain until `drop`."""
        size, place = 0, 0
        while place < most and size <= _PIECE_BYTES and (row := self._peek(place)) is not None:
            if row[0] != self._waiting[0][0]:
                break
            size += sum(8 * len(value) for value in row[1].values() if isinstance(value, list | str))
            place += 1
        return self._waiting[:place]

    def drop(self, count: int) -> None:
        """Remove the first rows."""
        del self._waiting[:count]


class _File:
    """Segments of one file. `stored`: segments in the store by number."""

    def __init__(self, importer: Importer, path: Path, writer: str, bad: list[str]) -> None:
        self._path, self._writer, self._bad = path, writer, bad
        self._home, self._run, self._report = importer.home, importer.run, importer.report
        self._stored = importer.stored.setdefault(writer, {})
        changed = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        self._time = next((row["time"] for row in self._stored.values() if row["time"] is not None), changed)
        self._ends = max((row["ends"] for row in self._stored.values()), default=0)
        self._number, self._bytes, self._records = 1, 0, 0
        self._newest: dict[Any, int] = {}  # highest step so far, by rank
        self._recorded = importer.recorded
        self._warnings: dict[str, str] = {}  # by event
        self._ended, self._noted = False, 0  # whether the end is stored, and how many bad records were noted before it

    def take(self, rows: _Rows) -> None:
        """Write records that the store lacks. Raises `ConfigurationError` if it has other records of this file."""
        if 1 not in self._stored:
            self._note(("imported", "info", self._path.name, 1))
        while self._number < max(self._stored) or rows.piece():
            self._number += 1
            stored, noted = self._stored.get(self._number), len(self._bad)  # before rows that follow are looked at
            if stored is not None and self._is_end(rows, stored):
                self._ended, self._noted = True, noted
            else:
                self._take_piece(rows, stored)

    def end(self) -> None:
        """Write the end of the file and its omissions unless the store has both."""
        if self._ended or self._number + 1 in self._stored:  # by another copy of the file
            return
        bad = self._bad[self._noted :]
        notes = [("closed", "info", f"{self._path.name} was imported", 1)]
        if bad:
            words = f"{self._path.name}: {len(bad)} records left out, e.g. {bad[0]}"
            notes.append(("import_bad_rows", "warning", words, len(bad)))
        notes += [(event, "warning", words, 1) for event, words in self._warnings.items()]
        self._number += 1
        self._note(*notes)

    def _take_piece(self, rows: _Rows, stored: Mapping[str, Any] | None) -> None:
        piece = rows.piece() if stored is None else self._recognised(rows, stored)
        if not piece:
            raise ConfigurationError(
                f"{self._path} begins like a file that was imported into {self._run!r}, but other records follow (from "
                f"record {self._records + 1} on); import another attempt into another run, and give each shard its rank"
            )
        kind, table = self._table(piece)
        self._bytes += table.nbytes
        if self._bytes > reading.most_bytes(self._path):
            raise reading.expanded(self._path)
        if stored is None:
            self._write(kind, table)
            self._report.rows[kind] = self._report.rows.get(kind, 0) + len(piece)
            self._ended = False
        else:
            self._report.known += len(piece)
        self._look_back(piece)
        rows.drop(len(piece))
        self._records += len(piece)

    def _look_back(self, piece: Sequence[Row]) -> None:
        """Note the first record of a step that went before, as after a return to a checkpoint, or that is recorded."""
        for position, (kind, row) in enumerate(piece, self._records + 1):
            if kind != "training":
                continue
            newest, step = self._newest.get(row.get("rank")), row["step"]
            if newest is not None and step < newest:
                self._warn(
                    "import_steps_back",
                    f"record {position} goes back from step {newest} to step {step}; if training resumed there, import each "
                    "attempt into a run of its own, since the records of both count",
                )
            if step in self._recorded:
                self._warn(
                    "import_steps_recorded",
                    f"record {position} is of step {step}, which {self._run!r} has from a collector; unless the file has "
                    "other sequences, import it into another run, since the records of both count",
                )
            self._newest[row.get("rank")] = step if newest is None else max(step, newest)

    def _warn(self, event: str, words: str) -> None:
        if event not in self._warnings:
            self._warnings[event] = f"{self._path.name}: {words}"
            self._report.warnings.append(self._warnings[event])

    def _is_end(self, rows: _Rows, stored: Mapping[str, Any]) -> bool:
        """Return whether a stored segment belongs to `end`. A bundle also contains health records."""
        if stored["kind"] != "health" or self._ends == 0:
            return False
        if any(kind == "health" for kind, _ in rows.piece(1)) and self._recognised(rows, stored):
            return False
        self._ends -= 1
        return True

    def _recognised(self, rows: _Rows, stored: Mapping[str, Any]) -> list[Row]:
        """Return the next rows if they match a stored segment, else none."""
        for most in (stored["rows"], _PIECE_ROWS):  # the store may have left out some
            piece = rows.piece(most)
            if piece and self._spool().place(*self._table(piece)).segment_id == stored["segment_id"]:
                return piece
        return []

    def _table(self, piece: Sequence[Row]) -> tuple[str, pa.Table]:
        kind = piece[0][0]
        timed = [{**row, "time": row.get("time") or self._time} for _, row in piece]
        return kind, pa.Table.from_pylist(timed, schema=SCHEMAS[kind])

    def _spool(self) -> SpoolWriter:
        return SpoolWriter(self._home.path, self._run, self._writer, after=self._number - 1)

    def _note(self, *notes: tuple[str, str, str, int]) -> None:
        """Write health records: event, severity, message, count."""
        common = {"time": self._time, "component": "import", "sequences": 0, "tokens": 0}
        names = ("event", "severity", "message", "count")
        rows: list[Row] = [("health", {**common, **dict(zip(names, note, strict=True))}) for note in notes]
        self._write(*self._table(rows))

    def _write(self, kind: str, table: pa.Table) -> None:
        where = self._spool().write(kind, table)
        row = {"kind": kind, "rows": table.num_rows, "segment_id": where.segment_id, "time": self._time}
        self._stored[self._number] = {**row, "ends": self._ends}
