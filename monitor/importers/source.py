"""Source files, taken apart into units: a line, a row, a sample. A unit that cannot be read is one bad unit, no more.

Units become pieces: rows of the wire contract as Arrow tables, and what a marker says of them. A piece depends on the
file alone, so it is the same wherever it is computed: a process of this machine, or a node of a Ray cluster.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.spool.schema import SCHEMAS
from logprobe.monitor import limits
from logprobe.monitor.importers.rows import BadRowError, Row

_SLICE_BYTES: Final = 16 << 20  # of Arrow data that becomes Python values at once
PIECE_UNITS: Final = 256
SHOWN: Final = 20  # bad units that are named; all are counted
_PIECE_BYTES: Final = 64 << 20  # a piece ends with the unit that takes it beyond
# What a value of an unexpected type or shape provokes in a format's reading of it.
_MALFORMED: Final = (LookupError, TypeError, ValueError, ArithmeticError, RecursionError, struct.error)


@dataclass(frozen=True, slots=True)
class Unit:
    """One piece of a source file. `content`: what its identity hangs on; `error`: why it has no value; `size`: in
    bytes, about; `end`: of a line, in bytes from the file's start."""

    content: bytes
    value: Any = None
    error: str | None = None
    size: int = 0
    end: int = 0


@dataclass(frozen=True, slots=True)
class Place:
    """Where a unit stands: file (relative to what was asked for), and its position, from 0."""

    path: Path
    file: str
    position: int

    @property
    def sample_id(self) -> str:
        """A name for a sample whose source gives it none."""
        return f"{self.file}:{self.position + 1}"


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a file's metadata say of its content: size in bytes, time of the last change in nanoseconds."""

    size: int
    changed: int

    @classmethod
    def of(cls, status: os.stat_result) -> Stamp:
        """Of what `stat` found."""
        return cls(status.st_size, status.st_mtime_ns)

    @property
    def time(self) -> str:
        """Of the last change, ISO 8601."""
        return datetime.fromtimestamp(self.changed / 1e9, UTC).isoformat()


Read: TypeAlias = Callable[[Path], Iterator[Unit]]
# From a position in bytes, and whether the file has ended: what is left at its end is then taken as it is.
ReadOn: TypeAlias = Callable[[Path, int, bool], Iterator[Unit]]
Parse: TypeAlias = Callable[[Any, Place], Iterable[Row]]


@dataclass(frozen=True, slots=True)
class Format:
    """What can be imported: its name, the files of a folder that hold it, and how to read and understand them."""

    name: str
    words: str
    patterns: tuple[str, ...]
    read: Read
    parse: Parse
    read_on: ReadOn | None = None  # of files that grow by lines
    in_parts: bool = False  # `read` leaves out an end that is still being written
    complete: Callable[[Path], str | None] = lambda _: None  # why a file must not be followed yet


def files(root: Path, patterns: Sequence[str], *, without: Path) -> list[tuple[Path, str]]:
    """The files to import with their names below `root`, in natural order, but none below `without`, the home itself.
    Raises `ConfigurationError` when there is none."""
    if root.is_file():
        return [(root, root.name)]
    paths = {path for pattern in patterns for path in root.rglob(pattern) if path.is_file()}
    paths = {path for path in paths if not path.resolve().is_relative_to(without)}
    if len(paths) > limits.IMPORT_FILES.value:
        raise limits.IMPORT_FILES.exceeded(f"{root} holds {len(paths):,} files to import")
    if not paths:
        raise ConfigurationError(f"{root}: no file named {' or '.join(patterns)} there; check FORMAT and PATH")
    return sorted(((path, path.relative_to(root).as_posix()) for path in paths), key=lambda item: natural(item[1]))


