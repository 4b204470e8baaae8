"""Spool: the folder in which collectors store their data safely for the service.

    <home>/spool/<run>/<writer>/<sequence>.<kind>.<crc32>.arrow

One segment is one Arrow IPC *file* with rows of one kind. A truncated *stream* would silently read back short. A
segment is written under a hidden temporary name, fsynced and renamed, so a reader finds only whole segments. IPC
carries no checksum. The name therefore contains the CRC-32 of the bytes, and any Arrow tool can read the file. A writer
never reuses a name, because it has a separate directory and its sequence numbers grow.

The content of a segment identifies it, not its path. Run, kind, writer and number are in the file's metadata. With the
checksum of the bytes they form its id, the key of exactly-once ingest. A segment thus counts once, under any name. The
disk may refuse after the rename, so that a writer does not know the state of its segment. The writer then writes the
same bytes under the same name before other data, and never repeats the rows in another segment.

Compressed buffers declare their decompressed size, so a file of a kilobyte could request a gigabyte. Collectors do not
compress, and a compressed segment is refused before it is read.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

import pyarrow as pa

from logprobe.collectors.errors import SegmentError
from logprobe.collectors.files import DISK, Disk, make_durable
from logprobe.collectors.spool.safe_read import read_regular
from logprobe.collectors.spool.schema import SCHEMA_VERSION, SCHEMAS, segment_metadata

_NAME = re.compile(r"(\d{8})\.([a-z_]+)\.([0-9a-f]{8})\.arrow")
_NUMBER = re.compile(r"[0-9]{1,8}")
TEMPORARY: Final = ".tmp"  # ends the name of a segment that is being written
_TEMPORARY = re.compile(rf"\.\d{{8}}\.[a-z_]+(\.[0-9a-f]{{8}})?{re.escape(TEMPORARY)}")
_FOOTER_END: Final = 10  # the footer's length and b"ARROW1"
_BLOCK: Final = struct.Struct("<qi4xq")  # of the footer: offset, length of the metadata, length of the body
_CONTINUATION: Final = 0xFFFFFFFF
# Fields of the flatbuffers tables Footer, Message, DictionaryBatch and RecordBatch, in the order of Arrow's File.fbs
# and Message.fbs.
_FOOTER_DICTIONARIES: Final = 2
_FOOTER_BATCHES: Final = 3
_MESSAGE_HEADER: Final = 2
_DICTIONARY_DATA: Final = 1
_BATCH_COMPRESSION: Final = 3


def spool_dir(home: Path) -> Path:
    """Return the directory of all runs' segments."""
    return home / "spool"


def run_dir(home: Path, run: str) -> Path:
    """Return the directory of one run's segments. Quoting makes any run name a legal directory name."""
    # "." and ".." survive quoting, and a leading dot would hide the run from listings.
    quoted = quote(run, safe=" +=@,")
    return spool_dir(home) / (quoted.replace(".", "%2E", 1) if quoted.startswith(".") else quoted)


def run_name(directory: str) -> str:
    """Return the run's name from a directory name, the inverse of the quoting in `run_dir`."""
    return unquote(directory)


@dataclass(frozen=True, slots=True)
class SegmentPath:
    """Parts of a segment's path in the spool. They do not describe its content."""

    path: Path
    run: str
    writer: str
    sequence: int
    kind: str
    crc: int

    @property
    def segment_id(self) -> str:
        """Path below ``spool/``, which is the segment's id unless the file was renamed later."""
        return f"{self.path.parent.parent.name}/{self.writer}/{self.path.name}"

    @property
    def temporary(self) -> Path:
        """Temporary path of the segment before its rename."""
        return self.path.with_name(f".{self.sequence:08d}.{self.kind}{TEMPORARY}")

    def new_temporary(self) -> Path:
        """Return a temporary path for one of several processes that may write the segment at the same time."""
        return self.path.with_name(f".{self.sequence:08d}.{self.kind}.{secrets.token_hex(4)}{TEMPORARY}")

    @classmethod
    def parse(cls, path: Path) -> SegmentPath:
        """Return the parts of a segment's path. Raise `SegmentError` (reason ``foreign``) for any other name."""
        match = _NAME.fullmatch(path.name)
        if match is None:
            raise SegmentError("foreign", f"{path}: not a segment name; remove it from the spool")
        return cls(
            path=path,
            run=run_name(path.parent.parent.name),
            writer=path.parent.name,
            sequence=int(match[1]),
            kind=match[2],
            crc=int(match[3], 16),
        )


