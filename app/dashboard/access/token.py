"""The token of a data directory, which a user on another machine enters before any action.

The file ``<home>/token`` (mode 0600) holds the token. It persists across restarts. It differs from the secret in
``service.json``, which programs send to the service.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.home import Home, trusted
from logprobe.monitor.settings import limits

_BYTES: Final = 24


def path(home: Home) -> Path:
    """Return the path of the token."""
    return home.path / "token"


def read(home: Home) -> str:
    """Return the token, and create a missing one.

    Raises `ConfigurationError` if other users may read the file, or if it cannot be read or created.
    """
    place = path(home)
    try:
        if place.stat().st_mode & 0o077:
            raise ConfigurationError(f"{place} is readable by other users; remove it to get a new token")
        if place.lstat().st_uid not in trusted(home.path):
            raise ConfigurationError(f"{place} belongs to another user; remove it to get a new token")
        text = limits.read_text(place, limits.SETTINGS).strip()
    except FileNotFoundError:
        return _first(home)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{place} cannot be read ({error}); remove it to get a new token") from None
    return text or renew(home)


def renew(home: Home) -> str:
    """Create and return a new token. Sessions with the old token have to enter the new one.

    Raises `ConfigurationError` if the file cannot be written.
    """
    token = secrets.token_urlsafe(_BYTES)
    with _written(home, token) as file:
        file.replace(path(home))
    return token


def _first(home: Home) -> str:
    """Create the token, or return the one that another process created first.

    A command and several sessions may request it at the same moment.
    """
    token = secrets.token_urlsafe(_BYTES)
    with _written(home, token) as file, suppress(FileExistsError):
        path(home).hardlink_to(file)
        return token
    return read(home)


@contextmanager
def _written(home: Home, token: str) -> Iterator[Path]:
    """Yield a private temporary file with the token in it, which exists until the block ends."""
    try:
        descriptor, name = tempfile.mkstemp(dir=home.path, prefix=".token.")  # mkstemp creates with mode 0600
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(token + "\n")
        yield Path(name)
        Path(name).unlink(missing_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"{path(home)}: cannot be written ({error.strerror}); free disk space, or make the folder writable"
        ) from error


def mark(token: str) -> str:
    """Return the mark that an unlocked session stores instead of the token."""
    return hashlib.sha256(token.encode()).hexdigest()


def same(given: str, expected: str) -> bool:
    """Compare two secrets in constant time."""
    return hmac.compare_digest(given.encode(), expected.encode())
