"""Data directory (home) of one service, and its owning process.

    <home>/spool/<run>/<writer>/…arrow      unmerged segments
    <home>/archive/<run>/<kind>/…parquet    merged segments
    <home>/quarantine/                      files moved aside, with the reason in the store
    <home>/logprobe.duckdb                  the store
    <home>/journal.jsonl                    facts that only the store has, see `store.said`
    <home>/service.lock, service.json       owner of the directory (flock), its address and token (mode 0600)

The process that holds the flock on ``service.lock`` owns the data directory. The kernel releases the lock of a killed
owner, so no clean-up is needed.

The service trusts its user, the owner of the data directory, and root. Other users may share the machine, and the spool
of a group's data directory. The service refuses files that they plant elsewhere. A planted link would make the service
write, move or remove another user's files. A planted address or token would impersonate the service.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from typing import Any, Final, Self

from logprobe.collectors.addresses import is_address
from logprobe.collectors.errors import ConfigurationError, HomeBusyError
from logprobe.collectors.files import DISK, disk_time, make_durable, open_no_follow, replace_file
from logprobe.collectors.locks import SERVICE, FileLock
from logprobe.monitor.plain_text import printable

# `Home.owner` looks by locking for an instant; whoever starts in that instant must not take it for an owner.
_ATTEMPTS: Final = 25
_PAUSE: Final = 0.02  # seconds
UMASK_VARIABLE: Final = "LOGPROBE_UMASK"
_GROUP: Final = 0o070
_OWN: Final = (
    "archive",
    "archive.id",
    "quarantine",
    "deleted",
    "directives",
    "journal.jsonl",
    "nodes",
    "landing.id",
    "service.lock",
    "service.json",
    "logprobe.duckdb",
    "logprobe.duckdb.wal",
)
_SHARED: Final = "spool"  # collectors of other users make it too


@dataclass(frozen=True, slots=True)
class ServiceInfo:
    """Address and token of a service, stored in ``service.json`` (mode 0600)."""

    host: str
    port: int
    token: str
    pid: int
    started: str  # ISO 8601, UTC
    health_port: int | None = None  # of ``/healthz``

    @property
    def address(self) -> str:
        """Address as ``host:port``."""
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Owner:
    """Process that holds the lock of a data directory, read from ``service.lock``."""

    pid: int
    host: str
    started: str  # ISO 8601, UTC
    address: str | None = None

    def __str__(self) -> str:
        at = f", address {self.address}" if self.address else ""
        return f"process {self.pid} on {self.host} (since {self.started}{at})"


class Home:
    """Paths of one data directory. `create` creates the folders."""

    def __init__(self, path: str | PathLike[str]) -> None:
        """Set the path. Raise `ConfigurationError` if `path` is empty, has "?" or a backslash, or is not a
        directory.
        """
        if not str(path):
            raise ConfigurationError("the home is an empty path; pass --home or set LOGPROBE_HOME to a folder")
        if is_address(str(path)):
            raise ConfigurationError(
                f"{path} is a bucket; pass --home DIR, the folder of the service that pulls from it: logprobe up --home "
                f"DIR --bucket {path}"
            )
        self.path = Path(path).expanduser().resolve()
        # DuckDB takes what follows a "?" for a URL's query and looks for its log elsewhere; a backslash it takes for a
        # slash.
        for character in ("?", "\\"):
            if character in str(self.path):
                raise ConfigurationError(
                    f"{self.path}: DuckDB cannot work below a folder with {character!r} in its name; choose another "
                    "home"
                )
        if self.path.exists() and not self.path.is_dir():
            raise ConfigurationError(f"{self.path} is not a folder; choose another home")
        self.spool = self.path / "spool"
        self.raw = self.path / "archive"
        self.quarantine = self.path / "quarantine"
        self.database = self.path / "logprobe.duckdb"
        self.lock_file = self.path / SERVICE
        self.service_file = self.path / "service.json"

    def __repr__(self) -> str:
        return f"Home({str(self.path)!r})"

    def create(self) -> Self:
        """Create the folders.

        Raises the errors of `make`, and `StoreError` if its store has another schema, which then stays unchanged.
        """
        from logprobe.monitor.store.schema import check_file  # noqa: PLC0415 - loads DuckDB

        check_file(self)
        return self.make()

    def make(self) -> Self:
        """Create the folders, whatever the store has: `lock` has checked it, and to open it once more takes as long as
        opening it.

        Raises `ConfigurationError` if the place is not writable or another user may have prepared it.
        """
        try:
            make_home(self.path)
            refuse_planted(self.path)
            for folder in (self.spool, self.raw, self.quarantine):
                make_durable(folder)
        except OSError as error:
            raise ConfigurationError(f"{self.path}: cannot create a home here ({error}); choose another") from error
        return self

    def relative(self, path: Path) -> str:
        """Return `path` relative to the data directory, as in the store: with forward slashes and escaped non-UTF-8
        bytes.
        """
        return printable(path.relative_to(self.path).as_posix())

    def now(self) -> float:
        """Return seconds since the epoch by the clock of the file timestamps, see `disk_time`."""
        return disk_time(self.lock_file)

    def lock(self) -> HomeLock:
        """Lock the data directory for this process until the release or the end of the process.

        Raises `HomeBusyError` with the owner's name if another process, or another lock in this process, holds it.
        """
        self.create()
        return HomeLock(self)

    def owner(self) -> Owner | None:
        """Return the process that holds the data directory, or None. Ignore the lock file of a killed process."""
        return _read_owner(self.lock_file) if FileLock(self.lock_file).held_elsewhere else None

    def service_info(self) -> ServiceInfo | None:
        """Return the address and token of the service, or None without a valid file.

        A killed service leaves its file behind. `owner` tells whether the service is running.
        """
        try:
            content = json.loads(own_text(self.service_file, self.path))
            return ServiceInfo(**{field.name: content[field.name] for field in fields(ServiceInfo)})
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write_service_info(self, info: ServiceInfo) -> None:
        """Publish the service's address and token atomically, readable only by the home's user (mode 0600)."""
        replace_file(self.service_file, json.dumps(asdict(info)).encode())

    def remove_service_info(self) -> None:
        """Remove the address at shutdown if the disk permits. Readers tolerate a stale address of a killed service."""
        with suppress(OSError):
            self.service_file.unlink(missing_ok=True)

    def refusal(self) -> str | None:
        """Return the system's error message if the data directory is not writable, or None."""
        try:
            with tempfile.TemporaryFile(dir=self.path, buffering=0) as file:
                file.write(b"?")
                os.fsync(file.fileno())
        except OSError as error:
            return error.strerror or str(error)
        return None


