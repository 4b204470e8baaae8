"""Places of runs to compare. A plain name is a run of the given data directory, ``HOME:RUN`` one of another."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor import queries
from logprobe.monitor.elsewhere import split
from logprobe.monitor.home import Home
from logprobe.monitor.queries import Source
from logprobe.monitor.reader import Reader, open_reader


@dataclass(frozen=True, slots=True)
class Place:
    """One run and its source. `label`: its name in this comparison."""

    label: str
    run: str
    source: Source

    def run_names(self) -> list[str]:
        """Return the names of all runs at this place, newest first."""
        return [str(run) for run in queries.app_runs(self.source)["run"].to_pylist()]


class Places:
    """Context manager that opens every data directory at most once. Only one thread may use it."""

    def __init__(self, home: str | None) -> None:
        """Set the `home` for plain names, or None without one."""
        self._home = home
        self._stack = ExitStack()
        self._readers: dict[Path, Reader] = {}

    def find(self, name: str) -> Place:
        """Return the place called `name`. The caller checks that the run exists (`Place.run_names`).

        Raises:
            ConfigurationError: a plain name without a data directory.
            StoreError: a data directory without a store.
            ServiceUnavailableError: its service does not answer.
        """
        elsewhere = split(name)
        if elsewhere is not None:
            return Place(name, elsewhere[1], self._reader(elsewhere[0]))
        if self._home is None:
            raise ConfigurationError(f"run {name!r} not found: pass --home DIR, or HOME:RUN")
        return Place(name, name, self._reader(self._home))

    def _reader(self, where: str) -> Reader:
        home = Home(where)
        if home.path not in self._readers:
            self._readers[home.path] = self._stack.enter_context(open_reader(home))
        return self._readers[home.path]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()
