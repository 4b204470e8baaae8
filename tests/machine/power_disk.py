"""The file layer below the product: what is written, what is durable, and what a kill or a power cut leaves of it.

It replaces the calls of `os` that change or open files below one folder, so everything runs on it as it is. The
files themselves are real: DuckDB, which does not pass by here, has its own beside them.

A *kill* ends the process within an operation: what was done stays. A *power cut* loses what was not synced: of every
name that was changed since its folder was synced, and of every file that was written since it was synced, it is drawn
whether the change is there, and of the content how much.
"""

# ruff: noqa: PTH110, PTH112, PTH119, PTH120, PTH123
from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_WRITES = os.O_WRONLY | os.O_RDWR
_UNNAMED = os.O_TMPFILE & ~os.O_DIRECTORY
_NAMES = "open close write pwrite fsync ftruncate rename replace unlink remove mkdir rmdir scandir listdir utime"
_CALLS = {name: getattr(os, name) for name in _NAMES.split()}
(
    _open,
    _close,
    _write,
    _pwrite,
    _fsync,
    _ftruncate,
    _rename,
    _,
    _unlink,
    _,
    _mkdir,
    _rmdir,
    _scandir,
    _listdir,
    _utime,
) = _CALLS.values()


class Kill(BaseException):
    """The process is gone."""


@dataclass(eq=False)
class File:
    durable: bytes | None = None  # None: nothing of it is
    refused: bytes | None = None  # content of a failed fsync, which a later one takes for written
    last: bytes = b""  # of one whose name has gone


@dataclass(eq=False)
class Folder:
    names: dict[str, File | Folder] = field(default_factory=dict)
    durable: dict[str, File | Folder] = field(default_factory=dict)


Fault = Callable[[str, str], int | None]