class HomeLock:
    """Exclusive ownership of a data directory as a context manager. The kernel releases the flock when the process
    dies."""

    def __init__(self, home: Home) -> None:
        """Take the lock (see `Home.lock`)."""
        self._lock = _acquire(home)
        self._started = utc_now()
        self.announce(None)

    def announce(self, address: str | None) -> None:
        """Write the owner into the lock file, for the error message of a later process."""
        owner = Owner(pid=os.getpid(), host=socket.gethostname(), started=self._started, address=address)
        self._lock.write(json.dumps(asdict(owner)).encode())

    def release(self) -> None:
        """Release the data directory."""
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()


def utc_now() -> str:
    """Return the present time in ISO 8601, UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _acquire(home: Home) -> FileLock:
    lock = FileLock(home.lock_file, mode=0o644)
    for _ in range(_ATTEMPTS):
        try:
            if lock.take():
                return lock
        except PermissionError as error:
            raise HomeBusyError(f"{home.path} belongs to another user ({error}); run this as that user") from error
        time.sleep(_PAUSE)
    owner = _read_owner(home.lock_file)
    who = str(owner) if owner else "another process"
    raise HomeBusyError(f"{home.path} is in use by {who}; stop it, or choose another home")


def _read_owner(path: Path) -> Owner | None:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return Owner(**{field.name: content[field.name] for field in fields(Owner)})
    except (OSError, ValueError, KeyError, TypeError):
        return None  # its owner is just about to write it


def trusted(path: Path) -> frozenset[int]:
    """Return the permitted owners of files in a data directory. Raises `OSError` for a missing directory."""
    return frozenset({0, os.geteuid(), path.stat().st_uid})


def refuse_planted(path: Path) -> None:
    """Raise `ConfigurationError` if a path that the service writes to is a link or file of an untrusted user."""
    owners = trusted(path)
    for name in (*_OWN, _SHARED):
        try:
            status = (path / name).lstat()
        except FileNotFoundError:
            continue
        if status.st_uid in owners or (name == _SHARED and stat.S_ISDIR(status.st_mode)):
            continue
        kind = "a link that user" if stat.S_ISLNK(status.st_mode) else "put there by user"
        raise ConfigurationError(
            f"{path / name} is {kind} {status.st_uid} made, neither you nor the home's owner; inspect it, remove it, "
            "and let "
            f"no one else write to {path} itself (docs/cluster.md)"
        )


def own_text(file: Path, home: Path, most: int = 1 << 16) -> str:
    """Return the text of a file that only the home's user can have written. Raises `OSError`, `ValueError`."""
    with open_no_follow(file) as opened:
        status = os.fstat(opened.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_uid not in trusted(home) or status.st_mode & 0o022:
            raise ValueError(f"{file} was not written by the home's user, or others can change it")
        return opened.read(most).decode("utf-8")


def apply_umask() -> None:
    """Set the umask of this process to ``LOGPROBE_UMASK``, such as 007. Raises `ConfigurationError` for an invalid
    umask.
    """
    if (mask := _umask()) is not None:
        os.umask(mask)


def make_home(path: Path) -> None:
    """Create the data directory unless it exists, for its user and, if ``LOGPROBE_UMASK`` permits, for the group.

    Raises `ConfigurationError` for an invalid ``LOGPROBE_UMASK``, and `OSError` if the place is not writable.
    """
    if path.is_dir():
        return
    mask = _umask()
    make_durable(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)
    DISK.sync(path.parent)
    DISK.durable_folders.add(path)
    if mask is not None:
        mode = 0o777 & ~mask
        path.chmod(mode | (stat.S_ISGID if mode & _GROUP else 0))  # what is made below belongs to the same group


def _umask() -> int | None:
    text = os.environ.get(UMASK_VARIABLE, "")
    if not text:
        return None
    try:
        mask = int(text, 8)
    except ValueError:
        mask = -1
    if not 0 <= mask <= 0o777 or mask & 0o700:  # noqa: PLR2004 - what a umask is
        raise ConfigurationError(f"{UMASK_VARIABLE}={text!r}: expected an octal umask, such as 077, 027 or 007")
    return mask
