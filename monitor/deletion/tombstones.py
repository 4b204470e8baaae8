"""Which runs were deleted: a small file each, written before anything is removed.

    <home>/deleted/<quoted run>.json

While it says nothing of a release, nothing of the run is taken in. Released, the name may be recorded under again; what the collectors
of before have written stays out all the same.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Final

from logprobe.collectors.errors import RunDeletedError, StoreError
from logprobe.collectors.files import replace_file
from logprobe.collectors.spool.segments import run_dir, run_name
from logprobe.monitor.home import Home
from logprobe.monitor.ownership import own_text
from logprobe.monitor.plain_text import file_name

FOLDER: Final = "deleted"
_SUFFIX: Final = ".json"
_MOST_BYTES: Final = 16 << 20
_SETTLED_SECONDS: Final = 2.0  # a folder that changed more recently may change again within the same tick of its clock


@dataclass(frozen=True, slots=True)
class Tombstone:
    """One deleted run. Times: ISO 8601, UTC.

    Attributes:
        run: its name.
        deleted_at: when somebody asked for it.
        author: who that was, by their own word.
        writers: collectors that recorded it.
        released_at: when its name was released; None: it may not be used again.
        late: segments that came after the deletion, and were removed.
        late_at: when the last of them came.
    """

    run: str
    deleted_at: str
    author: str
    writers: frozenset[str] = frozenset()
    released_at: str | None = None
    late: int = 0
    late_at: str | None = None

    def covers(self, writer: str | None) -> bool:
        """Whether what a collector wrote stays out. None: it is not known which one did."""
        return self.released_at is None or writer in self.writers

    def document(self) -> dict[str, Any]:
        """As JSON-like data."""
        return {**asdict(self), "writers": sorted(self.writers)}


class Tombstones:
    """Those of one home. Safe to share between threads; looking again costs one `stat`."""

    _changing: ClassVar[threading.Lock] = threading.Lock()  # one process, the store's owner, changes them

    def __init__(self, home: Home) -> None:
        """Touches nothing."""
        self._home = home
        self.folder = home.path / FOLDER
        self._seen: tuple[int, Mapping[str, Tombstone]] | None = None

    def all(self) -> Mapping[str, Tombstone]:
        """By run. Raises `StoreError` when they are unknown: nothing is stored then."""
        try:
            changed = self.folder.stat().st_mtime_ns
        except FileNotFoundError:
            return MappingProxyType({})
        except OSError as error:
            raise StoreError(
                f"{self.folder} cannot be read ({error.strerror}); which runs are deleted is unknown"
            ) from error
        seen = self._seen
        if seen is not None and seen[0] == changed:
            return seen[1]
        found = {each.run: each for each in map(self._read, self.folder.glob(f"[!.]*{_SUFFIX}"))}
        if time.time() - changed / 1e9 > _SETTLED_SECONDS:
            self._seen = changed, found
        return found

    def find(self, run: str) -> Tombstone | None:
        """That of a run; None: it was never deleted. Raises `StoreError`."""
        return self.all().get(run)

    def refuse(self, run: str) -> None:
        """Raises `RunDeletedError` when nothing may be stored of a run."""
        found = self.find(run)
        if found is not None and found.released_at is None:
            raise RunDeletedError(
                f"run {run!r} was deleted at {found.deleted_at} by {found.author}; to use the name again: "
                f"logprobe delete {run} --release"
            )

    def change(self, run: str, how: Callable[[Tombstone | None], Tombstone]) -> Tombstone:
        """Replaces that of a run, durably; `how` is handed the one there is. Raises `StoreError`."""
        path = self._path(run)
        try:
            with self._changing:
                changed = how(self._read(path) if path.exists() else None)
                replace_file(path, json.dumps(changed.document()).encode())
        except OSError as error:
            raise StoreError(f"{path}: cannot be written ({error.strerror}); nothing was changed") from error
        return changed

    def _path(self, run: str) -> Path:
        return self.folder / f"{file_name(run_dir(self._home.path, run).name)}{_SUFFIX}"

    def _read(self, path: Path) -> Tombstone:
        """One that cannot be read counts as what its name says: in doubt a deleted run stays deleted."""
        try:
            said = json.loads(own_text(path, self._home.path, _MOST_BYTES))
            return Tombstone(**{**said, "writers": frozenset(map(str, said["writers"]))})
        except (OSError, ValueError, LookupError, TypeError):
            return Tombstone(run_name(path.name.removesuffix(_SUFFIX)), "an unknown time", "somebody")