class MachineDisk:
    """`fault` is asked before each operation and returns an errno or None; `kill_in` counts operations down.

    `process`: name of the one that works now.
    """

    def __init__(self, root: Path, seed: int, clock: Callable[[], float], process: Callable[[], str]) -> None:
        self.root = str(root)
        self.random = random.Random(seed)
        self.top = Folder()
        self.fault: Fault | None = None
        self.kill_in: int | None = None
        self.operations = 0
        self.faults = 0
        self._clock = clock
        self._open: dict[int, tuple[str, File | None]] = {}  # None: a folder
        self._owners: dict[int, str] = {}
        self._process = process

    # --- The machine

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Replace the calls of `os` while the block runs."""
        for name in _CALLS:
            setattr(os, name, getattr(self, f"os_{name}"))
        try:
            yield
        finally:
            for name, function in _CALLS.items():
                setattr(os, name, function)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Let the tester's own hands work, whom no disk refuses."""
        fault, self.fault = self.fault, None
        try:
            yield
        finally:
            self.fault = fault

    def power_cut(self, folder: Path) -> None:
        """Take away what was not durable below `folder`; no process that writes there is left."""
        self.kill_in = None
        node = self._folder(str(folder))
        if node is not None:
            self._cut(node, str(folder))

    def wipe(self, folder: Path) -> None:
        """Remove a folder with all that is in it: the machine is lost."""
        parent, name = self._parent(str(folder))
        parent.names.pop(name, None)
        parent.durable.pop(name, None)
        self._remove(str(folder))

    def _cut(self, folder: Folder, path: str) -> None:
        after: dict[str, File | Folder] = {}
        for name in sorted({*folder.names, *folder.durable}):
            now, before = folder.names.get(name), folder.durable.get(name)
            node = now if now is before or self.random.random() < 0.5 else before
            if isinstance(now, File):
                now.last = self._content(f"{path}/{name}")
            if node is not None:
                after[name] = node
        for name, node in folder.names.items():
            if after.get(name) is not node:
                self._remove(f"{path}/{name}")
        folder.names, folder.durable = after, dict(after)
        for name, node in after.items():
            place = f"{path}/{name}"
            if isinstance(node, Folder):
                if not os.path.isdir(place):
                    _mkdir(place)  # not that of this class, which would have another folder there
                self._cut(node, place)
            else:
                self._put(place, self._remains(node))
                node.durable = self._content(place)

    def _remains(self, file: File) -> bytes:
        durable = file.durable or b""
        if file.durable == file.last or self.random.random() < 0.3:
            return durable
        kept = file.last[: self.random.randrange(len(file.last) + 1)]
        if len(kept) < len(durable):
            return durable
        return kept + bytes(self.random.randrange(len(file.last) - len(kept) + 1))  # blocks of zeros

    def _content(self, path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def _put(self, path: str, content: bytes) -> None:
        if not os.path.exists(path) or self._content(path) != content:
            descriptor = _open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            _write(descriptor, content)
            _close(descriptor)
            self._touched(path)

    def _remove(self, path: str) -> None:
        if os.path.isdir(path):
            for name in _listdir(path):
                self._remove(f"{path}/{name}")
            _rmdir(path)
        else:
            _unlink(path)

    def end_process(self, name: str) -> None:
        """Close what the process that works as `name` has open, its locks with it."""
        for descriptor in [each for each, owner in self._owners.items() if owner == name]:
            with suppress(OSError):  # a file object that went out of scope closed it without this class
                self.os_close(descriptor)

    # --- Operations

    def step(self, operation: str, path: str) -> None:
        """Count an operation, in which the process may be killed or refused."""
        self.operations += 1
        if self.kill_in is not None:
            self.kill_in -= 1
            if self.kill_in < 0:
                raise Kill(operation, path)  # and again, for all that is tried on the way out
        code = None if self.fault is None else self.fault(operation, path)
        if code is not None:
            self.faults += 1
            raise OSError(code, os.strerror(code), path)

    def _place(self, path: Any) -> str | None:
        """Return a path below the root, or None if it is elsewhere."""
        if isinstance(path, int):
            return None
        text = os.fsdecode(path)
        return text if text.startswith(self.root) else None

    def _folder(self, path: str) -> Folder | None:
        node: File | Folder | None = self.top
        for part in [each for each in path[len(self.root) :].split("/") if each]:
            node = node.names.get(part) if isinstance(node, Folder) else None
        return node if isinstance(node, Folder) else None

    def _parent(self, path: str) -> tuple[Folder, str]:
        parent, _, name = path.rpartition("/")
        folder = self._folder(parent)
        if folder is None:  # made by what does not pass by here
            above, own = self._parent(parent)
            folder = above.names[own] = above.durable[own] = Folder()
        return folder, name

    def _touched(self, path: str) -> None:
        at = round(self._clock() * 1e9)
        _utime(path, ns=(at, at), follow_symlinks=False)

    def _known(self, path: str) -> File:
        """Return a file; one that did not pass by here counts as durable."""
        folder, name = self._parent(path)
        node = folder.names.get(name)
        if isinstance(node, File):
            return node
        file = folder.names[name] = folder.durable[name] = File(self._content(path))
        return file

    # --- In the place of `os`: what is not below the root passes

    def os_open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        place = None if dir_fd is not None or flags & _UNNAMED else self._place(path)
        if place is None:
            return _open(path, flags, mode, dir_fd=dir_fd)
        if not flags & _WRITES:
            self.step("read", place)
            descriptor = _open(place, flags, mode)
            if os.path.isdir(place):
                self._open[descriptor] = place, None
                self._owners[descriptor] = self._process()
            return descriptor
        there = os.path.lexists(place)
        self.step("open" if there else "create", place)
        descriptor = _open(place, flags, mode)
        if there:
            file = self._known(place)
        else:
            folder, name = self._parent(place)
            file = folder.names[name] = File()
            self._touched(os.path.dirname(place))
        self._touched(place)
        self._open[descriptor] = place, file
        self._owners[descriptor] = self._process()
        return descriptor

    def os_close(self, descriptor: int) -> None:
        path, file = self._open.pop(descriptor, (None, None))
        self._owners.pop(descriptor, None)
        _close(descriptor)
        if path is not None and file is not None and os.path.exists(path):
            self._touched(path)

    def os_write(self, descriptor: int, content: Any) -> int:
        return self._write(descriptor, content, lambda part: _write(descriptor, part))

    def os_pwrite(self, descriptor: int, content: Any, offset: int) -> int:
        return self._write(descriptor, content, lambda part: _pwrite(descriptor, part, offset))

    def _write(self, descriptor: int, content: Any, write: Callable[[Any], int]) -> int:
        if (known := self._open.get(descriptor)) is None:
            return write(content)
        try:
            self.step("write", known[0])
        except BaseException:  # a part of it may be there
            write(bytes(content)[: self.random.randrange(len(content) + 1)])
            raise
        return write(content)

    def os_ftruncate(self, descriptor: int, length: int) -> None:
        if descriptor in self._open:
            self.step("truncate", self._open[descriptor][0])
        _ftruncate(descriptor, length)

    def os_fsync(self, descriptor: int) -> None:
        if (known := self._open.get(descriptor)) is None:
            return
        path, file = known
        if file is None:
            self.step("fsync", path)
            if (folder := self._folder(path)) is not None:
                folder.durable = dict(folder.names)
            return
        try:
            self.step("fsync", path)
        except OSError:
            file.refused = self._content(path)
            raise
        content = self._content(path)
        if content != file.refused:
            file.durable = content

    def os_rename(self, source: Any, target: Any, **how: Any) -> None:
        old, new = self._place(source), self._place(target)
        if how or old is None or new is None:
            _rename(source, target, **how)
            return
        self.step("rename", new)
        folder, name = self._parent(old)
        is_folder = os.path.isdir(old)
        node: File | Folder = folder.names.setdefault(name, Folder()) if is_folder else self._known(old)
        other, other_name = self._parent(new)
        self._goes(other, new)
        _rename(old, new)
        folder.names.pop(name, None)
        other.names[other_name] = node
        for path in {os.path.dirname(old), os.path.dirname(new)}:
            self._touched(path)
        self.step("renamed", new)  # a network's answer may be lost

    os_replace = os_rename

    def os_unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        place = None if dir_fd is not None else self._place(path)
        if place is None:
            _unlink(path, dir_fd=dir_fd)
            return
        self.step("unlink", place)
        folder, name = self._parent(place)
        self._goes(folder, place)
        _unlink(place)
        folder.names.pop(name, None)
        self._touched(os.path.dirname(place))

    os_remove = os_unlink

    def _goes(self, folder: Folder, path: str) -> None:
        """Keep the content of a file that has no name any more: that may be durable."""
        node = folder.names.get(os.path.basename(path))
        if isinstance(node, File):
            node.last = self._content(path)

    def os_mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        place = self._place(path)
        if place is None:
            _mkdir(path, mode, dir_fd=dir_fd)
            return
        self.step("mkdir", place)
        folder, name = self._parent(place)
        _mkdir(place, mode)
        folder.names[name] = Folder()
        self._touched(place)
        self._touched(os.path.dirname(place))

    def os_rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        place = self._place(path)
        if place is not None:
            self.step("rmdir", place)
        _rmdir(path, dir_fd=dir_fd)
        if place is not None:
            folder, name = self._parent(place)
            folder.names.pop(name, None)
            self._touched(os.path.dirname(place))

    def os_scandir(self, path: Any = ".") -> Any:
        if (place := self._place(path)) is not None:
            self.step("list", place)
        return _scandir(path)

    def os_listdir(self, path: Any = ".") -> list[Any]:
        if (place := self._place(path)) is not None:
            self.step("list", place)
        return _listdir(path)

    def os_utime(self, path: Any, times: Any = None, **how: Any) -> None:
        place = self._place(path)
        if place is not None and times is None and "ns" not in how:
            self._touched(place)
        else:
            _utime(path, times, **how)
