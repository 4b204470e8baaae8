"""Where a run to look at lies: in a home, at a service, in a folder as `RecordedRun` reads it, or in a bundle.

A plain name is a run of the home asked, ``HOME:RUN`` of another, ``grpc+tls://HOST:PORT/RUN`` of a service on another
machine. A run in files goes through the real ingest and join into its own store in a temporary folder, so its numbers
come about as those of a live run do.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor import queries
from logprobe.monitor.elsewhere import is_service, reader_at, split
from logprobe.monitor.home import Home
from logprobe.monitor.queries import Source
from logprobe.monitor.reader import Reader
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
    """Whether a run is given as a folder, as `RecordedRun` reads it, or as a bundle."""
    return (Path(name) / MANIFEST).is_file() or (name.endswith(_BUNDLE) and Path(name).is_file())


class Places:
    """Opens every home and every run in files at most once, and closes them all; a context manager. For one thread."""

    def __init__(self, home: str | None, ca: Path | None = None) -> None:
        """`home`: where plain names are looked for; None: there is none. `ca`: see
        `logprobe.monitor.elsewhere.RemoteService`."""
        self._home, self._ca = home, ca
        self._stack = ExitStack()
        self._readers: dict[str, Reader] = {}
        self._recorded: dict[Path, Place] = {}

    def find(self, name: str) -> Place:
        """The place called `name`; whether the run is there is for the caller to see (`Place.run_names`).

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
                f"run {name!r} not found: pass --home DIR, HOME:RUN, grpc+tls://HOST:PORT/RUN, a folder with "
                f"{MANIFEST} in it, or a bundle NAME{_BUNDLE}"
            )
        return Place(name, name, self._reader(self._home))

    def _reader(self, where: str) -> Reader:
        key = where if is_service(where) else str(Home(where).path)
        if key not in self._readers:
            self._readers[key] = self._stack.enter_context(reader_at(key, self._ca))
        return self._readers[key]

    def _from_files(self, path: Path) -> Place:
        from logprobe.monitor.compare import unpacked  # noqa: PLC0415 -- ingest loads slowly, and runs of homes need none

        if path not in self._recorded:
            scratch = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="logprobe-"))
            run, store = (unpacked.folder if path.is_dir() else unpacked.bundle)(path, Path(scratch))
            self._recorded[path] = Place(path.name, run, self._stack.enter_context(store))
        return self._recorded[path]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()