def natural(name: str) -> list[tuple[int, str]]:
    """A key by which step 2 comes before step 10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def json_lines(path: Path, start: int = 0, ended: bool = True) -> Iterator[Unit]:  # noqa: FBT001, FBT002 - as `ReadOn`
    """A unit per line from byte `start` on. A last line without an end that is not complete JSON yet is still being
    written, and no unit.

    Unless the file has `ended`, neither is one that is whole, nor a line with zeros: network file systems show these
    before the data.
    """
    with path.open("rb") as file:
        _seek_line(file, start)
        for line, wrong in limits.lines(file):
            has_end = line.endswith(b"\n")
            if not ended and (not has_end or b"\0" in line):
                return
            unit = _json_line(line.strip(), wrong)
            if has_end or unit.error is None:
                yield replace(unit, end=file.tell())


def _seek_line(file: BinaryIO, start: int) -> None:
    """To `start`, or beyond the end of a line that was taken without it."""
    file.seek(max(0, start - 1))
    if start and file.read(1) != b"\n" and file.read(1) != b"\n":
        file.seek(start)


def _json_line(content: bytes, wrong: str | None) -> Unit:
    if wrong is not None:
        return Unit(content, error=wrong)
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        return Unit(content, error=f"invalid JSON ({error})" if content else "an empty line")
    is_object = isinstance(value, dict)
    return Unit(content, value if is_object else None, None if is_object else "not a JSON object")


def parquet_rows(path: Path) -> Iterator[Unit]:
    """A unit per row. Raises `ConfigurationError` when the file is no Parquet."""
    mark = file_digest(path)
    try:
        with pq.ParquetFile(path) as file:
            for batch in small_batches(file):
                for row in batch.to_pylist():
                    yield Unit(mark, row)
    except (pa.ArrowException, OSError) as error:
        raise ConfigurationError(f"{path}: cannot be read as Parquet ({error})") from error


def small_batches(file: pq.ParquetFile) -> Iterator[pa.RecordBatch]:
    """The rows of a file, few at a time where they are long."""
    for batch in file.iter_batches(batch_size=256):
        rows = max(1, _SLICE_BYTES * batch.num_rows // max(1, batch.nbytes))
        yield from (batch.slice(first, rows) for first in range(0, batch.num_rows, rows))


def recorded_batches(path: Path) -> Iterator[Unit]:
    """The rows of a recorded run's file, as Arrow IPC streams. Raises `ConfigurationError` when the file is no
    Parquet."""
    try:
        with pq.ParquetFile(path) as file:
            empty = pa.RecordBatch.from_pylist([], schema=file.schema_arrow)
            for batch in map(_decoded, itertools.chain(small_batches(file), [empty])):
                sink = pa.BufferOutputStream()
                with pa.ipc.new_stream(sink, batch.schema) as writer:
                    writer.write_batch(batch)
                yield Unit(b"", sink.getvalue().to_pybytes())
    except (pa.ArrowException, OSError) as error:
        raise ConfigurationError(f"{path}: cannot be read as Parquet ({error})") from error


def _decoded(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Without dictionaries, in which one text can stand for millions until someone looks."""
    columns = [
        column.dictionary_decode() if pa.types.is_dictionary(column.type) else column for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, batch.schema.names)


def file_digest(path: Path) -> bytes:
    """SHA-256 of a file that is written once and never appended to."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


@dataclass(frozen=True, slots=True)
class EarlierPiece:
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
        earlier: those that were imported before, in their order, the first of them from `position` on.
        position: how many units come before.
        offset: of a file that is read by lines, how many bytes come before; 0: `position` units are read and left out.
        ended: as in `source.ReadOn`.
    """

    path: Path
    name: str
    time: str
    earlier: tuple[EarlierPiece, ...] = ()
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
    for earlier in wanted.earlier:
        chunk = list(itertools.islice(units, earlier.units))
        yield _piece(form, wanted, position, chunk, earlier.time if earlier.rows else None)
        position += len(chunk)
    for chunk, last in _cut(units):
        yield _piece(form, wanted, position, chunk, wanted.time, last=last)
        position += len(chunk)


def _piece(
    form: Format, wanted: Wanted, start: int, units: Sequence[Unit], time: str | None, *, last: bool = False
) -> Piece:
    """`time`: of rows without one; None: no rows are asked for."""
    rows: dict[str, list[Mapping[str, Any]]] = {}
    bad: list[str] = []
    for position, unit in enumerate(units if time is not None else (), start):
        parsed = _parsed(form, unit, Place(wanted.path, wanted.name, position))
        if isinstance(parsed, str):
            bad.append(f"{wanted.name}:{position + 1}: {parsed}")
            continue
        for kind, row in parsed:
            rows.setdefault(kind, []).append(row)
    return Piece(
        file=wanted.name,
        start=start,
        end=start + len(units),
        sha256=_digest(units),
        offset=units[-1].end if units else 0,
        last=last,
        tables={kind: _table(kind, of_kind, time or "") for kind, of_kind in rows.items()},
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


def _table(kind: str, rows: Sequence[Mapping[str, Any]], time: str) -> pa.Table:
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
    chunk = _next(units)
    while chunk:
        following = next(units, None)
        yield chunk, following is None
        chunk = [] if following is None else _next(itertools.chain([following], units))


def _next(units: Iterator[Unit]) -> list[Unit]:
    chunk: list[Unit] = []
    size = 0
    for unit in itertools.islice(units, PIECE_UNITS):
        chunk.append(unit)
        size += unit.size
        if size > _PIECE_BYTES:
            break
    return chunk
