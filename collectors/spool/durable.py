"""Folders whose names survive a crash of the machine."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

_NOT_FOR_FOLDERS: Final = frozenset({errno.EINVAL, errno.ENOTSUP})  # this file system has nothing to fsync in a folder


def make_durable(folder: Path) -> None:
    """Creates a folder and what is missing above it, so that a crash of the machine cannot take it away again.

    Raises `OSError`.
    """
    if folder.is_dir():
        return
    make_durable(folder.parent)
    folder.mkdir(exist_ok=True)
    fsync_folder(folder.parent)


def fsync_folder(folder: Path) -> None:
    """Makes the names in a folder durable. Raises `OSError`."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NOT_FOR_FOLDERS:
            raise
    finally:
        os.close(descriptor)
