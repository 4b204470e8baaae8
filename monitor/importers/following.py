"""Following a folder while another program writes to it: what is complete goes into the spool, each piece once (see
`importing`).

A file that grows by lines is read from where the last piece ended. Any other is read when it has been quiet for some
seconds and can be read to its end. What cannot be taken yet waits and is looked at again; what stays broken is reported
and left alone until it changes.

Nothing is known but what the store says: a follower that was killed starts from the markers. Files whose size and time
are those of their last marker are not opened again; of one that has grown, the last known piece is compared before
anything is added.

The folder is listed plainly, which works on network file systems.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from logprobe.collectors.errors import ConfigurationError, LogprobeError
from logprobe.monitor import limits
from logprobe.monitor.home import Home
from logprobe.monitor.importers.importing import ChangedError, ImportReport, Marker, PieceWriter
from logprobe.monitor.importers.reading import Reading
from logprobe.monitor.importers.source import Format, Piece, Stamp, Wanted, natural
from logprobe.monitor.queries import Source

SPOOL_BYTES: Final = 256 << 20  # of ours that wait for the ingest: then reading waits, too
_TAIL_BYTES: Final = 512
_SHOWN: Final = 20  # files named in a status; all are counted


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds. Listing a folder takes at most a twentieth of one processor."""

    look: float = 1.0  # between two listings, at least
    again: float = 2.0  # until a file that grows is read again
    quiet: float = 3.0  # without a change, before a file that does not grow by lines is read
    broken: float = 60.0  # without a change, before what cannot be read counts as broken
    share: float = 19.0  # rest after a listing or a repeated reading, in its own length
    longest: float = 60.0


class SpoolRefusedError(LogprobeError, OSError):
    """The disk refused a segment, or the spool still holds some: what became of them is for the store to say."""


class ReconsiderError(LogprobeError):
    """A file was replaced: everything known of it has to be compared."""

    def __init__(self, file: str) -> None:
        super().__init__(f"{file} was replaced")
        self.file = file


@dataclass(slots=True)
class _File:
    """What is known of one file."""

    to_compare: list[Marker] = field(default_factory=list)  # when it is read next
    units: int = 0  # taken, or known, before `to_compare`
    offset: int = 0
    done: Stamp | None = None  # there is nothing to take while it is like this
    stamp: Stamp | None = None  # seen last, and when it became so (monotonic)
    since: float = 0.0
    due: float = 0.0
    pause: float = 1.0
    tail: bytes = b""  # digest of the last bytes before `offset`
    waits: str | None = None
    broken: str | None = None


@dataclass(slots=True)
class Status:
    """What a follower is doing, for people."""

    state: str = "starting"
    files: int = 0
    units: int = 0  # taken since it started
    bad_units: int = 0
    waiting: int = 0
    broken: int = 0
    shown: list[str] = field(default_factory=list)  # of what waits or is broken: file and why
    last: str | None = None  # time at which something was taken last, ISO 8601

    def document(self) -> dict[str, object]:
        """As plain values."""
        return asdict(self)


