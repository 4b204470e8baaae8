"""Landing of a remote segment in the spool, atomically, durably and once.

Names are parsed and rebuilt. The content is verified as in ingest. A duplicate is recognised under any name.
"""

from __future__ import annotations

import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final

from logprobe.collectors.errors import SegmentError
from logprobe.collectors.files import DISK, READABLE, make_durable
from logprobe.collectors.spool.schema import SCHEMAS
from logprobe.collectors.spool.segments import SegmentPath, decoded_segment, run_dir, run_name

_WRITER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@+=,-]{0,199}")
_NAME_BYTES: Final = 255
_PARTS: Final = 3
FREE_BYTES: Final = 1 << 30  # that stay on the disk, for the store


def place_of(home: Path, name: str) -> SegmentPath:
    """Return the place in the spool for ``RUN/WRITER/FILE``.

    Raises `SegmentError` (reason ``foreign``) for a name that no collector would give.
    """
    parts = name.split("/")
    if len(parts) != _PARTS or not all(part.isprintable() and part.isascii() for part in parts):
        raise _foreign(name)
    folder, writer, file = parts
    place = run_dir(home, run_name(folder))
    if place.name != folder or not folder or len(folder) > _NAME_BYTES or not _WRITER.fullmatch(writer):
        raise _foreign(name)
    segment = SegmentPath.parse(place / writer / file)
    if segment.kind not in SCHEMAS:
        raise SegmentError("foreign", f"{name[:200]!r}: no record kind {segment.kind!r}")
    return segment


def land(home: Path, name: str, content: bytes) -> str:
    """Put a segment into the spool. Return its id once the file is durable.

    Raises:
        SegmentError: the content contradicts the name.
        OSError: the disk refuses or has too little space.
    """
    place = place_of(home, name)
    segment = decoded_segment(place, content)
    require_room(home, len(content))
    make_durable(place.path.parent)
    for level in (place.path.parent, place.path.parent.parent):
        if level.is_symlink():
            raise OSError(f"{level} is a link, which segments do not pass; replace it with a folder")
    # Its own: a node that had no answer sends again, while another process may still be at it. What a killed process
    # leaves goes with the remains of writers.
    unfinished = place.new_temporary()
    try:
        DISK.write(unfinished, content, mode=READABLE)
        DISK.rename(unfinished, place.path)
    except OSError:
        with suppress(OSError):
            DISK.unlink(unfinished)
        raise
    DISK.sync(place.path.parent)
    return segment.segment_id


def require_room(home: Path, size: int) -> None:
    """Raise `OSError` if `size` more bytes would leave too little disk space for the store."""
    free = shutil.disk_usage(home).free
    if free - size < FREE_BYTES:
        raise OSError(
            f"{home}: the disk has {free >> 20} MiB left, of which {FREE_BYTES >> 20} MiB are kept free; free some space"
        )


def _foreign(name: str) -> SegmentError:
    return SegmentError("foreign", f"{name[:200]!r} is not a segment's name")
