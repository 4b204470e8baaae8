"""Objects as DuckDB reads them: ``object://s3://bucket/…`` opens through a registered file system.

DuckDB asks for the parts of a file that a statement needs: the footer, then the columns of the row groups that may
match.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from fsspec.spec import AbstractFileSystem

from logprobe.collectors.errors import ObjectStoreError
from logprobe.monitor.objects.store import ObjectStore
from logprobe.monitor.store.raw_places import PREFIX, object_location

PROTOCOL: Final = PREFIX.removesuffix("://")
_UNCHANGED: Final = datetime.fromtimestamp(0, UTC)


class ObjectFile:
    """One open object, read only. Threads may share it: each has its own position."""

    mode = "rb"
    closed = False

    def __init__(self, store: ObjectStore, url: str) -> None:
        """Raises `ObjectStoreError`."""
        self._store, self._url = store, url
        self.size = store.size(url)
        self._place = threading.local()

    def seek(self, offset: int, whence: int = 0) -> int:
        """As of a file."""
        self._place.now = offset + (0, self.tell(), self.size)[whence]
        return self.tell()

    def tell(self) -> int:
        """As of a file."""
        return int(getattr(self._place, "now", 0))

    def read(self, length: int = -1) -> bytes:
        """As of a file. Raises `ObjectStoreError`."""
        begin = self.tell()
        wanted = self.size - begin if length < 0 else min(length, self.size - begin)
        data = self._store.read(self._url, begin, wanted)
        self._place.now = begin + len(data)
        return data

    def close(self) -> None:
        """The store keeps what it has opened: others may be reading it."""


class ObjectFiles(AbstractFileSystem):  # type: ignore[misc]
    """What fsspec, and DuckDB through it, asks of a file system; read only."""

    protocol = PROTOCOL
    cachable = False

    def __init__(self, store: Callable[[], ObjectStore]) -> None:
        """`store`: asked for whenever an object is opened."""
        super().__init__()
        self._store = store

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return object_location(path)

    def open(self, path: str, mode: str = "rb", **_: Any) -> ObjectFile:
        """Raises `ObjectStoreError`."""
        if "w" in mode or "a" in mode:
            raise ObjectStoreError("objects are read only")
        return ObjectFile(self._store(), self._strip_protocol(path))

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Size and type of an object."""
        size = self._store().size(self._strip_protocol(path))
        return {"name": path, "size": size, "type": "file", "mtime": _UNCHANGED}

    def modified(self, path: str) -> datetime:  # noqa: ARG002
        """Never."""
        return _UNCHANGED

    def glob(self, path: str, **_: Any) -> list[str]:
        """Itself: addresses are names, never patterns."""
        return [path]

    def exists(self, path: str, **_: Any) -> bool:  # noqa: ARG002
        """What the ledger names is there, or reading it says why not."""
        return True
