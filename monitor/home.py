"""A home: the folder that belongs to one service, and who owns it right now.

    <home>/spool/<run>/<writer>/…arrow      segments not yet ingested
    <home>/raw/<run>/<kind>/…parquet        raw tokens
    <home>/quarantine/                      files moved aside, with the reason in the store
    <home>/logprobe.duckdb                  the store
    <home>/service.lock, service.json       owner of the home (flock), its address and token (mode 0600)

Whoever holds the flock on ``service.lock`` owns the home; a killed owner holds nothing, so nothing needs cleaning up.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import tempfile
import time
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from typing import Any, Final, Self

from logprobe.collectors.errors import ConfigurationError, HomeBusyError

# `Home.owner` looks by locking for an instant; whoever starts in that instant must not take it for an owner.
_ATTEMPTS: Final = 5
_PAUSE: Final = 0.02  # seconds


@dataclass(frozen=True, slots=True)
class ServiceInfo:
    """Where the service of a home listens, and the token that it asks for. Lives in ``service.json`` (mode 0600)."""

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
    """Who holds a home's lock, as it wrote itself into ``service.lock``."""

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
        """Raises `ConfigurationError` when `path` is empty, holds a "?", or exists and is no directory."""
        if not str(path):
            raise ConfigurationError("the home is an empty path; pass --home or set LOGPROBE_HOME to a folder")
        self.path = Path(path).expanduser().resolve()
        if "?" in str(self.path):  # DuckDB takes what follows for a URL's query and looks for its log elsewhere
            raise ConfigurationError(
                f"{self.path}: DuckDB cannot work below a folder with '?' in its name; choose another home"
            )
        if self.path.exists() and not self.path.is_dir():
            raise ConfigurationError(f"{self.path} is not a folder; choose another home")
        self.spool = self.path / "spool"
        self.raw = self.path / "raw"
        self.quarantine = self.path / "quarantine"
        self.database = self.path / "logprobe.duckdb"
        self.lock_file = self.path / "service.lock"
        self.service_file = self.path / "service.json"

    def __repr__(self) -> str:
        return f"Home({str(self.path)!r})"

    def create(self) -> Self:
        """Makes the folders. Raises `ConfigurationError` when the place is not writable."""
        try:
            for folder in (self.spool, self.raw, self.quarantine):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"{self.path}: cannot create a home here ({error}); choose another") from error
        return self

    def relative(self, path: Path) -> str:
        """`path` as the store names it: relative to the home, with forward slashes."""
        return path.relative_to(self.path).as_posix()

    def lock(self) -> HomeLock:
        """Takes the home for this process, until released or until the process ends, however it ends.

        Raises `HomeBusyError` naming the owner when another process (or another lock in this one) holds it.
        """
        self.create()
        return HomeLock(self)

    def owner(self) -> Owner | None:
        """Who holds the home now; None when nobody does. A lock file left behind by a killed process counts for nothing."""
        try:
            descriptor = os.open(self.lock_file, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            # A shared lock can be had exactly when nobody holds the exclusive one; it disturbs no other reader.
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _read_owner(self.lock_file)
        else:
            return None
        finally:
            os.close(descriptor)

    def service_info(self) -> ServiceInfo | None:
        """Where the home's service listens; None when there is none or its file is not readable as such.

        A killed service leaves its file behind; `owner` tells whether it lives.
        """
        try:
            content = json.loads(self.service_file.read_text(encoding="utf-8"))
            return ServiceInfo(**{field.name: content[field.name] for field in fields(ServiceInfo)})
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write_service_info(self, info: ServiceInfo) -> None:
        """Publishes the service's address and token, atomically and for the home's user only (mode 0600)."""
        descriptor, name = tempfile.mkstemp(dir=self.path, prefix=".service.")  # mkstemp creates with mode 0600
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(asdict(info), file)
        Path(name).replace(self.service_file)

    def remove_service_info(self) -> None:
        """Takes the address back at shutdown."""
        self.service_file.unlink(missing_ok=True)


class HomeLock:
    """Exclusive ownership of a home; a context manager. flock: the kernel releases it when the process dies."""

    def __init__(self, home: Home) -> None:
        """See `Home.lock`."""
        self._home = home
        self._descriptor: int | None = _acquire(home)
        self._started = utc_now()
        self.announce(None)

    def announce(self, address: str | None) -> None:
        """Writes who owns the home into the lock file, for the message that the next one gets."""
        if self._descriptor is None:
            return
        owner = Owner(pid=os.getpid(), host=socket.gethostname(), started=self._started, address=address)
        content = json.dumps(asdict(owner)).encode()
        os.pwrite(self._descriptor, content, 0)
        os.ftruncate(self._descriptor, len(content))

    def release(self) -> None:
        """Gives the home back. The file stays: removing it would let two processes lock two files of one name."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()


def utc_now() -> str:
    """The time now, ISO 8601 in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _acquire(home: Home) -> int:
    descriptor = os.open(home.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    for _ in range(_ATTEMPTS):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_PAUSE)
        else:
            return descriptor
    os.close(descriptor)
    owner = _read_owner(home.lock_file)
    who = str(owner) if owner else "another process"
    raise HomeBusyError(f"{home.path} is in use by {who}; stop it, or choose another home")


def _read_owner(path: Path) -> Owner | None:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return Owner(**{field.name: content[field.name] for field in fields(Owner)})
    except (OSError, ValueError, KeyError, TypeError):
        return None  # its owner is just about to write it
