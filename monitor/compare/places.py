"""Places of runs to compare: in a home, in a folder as `RecordedRun` reads it, or in a bundle.

A plain name is a run of the home asked, ``HOME:RUN`` of another. A run in files goes through the real ingest and join
into its own store in a temporary folder, so its numbers come about as those of a live run do.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor import queries
from logprobe.monitor.elsewhere import split
from logprobe.monitor.home import Home
from logprobe.monitor.queries import Source
from logprobe.monitor.reader import Reader, open_reader
from logprobe.monitor.recorded import MANIFEST

_BUNDLE: Final = ".logprobe"


@dataclass(frozen=True, slots=True)
class Place:
    """One run and what to read it from. `label`: what people call it here."""

    label: str
    run: str
    source: Source

    def run_names(self) -> list[str]:
        """Names of all runs at this place, newest first."""
        return [str(run) for run in queries.app_runs(self.source)["run"].to_pylist()]


def in_files(name: str) -> bool:
    """Return whether a run is given as a folder, as `RecordedRun` reads it, or as a bundle."""
    return (Path(name) / MANIFEST).is_file() or (name.endswith(_BUNDLE) and Path(name).is_file())


class Places:
    """Opens every home and every run in files at most once, and closes them all; a context manager. For one thread."""

    def __init__(self, home: str | None) -> None:
        """`home`: where plain names are looked for; None: there is none."""
        self._home = home
        self._stack = ExitStack()
        self._readers: dict[Path, Reader] = {}
        self._recorded: dict[Path, Place] = {}

    def find(self, name: str) -> Place:
        """Return the place called `name`; whether the run is there is for the caller to see (`Place.run_names`).

        Raises:
            ConfigurationError: a plain name without a home.
            StoreError: a home without a store.
            ServiceUnavailableError: its service does not answer.
            SegmentError: a recorded run that cannot be trusted.
        """
        if in_files(name):
            return self._from_files(Path(name).resolve())
        elsewhere = split(name)
        if elsewhere is not None:
            return Place(name, elsewhere[1], self._reader(elsewhere[0]))
        if self._home is None:
            raise ConfigurationError(
                f"run {name!r} not found: pass --home DIR, HOME:RUN, a folder with {MANIFEST} in it, or a bundle "
                f"NAME{_BUNDLE}"
            )
        return Place(name, name, self._reader(self._home))

    def _reader(self, where: str) -> Reader:
        home = Home(where)
        if home.path not in self._readers:
            self._readers[home.path] = self._stack.enter_context(open_reader(home))
        return self._readers[home.path]

    def _from_files(self, path: Path) -> Place:
        from logprobe.monitor.compare import unpacked  # noqa: PLC0415 - loads slowly

        if path not in self._recorded:
            scratch = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="logprobe-"))
            run, store = (unpacked.folder if path.is_dir() else unpacked.bundle)(path, Path(scratch))
            self._recorded[path] = Place(path.name, run, self._stack.enter_context(store))
        return self._recorded[path]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()
