"""Source files → spool, each piece once: a marker first, then the rows under the numbers that the marker fixed.

An import that was killed continues where it stopped, a second one adds nothing, and a log that has grown adds what is
new. A piece whose content has changed is an error, never a second copy.

`prepare` is mapped over the files, by this machine's threads or on a Ray cluster. It reads and takes apart, and writes
nothing. What it returns of a file is bounded; of a larger one the rest is left to the caller.

A marker is a `health` record with the place of the piece (file, first and last unit), the SHA-256 of its content, and
the number of its first segment. A process that finds a marker writes exactly those of its segments that are not in the
store yet.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import itertools
import json
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pyarrow as pa

from logprobe.collectors.errors import ConfigurationError, HomeBusyError, LogprobeError
from logprobe.collectors.spool.schema import SCHEMAS
from logprobe.collectors.spool.segments import SpoolWriter, run_dir
from logprobe.monitor import queries
from logprobe.monitor.deletion.tombstones import Tombstones
from logprobe.monitor.home import Home
from logprobe.monitor.importers.reading import Reading
from logprobe.monitor.importers.source import SHOWN, EarlierPiece, Format, Piece, Stamp, Wanted, files
from logprobe.monitor.parallel.pool import Pool
from logprobe.monitor.queries import Source

_TAKEN: Final = frozenset({errno.EACCES, errno.EAGAIN})
BATCH_BYTES: Final = 8 << 20  # of files that are one task; a larger file is one by itself
BATCH_FILES: Final = 256
FILE_BYTES: Final = 256 << 20  # of rows that a task returns of one file, about

_KEPT: Final = threading.local()  # the reading process of a worker: to start one takes longer than to read a small file


class Importer:
    """Imports files of one format into one run."""

    def __init__(self, home: Home, run: str, form: Format, reader: Source) -> None:
        """Reads what was imported before; the spool has to be ingested. Raises what the reader raises,
        `RunDeletedError`."""
        Tombstones(home).refuse(run)
        self._home, self._run, self._form = home, run, form
        self._writer = PieceWriter(home, run, form, reader)

    def run(
        self, root: Path, pool: Pool, progress: Callable[[ImportReport, str, int], None] = lambda *_: None
    ) -> ImportReport:
        """Writes what is new below `root`, file by file, while workers of `pool` read those that follow.

        `progress` hears of every file, and of how many there are.

        Raises:
            ConfigurationError: nothing to import there, or what was imported before has changed since.
            OSError: a file cannot be read, or the spool not be written.
        """
        report = ImportReport()
        chosen = [
            _File(path, name, Stamp.of(path.stat()))
            for path, name in files(root, self._form.patterns, without=self._home.path)
        ]
        markers = self._markers()
        wanted = [self._wanted(file, markers.get(file.name, [])) for file in chosen]
        work = batches(self._form.name, ((asked, file.stamp.size) for asked, file in zip(wanted, chosen, strict=True)))
        with Reading(self._form.name) as own:
            prepared = itertools.chain.from_iterable(pool.map(prepare, work))
            for file, asked, made in zip(chosen, wanted, prepared, strict=False):  # nothing comes after one that failed
                self._write(file, markers.get(file.name, []), _pieces(own, asked, made), report)
                report.files += 1
                progress(report, file.name, len(chosen))
        if not self._writer.closed and (self._writer.markers or report.units):
            self._writer.note("closed", "info", "import finished")
        return report

    def _markers(self) -> dict[str, list[Marker]]:
        """By file, in their order."""
        by_file: dict[str, list[Marker]] = {}
        for marker in sorted(self._writer.markers, key=lambda marker: marker.start):
            by_file.setdefault(marker.file, []).append(marker)
        return by_file

    def _wanted(self, file: _File, markers: list[Marker]) -> Wanted:
        return Wanted(file.path.absolute(), file.name, file.stamp.time, self._writer.earlier(markers))

    def _write(self, file: _File, markers: list[Marker], pieces: Iterator[Piece], report: ImportReport) -> None:
        for marker in markers:
            self._writer.again(file.path, marker, next(pieces), report)
        for piece in pieces:
            self._writer.new(piece, file.stamp, report)


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    name: str
    stamp: Stamp


def _pieces(own: Reading, asked: Wanted, made: Prepared) -> Iterator[Piece]:
    """Of one file: what a worker made of it, then what it left. Raises why it ended early."""
    for piece in made.pieces:
        if any(not table.schema.equals(SCHEMAS[kind]) for kind, table in piece.tables.items()):
            raise ConfigurationError(f"{made.host} has another version of logprobe; install the same on every node")
        yield piece
    if made.rest:
        yield from own.pieces(after(asked, made.pieces))
    if isinstance(made.failure, FileNotFoundError) and asked.path.exists():
        raise ConfigurationError(
            f"{made.host} cannot read {asked.path} as it is here ({made.failure}): every node needs it at the same path"
        )
    if made.failure is not None:
        raise made.failure


@contextmanager
def alone(home: Home, run: str, form: Format) -> Iterator[None]:
    """One import at a time of a format into a run. Raises `HomeBusyError` when another is running."""
    home.create()
    descriptor = os.open(home.path / "import.lock", os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    name = hashlib.sha256(f"{run}/{form.name}".encode()).digest()
    with os.fdopen(descriptor, "w") as file:
        try:  # one byte of the file stands for this run and format
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, int.from_bytes(name[:4], "big"))
        except OSError as error:
            if error.errno not in _TAKEN:
                raise
            raise HomeBusyError(
                f"{home.path}: another {form.name} import into {run!r} is running; wait for it, or stop it"
            ) from None
        yield


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive files of an import. `form`: a name of `formats.FORMATS`; `sizes`: of the files, as the caller sees
    them."""

    form: str
    files: tuple[Wanted, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Prepared:
    """What was made of one file. `rest`: whether more is to come; `failure`: why it ended early; `host`: who says
    so."""

    pieces: list[Piece] = field(default_factory=list)
    rest: bool = False
    failure: Exception | None = None
    host: str = ""


def prepare(batch: Batch) -> list[Prepared]:
    """One entry per file; none after the first that failed."""
    prepared = []
    for wanted, size in zip(batch.files, batch.sizes, strict=True):
        prepared.append(_prepared(batch.form, wanted, size))
        if prepared[-1].failure is not None:
            break
    return prepared


def after(wanted: Wanted, done: list[Piece]) -> Wanted:
    """What is left to ask for."""
    if not done:
        return wanted
    return replace(wanted, earlier=wanted.earlier[len(done) :], position=done[-1].end, offset=done[-1].offset)


def batches(form: str, files: Iterable[tuple[Wanted, int]]) -> Iterator[Batch]:
    """Files with their sizes, in batches.

    >>> from pathlib import Path
    >>> sizes = [5 << 20, 5 << 20, 1, 2, 9 << 20, 3]
    >>> [batch.sizes for batch in batches("jsonl", ((Wanted(Path("a"), "a", ""), size) for size in sizes))]
    [(5242880,), (5242880, 1, 2), (9437184,), (3,)]
    """
    chosen: list[tuple[Wanted, int]] = []
    total = 0
    for wanted, size in files:
        if chosen and (total + size > BATCH_BYTES or len(chosen) >= BATCH_FILES):
            yield _batch(form, chosen)
            chosen, total = [], 0
        chosen.append((wanted, size))
        total += size
    if chosen:
        yield _batch(form, chosen)


def _batch(form: str, chosen: Iterable[tuple[Wanted, int]]) -> Batch:
    files, sizes = zip(*chosen, strict=True)
    return Batch(form, files, sizes)


def _prepared(form: str, wanted: Wanted, size: int) -> Prepared:
    host, reading = socket.gethostname(), _reading(form)
    done: list[Piece] = []
    try:
        if wanted.path.stat().st_size < size:
            raise FileNotFoundError(f"{wanted.path} has {wanted.path.stat().st_size:,} of {size:,} bytes")
        held = 0
        for piece in reading.pieces(wanted):
            done.append(piece)
            held += sum(table.nbytes for table in piece.tables.values())
            if held > FILE_BYTES and not piece.last:
                reading.close()  # it is in the middle of the file
                return Prepared(done, rest=True, host=host)
    except (LogprobeError, OSError) as error:
        reading.close()
        return Prepared(done, failure=error, host=host)
    return Prepared(done, host=host)


def _reading(form: str) -> Reading:
    """Of this thread; ends with it."""
    kept: Reading | None = getattr(_KEPT, "reading", None)
    if kept is None or kept.form != form:
        kept = _KEPT.reading = Reading(form)
    return kept


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
        details = queries.import_chunks(reader, run=run, writer=self._writer)["details"].to_pylist()
        segments = queries.import_segments(reader, run=run, writer=self._writer)
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

    def earlier(self, markers: Iterable[Marker]) -> tuple[EarlierPiece, ...]:
        """What to ask for of pieces that have markers."""
        return tuple(EarlierPiece(marker.end - marker.start, marker.time, not self.whole(marker)) for marker in markers)

    def again(self, path: Path, marker: Marker, piece: Piece, report: ImportReport) -> None:
        """Writes what is missing of a known piece. Raises `OSError`, and `ChangedError` when it is not what was
        imported."""
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


def _announcement(marker: Marker, piece: Piece) -> list[dict[str, object]]:
    place = f"{marker.file}, units {marker.start + 1} to {marker.end}"
    rows = [{**_health("imported", "info", place), "details": json.dumps(asdict(marker), sort_keys=True)}]
    if piece.bad_units:
        text = f"{place}: {piece.bad_units} left out, e.g. {piece.bad[0]}"
        lost = {"count": piece.bad_units, "details": json.dumps({"bad": piece.bad})}
        rows.append({**_health("import_bad_rows", "warning", text), **lost})
    return rows


def _health(event: str, severity: str, message: str) -> dict[str, object]:
    row = {"component": "import", "event": event, "severity": severity, "message": message}
    return {"time": datetime.now(UTC), "count": 1, "sequences": 0, "tokens": 0, **row}


def _health_table(rows: list[dict[str, object]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=SCHEMAS["health"])
