"""`logprobe import`: import log-probs from files of other programs or of another logprobe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from logprobe.app.ingesting import take
from logprobe.app.surface.arguments import Arguments, home_path
from logprobe.app.text import tables
from logprobe.app.text.terminal import progress
from logprobe.collectors.errors import ConfigurationError, HomeBusyError
from logprobe.collectors.locks import FileLock
from logprobe.collectors.plain_text import complain, harmless
from logprobe.collectors.recorder.settings import valid_run
from logprobe.monitor.exporters.bundle import read_manifest
from logprobe.monitor.home import Home
from logprobe.monitor.importers.importing import Importer, ImportReport, files_of, listed_by_reason
from logprobe.monitor.reader import open_reader


def run(arguments: Arguments) -> int:
    """Import files, ingest them and report the result. Return 1 if a file was refused. Omitted single records do not
    count as an error.
    """
    home = Home(home_path(arguments))
    found = files_of(map(Path, arguments.files), without=home.path)
    files = found.files
    run = valid_run(arguments.run or _run_of(files))
    with _alone(home):
        report = _imported(home, run, files)
    report.left_out = found.left_out
    if len(report.refused) == len(files) == 1:
        raise ConfigurationError(report.refused[0])
    if arguments.json:
        print(tables.dump(asdict(report)))
    else:
        _show(report, run)
    for words in report.refused:
        complain(words)
    return int(bool(report.refused))


def _run_of(files: Sequence[Path]) -> str:
    """Return the name of the run in a single bundle. Raises `ConfigurationError` without a name."""
    if len(files) == 1 and files[0].suffix == ".logprobe":
        return read_manifest(files[0])["run"]
    raise ConfigurationError("no run named; pass --run NAME")


@contextmanager
def _alone(home: Home) -> Iterator[None]:
    """Hold the import lock of the data directory. Raises `HomeBusyError` if another import holds it."""
    with FileLock(home.create().path / "import.lock") as lock:
        if not lock.take():
            raise HomeBusyError(f"{home.path}: another import is running; wait for it, or stop it")
        yield


def _imported(home: Home, run: str, files: Sequence[Path]) -> ImportReport:
    take(home)  # what an interrupted import left in the spool
    with open_reader(home) as reader:
        importer = Importer(home, run, reader)
    with progress("importing files", len(files)) as done:
        for number, path in enumerate(files, 1):
            try:
                importer.add(path)
            except ConfigurationError as error:
                importer.report.refused.append(str(error))
            done(number)
    importer.finish()
    take(home)
    return importer.report


def _show(report: ImportReport, run: str) -> None:
    rows = ", ".join(f"{count:,} {kind}" for kind, count in sorted(report.rows.items())) or "nothing"
    print(f"{rows} added to {harmless(run)} from {report.files} files; {report.known:,} records were there already")
    if report.left_out:
        print(f"files not read: {harmless(listed_by_reason(report.left_out))}")
    for words in report.warnings:
        print(harmless(words))
    if report.bad_units:
        print(f"{report.bad_units:,} left out:")
        for line in report.bad:
            print(f"  {harmless(line)}")
