"""A segment from the network: gathered outside of the spool, verified there, then renamed into it.

Nothing that a client says is believed: names are taken apart and put together again, sizes are counted, and the content
must say the same run, kind and writer as its name. What is in the spool is durable; ingest takes it from there, once by
its identity.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

from logprobe.collectors.errors import SegmentError
from logprobe.collectors.files import fsync_folder, make_durable
from logprobe.collectors.relay import protocol
from logprobe.collectors.spool.schema import SCHEMAS
from logprobe.collectors.spool.segments import SegmentPath, read_segment, run_dir, run_name
from logprobe.monitor.home import Home
from logprobe.monitor.relay.files import RelayFiles

_WRITER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@+=,-]{0,199}")
_NAME_BYTES: Final = 255
FREE_BYTES: Final = 1 << 30  # that stay on the disk, for the store

# What a segment's content can provoke in Arrow.
_CONTENT_ERRORS: Final = (pa.ArrowException, ValueError, OverflowError)


def place_of(home: Home, name: str) -> SegmentPath:
    """The place in the spool that a segment's name ``RUN/WRITER/FILE`` means.

    Raises `SegmentError` (reason ``foreign``) when it is not the name that a collector would give.
    """
    parts = name.split("/")
    if len(parts) != 3 or not all(part.isprintable() and part.isascii() for part in parts):  # noqa: PLR2004
        raise SegmentError("foreign", f"{name[:200]!r} is not a segment's name")
    folder, writer, file = parts
    place = run_dir(home.path, run_name(folder))
    if place.name != folder or not folder or len(folder) > _NAME_BYTES or not _WRITER.fullmatch(writer):
        raise SegmentError("foreign", f"{name[:200]!r} is not a segment's name")
    segment = SegmentPath.parse(place / writer / file)
    if segment.kind not in SCHEMAS:
        raise SegmentError("foreign", f"{name[:200]!r}: no record kind {segment.kind!r}")
    return segment


class BusyError(Exception):
    """Nothing is wrong with a segment, but the service cannot take it now; the relay keeps it and asks again."""


@dataclass(slots=True)
class Incoming:
    """A segment that is being received. `size`: as the client says; more is not taken."""

    place: SegmentPath
    size: int
    path: Path
    descriptor: int
    closed: Callable[[Incoming], None]
    received: int = 0

    def add(self, data: pa.Buffer) -> None:
        """Takes a chunk. Raises `SegmentError` when it is one too many, `OSError` when the disk refuses."""
        self.received += data.size
        if self.received > self.size:
            raise SegmentError("too_large", f"{self.place.segment_id}: more bytes than announced ({self.size:,})")
        view = memoryview(data)
        while view:
            view = view[os.write(self.descriptor, view) :]

    @property
    def complete(self) -> bool:
        """Whether all announced bytes are here."""
        return self.received == self.size

    def close(self) -> None:
        """Forgets the bytes, unless they were put into the spool."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
            self.closed(self)
        self.path.unlink(missing_ok=True)


class Intake:
    """Where segments of one home arrive. Safe from several threads, each with its own `Incoming`s."""

    def __init__(self, home: Home, *, most: int, spool_most: int) -> None:
        """`most`: bytes of one segment; `spool_most`: of the whole spool, before relays are told to wait."""
        self._home = home
        self._files = RelayFiles.of(home).create()
        self._most = most
        self._spool_most = spool_most
        self.spool_bytes = 0  # as somebody who looks at it now and then says, and what was put into it since
        self._lock = threading.Lock()
        self._under_way: dict[Path, Incoming] = {}
        for leftover in self._files.incoming.iterdir():  # of a killed receiver; its client was told nothing
            leftover.unlink(missing_ok=True)

    def begin(self, place: SegmentPath, size: int) -> Incoming:
        """Raises `SegmentError` when it is too large, `BusyError` when it cannot be taken now, `OSError`."""
        if not 0 < size <= self._most:
            raise SegmentError(
                "too_large", f"{place.segment_id}: {size:,} bytes; a relayed segment has at most {self._most:,}"
            )
        with self._lock:
            self._find_room(size)
            descriptor, name = tempfile.mkstemp(dir=self._files.incoming)
            incoming = Incoming(place, size, Path(name), descriptor, self._end)
            self._under_way[incoming.path] = incoming
        return incoming

    def _find_room(self, size: int) -> None:
        """Every segment counts with the size it was announced with, so that all calls together leave the store its
        reserve."""
        announced = sum(upload.size - upload.received for upload in self._under_way.values())
        free = shutil.disk_usage(self._home.path).free - announced - size
        if free < FREE_BYTES:
            raise BusyError(
                f"the service's disk has {(free + size) >> 20} MiB left beside uploads under way, of which "
                f"{FREE_BYTES >> 20} MiB are kept free"
            )
        if self.spool_bytes + announced > self._spool_most:
            raise BusyError(f"{self.spool_bytes >> 20} MiB wait to be ingested; the service is behind")

    def _end(self, incoming: Incoming) -> None:
        with self._lock:
            self._under_way.pop(incoming.path, None)

    def verify(self, incoming: Incoming) -> None:
        """Reads it as ingest would, and makes its bytes durable. Raises `SegmentError` or `OSError`."""
        os.fchmod(incoming.descriptor, 0o644)
        os.fsync(incoming.descriptor)
        place = incoming.place
        try:
            segment = read_segment(
                SegmentPath(incoming.path, place.run, place.writer, place.sequence, place.kind, place.crc)
            )
        except _CONTENT_ERRORS as error:
            raise SegmentError("unreadable", f"{place.segment_id}: cannot be decoded ({error})") from error
        if (segment.writer, segment.sequence) != (place.writer, place.sequence):
            stated = f"{segment.writer} {segment.sequence}"
            raise SegmentError("foreign", f"{place.segment_id}: its content was written as {stated[:200]!r}")

    def put(self, verified: Iterable[Incoming]) -> None:
        """Renames verified segments into the spool; when this returns they are durable there. Raises `OSError`."""
        folders: set[Path] = set()
        for incoming in verified:
            folder = incoming.place.path.parent
            if folder not in folders:
                self._prepare(folder)
                folders.add(folder)
            incoming.path.rename(incoming.place.path)
            with self._lock:
                self.spool_bytes += incoming.size
        for folder in folders:
            fsync_folder(folder)

    def _prepare(self, folder: Path) -> None:
        make_durable(folder)
        for level in (folder, folder.parent):
            if level.is_symlink():
                raise OSError(f"{level} is a link; segments are not written through links")


def quietly_closed(incoming: Iterable[Incoming]) -> None:
    """Closes all of them."""
    for upload in incoming:
        with suppress(OSError):
            upload.close()


def raw_bytes(row: dict[str, object], data: pa.Buffer) -> pa.Buffer:
    """A chunk's bytes, decompressed to what was announced and no more. Raises `SegmentError`."""
    raw, codec = row["raw"], row["codec"]
    if not isinstance(raw, int) or not 0 <= raw <= protocol.CHUNK_BYTES or codec not in {"", protocol.CODEC}:
        raise SegmentError(
            "too_large", f"a chunk of {raw!r} bytes, compressed with {codec!r}; at most {protocol.CHUNK_BYTES:,}"
        )
    try:
        content = data if not codec else pa.decompress(data, decompressed_size=raw, codec=protocol.CODEC)
    except (*_CONTENT_ERRORS, OSError) as error:
        raise SegmentError("unreadable", f"a chunk cannot be decompressed ({error})") from error
    if content.size != raw:
        raise SegmentError("unreadable", f"a chunk of {content.size:,} bytes that was announced with {raw:,}")
    return content
