"""Copies of a store's file, such as one to read a store from whose home was moved."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from logprobe.collectors.errors import StoreError
from logprobe.monitor.home import Home
from logprobe.monitor.store.raw_files import RAW_KINDS, empty_file, is_empty_file

_MOST_COPIED: Final = 4 << 30  # bytes of a file that somebody only wants to read


def copy_of(home: Home, folder: Path) -> Home:
    """A home in `folder` with a copy of the store and links to its files.

    Raises `StoreError` when they cannot be read so: the store is large, or the raw tokens have other columns.
    """
    size = home.database.stat().st_size
    if size > _MOST_COPIED or not all(is_empty_file(empty_file(home, kind), kind) for kind in RAW_KINDS):
        raise StoreError(
            f"{home.database} was last served from another folder or by other code, and reading does not adapt it. Start "
            f"its service once: logprobe up --home {home.path}"
        )
    copy = Home(folder)
    copy.path.mkdir()
    copy.raw.symlink_to(home.raw.resolve())
    copy.spool.symlink_to(home.spool.resolve())
    try:
        for suffix in ("", ".wal"):
            file = home.database.with_name(f"{home.database.name}{suffix}")
            if file.exists():
                shutil.copyfile(file, copy.path / file.name)
    except OSError as error:
        raise StoreError(f"{home.database} cannot be copied to {folder} ({error.strerror}); make room there") from error
    return copy