class Follower:
    """Takes what appears below `root` into a run, until stopped."""

    def __init__(
        self,
        home: Home,
        run: str,
        form: Format,
        root: Path,
        reader: Source,
        *,
        patterns: Sequence[str] = (),
        replaced: frozenset[str] = frozenset(),
        pace: Pace = Pace(),
    ) -> None:
        """The spool has to be ingested.

        Args:
            home: where to.
            run: into which run.
            form: of the files.
            root: a file or a folder; it need not exist yet.
            reader: of the store.
            patterns: of the files' names; default: the format's.
            replaced: files of which everything known is compared, and not only the last piece.
            pace: how often to look.

        Raises what the reader raises.
        """
        self._home, self._run, self._form, self._root, self._pace = home, run, form, root, pace
        self._patterns = tuple(patterns) or form.patterns
        self._writer = PieceWriter(home, run, form, reader)
        self._replaced = replaced
        if (waiting := _bytes_in(self._writer.folder)) > 0:
            raise SpoolRefusedError(f"{self._writer.folder} holds {waiting:,} bytes that are not ingested yet")
        self._files = self._remembered(self._writer.markers)
        self._writer.markers = []
        self._noted: set[str] = set()
        self._stop = threading.Event()
        self.status = Status()

    def run(self, stop: threading.Event, tell: Callable[[Status], None], settle: Callable[[], None]) -> None:
        """Until `stop` is set. `tell` hears of every round; `settle` is called after each: time to ingest.

        Raises `SpoolRefusedError`, `ReconsiderError`: make another follower.
        """
        self._stop = stop
        with Reading(self._form.name) as reading:
            while not stop.is_set():
                begun = time.monotonic()
                listing = self._listing()
                seconds = time.monotonic() - begun
                self._round(listing, reading)
                tell(self.status)
                settle()
                stop.wait(min(max(self._pace.look, self._pace.share * seconds), self._pace.longest))

    def _remembered(self, markers: Sequence[Marker]) -> dict[str, _File]:
        by_file: dict[str, list[Marker]] = {}
        for marker in sorted(markers, key=lambda marker: marker.start):
            by_file.setdefault(marker.file, []).append(marker)
        return {name: self._state(name, pieces) for name, pieces in by_file.items()}

    def _state(self, name: str, markers: list[Marker]) -> _File:
        whole = all(self._writer.whole(marker) for marker in markers)
        last = markers[-1]
        if self._form.read_on is not None and name not in self._replaced:
            first = next((n for n, marker in enumerate(markers) if not self._writer.whole(marker)), len(markers) - 1)
            before = markers[first - 1] if first else None
            if before is None or before.offset:  # else: an import of before offsets were kept
                state = _File(markers[first:], *((before.end, before.offset) if before else (0, 0)))
                state.done = Stamp(last.size, last.changed) if whole and last.offset == last.size else None
                return state
        done = whole and last.last and name not in self._replaced
        return _File(markers, done=Stamp(last.size, last.changed) if done and last.size else None)

    def _listing(self) -> Listing:
        try:
            return listing(self._root, self._patterns, without=self._home.path)
        except (ConfigurationError, OSError) as error:
            return Listing(problems=[str(error)])

    def _round(self, listing: Listing, reading: Reading) -> None:
        now = time.monotonic()
        due = [name for name, stamp in listing.files.items() if self._is_due(name, stamp, now)]
        for name in sorted(due, key=natural):
            if self._stop.is_set():
                return
            self._visit(name, self._files[name], reading)
        for name, state in self._files.items():
            if name not in listing.files and any(not self._writer.whole(marker) for marker in state.to_compare):
                self._break(name, state, "it is gone, and one of its pieces was being written: its rows are lost")
        self._describe(listing)

    def _is_due(self, name: str, stamp: Stamp, now: float) -> bool:
        state = self._files.setdefault(name, _File())
        if stamp == state.done:
            return False
        if stamp != state.stamp:
            state.stamp, state.since = stamp, now
            state.broken, state.pause = None, 1.0
            state.due = min(state.due, now + self._pace.again)
        return now >= state.due and state.broken is None

    def _visit(self, name: str, state: _File, reading: Reading) -> None:
        path = self._root if self._root.is_file() else self._root / name
        begun = time.monotonic()
        try:
            state.waits = self._not_yet(path, state, begun)
            if state.waits is None:
                self._take(path, name, state, reading)
        except (SpoolRefusedError, ReconsiderError):
            raise
        except ChangedError as error:
            self._break(name, state, str(error))
        except FileNotFoundError:
            state.waits = "it is gone"
        except OSError as error:  # says nothing about its content
            self._later(state, f"cannot be read now: {error.strerror or error}")
        except ConfigurationError as error:
            self._refused(name, state, str(error))
        spent = time.monotonic() - begun
        growing = self._form.read_on is not None
        rest = self._pace.again if growing else max(self._pace.again, self._pace.share * spent)
        state.due = max(state.due, time.monotonic() + (rest if state.waits is None else self._pace.look))

    def _not_yet(self, path: Path, state: _File, now: float) -> str | None:
        if self._form.read_on is None and not self._form.in_parts and now - state.since < self._pace.quiet:
            return "it is being written"
        return self._form.complete(path)

    def _take(self, path: Path, name: str, state: _File, reading: Reading) -> None:
        stamp = Stamp.of(path.stat())
        lines = self._form.read_on is not None
        if lines:
            self._look_for_replacement(path, name, state, stamp)
        ended = not lines or time.monotonic() - state.since >= self._pace.broken
        try:
            earlier = self._writer.earlier(state.to_compare)
            wanted = Wanted(path, name, stamp.time, earlier, state.units, state.offset, ended)
            pieces = reading.pieces(wanted)
            self._compare(path, state, pieces)
            complete = self._add(path, state, stamp, pieces)
        except BaseException:
            reading.close()  # it may be in the middle of the file
            raise
        if not complete:  # stopped in between
            reading.close()
        elif not lines or state.offset == stamp.size:
            state.done, state.pause = stamp, 1.0
        elif ended:
            self._break(name, state, f"its last {stamp.size - state.offset:,} bytes are not a whole line")
        else:
            state.waits = "its last line is being written"

    def _compare(self, path: Path, state: _File, pieces: Iterator[Piece]) -> None:
        """Of what is known: that it is still so, and that all of it is written. Raises `ChangedError`."""
        position, offset = state.units, state.offset
        for marker, piece in zip(state.to_compare, pieces, strict=False):  # what follows stays in `pieces`
            with self._spooling():
                self._writer.again(path, marker, piece, ImportReport())
            position, offset = piece.end, piece.offset
        if self._form.read_on is not None:  # any other is read from its start when it changes
            state.to_compare, state.units, state.offset = [], position, offset
            state.tail = b""

    def _add(self, path: Path, state: _File, stamp: Stamp, pieces: Iterator[Piece]) -> bool:
        """Takes what is new; False: stopped before the end."""
        for piece in pieces:
            if not self._room():
                return False
            report = ImportReport()
            with self._spooling():
                marker = self._writer.new(piece, stamp, report)
            if self._form.read_on is None:
                state.to_compare.append(marker)
            else:
                state.units, state.offset = piece.end, piece.offset
            self.status.units += report.units
            self.status.bad_units += report.bad_units
            self.status.last = datetime.now(UTC).isoformat(timespec="seconds")
        if self._form.read_on is not None and state.offset:
            state.tail = _tail(path, state.offset)
        return True

    def _look_for_replacement(self, path: Path, name: str, state: _File, stamp: Stamp) -> None:
        """Raises `ReconsiderError` when what was read is no longer the beginning of the file."""
        if not state.tail:
            return
        if stamp.size < state.offset or _tail(path, state.offset) != state.tail:
            raise ReconsiderError(name)

    def _refused(self, name: str, state: _File, why: str) -> None:
        """What the format's reader says of it: not yet complete, unless it has not changed for long."""
        if time.monotonic() - state.since < self._pace.broken:
            self._later(state, f"cannot be read yet: {why}")
        else:
            self._break(name, state, why)

    def _later(self, state: _File, why: str) -> None:
        state.waits = why
        state.due = time.monotonic() + state.pause
        state.pause = min(2 * state.pause, self._pace.longest)

    def _break(self, name: str, state: _File, why: str) -> None:
        state.waits, state.broken = None, why
        if (text := f"{name}: {why}") not in self._noted:
            self._noted.add(text)
            with self._spooling():
                self._writer.note("import_broken", "warning", text)

    def _room(self) -> bool:
        """Waits while much of ours has not been ingested; False: stopped."""
        while _bytes_in(self._writer.folder) > SPOOL_BYTES:
            if self._stop.wait(self._pace.look):
                return False
        return not self._stop.is_set()

    @contextmanager
    def _spooling(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise SpoolRefusedError(f"{self._writer.folder} cannot be written: {error}") from error

    def _describe(self, listing: Listing) -> None:
        waiting = {name: state.waits for name in listing.files if (state := self._files[name]).waits is not None}
        broken = {name: state.broken for name, state in self._files.items() if state.broken is not None}
        self.status = replace(  # in one go: who reads it from another thread sees one round, never parts of two
            self.status,
            state=listing.problems[0] if listing.problems else "following",
            files=len(listing.files),
            waiting=len(waiting),
            broken=len(broken),
            shown=[*_words(broken), *_words(waiting)][:_SHOWN],
        )


def _words(files: Mapping[str, str | None]) -> list[str]:
    return [f"{name}: {why}" for name, why in sorted(files.items(), key=lambda item: natural(item[0]))]


def _tail(path: Path, offset: int) -> bytes:
    """Digest of the last bytes before `offset`. Raises `OSError`."""
    with path.open("rb") as file:
        file.seek(max(0, offset - _TAIL_BYTES))
        return hashlib.sha256(file.read(min(offset, _TAIL_BYTES))).digest()


def _bytes_in(folder: Path) -> int:
    with suppress(OSError), os.scandir(folder) as entries:
        return sum(_size(entry) for entry in entries)
    return 0


def _size(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat().st_size
    except FileNotFoundError:  # ingested since
        return 0


@dataclass(slots=True)
class Listing:
    """What was found. `problems`: what could not be looked at, and why."""

    files: dict[str, Stamp] = field(default_factory=dict)  # by their names below the root
    problems: list[str] = field(default_factory=list)


def listing(root: Path, patterns: Sequence[str], *, without: Path) -> Listing:
    """Regular files whose names match, but none below `without`. Never raises for what a disk refuses.

    Raises `ConfigurationError` for more files than an import may have.
    """
    listing = Listing()
    if root.is_file():
        listing.files[root.name] = Stamp.of(root.stat())
        return listing
    for entry in _entries(root, listing.problems, without):
        if not any(fnmatchcase(entry.name, pattern) for pattern in patterns):
            continue
        try:
            if entry.is_file():
                listing.files[Path(entry.path).relative_to(root).as_posix()] = Stamp.of(entry.stat())
        except FileNotFoundError:  # renamed or removed since
            continue
        except OSError as error:
            listing.problems.append(f"{entry.path}: {error.strerror}")
    if len(listing.files) > limits.IMPORT_FILES.value:
        raise limits.IMPORT_FILES.exceeded(f"{root} holds {len(listing.files):,} files to import")
    return listing


def _entries(root: Path, problems: list[str], without: Path) -> Iterator[os.DirEntry[str]]:
    """Everything below `root` but folders, one folder after the other. Links to folders are not followed."""
    waiting = [str(root)]
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if not entry.is_dir(follow_symlinks=False):
                        yield entry
                    elif Path(entry.path).resolve() != without:
                        waiting.append(entry.path)
        except FileNotFoundError:
            if folder == str(root):
                problems.append(f"{root} does not exist yet")
        except OSError as error:
            problems.append(f"{folder}: {error.strerror}")
