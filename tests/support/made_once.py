"""What takes long to make and is the same for many tests: made by the first of them, for all workers of a session, and copied."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable
from pathlib import Path

_FOLDER: list[Path] = []  # where it is kept; empty outside of pytest


def keep_in(folder: Path) -> None:
    """Says where all workers of the session keep what they have made."""
    _FOLDER[:] = [folder]


def copy_of(name: str, make: Callable[[Path], object], folder: Path) -> None:
    """Has `folder`, which must not exist, made by `make`; from the second call with this `name` on it is a copy of what the first one made."""
    if not _FOLDER:
        make(folder)
        return
    made = _FOLDER[0] / name
    with (_FOLDER[0] / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            unfinished = _FOLDER[0] / f"{name}.tmp"
            shutil.rmtree(unfinished, ignore_errors=True)
            make(unfinished)
            unfinished.rename(made)
    shutil.copytree(made, folder, symlinks=True)
