"""Runs that a home has handed over to another service, or is about to: a small file each, written before anything
leaves.

    <home>/moved/<quoted run>.json

While there is one, nothing of the run is stored here: its segments stay in the spool. Once it says where the run is,
they are forwarded.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from logprobe.collectors.errors import RunDeletedError, StoreError
from logprobe.collectors.files import fsync_folder
from logprobe.collectors.spool.segments import run_name
from logprobe.monitor.home import Home, own_text
from logprobe.monitor.run_files import SUFFIX, RunFiles

FOLDER: Final = "moved"
_TOLD_SECONDS: Final = 300.0


@dataclass(frozen=True, slots=True)
class Moved:
    """One run. `move`: the move's id; `to`: the name of its service; `home`: that one's home, None: it is on its way;
    `at`: ISO 8601, UTC."""

    run: str
    move: str
    to: str
    home: str | None
    at: str


class MovedRuns:
    """Those of one home. Safe to share between threads; looking again costs one `stat`."""

    def __init__(self, home: Home) -> None:
        """Touches nothing."""
        self._home = home
        self._files = RunFiles(home, FOLDER, self._read, "which runs belong to other services is unknown")
        self.all = self._files.all
        self.find = self._files.find
        self._busy: Counter[str] = Counter()  # runs about which something is being told
        self._ended = threading.Condition()

    def refuse(self, run: str) -> None:
        """Raises `RunDeletedError` when nothing may be stored of a run here."""
        moved = self.find(run)
        if moved is not None:
            raise RunDeletedError(f"run {run!r} belongs to service {moved.to!r} since {moved.at}; use its home")

    @contextmanager
    def staying(self, run: str) -> Iterator[bool]:
        """Whether a run is here; while the block lasts it does not leave, see `leave`. Raises `StoreError` when that is
        unknown."""
        with self._ended:
            self._busy[run] += 1
        try:
            yield self.find(run) is None
        finally:
            with self._ended:
                self._busy[run] -= 1
                self._busy += Counter()  # without those that are done
                self._ended.notify_all()

    def leave(self, moved: Moved) -> None:
        """Writes down that a run leaves, and waits for what is being told of it. Raises `StoreError`; then the action
        can be repeated."""
        self.write(moved)
        with self._ended:
            if not self._ended.wait_for(lambda: not self._busy[moved.run], _TOLD_SECONDS):
                raise StoreError(f"a message about {moved.run!r} is still being sent; repeat the command")

    def write(self, moved: Moved) -> None:
        """Durably. Raises `StoreError`."""
        self._files.write(moved.run, asdict(moved))

    def remove(self, run: str) -> None:
        """The run is this home's again. Raises `StoreError`."""
        path = self._files.path(run)
        try:
            if path.exists():
                path.unlink()
                fsync_folder(path.parent)
        except OSError as error:
            raise StoreError(f"{path} cannot be removed ({error.strerror})") from error

    def _read(self, path: Path) -> tuple[str, Moved]:
        """One that cannot be read counts as what its name says: nothing is stored of the run, and its segments stay
        where they are."""
        try:
            moved = Moved(**json.loads(own_text(path, self._home.path)))
        except (OSError, ValueError, LookupError, TypeError):
            moved = Moved(run_name(path.name.removesuffix(SUFFIX)), "", "unknown", None, "an unknown time")
        return moved.run, moved