@dataclass(frozen=True, slots=True)
class Segment:
    """Segment whose checksum, schema version and identity have been verified.

    `segment_id`, `writer` and `sequence` come from its content, regardless of the file's name.
    """

    where: SegmentPath
    table: pa.Table
    nbytes: int
    segment_id: str
    writer: str
    sequence: int


def is_temporary(path: Path) -> bool:
    """Return whether `path` is an unfinished segment, which is being written or was left by a killed writer."""
    return _TEMPORARY.fullmatch(path.name) is not None


def read_segment(where: SegmentPath) -> Segment:
    """Read and verify one segment. Its table has all columns of its kind, in the order of the schema.

    Raises:
        SegmentError: the segment cannot be trusted.
        FileNotFoundError: the segment was removed.
        OSError, MemoryError: the segment cannot be read now, independent of its content.
    """
    return decoded_segment(where, read_regular(where.path))


def decoded_segment(where: SegmentPath, data: bytes) -> Segment:
    """Verify the bytes of a segment. Raises `SegmentError`, `MemoryError`."""
    if zlib.crc32(data) != where.crc:
        # A file cut short has also lost the IPC end marker; telling the two apart helps whoever looks for the cause.
        reason = "checksum" if data.endswith(b"ARROW1") else "truncated"
        raise SegmentError(
            reason, f"{where.path}: content does not match the checksum in its name ({reason}); check the disk"
        )
    table = _decoded(where, data)
    metadata = table.schema.metadata or {}
    _verify_identity(where, metadata)
    segment_id, writer, number = _identity(where, metadata)
    return Segment(where, _conform(where, table), len(data), segment_id, writer, number)


def _decoded(where: SegmentPath, data: bytes) -> pa.Table:
    try:
        compressed = has_compressed(data)
        table = None if compressed else pa.ipc.open_file(pa.BufferReader(data)).read_all()
        if table is not None:
            table.validate()
    except pa.ArrowMemoryError:
        raise
    except (pa.ArrowException, OSError, struct.error) as error:  # of bytes that are all there: it is the content
        raise SegmentError(
            "unreadable", f"{where.path}: not an Arrow IPC file ({error}); remove it from the spool"
        ) from error
    if table is None:
        raise SegmentError(
            "unreadable", f"{where.path}: buffers are compressed, unlike logprobe's; remove it from the spool"
        )
    return table


def _identity(where: SegmentPath, metadata: dict[bytes, bytes]) -> tuple[str, str, int]:
    """Return id, writer and number. An old segment without a number in its content takes these from its name."""
    writer, number = (
        metadata.get(key, b"").decode(errors="replace") for key in (b"logprobe.writer", b"logprobe.number")
    )
    if not writer or "/" in writer or not _NUMBER.fullmatch(number):
        return where.segment_id, where.writer, where.sequence
    return f"{where.path.parent.parent.name}/{writer}/{_name(int(number), where.kind, where.crc)}", writer, int(number)


def _conform(where: SegmentPath, table: pa.Table) -> pa.Table:
    """Return the columns of the kind. Columns and fields that an older version did not write are null."""
    schema = SCHEMAS.get(where.kind)
    if schema is None:
        raise SegmentError("foreign", f"{where.path}: unknown record kind {where.kind!r}; remove it from the spool")
    if table.schema.equals(schema):  # nearly always; a look at each column takes longer than reading them
        return table
    there = dict(zip(table.column_names, table.columns, strict=True))
    columns = []
    for field in schema:
        array = _widened(there[field.name], field.type) if field.name in there else pa.nulls(table.num_rows, field.type)
        if array.type != field.type:
            text = f"{where.path}: column {field.name!r} is {array.type}, not {field.type}; remove it"
            raise SegmentError("columns", text)
        columns.append(array)
    return pa.Table.from_arrays(columns, schema=schema.with_metadata(table.schema.metadata))


