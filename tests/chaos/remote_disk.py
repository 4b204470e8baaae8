"""A file system in user space that is as awkward as a network's, and that remembers what would survive a power cut.

    python tests/chaos/remote_disk.py BACKING MOUNT [--stale SHARE] [--delay SECONDS] [--seed N] [--journal FILE]

Everything goes through to the folder BACKING, but, below ``spool/``: what was listed stays what is listed, and the size of a file
stays what it was, for DELAY seconds (the attribute cache of NFS; other mounts of the same folder continue meanwhile), and opening or
reading fails with ESTALE for SHARE of the calls.

With a journal, each fsync is noted with what it made durable, in the model of ext4, xfs and btrfs: a file's content up to its last
fsync, a new file's name with the file's fsync, renames and removals with the directory's. `survivors` builds what is left of it.
"""

from __future__ import annotations

import argparse
import errno
import itertools
import os
import random
import shutil
import stat
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

warnings.simplefilter("ignore")  # of the binding, about its own future
import mfusepy  # noqa: E402

_STATUS: Final = ("st_mode", "st_size", "st_nlink", "st_uid", "st_gid", "st_mtime", "st_atime", "st_ctime", "st_ino")
_SPOOL: Final = "/spool/"
_MOUNTED_SECONDS: Final = 60.0


