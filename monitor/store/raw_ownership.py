"""Whether what lies below ``raw/`` is this store's: if not, nothing there is written, moved or removed, and nothing is
forgotten.

The store is what operators lose, restore, copy and mount. So ``raw/!store.json`` names the store that wrote there and
the home it was used from, and is locked while a process works with it. Files that are all gone at once, or belong to
another store, mean a mount, a copy or a lost store; which one it is, only a person can tell.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from logprobe.collectors.errors import StoreError
from logprobe.collectors.files import is_gone, stamp_of
from logprobe.collectors.locks import FileLock
from logprobe.monitor.home import Home
from logprobe.monitor.store.raw_damage import DamagedFiles
from logprobe.monitor.store.raw_files import has_files

MARK: Final = "!store.json"  # no run's folder is called so
_REBUILDING: Final = "!rebuilding"


class RawOwnership:
    """Of one open store. Safe to share between threads; looking again costs one `stat` while all is well."""

    def __init__(self, home: Home, store_id: Callable[[], str], files: Callable[[], Sequence[str]]) -> None:
        """`files`: those on the disk by the store's account, relative to the home. Looks at nothing yet."""
        self._home = home
        self._mark = home.raw / MARK
        self._store_id = store_id
        self._files = files
        self._place: tuple[int, int] | None = None
        self._turn = threading.Lock()
        self._lock: FileLock | None = None
        self._seen: tuple[int, int, int] | None = None  # of the mark, when all was well
        self.problem: str | None = None  # as seen last
        self.unknown: list[str] = []  # complete files that the store does not list
        self.unlisted: list[str] = []  # folders that could not be listed
        self.damaged = DamagedFiles(home)

    def require(self) -> None:
        """Raises `StoreError`, one sentence that says what to do, unless the files are this store's."""
        with self._turn:
            if self._seen is None or stamp_of(self._mark) != self._seen:
                self.problem = self._or_unreadable(self._find_interruption) or self._or_unreadable(self._find_problem)
                self._seen = None if self.problem else stamp_of(self._mark)
            if self.problem:
                raise StoreError(self.problem)

    def problems(self, *, named: bool = True) -> list[str]:
        """What was wrong when someone looked last, each in a sentence that says what to do; touches no disk.

        `named`: damaged files and folders that cannot be listed by name, which has that of the run.
        """
        problems = [self.problem] if self.problem else []
        if self.unknown:
            problems.append(
                f"{self._home.raw} has {len(self.unknown):,} complete raw files that the store does not list, as after "
                "a restore of "
                f"an older store: stop the service and run: logprobe store check --repair --home {self._home.path}"
            )
        unlisted = self.unlisted if named else [f"A folder below {self._home.raw}"] * bool(self.unlisted)
        return [*problems, *map(unlistable, unlisted), *self.damaged.problems(named=named)]

    def look_again(self) -> None:
        """Has the next `require` look at everything."""
        self._seen = None

    def release(self) -> None:
        """Lets another process use the files."""
        with self._turn:
            self._unlock()

    def adopt(self) -> None:
        """Makes the files this store's, whosever they were. Raises `StoreError` when another home or process uses
        them."""
        with self._turn:
            self.problem = self._or_unreadable(self._take_over)
            if self.problem:
                raise StoreError(self.problem)

    @contextmanager
    def rebuilding(self) -> Iterator[None]:
        """Until this block has come to its end, here or in a later process, the files may be used for nothing else.
        Raises `StoreError`."""
        note = self._home.raw / _REBUILDING
        try:
            note.touch()
            yield
            note.unlink(missing_ok=True)
        except OSError as error:
            if error.filename != str(note):
                raise
            raise StoreError(
                f"{note} cannot be written ({error.strerror}); make room below {self._home.raw}"
            ) from error

    def _take_over(self) -> str | None:
        mark = self._said()
        return self._copied(mark[1]) if mark and self._is_used_from(mark[1]) else self._claim()

    def _or_unreadable(self, look: Callable[[], str | None]) -> str | None:
        try:
            return look()
        except OSError as error:
            return f"{error.filename or self._home.raw} cannot be read ({error.strerror}): check its disk and its mode"

    def _find_interruption(self) -> str | None:
        if is_gone(self._home.raw / _REBUILDING):
            return None
        return (
            f"a rebuild of {self._home.path} was interrupted, and records are missing: repeat it: "
            f"logprobe store check --repair --home {self._home.path}"
        )

    def _find_problem(self) -> str | None:
        self._place = self._place or _place(self._home)
        if _place(self._home) != self._place:
            return (
                f"{self._home.path} was renamed or removed while the service uses it: stop the service, then put the "
                "folder back or "
                "start it where the folder is now"
            )
        mark = self._said()
        files = self._files()
        if files and all(is_gone(self._home.path / path) for path in files):
            return (
                f"{self._home.raw} has none of the {len(files):,} raw files that the store lists: mount it, or put it "
                "back; if "
                f"they are gone for good, run: logprobe store check --repair --home {self._home.path}"
            )
        if mark is None and not files and has_files(self._home):
            return self._foreign("this store does not know")
        if mark is not None and mark[0] != self._store_id():
            return self._foreign("another store wrote")
        if mark is not None and self._is_used_from(mark[1]):
            return self._copied(mark[1])
        return self._claim()

    def _foreign(self, whose: str) -> str:
        return (
            f"{self._home.raw} has raw files that {whose}: put the right store back or mount the "
            "right "
            f"folder; if the store is lost, run: logprobe store check --repair --home {self._home.path}"
        )

    def _copied(self, other: str) -> str:
        return (
            f"{self._home.raw} belongs to the home {other}, of which {self._home.path} is a copy: give the copy a raw/ "
            "of its own "
            "(replace the link by a copy of the folder)"
        )

    def _said(self) -> tuple[str, str] | None:
        """The store and the home that the mark names; None: there is none. Raises `OSError`: that is unknown."""
        try:
            document = json.loads(self._mark.read_text(encoding="utf-8"))
            return str(document["store"]), str(document["home"])
        except (FileNotFoundError, NotADirectoryError, ValueError, LookupError, TypeError):
            return None

    def _is_used_from(self, other: str) -> bool:
        """Whether another home still has these very files as its own: below its folder or by a link."""
        if Path(other) == self._home.path or self._home.raw.resolve().is_relative_to(self._home.path):
            return False
        with suppress(OSError):
            return (Path(other) / self._home.database.name).exists() and (Path(other) / "raw").samefile(self._home.raw)
        return False

    def _claim(self) -> str | None:
        """Locks the mark and writes it; → why that is impossible."""
        self._unlock()
        lock = FileLock(self._mark, mode=0o600)
        try:
            if not lock.take():
                return f"{self._home.raw} is in use by another process: stop the service that uses it"
        except OSError as error:
            return f"{self._mark} cannot be written ({error.strerror}): make {self._home.raw} writable"
        self._lock = lock
        content = json.dumps({"store": self._store_id(), "home": str(self._home.path)}).encode()
        try:
            if self._mark.read_bytes() != content:
                lock.write(content)
        except OSError as error:
            return f"{self._mark} cannot be written ({error.strerror}): make room, or make {self._home.raw} writable"
        return None

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def unlistable(path: str) -> str:
    """What to say of a folder below ``raw/`` that cannot be listed."""
    return (
        f"{path} cannot be listed: which raw files are in it is unknown, and none of them is removed; check its disk "
        "and its mode"
    )


def _place(home: Home) -> tuple[int, int] | None:
    """Which folder the home's path leads to; None: to none."""
    with suppress(OSError):
        status = home.path.stat()
        return status.st_dev, status.st_ino
    return None
