"""Puts a backup back. What it replaces is renamed and stays; tombstones of deleted runs stay, too."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from logprobe.collectors.errors import ConfigurationError, StoreError
from logprobe.monitor.home import Home
from logprobe.monitor.recovery.backup import MANIFEST
from logprobe.monitor.recovery.rebuilding import Rebuilt, rebuild
from logprobe.monitor.store.copies import copy_durably

_STORE: Final = ("logprobe.duckdb", "logprobe.duckdb.wal")


def restore(home: Home, folder: Path) -> Rebuilt:
    """Puts the store of a backup back, adds the other files that the home lacks, then rebuilds.

    Raises `ConfigurationError` when the folder is no backup, `HomeBusyError` while a service runs, `StoreError`.
    """
    if not (folder / MANIFEST).exists():
        raise ConfigurationError(f"{folder} has no {MANIFEST}; pass a folder that `logprobe backup` made")
    with home.lock():
        try:
            replaced = _set_aside(home)
            for source in sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST):
                target = home.path / source.relative_to(folder)
                if not target.exists():
                    target.parent.mkdir(parents=True, exist_ok=True)
                    copy_durably(source, target)
        except OSError as error:
            raise StoreError(f"{home.path} cannot be written ({error}); make room and repeat the command") from error
    done = rebuild(home)
    done.set_aside = [*replaced, *done.set_aside]
    return done


def _set_aside(home: Home) -> list[str]:
    """Renames the store; → its new names."""
    names = []
    for name in _STORE:
        if (home.path / name).exists():
            aside = home.path / f"{name}.replaced-{int(time.time())}"
            (home.path / name).rename(aside)
            names.append(str(aside))
    return names
