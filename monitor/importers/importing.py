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
from pathlib import Path
from typing import Final

from logprobe.collectors.errors import ConfigurationError, HomeBusyError
from logprobe.monitor.analysis.slices import Source
from logprobe.monitor.deletion.tombstones import Tombstones
from logprobe.monitor.home import Home
from logprobe.monitor.importers.pieces import ImportReport, Marker, PieceWriter, digest, pieces, place_of
from logprobe.monitor.importers.reading import Reading
from logprobe.monitor.importers.source import Format, Stamp, Unit, files

_TAKEN: Final = frozenset({errno.EACCES, errno.EAGAIN})


class ChangedError(ConfigurationError):
    """A piece whose content is not what was imported."""

    def __init__(self, path: Path, marker: Marker, run: str) -> None:
        super().__init__(
            f"{path}: units {marker.start + 1} to {marker.end} have changed since they were imported into {run!r}; "
            "import the file into another run"
        )


class Importer:
    """Imports files of one format into one run."""

    def __init__(self, home: Home, run: str, form: Format, reader: Source) -> None:
        """Reads what was imported before; the spool has to be ingested. Raises what the reader raises, `RunDeletedError`."""
        Tombstones(home).refuse(run)
        self._home, self._run, self._form = home, run, form
        self._writer = PieceWriter(home, run, form, reader)

    def run(self, root: Path, progress: Callable[[ImportReport, str], None] = lambda *_: None) -> ImportReport:
        """Writes what is new below `root`; `progress` hears of every file.

        Raises:
            ConfigurationError: nothing to import there, or what was imported before has changed since.
            OSError: a file cannot be read, or the spool not be written.
        """
        report = ImportReport()
        with Reading(self._form.name) as reading:
            for path, name in files(root, self._form.patterns, without=self._home.path):
                stamp = Stamp.of(path.stat())
                self._file(path, name, stamp, reading.units(path), report)
                report.files += 1
                progress(report, name)
        if not self._writer.closed and (self._writer.markers or report.units):
            self._writer.note("closed", "info", "import finished")
        return report

    def _file(self, path: Path, name: str, stamp: Stamp, units: Iterator[Unit], report: ImportReport) -> None:
        position = 0
        for marker in sorted((m for m in self._writer.markers if m.file == name), key=lambda m: m.start):
            piece = list(itertools.islice(units, marker.end - marker.start))
            if len(piece) < marker.end - marker.start or digest(piece) != marker.sha256:
                raise ChangedError(path, marker, self._run)
            self._writer.again(path, marker, piece, report)
            position = marker.end
        for piece, last in pieces(units):
            self._writer.new(path, place_of(name, position, piece, stamp, last=last), piece, report)
            position += len(piece)


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
