"""Who may write which runs, ``relay/tokens.json`` of a home.

A token is ``NAME.SECRET``; the file has SHA-256 hashes of secrets, which are random and long enough to need no salt. A
writer may have several for a while, so that a token can be replaced on its nodes one after the other. The receiver
reads the file again when it changes.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import re
import secrets
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, Self

from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.files import stamp_of
from logprobe.monitor.relay import files

LOGGER: Final = logging.getLogger("logprobe.receiver")
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,40}")
_SECRET_BYTES: Final = 32
_LONGEST: Final = 256  # characters of what a client shows


@dataclass(frozen=True, slots=True)
class Secret:
    """A hash of a token's secret. `until`: ISO 8601, when it stops counting; None: never."""

    sha256: str
    created: str
    until: str | None = None

    def counts(self, now: datetime) -> bool:
        """Whether it counts at `now`."""
        return self.until is None or now < datetime.fromisoformat(self.until)


@dataclass(frozen=True, slots=True)
class Writer:
    """One writer. `runs`: patterns of run names, ``*`` and ``?`` as in a shell."""

    name: str
    runs: tuple[str, ...]
    secrets: tuple[Secret, ...]

    def covers(self, run: str) -> bool:
        """Whether a run is one that it may write."""
        return any(fnmatchcase(run, pattern) for pattern in self.runs)


@dataclass(frozen=True, slots=True)
class Writers:
    """All writers of a home, by name."""

    by_name: Mapping[str, Writer]

    def find(self, token: str, now: datetime) -> Writer | None:
        """The writer that shows `token`; None: no one's, or it does not count any more."""
        name, _, secret = token[:_LONGEST].partition(".")
        writer, given = self.by_name.get(name), _hash(secret)
        if writer is None:
            return None
        matches = [hmac.compare_digest(given, kept.sha256) and kept.counts(now) for kept in writer.secrets]
        return writer if any(matches) else None

    def grant(self, name: str, runs: Sequence[str], now: datetime, *, overlap: timedelta) -> tuple[Self, str]:
        """With another token for `name`, and that token. Those it has count until `overlap` is over; `runs`: empty: as
        they are.

        Raises `ConfigurationError`.
        """
        existing = self.by_name.get(name)
        patterns = tuple(runs) or (existing.runs if existing else ())
        if not _NAME.fullmatch(name):
            raise ConfigurationError(f"{name!r} is not a valid name: use 1 to 40 letters, digits, - and _")
        if not patterns:
            raise ConfigurationError(f"no runs for {name!r}: pass --run PATTERN, e.g. --run 'team-a-*'")
        secret = secrets.token_urlsafe(_SECRET_BYTES)
        ending = [_ending(kept, now + overlap) for kept in (existing.secrets if existing else ()) if kept.counts(now)]
        added = Secret(_hash(secret), now.isoformat(timespec="seconds"))
        writer = Writer(name, patterns, (*(ending if overlap else []), added))
        return replace(self, by_name={**self.by_name, name: writer}), f"{name}.{secret}"

    def revoke(self, name: str) -> Self:
        """Without `name`. Raises `ConfigurationError` when there is no such writer."""
        if name not in self.by_name:
            raise ConfigurationError(f"no token of {name!r}; there are {', '.join(self.by_name) or 'none'}")
        return replace(self, by_name={key: writer for key, writer in self.by_name.items() if key != name})


def load(path: Path) -> Writers:
    """What the file says; no file: no writers. Raises `ConfigurationError`."""
    if not path.exists():
        return Writers({})
    content = files.read_secret(path)
    try:
        document = json.loads(content)
        return Writers({str(name): _writer(str(name), entry) for name, entry in document["writers"].items()})
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigurationError(
            f"{path} is not a list of tokens ({error}); `logprobe relay-token` writes such"
        ) from error


def save(path: Path, writers: Writers) -> None:
    """Replaces the file. Raises `OSError`, or `ConfigurationError` when it would be too large to be read: no token
    would count any more."""
    entries = {
        name: {"runs": list(writer.runs), "secrets": [asdict(secret) for secret in writer.secrets]}
        for name, writer in writers.by_name.items()
    }
    content = json.dumps({"writers": entries}, indent=2).encode()
    if len(content) > files.MOST_BYTES:
        raise ConfigurationError(
            f"{path} has {len(writers.by_name):,} names, and no room for one more; give several one token, or --revoke "
            "some"
        )
    files.write(path, content, secret=True)


class Current:
    """The tokens as the file says now; while it cannot be used, no one's: a token that was revoked must not count
    again."""

    def __init__(self, path: Path) -> None:
        """Raises `ConfigurationError`: a mistake has to show at the start."""
        self._path = path
        self._lock = threading.Lock()
        self._mark: object = self
        self._writers = Writers({})
        self()

    def __call__(self) -> Writers:
        """Looking costs one `stat`."""
        with self._lock:
            mark = stamp_of(self._path)
            if mark != self._mark:
                first, self._mark = self._mark is self, mark
                self._read(first=first)
            return self._writers

    def _read(self, *, first: bool) -> None:
        try:
            self._writers = load(self._path)
        except ConfigurationError:
            self._writers = Writers({})
            if first:
                raise
            LOGGER.exception("no token counts until this is fixed")
        if not self._writers.by_name:
            LOGGER.warning("%s has no tokens; make one: logprobe relay-token NAME --run PATTERN", self._path)


def _writer(name: str, entry: Mapping[str, Any]) -> Writer:
    return Writer(name, tuple(map(str, entry["runs"])), tuple(Secret(**secret) for secret in entry["secrets"]))


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def _ending(secret: Secret, end: datetime) -> Secret:
    before = None if secret.until is None else datetime.fromisoformat(secret.until)
    return secret if before is not None and before < end else replace(secret, until=end.isoformat(timespec="seconds"))
