"""Whom the service of a home trusts: its own user, the owner of the home's folder, and root.

Others may share the machine, and in a home for a group the spool. What they plant elsewhere in the home is refused: a link would make
the service write, move or remove somebody else's files, and a file with an address or a token in it would speak for the service.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.files import fsync_folder, make_durable, open_no_follow

UMASK_VARIABLE: Final = "LOGPROBE_UMASK"
_GROUP: Final = 0o070
_OWN: Final = (
    "raw",
    "quarantine",
    "deleted",
    "directives",
    "relay",
    "service.lock",
    "service.json",
    "logprobe.duckdb",
    "logprobe.duckdb.wal",
)
_SHARED: Final = ("spool", "versions", "alerts.d")  # collectors and people of other users make them too


def trusted(path: Path) -> frozenset[int]:
    """The users that a home's files may belong to. Raises `OSError` when there is no home."""
    return frozenset({0, os.geteuid(), path.stat().st_uid})


def refuse_planted(path: Path) -> None:
    """Raises `ConfigurationError` when something that the service writes to is a link, or belongs to somebody, that it does not trust."""
    known = trusted(path)
    for name in (*_OWN, *_SHARED):
        try:
            found = (path / name).lstat()
        except FileNotFoundError:
            continue
        if found.st_uid in known or (name in _SHARED and stat.S_ISDIR(found.st_mode)):
            continue
        kind = "a link that user" if stat.S_ISLNK(found.st_mode) else "put there by user"
        raise ConfigurationError(
            f"{path / name} is {kind} {found.st_uid} made, neither you nor the home's owner; inspect it, remove it, and let "
            f"no one else write to {path} itself (docs/security.md)"
        )


def own_text(file: Path, home: Path, most: int = 1 << 16) -> str:
    """The text of a file that only the home's own user can have written. Raises `OSError`, `ValueError`."""
    with open_no_follow(file) as opened:
        found = os.fstat(opened.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_uid not in trusted(home) or found.st_mode & 0o022:
            raise ValueError(f"{file} was not written by the home's user, or others can change it")
        return opened.read(most).decode("utf-8")


def apply_umask() -> None:
    """Lets what this process makes be shared as ``LOGPROBE_UMASK`` says, such as 007. Raises `ConfigurationError` when it is no umask."""
    if (mask := _umask()) is not None:
        os.umask(mask)


def make_home(path: Path) -> None:
    """Makes the home's folder when there is none: for its user alone, or, where ``LOGPROBE_UMASK`` lets a group in, for that group too.

    Raises `ConfigurationError` when ``LOGPROBE_UMASK`` is no umask, `OSError` when the place is not writable.
    """
    if path.is_dir():
        return
    mask = _umask()
    make_durable(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)
    fsync_folder(path.parent)
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
