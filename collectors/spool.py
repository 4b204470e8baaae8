"""The spool: where collectors leave what they saw, safely, for the service to pick up.

    <home>/spool/<run>/<writer>/<sequence>.<kind>.<crc32>.arrow

One segment is one Arrow IPC *file* (not stream: a truncated stream reads back silently short) with rows of one kind. It is
written under a hidden temporary name, fsynced and renamed, so a reader sees whole segments or none. IPC carries no checksum,
so the CRC-32 of the bytes stands in the name and the file stays readable by any Arrow tool. A writer never reuses a name: its
directory is its own, and the sequence number grows. The path below ``spool/`` is the segment's id, the key of exactly-once
ingest.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

import pyarrow as pa

from logprobe.collectors.errors import SegmentError
from logprobe.collectors.schema import SCHEMA_VERSION, SCHEMAS, segment_metadata

_NAME = re.compile(r"(\d{8})\.([a-z_]+)\.([0-9a-f]{8})\.arrow")
_TEMPORARY = re.compile(r"\.\d{8}\.[a-z_]+\.tmp")


def spool_dir(home: Path) -> Path:
    """Directory of all runs' segments."""
    return home / "spool"


def run_dir(home: Path, run: str) -> Path:
    """Directory of one run's segments; any run name is a legal directory name after quoting."""
    # "." and ".." survive quoting, and a leading dot would hide the run from listings.
    quoted = quote(run, safe=" +=@,")
    return spool_dir(home) / (quoted.replace(".", "%2E", 1) if quoted.startswith(".") else quoted)


def run_name(directory: str) -> str:
    """Inverse of the quoting in `run_dir`, for one directory name."""
    return unquote(directory)


@dataclass(frozen=True, slots=True)
class SegmentPath:
    """A segment's place in the spool, taken apart. Says nothing about its content."""

    path: Path
    run: str
    writer: str
    sequence: int
    kind: str
    crc: int

    @property
    def segment_id(self) -> str:
        """The path below ``spool/``: the key of exactly-once ingest."""
        return f"{self.path.parent.parent.name}/{self.writer}/{self.path.name}"

    @classmethod
    def parse(cls, path: Path) -> SegmentPath:
        """Raises `SegmentError` (reason ``foreign``) when the name is not a segment's."""
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
    """A segment whose checksum, schema version and identity have been verified."""

    where: SegmentPath
    table: pa.Table
    nbytes: int


def is_temporary(path: Path) -> bool:
    """Whether `path` is a segment still being written (or left behind by a killed writer)."""
    return _TEMPORARY.fullmatch(path.name) is not None


def read_segment(where: SegmentPath) -> Segment:
    """Reads and verifies one segment; its table has all columns of its kind, in the order of the schema.

    Raises:
        SegmentError: it cannot be trusted.
        FileNotFoundError: it is gone.
    """
    data = where.path.read_bytes()
    if zlib.crc32(data) != where.crc:
        # A file cut short has also lost the IPC end marker; telling the two apart helps whoever looks for the cause.
        reason = "checksum" if data.endswith(b"ARROW1") else "truncated"
        raise SegmentError(reason, f"{where.path}: content does not match the checksum in its name ({reason})")
    try:
        table = pa.ipc.open_file(pa.BufferReader(data)).read_all()
        table.validate()
    except (pa.ArrowException, OSError) as error:
        raise SegmentError("unreadable", f"{where.path}: not an Arrow IPC file ({error})") from error
    _verify_identity(where, table.schema.metadata or {})
    return Segment(where=where, table=_conform(where, table), nbytes=len(data))


def _conform(where: SegmentPath, table: pa.Table) -> pa.Table:
    """The columns of the kind; one that an older version did not write is null."""
    schema = SCHEMAS.get(where.kind)
    if schema is None:
        raise SegmentError("foreign", f"{where.path}: no record kind {where.kind!r}")
    columns = []
    for field in schema:
        found = table[field.name] if field.name in table.column_names else pa.nulls(table.num_rows, field.type)
        if found.type != field.type:
            text = f"{where.path}: column {field.name!r} is {found.type}, not {field.type}; another program wrote it"
            raise SegmentError("columns", text)
        columns.append(found)
    return pa.Table.from_arrays(columns, schema=schema.with_metadata(table.schema.metadata))


def _verify_identity(where: SegmentPath, metadata: dict[bytes, bytes]) -> None:
    version = metadata.get(b"logprobe.schema", b"")
    if not version.isdigit():
        raise SegmentError("foreign", f"{where.path}: an Arrow file that logprobe did not write")
    if int(version) > SCHEMA_VERSION:
        raise SegmentError(
            "future_schema",
            f"{where.path}: schema {int(version)}, this logprobe reads up to {SCHEMA_VERSION}; upgrade the service",
        )
    stated = tuple(metadata.get(key, b"").decode(errors="replace") for key in (b"logprobe.kind", b"logprobe.run"))
    if stated != (where.kind, where.run):
        raise SegmentError("foreign", f"{where.path}: content says {stated}, its place says {(where.kind, where.run)}")


class SpoolWriter:
    """Writes the segments of one writer. Not thread-safe: one thread owns it.

    Creates nothing before the first write. Every method may raise `OSError`.
    """

    def __init__(self, home: Path, run: str, writer: str, *, after: int = 0) -> None:
        """`after`: number of the last segment that this writer has written, before a restart."""
        self.directory = run_dir(home, run) / writer
        self._run = run
        self._writer = writer
        self._sequence = after
        self._ready = False

    def write(self, kind: str, table: pa.Table) -> SegmentPath:
        """Makes `table` durable as one segment; when this returns, a crash of process or machine cannot lose it."""
        data = self._serialize(kind, table)
        crc = zlib.crc32(data)
        self._prepare()
        self._sequence += 1
        temporary = self.directory / f".{self._sequence:08d}.{kind}.tmp"
        final = self.directory / f"{self._sequence:08d}.{kind}.{crc:08x}.arrow"
        try:
            _write_durably(temporary, data)
            temporary.rename(final)
            _fsync_directory(self.directory)
        except OSError:
            # A full disk must get its space back; and what is not acknowledged will come again under another number.
            for path in (temporary, final):
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)
            raise
        return SegmentPath(final, self._run, self._writer, self._sequence, kind, crc)

    def _serialize(self, kind: str, table: pa.Table) -> pa.Buffer:
        metadata = segment_metadata(kind=kind, run=self._run, writer=self._writer)
        schema = table.schema.with_metadata(metadata)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, schema) as writer:
            writer.write_table(table.replace_schema_metadata(metadata))
        return sink.getvalue()

    def _prepare(self) -> None:
        if not self._ready or not self.directory.is_dir():
            _make_durable(self.directory)
            self._ready = True


def _make_durable(directory: Path) -> None:
    """Create `directory` and what is missing above it, so that a crash of the machine cannot take it away again."""
    if directory.is_dir():
        return
    _make_durable(directory.parent)
    directory.mkdir(exist_ok=True)
    _fsync_directory(directory.parent)


def _write_durably(path: Path, data: pa.Buffer) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        view = memoryview(data)
        while view:  # os.write may write less than asked on a full disk without raising
            written = os.write(descriptor, view)
            if written == 0:
                raise OSError(errno.ENOSPC, "nothing more can be written", str(path))
            view = view[written:]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _fsync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