def _widened(column: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    """Add the missing fields of the struct `wanted` to a column as nulls. Return any other column unchanged."""
    if column.type == wanted or not (pa.types.is_struct(column.type) and pa.types.is_struct(wanted)):
        return column
    if not {(field.name, field.type) for field in column.type} < {(field.name, field.type) for field in wanted}:
        return column
    chunks = [
        pa.StructArray.from_arrays(
            [
                chunk.field(field.name)
                if column.type.get_field_index(field.name) >= 0
                else pa.nulls(len(chunk), field.type)
                for field in wanted
            ],
            fields=list(wanted),
            mask=chunk.is_null(),
        )
        for chunk in column.chunks
    ]
    return pa.chunked_array(chunks, wanted)


def _verify_identity(where: SegmentPath, metadata: dict[bytes, bytes]) -> None:
    version = metadata.get(b"logprobe.schema", b"")
    if not version.isdigit():
        raise SegmentError(
            "foreign", f"{where.path}: an Arrow file that logprobe did not write; remove it from the spool"
        )
    if int(version) > SCHEMA_VERSION:
        raise SegmentError(
            "future_schema",
            f"{where.path}: schema {int(version)}, this logprobe reads up to {SCHEMA_VERSION}; upgrade the service",
        )
    stated = tuple(metadata.get(key, b"").decode(errors="replace") for key in (b"logprobe.kind", b"logprobe.run"))
    if stated != (where.kind, where.run):
        raise SegmentError(
            "foreign", f"{where.path}: content states {stated}, path states {(where.kind, where.run)}; restore its name"
        )


def _name(number: int, kind: str, crc: int) -> str:
    return f"{number:08d}.{kind}.{crc:08x}.arrow"


@dataclass(frozen=True, slots=True)
class _Finished:
    """Bytes of a finished segment and their destination."""

    where: SegmentPath
    data: pa.Buffer


class SpoolWriter:
    """Writer of segments. It is not thread-safe and belongs to one thread.

    It creates nothing before the first write. Every method may raise `OSError`.
    """

    def __init__(
        self,
        home: Path,
        run: str,
        writer: str,
        *,
        after: int = 0,
        keep_free: int = 0,
        at_the_disk: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
        disk: Disk = DISK,
    ) -> None:
        """Set up the writer without file access.

        Args:
            home: data directory.
            run: name of the run.
            writer: unique name of this writer.
            after: number of this writer's last segment before a restart.
            keep_free: bytes of the disk that stay free, at most a twentieth of its size. Below that the disk counts as
                full.
            at_the_disk: context for each wait for the disk.
            disk: file layer.
        """
        self.directory = run_dir(home, run) / writer
        self.number = after  # of the last segment that is durable
        self.nbytes = 0  # of segments that are durable
        self._run = run
        self._at_the_disk = at_the_disk
        self._disk = disk
        self._keep_free = keep_free
        self._ready = False
        self._owed: _Finished | None = None  # others may have seen it, and it may not be durable

    @property
    def settled(self) -> bool:
        """True when every segment that other processes may have read is durable."""
        return self._owed is None

    def write(self, kind: str, table: pa.Table) -> SegmentPath:
        """Write `table` durably as one segment, which then survives a crash of process or machine.

        An unsettled segment is completed first.

        Raises:
            OSError: if `settled`, the spool contains nothing of the segment. Otherwise readers may have seen it. Do not
                write its rows again, but call `settle` until it returns.
        """
        self.settle()
        segment = self._serialized(kind, table)
        with self._at_the_disk():
            self._put(segment)
        return segment.where

    def place(self, kind: str, table: pa.Table) -> SegmentPath:
        """Return the path of the next `write` of `table`."""
        return self._serialized(kind, table).where

    def settle(self) -> None:
        """Write the unsettled segment again with the same bytes and name, so that it counts once."""
        if self._owed is not None:
            with self._at_the_disk():
                self._put(self._owed)

    def _serialized(self, kind: str, table: pa.Table) -> _Finished:
        number = self.number + 1
        metadata = segment_metadata(kind=kind, run=self._run, writer=self.directory.name, number=number)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema.with_metadata(metadata)) as writer:
            writer.write_table(table.replace_schema_metadata(metadata))
        data = sink.getvalue()
        crc = zlib.crc32(data)
        path = self.directory / _name(number, kind, crc)
        return _Finished(SegmentPath(path, self._run, self.directory.name, number, kind, crc), data)

    def _put(self, segment: _Finished) -> None:
        where = segment.where
        if not self._ready or not self._disk.is_folder(self.directory):
            make_durable(self.directory, self._disk)
            self._ready = True
        if self._keep_free:
            _require_room(where.temporary, segment.data.size, self._keep_free)
        try:
            self._write(where.temporary, memoryview(segment.data))
        except OSError:
            with contextlib.suppress(OSError):  # a full disk must get its space back
                self._disk.unlink(where.temporary)
            raise
        self._owed = segment  # a network file system may have renamed it although it says that it has not
        self._disk.rename(where.temporary, where.path)
        self._disk.sync(self.directory)
        self._owed = None
        self.number = where.sequence
        self.nbytes += segment.data.size

    def _write(self, path: Path, data: memoryview) -> None:
        try:
            self._disk.write(path, data, mode=None)
        except FileExistsError:  # of an attempt that failed
            self._disk.unlink(path)
            self._disk.write(path, data, mode=None)


