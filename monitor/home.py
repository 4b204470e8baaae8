"""A home: the folder that belongs to one service, and the process that owns it now.

    <home>/spool/<run>/<writer>/…arrow      segments that are not merged yet
    <home>/archive/<run>/<kind>/…parquet    what was taken in, merged
    <home>/quarantine/                      files moved aside, with the reason in the store
    <home>/logprobe.duckdb                  the store
    <home>/journal.jsonl                    what the store alone would know, see `store.said`
    <home>/service.lock, service.json       owner of the home (flock), its address and token (mode 0600)

The process that holds the flock on ``service.lock`` owns the home; a killed owner holds nothing, so nothing needs
cleaning up.

The service trusts its own user, the owner of the home's folder, and root. Others may share the machine, and in a home
for a group the spool. What they plant elsewhere in the home is refused: a link would make the service write, move or
remove another user's files, and a file with an address or a token in it would speak for the service.
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
from logprobe.collectors.files import DISK, disk_time, fsync_folder, make_durable, open_no_follow, replace_file
from logprobe.collectors.locks import SERVICE, FileLock
from logprobe.monitor.plain_text import printable

# `Home.owner` looks by locking for an instant; whoever starts in that instant must not take it for an owner.
_ATTEMPTS: Final = 5
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
    """Address at which the service of a home listens, and the token that it asks for. Lives in ``service.json`` (mode
    0600)."""

    host: str
    port: int
    token: str
    pid: int
    started: str  # ISO 8601, UTC
    health_port: int | None = None  # of ``/healthz``

    @property
    def address(self) -> str:
        """``host:port``."""
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Owner:
    """Process that holds a home's lock, as it wrote itself into ``service.lock``."""

    pid: int
    host: str
    started: str  # ISO 8601, UTC
    address: str | None = None

    def __str__(self) -> str:
        at = f", address {self.address}" if self.address else ""
        return f"process {self.pid} on {self.host} (since {self.started}{at})"


class Home:
    """Paths below one home. Creates nothing until `create` is called."""

    def __init__(self, path: str | PathLike[str]) -> None:
        """Raise `ConfigurationError` when `path` is empty, holds "?" or a backslash, or exists and is no directory."""
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

        Raises `ConfigurationError` if the place is not writable or another user may have prepared it, and `StoreError`
        if its store has another schema, which then stays unchanged.
        """
        from logprobe.monitor.store.schema import check_file  # noqa: PLC0415 - loads DuckDB

        check_file(self)
        try:
            make_home(self.path)
            refuse_planted(self.path)
            for folder in (self.spool, self.raw, self.quarantine):
                make_durable(folder)
        except OSError as error:
            raise ConfigurationError(f"{self.path}: cannot create a home here ({error}); choose another") from error
        return self

    def relative(self, path: Path) -> str:
        """Return `path` as the store names it: relative to the home, with forward slashes; bytes that are no UTF-8 are
        spelled out."""
        return printable(path.relative_to(self.path).as_posix())

    def now(self) -> float:
        """Return seconds since the epoch by the clock that stamps the home's files, see `disk_time`."""
        return disk_time(self.lock_file)

    def lock(self) -> HomeLock:
        """Take the home for this process, until released or until the process ends, however it ends.

        Raises `HomeBusyError` naming the owner when another process (or another lock in this one) holds it.
        """
        self.create()
        return HomeLock(self)

    def owner(self) -> Owner | None:
        """Return the process that holds the home now, or None if none does. A lock file left behind by a killed process
        counts for nothing."""
        return _read_owner(self.lock_file) if FileLock(self.lock_file).held_elsewhere else None

    def service_info(self) -> ServiceInfo | None:
        """Return the address and token of the home's service, or None if there is none or its file is not readable as
        such.

        A killed service leaves its file behind; `owner` tells whether it lives.
        """
        try:
            content = json.loads(own_text(self.service_file, self.path))
            return ServiceInfo(**{field.name: content[field.name] for field in fields(ServiceInfo)})
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write_service_info(self, info: ServiceInfo) -> None:
        """Publish the service's address and token, atomically and for the home's user only (mode 0600)."""
        replace_file(self.service_file, json.dumps(asdict(info)).encode())

    def remove_service_info(self) -> None:
        """Take the address back at shutdown, where the disk lets it: readers also know those of services that were
        killed."""
        with suppress(OSError):
            self.service_file.unlink(missing_ok=True)

    def refusal(self) -> str | None:
        """Return the reason why nothing can be written here, in the system's words, or None if something can."""
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
        """See `Home.lock`."""
        self._lock = _acquire(home)
        self._started = utc_now()
        self.announce(None)

    def announce(self, address: str | None) -> None:
        """Write who owns the home into the lock file, for the message that the next one gets."""
        owner = Owner(pid=os.getpid(), host=socket.gethostname(), started=self._started, address=address)
        self._lock.write(json.dumps(asdict(owner)).encode())

    def release(self) -> None:
        """Give the home back."""
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()


def utc_now() -> str:
    """Return the time now, ISO 8601 in UTC, to the second."""
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
    """Return the users that a home's files may belong to. Raises `OSError` when there is no home."""
    return frozenset({0, os.geteuid(), path.stat().st_uid})


def refuse_planted(path: Path) -> None:
    """Raise `ConfigurationError` when something that the service writes to is a link, or belongs to a user, that it
    does not trust."""
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
    """Return the text of a file that only the home's own user can have written. Raises `OSError`, `ValueError`."""
    with open_no_follow(file) as opened:
        status = os.fstat(opened.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_uid not in trusted(home) or status.st_mode & 0o022:
            raise ValueError(f"{file} was not written by the home's user, or others can change it")
        return opened.read(most).decode("utf-8")


def apply_umask() -> None:
    """Let what this process makes be shared as ``LOGPROBE_UMASK`` says, such as 007. Raises `ConfigurationError` when
    it is no umask."""
    if (mask := _umask()) is not None:
        os.umask(mask)


def make_home(path: Path) -> None:
    """Make the home's folder when there is none: for its user alone, or, where ``LOGPROBE_UMASK`` lets a group in, for
    that group too.

    Raises `ConfigurationError` when ``LOGPROBE_UMASK`` is no umask, `OSError` when the place is not writable.
    """
    if path.is_dir():
        return
    mask = _umask()
    make_durable(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)
    fsync_folder(path.parent)
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
