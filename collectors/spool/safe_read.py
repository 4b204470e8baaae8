"""Reads of spool files whose kind is untrusted, since a user may have left a FIFO, a device, a link or a hole.

A fault of the file itself is a `SegmentError`. Every other `OSError` (EIO, ESTALE, EMFILE, EACCES, …) is independent of
the content, and the file may be readable later.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final

from logprobe.collectors.errors import SegmentError
from logprobe.collectors.files import READ_FLAGS

# A segment of the default settings has some 3 MiB. One call to a recorder has to fit into its queue (256 MiB by
# default), so no writer comes near this limit unless its queue was made four times as large and one single sequence
# fills it.
SEGMENT_BYTES_LIMIT: Final = 1 << 30

_LARGE: Final = 64 << 20  # from here on, a look at both ends comes before reading: a sparse file costs no memory
_CHUNK: Final = 16 << 20
_MAGIC: Final = b"ARROW1"
_NOT_A_FILE: Final = frozenset({errno.ELOOP, errno.ENXIO, errno.ENODEV})  # a link; a socket; a device without a driver
_KINDS: Final = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISBLK, "a block device"),
    (stat.S_ISCHR, "a character device"),
)


def file_kind(mode: int) -> str | None:
    """Return the kind of a non-regular file from its mode, or None if the file is regular.

    >>> file_kind(stat.S_IFIFO | 0o644), file_kind(stat.S_IFREG)
    ('a FIFO', None)
    """
    if stat.S_ISREG(mode):
        return None
    return next((words for test, words in _KINDS if test(mode)), "a special file")


def read_regular(path: Path) -> bytes:
    """Return all bytes of a regular file, at most `SEGMENT_BYTES_LIMIT` of them.

    Raises:
        SegmentError: reason ``foreign`` if the file is not regular, ``too_large`` if it exceeds the limit, or
            ``unreadable`` if it is large and not an Arrow file.
        FileNotFoundError: the file does not exist.
        OSError: the file cannot be read now.
    """
    try:
        descriptor = os.open(path, READ_FLAGS)
    except OSError as error:
        if error.errno in _NOT_A_FILE:
            raise _not_regular(path, "a link or a special file") from error
        raise
    try:
        return _content(path, descriptor)
    finally:
        os.close(descriptor)


def _content(path: Path, descriptor: int) -> bytes:
    status = os.fstat(descriptor)
    kind = file_kind(status.st_mode)
    if kind is not None:
        raise _not_regular(path, kind)
    if status.st_size > SEGMENT_BYTES_LIMIT:
        raise _too_large(path, status.st_size)
    if status.st_size > _LARGE:
        _look_at_both_ends(path, descriptor, status.st_size)
    return _read_to_the_end(path, descriptor, status.st_size)


def _look_at_both_ends(path: Path, descriptor: int, size: int) -> None:
    ends = os.pread(descriptor, len(_MAGIC), 0), os.pread(descriptor, len(_MAGIC), size - len(_MAGIC))
    if ends != (_MAGIC, _MAGIC):
        raise SegmentError("unreadable", f"{path}: {size:,} bytes are not an Arrow IPC file; remove it from the spool")


def _read_to_the_end(path: Path, descriptor: int, size: int) -> bytes:
    """Read up to the end of the file, which may exceed `size`, since a network file system may report an old size."""
    chunks: list[bytes] = []
    total, wanted = 0, min(size + 1, _CHUNK)
    while chunk := os.read(descriptor, wanted):
        chunks.append(chunk)
        total += len(chunk)
        if total > SEGMENT_BYTES_LIMIT:
            raise _too_large(path, total)
        wanted = _CHUNK if total > size else min(size + 1 - total, _CHUNK)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _not_regular(path: Path, kind: str) -> SegmentError:
    return SegmentError("foreign", f"{path}: {kind}, not a regular file; remove it from the spool")


def _too_large(path: Path, size: int) -> SegmentError:
    return SegmentError("too_large", f"{path}: {size:,} bytes; a segment has at most {SEGMENT_BYTES_LIMIT:,}")
