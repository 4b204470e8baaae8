"""Deletion of runs: a tombstone is written first, then all data of the run is removed.

    <home>/deleted/<quoted run>.json

A tombstone is permanent. No record of its run is ingested again, late segments are removed, and no other run can use
the name. Deletion has five steps in this order. The next start completes an interrupted one:

    1. the tombstone is written durably         4. other files of the run
    2. segments in the spool                    5. rows in the index
    3. files of the archive
"""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, NamedTuple

from logprobe.collectors.clock import TIME, Time
from logprobe.collectors.errors import RunDeletedError, StoreError
from logprobe.collectors.files import DISK, UNFINISHED, Disk, remove_tree, replace_file
from logprobe.collectors.spool.segments import run_dir, run_name
from logprobe.monitor.plain_text import file_name
from logprobe.monitor.store.archive import Archive

FOLDER: Final = "deleted"
_SUFFIX: Final = ".json"
_IN_USE: Final = frozenset({errno.ENOTEMPTY, errno.EEXIST})  # a collector is still at work in a folder


@dataclass(frozen=True, slots=True)
class Tombstone:
    """A deleted run. `deleted_at`: ISO 8601. `author`: name that the user gave."""

    run: str
    deleted_at: str
    author: str


class Tombstones:
    """Deleted runs of one data directory. Only the process that owns the data directory changes them."""

    def __init__(self, home: Path, *, disk: Disk = DISK, time: Time = TIME) -> None:
        """Set up the tombstones without disk access."""
        self._home = home
        self._folder = home / FOLDER
        self._disk = disk
        self._time = time
        self._by_run: dict[str, Tombstone] = {}
        self._loaded = False

    def load(self, *, tidy: bool = True) -> None:
        """Read all tombstones. If this raises `StoreError`, nothing may be stored.

        `tidy`: true for the owner of the data directory, which completes interrupted deletions.
        """
        try:
            names = self._disk.names(self._folder)
            if names and tidy:
                self._disk.sync(self._folder)  # a killed process may not have come to it
            found = [self._read(name) for name in names if not name.startswith(".") and name.endswith(_SUFFIX)]
            for name in names if tidy else ():
                if name.startswith(".") and name.endswith(UNFINISHED):
                    self._disk.unlink(self._folder / name)
        except OSError as error:
            raise StoreError(
                f"{self._folder} cannot be read ({error}). The deleted runs are unknown; make it readable and start again"
            ) from error
        self._by_run = {tombstone.run: tombstone for tombstone in found}
        self._loaded = True

    def find(self, run: str) -> Tombstone | None:
        """Return the tombstone of a run, or None if the run was not deleted. Raises `StoreError`."""
        return self._known().get(run)

    def __contains__(self, run: object) -> bool:
        return run in self._known()

    def all(self) -> list[Tombstone]:
        """Return the tombstones by run."""
        return [tombstone for _, tombstone in sorted(self._known().items())]

    def add(self, run: str, author: str) -> Tombstone:
        """Mark a run as deleted durably. An earlier mark is kept. Raises `StoreError` if the write fails."""
        if (found := self._known().get(run)) is not None:
            return found
        tombstone = Tombstone(run, self._time.stamp(), author)
        path = self._folder / f"{file_name(run_dir(self._home, run).name)}{_SUFFIX}"
        try:
            replace_file(path, json.dumps(asdict(tombstone)).encode(), disk=self._disk)
        except OSError as error:
            raise StoreError(
                f"{path} cannot be written ({error}). The run was not deleted; check disk space and permissions, then retry"
            ) from error
        self._by_run[run] = tombstone
        return tombstone

    def refuse(self, run: str) -> None:
        """Raise `RunDeletedError` if a run was deleted."""
        if (found := self._known().get(run)) is not None:
            raise RunDeletedError(
                f"run {run!r} was deleted at {found.deleted_at} by {found.author}; use another name for a new run"
            )

    def _known(self) -> dict[str, Tombstone]:
        if not self._loaded:
            self.load()
        return self._by_run

    def _read(self, name: str) -> Tombstone:
        """Return a tombstone. The name of a damaged one still identifies the deleted run."""
        content = self._disk.read(self._folder / name)
        try:
            stated = json.loads(content)
            return Tombstone(str(stated["run"]), str(stated["deleted_at"]), str(stated["author"]))
        except (ValueError, LookupError, TypeError):
            return Tombstone(run_name(name.removesuffix(_SUFFIX)), "an unknown time", "an unknown user")


class Rest(NamedTuple):
    """Data of a run outside spool and archive. `files`: returns its files and folders. `forget`: removes its rows from
    the index."""

    files: Callable[[str], Iterable[Path]]
    forget: Callable[[str], object]


class Deletion:
    """Removal of all data of a run from a data directory."""

    def __init__(self, home: Path, tombstones: Tombstones, archive: Archive, *, disk: Disk = DISK) -> None:
        self._home = home
        self._tombstones = tombstones
        self._archive = archive
        self._disk = disk
        self._left: set[str] | None = None  # runs of which something may be left; None: all that were deleted

    def delete(self, run: str, author: str, rest: Rest) -> int:
        """Delete a run and return the number of removed files. A second call removes the rest.

        Raises:
            StoreError: nothing was deleted.
            OSError: the run is deleted, and `finish` removes the remaining files.
        """
        self._tombstones.add(run, author)
        if self._left is not None:
            self._left.add(run)
        return self._empty(run, rest)

    def finish(self, rest: Rest) -> dict[str, str]:
        """Remove the remaining data of all deleted runs, and at later calls of the incomplete ones.

        Returns run → reason for the files that cannot be removed now.
        """
        runs = {tombstone.run for tombstone in self._tombstones.all()} if self._left is None else self._left
        self._left, reasons = set(runs), {}
        for run in sorted(runs):
            try:
                self._empty(run, rest)
            except OSError as error:
                reasons[run] = str(error)
        return reasons

    def _empty(self, run: str, rest: Rest) -> int:
        count = self._remove(run_dir(self._home, run))
        count += self._archive.erase(run)
        count += sum(map(self._remove, rest.files(run)))
        rest.forget(run)
        if self._left is not None:
            self._left.discard(run)
        return count

    def _remove(self, path: Path) -> int:
        try:
            return remove_tree(path, self._disk)
        except OSError as error:
            if error.errno not in _IN_USE:
                raise
            return 0