class RemoteDisk(mfusepy.Operations):
    """Passes everything through to `backing`."""

    def __init__(self, backing: str, *, stale: float, delay: float, seed: int, synced: Synced | None) -> None:
        self._backing = backing
        self._stale = stale
        self._delay = delay
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._kept: dict[tuple[str, str], tuple[float, Any]] = {}
        self._synced = synced

    def _real(self, path: str) -> Path:
        return Path(self._backing + path)

    def _maybe_stale(self, path: str) -> None:
        if self._stale and _SPOOL in path and path.endswith(".arrow"):
            with self._lock:
                drawn = self._random.random()
            if drawn < self._stale:
                raise mfusepy.FuseOSError(errno.ESTALE)

    def _cached(self, what: str, path: str, found: Any) -> Any:
        """What was true when it was looked at last, for a while."""
        if not self._delay or _SPOOL not in path + "/":
            return found
        now = time.monotonic()
        with self._lock:
            known = self._kept.get((what, path))
            if known is not None and now - known[0] < self._delay:
                return known[1]
            self._kept[what, path] = (now, found)
            return found

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        status = os.lstat(self._real(path)) if fh is None else os.fstat(fh)
        found = {name: getattr(status, name) for name in _STATUS}
        return self._cached("attributes", path, found) if stat.S_ISREG(status.st_mode) else found

    def readdir(self, path: str, fh: int) -> list[str]:
        return self._cached("names", path, [".", "..", *(entry.name for entry in os.scandir(self._real(path)))])

    def access(self, path: str, amode: int) -> int:
        return 0

    def open(self, path: str, flags: int) -> int:
        self._maybe_stale(path)
        return os.open(self._real(path), flags & ~os.O_NOFOLLOW)

    def create(self, path: str, mode: int, fi: Any = None) -> int:
        descriptor = os.open(self._real(path), os.O_RDWR | os.O_CREAT | os.O_TRUNC, mode)
        if self._synced:
            self._synced.created(path)
        return descriptor

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        self._maybe_stale(path)
        return os.pread(fh, size, offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        return os.pwrite(fh, data, offset)

    def truncate(self, path: str, length: int, fh: int | None = None) -> None:
        os.truncate(self._real(path), length)

    def flush(self, path: str, fh: int) -> int:
        return 0

    def release(self, path: str, fh: int) -> int:
        os.close(fh)
        return 0

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        if self._synced:
            self._synced.file(path)
        return 0

    def fsyncdir(self, path: str, datasync: int, fh: int) -> int:
        if self._synced:
            self._synced.folder(path)
        return 0

    def rename(self, old: str, new: str) -> None:
        if self._synced and os.path.lexists(self._real(new)):
            os.link(self._real(new), self._synced.grave())
        self._real(old).rename(self._real(new))

    def unlink(self, path: str) -> None:
        if self._synced:
            self._real(path).rename(self._synced.grave())
        else:
            self._real(path).unlink()

    def rmdir(self, path: str) -> None:
        if self._synced and not any(self._real(path).iterdir()):
            self._real(path).rename(self._synced.grave())
        else:
            self._real(path).rmdir()

    def mkdir(self, path: str, mode: int) -> None:
        self._real(path).mkdir(mode)

    def chmod(self, path: str, mode: int) -> None:
        self._real(path).chmod(mode)

    def utimens(self, path: str, times: Any = None) -> None:
        os.utime(self._real(path))

    def statfs(self, path: str) -> dict[str, int]:
        found = os.statvfs(self._real(path))
        return {
            name: getattr(found, name) for name in ("f_bavail", "f_bfree", "f_blocks", "f_bsize", "f_files", "f_frsize")
        }


class Synced:
    """What would survive: a second folder, with every file as of its last fsync, and every folder with its durable names.

    Contents lie by inode; names are kept per folder, as of its last fsync, beside those of new files that were fsynced themselves.
    """

    def __init__(self, backing: Path, journal: Path) -> None:
        self._backing = backing
        self._contents = journal / "contents"
        self._contents.mkdir(parents=True)
        self._graves = journal / "graves"
        self._graves.mkdir()
        self._buried = itertools.count()
        # Of a folder, by its inode: name → inode, with a slash if it is a folder
        self._names: dict[str, dict[str, str]] = {}
        self._lock = threading.Lock()
        self._new: set[str] = set()

    def grave(self) -> Path:
        """Where a removed file goes: its inode must not become another file's while a durable name may still mean it."""
        return self._graves / str(next(self._buried))

    def created(self, path: str) -> None:
        """A name that becomes durable with its file."""
        with self._lock:
            self._new.add(path)

    def file(self, path: str) -> None:
        """fsync of a file."""
        real = Path(f"{self._backing}{path}")
        with self._lock:
            try:
                inode = real.stat().st_ino
                shutil.copyfile(real, self._contents / f"{inode}.new")
            except FileNotFoundError:  # of a file that has no name any more
                return
            (self._contents / f"{inode}.new").replace(self._contents / str(inode))
            if path in self._new:
                self._new.discard(path)
                self._entries(real.parent)[real.name] = str(inode)
                self._note(real.parent)

    def folder(self, path: str) -> None:
        """fsync of a directory."""
        real = Path(f"{self._backing}{path}")
        with self._lock:
            entries = {entry.name: _marked(entry.inode(), entry.is_dir()) for entry in os.scandir(real)}
            self._names[self._key(real)] = entries
            self._note(real)

    def _entries(self, folder: Path) -> dict[str, str]:
        return self._names.setdefault(self._key(folder), {})

    def _key(self, folder: Path) -> str:
        return str(folder.stat().st_ino)

    def _note(self, folder: Path) -> None:
        key = self._key(folder)
        lines = "".join(f"{inode} {name}\n" for name, inode in self._names[key].items())
        (self._contents / f"{key}.names.new").write_text(lines)
        (self._contents / f"{key}.names.new").replace(self._contents / f"{key}.names")


def survivors(root: Path, journal: Path, target: Path) -> None:
    """Builds what a power cut leaves of `root`, the folder that was mounted."""
    _restore(journal / "contents", _marked(root.stat().st_ino, folder=True), target)


def _marked(inode: int, folder: bool) -> str:
    return f"{inode}/" if folder else str(inode)


def _restore(contents: Path, inode: str, target: Path) -> None:
    if inode.endswith("/"):
        target.mkdir(exist_ok=True)
        names = contents / f"{inode[:-1]}.names"
        for line in names.read_text().splitlines() if names.exists() else ():
            number, _, name = line.partition(" ")
            _restore(contents, number, target / name)
    elif (contents / inode).exists():
        shutil.copyfile(contents / inode, target)
    else:
        target.touch()  # a name without content: what delayed allocation leaves


@contextmanager
def mounted(backing: Path, mount: Path, *arguments: str) -> Iterator[Path]:
    """A mount of `backing`, in a process of its own, taken away at the end of the block."""
    backing.mkdir(parents=True, exist_ok=True)
    mount.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen([sys.executable, __file__, str(backing), str(mount), *arguments])
    try:
        deadline = time.monotonic() + _MOUNTED_SECONDS
        while not mount.is_mount():
            assert process.poll() is None, (
                "the file system ended: is /dev/fuse there, and libfuse3 (Debian: libfuse3-3, fuse3)?"
            )
            assert time.monotonic() < deadline, "not mounted in time"
            time.sleep(0.05)
        yield mount
    finally:
        subprocess.run(["umount", "--lazy", str(mount)], check=False)
        process.terminate()
        process.wait()


def main() -> None:
    """The process of one mount."""
    parser = argparse.ArgumentParser()
    parser.add_argument("backing", type=Path)
    parser.add_argument("mount", type=Path)
    parser.add_argument("--stale", type=float, default=0.0)
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--journal", type=Path)
    arguments = parser.parse_args()
    synced = None if arguments.journal is None else Synced(arguments.backing, arguments.journal)
    disk = RemoteDisk(
        str(arguments.backing), stale=arguments.stale, delay=arguments.delay, seed=arguments.seed, synced=synced
    )
    mfusepy.FUSE(
        disk,
        str(arguments.mount),
        foreground=True,
        attr_timeout=arguments.delay,
        entry_timeout=0,
        negative_timeout=0,
        default_permissions=True,
    )


if __name__ == "__main__":
    main()
