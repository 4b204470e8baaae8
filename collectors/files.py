"""Access to files shared by several processes or users: reads without following links, atomic and durable writes.

`Disk` is the file layer below. Tests replace it with one that loses data that is not durable or refuses writes.
"""

from __future__ import annotations

import errno
import os
import stat
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

# O_NONBLOCK: opening a FIFO would otherwise wait for a writer. It means nothing for regular files.
READ_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_NOT_FOR_FOLDERS: Final = frozenset({errno.EINVAL, errno.ENOTSUP})  # this file system has nothing to fsync in a folder
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_END: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
UNFINISHED: Final = ".tmp"  # ends the hidden name of a file that is being written
READABLE: Final = 0o644  # mode of what the service writes for trainers, which may run as other users
Stamp = tuple[int, int, int]  # of a file, see `Disk.stamp`


def open_no_follow(path: Path) -> BinaryIO:
    """Open a file for reading without following a link or waiting for a pipe. Raise `OSError`."""
    return open(path, "rb", opener=lambda name, _: os.open(name, READ_FLAGS))


class Disk:
    """Operations on files, with defined results after a crash of the machine.

    `write` and `append` return once the content is durable. Names in a folder (created, renamed, removed) are durable
    after `sync` of the folder. A killed process loses no completed operation. All methods raise `OSError`.
    """

    def __init__(self) -> None:
        self.durable_folders: set[Path] = set()  # that this process has seen to be

    def read(self, path: Path, *, last: int | None = None) -> bytes:
        """Return the content of a file, or its `last` bytes. Raise `FileNotFoundError` if it does not exist."""
        with open_no_follow(path) as file:
            if last is not None:
                file.seek(max(os.fstat(file.fileno()).st_size - last, 0))
            return file.read()

    def size(self, path: Path) -> int | None:
        """Return the size of a file, or None if it does not exist."""
        try:
            return path.lstat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return None

    def stamp(self, path: Path) -> Stamp | None:
        """Return a value that changes with each write or replacement of a file, or None if the file does not exist."""
        return stamp_of(path)

    def names(self, folder: Path) -> list[str]:
        """List the names in a folder in order. Return no names for a path that is missing or not a folder."""
        try:
            return sorted(path.name for path in folder.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def write(self, path: Path, content: bytes | memoryview, *, mode: int | None = 0o600) -> None:
        """Create a file with this content. An error may leave a part of it.

        `mode`: permissions of the file, or None for `READABLE` within the process's umask.
        """
        descriptor = os.open(path, _NEW, READABLE if mode is None else mode)
        try:
            if mode is not None:
                os.fchmod(descriptor, mode)
            _write_all(descriptor, content, path)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def append(self, path: Path, content: bytes, *, mode: int = 0o600) -> None:
        """Append to a file, which is created if missing. An error may leave a part of the content."""
        descriptor = os.open(path, _END, mode)
        try:
            _write_all(descriptor, content, path)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def truncate(self, path: Path, size: int) -> None:
        """Truncate a file to its first `size` bytes durably."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            os.ftruncate(descriptor, size)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, path: Path, target: Path) -> None:
        """Rename a file and replace any file of the new name."""
        path.replace(target)

    def unlink(self, path: Path) -> None:
        """Remove a file. A missing file is no error."""
        path.unlink(missing_ok=True)

    def mkdir(self, folder: Path) -> None:
        """Create a folder in an existing one."""
        folder.mkdir(exist_ok=True)

    def rmdir(self, folder: Path) -> None:
        """Remove an empty folder. A missing folder is no error."""
        with suppress(FileNotFoundError):
            folder.rmdir()

    def is_folder(self, path: Path, *, follow: bool = True) -> bool:
        """Return whether `path` is a folder. Without `follow`, a link to a folder does not count."""
        try:
            return stat.S_ISDIR(path.stat(follow_symlinks=follow).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def sync(self, path: Path) -> None:
        """Make the names in a folder, or the content of a file, durable. Follow links: ``archive/`` may be one."""
        descriptor = os.open(path, READ_FLAGS & ~os.O_NOFOLLOW)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in _NOT_FOR_FOLDERS:
                raise
        finally:
            os.close(descriptor)


DISK: Final = Disk()


def disk_time(path: Path) -> float:
    """Touch a file and return its timestamp in epoch seconds, by the clock of its file system.

    A shared folder uses the clock of its file server, which may differ from this machine's. The age of a file is
    therefore the difference of two of these timestamps. If `path` cannot be touched, return this machine's time.
    """
    try:
        os.utime(path, follow_symlinks=False)
        return path.lstat().st_mtime
    except OSError:
        return time.time()


def _write_all(descriptor: int, content: bytes | memoryview, path: Path) -> None:
    view = memoryview(content)
    while view:  # a full disk may take a part without an error
        written = os.write(descriptor, view)
        if written == 0:
            raise OSError(errno.ENOSPC, "the disk is full; free some space", str(path))
        view = view[written:]


def replace_file(path: Path, content: bytes | memoryview, *, mode: int = 0o600, disk: Disk = DISK) -> None:
    """Replace the content of a file durably. Readers find the old or the new content, also after a crash.

    Raises `OSError`. The old content is then unchanged, unless only the sync of the folder failed.
    """
    make_durable(path.parent, disk)
    unfinished = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}{UNFINISHED}")
    try:
        disk.write(unfinished, content, mode=mode)
        disk.rename(unfinished, path)
    except BaseException:
        with suppress(OSError):  # the first error says why; a start removes what is left
            disk.unlink(unfinished)
        raise
    disk.sync(path.parent)


def remove_tree(path: Path, disk: Disk = DISK) -> int:
    """Remove a file or a folder with its content, without following links. Return the number of files.

    Raise `OSError`.
    """
    if not disk.is_folder(path, follow=False):
        there = disk.size(path) is not None
        disk.unlink(path)
        return int(there)
    count = sum(remove_tree(path / name, disk) for name in disk.names(path))
    disk.rmdir(path)
    return count


def stamp_of(path: Path) -> Stamp | None:
    """Return a value that changes with each write or replacement of the file, or None if the file does not exist."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def below(folder: Path, depth: int) -> tuple[list[Path], list[Path]]:
    """Return the paths `depth` levels below a folder, and the folders that cannot be listed."""
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
    """Return whether `path` does not exist. A path that cannot be read counts as existing."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def make_durable(folder: Path, disk: Disk = DISK) -> None:
    """Create a folder and its missing parents durably.

    Raises `OSError`.
    """
    if not disk.is_folder(folder):
        make_durable(folder.parent, disk)
        disk.mkdir(folder)
        disk.sync(folder.parent)
    elif folder not in disk.durable_folders:  # whoever made it may have been killed, or refused, before the sync
        with suppress(PermissionError):
            disk.sync(folder.parent)
    disk.durable_folders.add(folder)
