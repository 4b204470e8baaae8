"""Files that several processes or users share: read without following links, replaced as a whole."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import BinaryIO, Final

from logprobe.collectors.spool.durable import fsync_folder

# O_NONBLOCK: opening a FIFO would otherwise wait for a writer. It means nothing for regular files.
READ_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
READABLE: Final = 0o644  # mode of what the service writes for trainers, which may run as other users


def open_no_follow(path: Path) -> BinaryIO:
    """Opens a file for reading, never through a link and never waiting for a pipe. Raises `OSError`."""
    return open(path, "rb", opener=lambda name, _: os.open(name, READ_FLAGS))


def replace_file(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Writes the whole of a file, durably: readers, and whoever comes after a crash, see the old content or the new.

    Raises `OSError`; the old content is then untouched, unless it was the folder's entry that could not be synced.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mkstemp creates with mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    fsync_folder(path.parent)
