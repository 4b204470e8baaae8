"""A disk in memory that knows what is written and what is durable, and that refuses, tears or loses on demand.

A *kill* ends the process between or inside operations: what was done stays. A *power cut* loses what was not synced: of
every name that was changed since its folder was synced, and of every file whose content was changed since it was synced,
it is drawn whether the change is there, and of the content how much.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from logprobe.collectors.files import Disk

READS = ("read", "size", "names")


class Kill(BaseException):
    """The process is gone."""


@dataclass(eq=False)
class File:
    content: bytes = b""
    durable: bytes | None = None  # None: nothing of the file is
    refused: bytes | None = None  # content of a failed fsync, which a later one takes for written


@dataclass
class Folder:
    names: dict[str, File | Folder] = field(default_factory=dict)
    durable: dict[str, File | Folder] = field(default_factory=dict)


class SimulatedDisk(Disk):
    """`fault` is asked before each operation and returns an errno or None; `kill_in` counts operations down."""

    def __init__(self, random_: random.Random) -> None:
        super().__init__()
        self.random = random_
        self.root = Folder()
        self.fault: Callable[[str, Path], int | None] = lambda operation, path: None
        self.kill_in: int | None = None
        self.operations = 0
        self.faults = 0

    # What a test does to the machine

    def power_cut(self) -> None:
        self._cut(self.root)

    def _cut(self, folder: Folder) -> None:
        after: dict[str, File | Folder] = {}
        for name in sorted({*folder.names, *folder.durable}):
            now, before = folder.names.get(name), folder.durable.get(name)
            node = now if now is before or self.random.random() < 0.5 else before
            if node is not None:
                after[name] = node
        folder.names, folder.durable = after, dict(after)
        for node in after.values():
            if isinstance(node, Folder):
                self._cut(node)
            else:
                node.content = node.durable = self._remains(node)

    def _remains(self, file: File) -> bytes:
        durable = file.durable or b""
        if file.durable == file.content or self.random.random() < 0.3:
            return durable
        kept = file.content[: self.random.randrange(len(file.content) + 1)]
        if len(kept) < len(durable):
            return durable
        return kept + bytes(self.random.randrange(len(file.content) - len(kept) + 1))  # blocks of zeros

    # Operations

    def _step(self, operation: str, path: Path) -> None:
        self.operations += 1
        if self.kill_in is not None:
            self.kill_in -= 1
            if self.kill_in < 0:
                raise Kill(operation, path)
        code = self.fault(operation, path)
        if code is not None:
            self.faults += 1
            raise OSError(code, errno.errorcode[code], str(path))

    def _node(self, path: Path) -> File | Folder | None:
        node: File | Folder | None = self.root
        for part in path.parts[1:]:
            if not isinstance(node, Folder):
                return None
            node = node.names.get(part)
        return node

    def _folder(self, path: Path) -> Folder:
        node = self._node(path)
        if not isinstance(node, Folder):
            raise FileNotFoundError(errno.ENOENT, "no folder", str(path))
        return node

    def _file(self, path: Path) -> File:
        node = self._node(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no file", str(path))
        if isinstance(node, Folder):
            raise IsADirectoryError(errno.EISDIR, "a folder", str(path))
        return node

    def read(self, path: Path, *, last: int | None = None) -> bytes:
        self._step("read", path)
        content = self._file(path).content
        return content if last is None else content[max(len(content) - last, 0) :]

    def size(self, path: Path) -> int | None:
        self._step("size", path)
        node = self._node(path)
        return None if node is None else len(node.content) if isinstance(node, File) else 0

    def stamp(self, path: Path) -> tuple[int, int, int] | None:
        node = self._node(path)
        return (hash(node.content), len(node.content), id(node)) if isinstance(node, File) else None

    def names(self, folder: Path) -> list[str]:
        self._step("names", folder)
        node = self._node(folder)
        return sorted(node.names) if isinstance(node, Folder) else []

    def write(self, path: Path, content: bytes, *, mode: int = 0o600) -> None:
        self._step("create", path)
        folder = self._folder(path.parent)
        if path.name in folder.names:
            raise FileExistsError(errno.EEXIST, "there already", str(path))
        file = folder.names[path.name] = File()
        self._fill(file, b"", content, path)

    def append(self, path: Path, content: bytes, *, mode: int = 0o600) -> None:
        self._step("append", path)
        folder = self._folder(path.parent)
        file = folder.names.setdefault(path.name, File())
        assert isinstance(file, File)
        self._fill(file, file.content, content, path)

    def _fill(self, file: File, before: bytes, content: bytes, path: Path) -> None:
        try:
            self._step("write", path)
        except BaseException:  # a part of it may be there
            file.content = before + content[: self.random.randrange(len(content) + 1)]
            raise
        file.content = before + content
        try:
            self._step("fsync", path)
        except OSError:
            file.refused = file.content
            raise
        file.durable = file.content

    def truncate(self, path: Path, size: int) -> None:
        self._step("truncate", path)
        file = self._file(path)
        file.content = file.content[:size]
        self._step("fsync", path)
        file.durable = file.content

    def rename(self, path: Path, target: Path) -> None:
        self._step("rename", path)
        node = self._folder(path.parent).names.pop(path.name)
        self._folder(target.parent).names[target.name] = node

    def unlink(self, path: Path) -> None:
        self._step("unlink", path)
        node = self._node(path.parent)
        if isinstance(node, Folder):
            assert not isinstance(node.names.get(path.name), Folder)
            node.names.pop(path.name, None)

    def mkdir(self, folder: Path) -> None:
        self._step("mkdir", folder)
        self._folder(folder.parent).names.setdefault(folder.name, Folder())

    def rmdir(self, folder: Path) -> None:
        self._step("rmdir", folder)
        node = self._node(folder)
        if node is None:
            return
        if not isinstance(node, Folder) or node.names:
            raise OSError(errno.ENOTEMPTY, "not empty", str(folder))
        del self._folder(folder.parent).names[folder.name]

    def is_folder(self, path: Path, *, follow: bool = True) -> bool:
        return isinstance(self._node(path), Folder)

    def sync(self, path: Path) -> None:
        self._step("fsync", path)
        node = self._node(path)
        if isinstance(node, Folder):
            node.durable = dict(node.names)
        elif node is None:
            raise FileNotFoundError(errno.ENOENT, "no file", str(path))
        elif node.content != node.refused:
            node.durable = node.content

    # Beside the process: never refused, and durable

    def plant(self, path: Path, content: bytes) -> None:
        folder = self.root
        for part in path.parent.parts[1:]:
            node = folder.names.setdefault(part, Folder())
            folder.durable[part] = node
            assert isinstance(node, Folder)
            folder = node
        folder.names[path.name] = folder.durable[path.name] = File(content, content)

    def content(self, path: Path) -> bytes | None:
        node = self._node(path)
        return node.content if isinstance(node, File) else None

    def everything(self) -> dict[str, bytes]:
        """Return all files by path."""
        found: dict[str, bytes] = {}

        def walk(folder: Folder, path: str) -> None:
            for name, node in folder.names.items():
                if isinstance(node, Folder):
                    walk(node, f"{path}/{name}")
                else:
                    found[f"{path}/{name}"] = node.content

        walk(self.root, "")
        return found
