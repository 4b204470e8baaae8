"""Source files → spool, each piece once (see `pieces`).

An import that was killed continues where it stopped, a second one adds nothing, and a log that has grown adds what is new. A piece whose
content has changed is an error, never a second copy.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from logprobe.collectors.errors import ConfigurationError, HomeBusyError
from logprobe.collectors.spool.schema import SCHEMAS
from logprobe.monitor.analysis.slices import Source
from logprobe.monitor.deletion.tombstones import Tombstones
from logprobe.monitor.home import Home
from logprobe.monitor.importers.parsing import Piece, Wanted
from logprobe.monitor.importers.pieces import ImportReport, Marker, PieceWriter
from logprobe.monitor.importers.preparing import Prepared, after, batches, prepare
from logprobe.monitor.importers.reading import Reading
from logprobe.monitor.importers.source import Format, Stamp, files
from logprobe.monitor.parallel.pool import Pool

_TAKEN: Final = frozenset({errno.EACCES, errno.EAGAIN})


class Importer:
    """Imports files of one format into one run."""

    def __init__(self, home: Home, run: str, form: Format, reader: Source) -> None:
        """Reads what was imported before; the spool has to be ingested. Raises what the reader raises, `RunDeletedError`."""
        Tombstones(home).refuse(run)
        self._home, self._run, self._form = home, run, form
        self._writer = PieceWriter(home, run, form, reader)

    def run(
        self, root: Path, pool: Pool, progress: Callable[[ImportReport, str, int], None] = lambda *_: None
    ) -> ImportReport:
        """Writes what is new below `root`, file by file, while workers of `pool` read those that follow.

        `progress` hears of every file, and of how many there are.

        Raises:
            ConfigurationError: nothing to import there, or what was imported before has changed since.
            OSError: a file cannot be read, or the spool not be written.
        """
        report = ImportReport()
        found = [
            _File(path, name, Stamp.of(path.stat()))
            for path, name in files(root, self._form.patterns, without=self._home.path)
        ]
        markers = self._markers()
        wanted = [self._wanted(file, markers.get(file.name, [])) for file in found]
        work = batches(self._form.name, ((each, file.stamp.size) for each, file in zip(wanted, found, strict=True)))
        with Reading(self._form.name) as own:
            prepared = itertools.chain.from_iterable(pool.map(prepare, work))
            for file, asked, made in zip(found, wanted, prepared, strict=False):  # nothing comes after one that failed
                self._write(file, markers.get(file.name, []), _pieces(own, asked, made), report)
                report.files += 1
                progress(report, file.name, len(found))
        if not self._writer.closed and (self._writer.markers or report.units):
            self._writer.note("closed", "info", "import finished")
        return report

    def _markers(self) -> dict[str, list[Marker]]:
        """By file, in their order."""
        found: dict[str, list[Marker]] = {}
        for marker in sorted(self._writer.markers, key=lambda marker: marker.start):
            found.setdefault(marker.file, []).append(marker)
        return found

    def _wanted(self, file: _File, markers: list[Marker]) -> Wanted:
        return Wanted(file.path.absolute(), file.name, file.stamp.time, self._writer.known(markers))

    def _write(self, file: _File, markers: list[Marker], pieces: Iterator[Piece], report: ImportReport) -> None:
        for marker in markers:
            self._writer.again(file.path, marker, next(pieces), report)
        for piece in pieces:
            self._writer.new(piece, file.stamp, report)


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    name: str
    stamp: Stamp


def _pieces(own: Reading, asked: Wanted, made: Prepared) -> Iterator[Piece]:
    """Of one file: what a worker made of it, then what it left. Raises why it ended early."""
    for piece in made.pieces:
        if any(not table.schema.equals(SCHEMAS[kind]) for kind, table in piece.tables.items()):
            raise ConfigurationError(f"{made.host} has another version of logprobe; install the same on every node")
        yield piece
    if made.rest:
        yield from own.pieces(after(asked, made.pieces))
    if isinstance(made.failure, FileNotFoundError) and asked.path.exists():
        raise ConfigurationError(
            f"{made.host} cannot read {asked.path} as it is here ({made.failure}): every node needs it at the same path"
        )
    if made.failure is not None:
        raise made.failure


@contextmanager
def alone(home: Home, run: str, form: Format) -> Iterator[None]:
    """One import at a time of a format into a run. Raises `HomeBusyError` when another is running."""
    home.create()
    descriptor = os.open(home.path / "import.lock", os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    name = hashlib.sha256(f"{run}/{form.name}".encode()).digest()
    with os.fdopen(descriptor, "w") as file:
        try:  # one byte of the file stands for this run and format
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, int.from_bytes(name[:4], "big"))
        except OSError as error:
            if error.errno not in _TAKEN:
                raise
            raise HomeBusyError(
                f"{home.path}: another {form.name} import into {run!r} is running; wait for it, or stop it"
            ) from None
        yield
