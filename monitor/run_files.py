"""Small documents of a home that are about one run each: a file per run in a folder, read again when the folder
changes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

from logprobe.collectors.errors import StoreError
from logprobe.collectors.files import replace_file
from logprobe.collectors.spool.segments import run_dir
from logprobe.monitor.home import Home
from logprobe.monitor.plain_text import file_name

T = TypeVar("T")
SUFFIX: Final = ".json"
_SETTLED_SECONDS: Final = 2.0  # a folder that changed more recently may change again within the same tick of its clock


class RunFiles(Generic[T]):
    """Those of one folder. Safe to share between threads; looking again costs one `stat`."""

    def __init__(self, home: Home, folder: str, read: Callable[[Path], tuple[str, T]], unknown: str) -> None:
        """Touches nothing. `read`: the run and what a file says of it; `unknown`: what is not known while the folder
        cannot be read."""
        self.folder = home.path / folder
        self._home, self._read, self._unknown = home, read, unknown
        self._seen: tuple[int, Mapping[str, T]] | None = None

    def all(self) -> Mapping[str, T]:
        """By run. Raises `StoreError` when they are unknown."""
        try:
            changed = self.folder.stat().st_mtime_ns
        except FileNotFoundError:
            return MappingProxyType({})
        except OSError as error:
            raise StoreError(f"{self.folder} cannot be read ({error.strerror}); {self._unknown}") from error
        seen = self._seen
        if seen is not None and seen[0] == changed:
            return seen[1]
        by_run = dict(map(self._read, self.folder.glob(f"[!.]*{SUFFIX}")))
        if time.time() - changed / 1e9 > _SETTLED_SECONDS:
            self._seen = changed, by_run
        return by_run

    def find(self, run: str) -> T | None:
        """That of a run; None: there is none. Raises `StoreError`."""
        return self.all().get(run)

    def path(self, run: str) -> Path:
        """Its file."""
        return self.folder / f"{file_name(run_dir(self._home.path, run).name)}{SUFFIX}"

    def write(self, run: str, document: Mapping[str, Any]) -> None:
        """Replaces that of a run, durably. Raises `StoreError`."""
        try:
            replace_file(self.path(run), json.dumps(document).encode())
        except OSError as error:
            raise StoreError(f"{self.path(run)}: cannot be written ({error.strerror}); nothing was changed") from error
