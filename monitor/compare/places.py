"""Where a run to look at lies: in the home asked, in another home (``HOME:RUN``), or in a folder as `RecordedRun` reads it.

A recorded run goes through the real ingest and join into a store of its own in a temporary folder, so its numbers come about as those of
a live run do.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.spool import SpoolWriter
from logprobe.monitor.home import Home
from logprobe.monitor.ingest import Ingester
from logprobe.monitor.join import Joiner
from logprobe.monitor.reader import Reader, open_reader
from logprobe.monitor.recorded import MANIFEST, RecordedRun
from logprobe.monitor.slices import Source
from logprobe.monitor.step_job import StepJob
from logprobe.monitor.store import Store


@dataclass(frozen=True, slots=True)
class Place:
    """One run and what to read it from. `label`: what people call it here."""

    label: str
    run: str
    source: Source

    def known(self) -> list[str]:
        """Names of all runs at this place, newest first."""
        return [str(run) for run in self.source.read("app_runs")["run"].to_pylist()]


class Places:
    """Opens every home and every recorded run at most once, and closes them all; a context manager. For one thread."""

    def __init__(self, home: str | None) -> None:
        """`home`: where plain names are looked for; None: there is none."""
        self._home = home
        self._stack = ExitStack()
        self._readers: dict[Path, Reader] = {}
        self._recorded: dict[Path, Place] = {}

    def find(self, name: str) -> Place:
        """The place called `name`; whether the run is there is for the caller to see (`Place.known`).

        Raises:
            ConfigurationError: a plain name without a home.
            StoreError: a home without a store.
            ServiceUnavailableError: its service does not answer.
            SegmentError: a recorded run that cannot be trusted.
        """
        if (Path(name) / MANIFEST).is_file():
            return self._from_folder(Path(name).resolve())
        folder, colon, run = name.rpartition(":")
        if colon and Path(folder).is_dir():
            return Place(name, run, self._reader(folder))
        if self._home is None:
            raise ConfigurationError(
                f"where is the run {name!r}? pass --home DIR, HOME:RUN, or a folder with {MANIFEST} in it"
            )
        return Place(name, name, self._reader(self._home))

    def _reader(self, folder: str) -> Reader:
        home = Home(folder)
        if home.path not in self._readers:
            self._readers[home.path] = self._stack.enter_context(open_reader(home))
        return self._readers[home.path]

    def _from_folder(self, folder: Path) -> Place:
        if folder not in self._recorded:
            recorded = RecordedRun(folder)
            scratch = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="logprobe-"))
            store = self._stack.enter_context(_ingested(recorded, Path(scratch)))
            self._recorded[folder] = Place(folder.name, recorded.run, store)
        return self._recorded[folder]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()


def _ingested(recorded: RecordedRun, folder: Path) -> Store:
    writer = SpoolWriter(folder, recorded.run, "recorded")
    for kind in recorded.kinds:
        writer.write(kind, recorded.table(kind))
    store = Store.open(Home(folder))
    Ingester(store).run_once()
    Joiner(store).run_once()
    StepJob(store).run_once()
    return store