def _require_room(path: Path, size: int, keep_free: int) -> None:
    disk = os.statvfs(path.parent)
    reserve = min(keep_free, disk.f_blocks * disk.f_frsize // 20)
    if disk.f_bavail * disk.f_frsize - size < reserve:
        raise OSError(
            errno.ENOSPC,
            f"less than {reserve >> 20} MiB would be left free on the disk; free some space",
            str(path.parent),
        )


def has_compressed(data: bytes) -> bool:
    """Return whether the footer of an IPC file names a compressed record batch or dictionary.

    Raises `struct.error` if the data is not an IPC file.
    """
    (size,) = struct.unpack_from("<i", data, max(len(data) - _FOOTER_END, 0))
    start = len(data) - _FOOTER_END - size
    if not 0 < start < len(data):
        raise struct.error("the footer does not fit into the file")
    footer = start + _unsigned(data, start)
    steps = ((_FOOTER_BATCHES, ()), (_FOOTER_DICTIONARIES, (_DICTIONARY_DATA,)))
    return any(_is_compressed(data, place, inner) for field, inner in steps for place in _blocks(data, footer, field))


def _blocks(data: bytes, footer: int, field: int) -> Iterator[int]:
    """Yield the positions at which the messages of a list of blocks begin."""
    place = _field(data, footer, field)
    if place is None:
        return
    items = place + _unsigned(data, place)
    for number in range(_unsigned(data, items)):
        yield _BLOCK.unpack_from(data, items + 4 + number * _BLOCK.size)[0]


def _is_compressed(data: bytes, message: int, inner: tuple[int, ...]) -> bool:
    if not 0 <= message < len(data):
        raise struct.error("a block lies outside of the file")
    start = message + (8 if _unsigned(data, message) == _CONTINUATION else 4)
    table = start + _unsigned(data, start)
    for field in (_MESSAGE_HEADER, *inner):
        place = _field(data, table, field)
        if place is None:
            return False
        table = place + _unsigned(data, place)
    return _field(data, table, _BATCH_COMPRESSION) is not None


def _unsigned(data: bytes, place: int) -> int:
    return int(struct.unpack_from("<I", data, place)[0])


def _field(data: bytes, table: int, number: int) -> int | None:
    """Return the position of a field of a table, or None if the table lacks the field."""
    layout = table - int(struct.unpack_from("<i", data, table)[0])
    if layout < 0:
        raise struct.error("a table lies outside of the file")
    size = int(struct.unpack_from("<H", data, layout)[0])
    entry = 4 + 2 * number
    offset = int(struct.unpack_from("<H", data, layout + entry)[0]) if entry < size else 0
    return table + offset if offset else None
