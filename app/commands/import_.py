"""`logprobe import`: import what another program, or another logprobe, recorded."""

from __future__ import annotations

import argparse
import json as json_text
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from logprobe.app.commands.ingest import take
from logprobe.app.parsers.arguments import home_path
from logprobe.app.processes.supervisor import stop_on_signals
from logprobe.app.text import tables
from logprobe.app.text.terminal import replace_line
from logprobe.collectors.errors import (
    ConfigurationError,
    HomeBusyError,
    QueryError,
    ServiceUnavailableError,
    StoreError,
)
from logprobe.collectors.plain_text import harmless
from logprobe.collectors.recorder.settings import valid_run
from logprobe.monitor.exporters.bundle import read_manifest
from logprobe.monitor.home import Home
from logprobe.monitor.importers import formats
from logprobe.monitor.importers.following import Follower, Pace, ReconsiderError, SpoolRefusedError, Status
from logprobe.monitor.importers.importing import Importer, ImportReport, alone
from logprobe.monitor.importers.source import Format
from logprobe.monitor.parallel.ray_pool import pool_at
from logprobe.monitor.reader import open_reader
from logprobe.monitor.service.pipeline import backlog

# A service that restarts, a full disk, another command that holds the home for a moment.
_PASSING: Final = (ServiceUnavailableError, HomeBusyError, StoreError, QueryError, SpoolRefusedError)
_LONGEST_PAUSE: Final = 30.0
_REPEAT_SECONDS: Final = 10.0
_SETTLE_SECONDS: Final = 2.0  # between two ingests, at least
_SETTLE_SHARE: Final = 4.0  # and so many times as long as one takes

Tell = Callable[[Status], None]


def follow(home: Home, form: Format, root: Path, run: str, *, json: bool, pace: Pace | None = None) -> int:
    """Imports what appears below `root`. Raises `HomeBusyError` when the same is already being imported."""
    tell = _json_lines() if json else _sentences(run)
    with alone(home, run, form), stop_on_signals() as stop:
        replaced: frozenset[str] = frozenset()
        pause = 1.0
        while not stop.is_set():
            try:
                take(home)  # what an earlier follower left in the spool
                with open_reader(home) as reader:
                    follower = Follower(home, run, form, root, reader, replaced=replaced, pace=pace or Pace())
                pause = 1.0
                follower.run(stop, tell, _Settling(home))
            except ReconsiderError as error:
                replaced |= {error.file}
            except _PASSING as error:
                tell(Status(state=str(error)))
                stop.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
    return 0


class _Settling:
    """Ingests now and then, where no service does."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._due = 0.0

    def __call__(self) -> None:
        """Raises what ingest raises."""
        if time.monotonic() < self._due or self._home.owner() is not None or not backlog(self._home)["segments"]:
            return
        begun = time.monotonic()
        take(self._home)
        self._due = time.monotonic() + max(_SETTLE_SECONDS, _SETTLE_SHARE * (time.monotonic() - begun))


def _json_lines() -> Tell:
    """A JSON document per line, whenever it changes, and every ten seconds as a heartbeat."""
    said: dict[str, object] = {}
    at = 0.0

    def tell(status: Status) -> None:
        nonlocal said, at
        document = status.document()
        if document != said or time.monotonic() - at >= _REPEAT_SECONDS:
            said, at = document, time.monotonic()
            print(json_text.dumps(document), flush=True)

    return tell


def _sentences(run: str) -> Tell:
    """A line whenever there is something new to say."""
    said = ""

    def tell(status: Status) -> None:
        nonlocal said
        words = f"{status.state}; {status.files:,} files, {status.units:,} units added to {run}"
        if status.bad_units:
            words += f", {status.bad_units:,} left out"
        if status.waiting or status.broken:
            words += f"; {status.waiting:,} waiting, {status.broken:,} broken: {status.shown[0]}"
        if words != said:
            said = words
            print(harmless(words), file=sys.stderr, flush=True)

    return tell


def run(arguments: argparse.Namespace) -> int:
    """Imports, ingests, reports; exit code 0 also when single lines were left out, which the report names."""
    home, root = Home(home_path(arguments)), Path(arguments.path)
    if not root.exists() and not arguments.follow:
        raise ConfigurationError(f"{root} does not exist; check PATH")
    run, form = _run_name(arguments, root), formats.named(arguments.format)
    if arguments.files:
        form = replace(form, patterns=(arguments.files,))
    if arguments.follow:
        if arguments.ray:
            raise ConfigurationError("--follow reads files as they grow, on this machine; omit --ray")
        return follow(home, form, root, run, json=arguments.json)
    report = _imported(home, form, root, run, arguments.ray)
    if arguments.json:
        print(tables.dump(asdict(report)))
    else:
        _show(report, run)
    return 0


def _run_name(arguments: argparse.Namespace, root: Path) -> str:
    """As asked for; a bundle knows its own."""
    if arguments.run:
        return valid_run(arguments.run)
    if arguments.format == "bundle" and root.is_file():
        return valid_run(read_manifest(root)["run"])
    raise ConfigurationError("no run named: pass --run NAME")


def _imported(home: Home, form: Format, root: Path, run: str, ray: str | None) -> ImportReport:
    with alone(home, run, form), pool_at(ray) as pool:
        take(home)  # what an interrupted import left in the spool
        with open_reader(home) as reader:
            importer = Importer(home, run, form, reader)
        report = importer.run(root, pool, _progress)
        take(home)
    return report


def _progress(report: ImportReport, name: str, files: int) -> None:
    replace_line(f"{report.files:,}/{files:,} files, {report.units:,} new: {harmless(name)}")


def _show(report: ImportReport, run: str) -> None:
    if sys.stderr.isatty():
        print(file=sys.stderr)
    rows = ", ".join(f"{count:,} {kind}" for kind, count in sorted(report.rows.items())) or "nothing"
    print(f"{rows} added to {harmless(run)} from {report.files} files; {report.known:,} units were there already")
    if report.bad_units:
        print(f"{report.bad_units:,} left out:")
        for line in report.bad:
            print(f"  {harmless(line)}")
