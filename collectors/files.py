"""Files that several processes or users share: read without following links, replaced as a whole, in folders that
survive a crash."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from typing import BinaryIO, Final

# O_NONBLOCK: opening a FIFO would otherwise wait for a writer. It means nothing for regular files.
READ_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_NOT_FOR_FOLDERS: Final = frozenset({errno.EINVAL, errno.ENOTSUP})  # this file system has nothing to fsync in a folder
READABLE: Final = 0o644  # mode of what the service writes for trainers, which may run as other users


def open_no_follow(path: Path) -> BinaryIO:
    """Opens a file for reading, never through a link and never waiting for a pipe. Raises `OSError`."""
    return open(path, "rb", opener=lambda name, _: os.open(name, READ_FLAGS))


def replace_file(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Writes the whole of a file, durably: readers see the old content or the new, also after a crash.

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


def stamp_of(path: Path) -> tuple[int, int, int] | None:
    """Another one whenever the file was written or replaced; None: there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def below(folder: Path, depth: int) -> tuple[list[Path], list[Path]]:
    """What lies so many folders below, and the folders that cannot be listed now. What is no folder holds nothing."""
    try:
        paths = list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return [], []
    except OSError:
        return [], [folder]
    if depth == 1:
        return paths, []
    parts = [below(path, depth - 1) for path in paths]
    return [path for listed, _ in parts for path in listed], [path for _, unlisted in parts for path in unlisted]


def is_gone(path: Path) -> bool:
    """Whether there is nothing at `path`. What cannot be looked at now is not gone."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


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
