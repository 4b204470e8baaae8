"""The other direction: marks of weights both ways, directives to the node, and how long its queue is to the service.

Marks are a set of lines: each side sends what it has, and adds what it has not. Directives are the service's; the
node's file follows it.

The queue is what waits in the node's spool to be sent; a segment that was sent is removed.
"""

from __future__ import annotations

import json
import math
import os
import socket
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, TypedDict

from logprobe.collectors.directives import DirectiveFile
from logprobe.collectors.errors import SegmentError
from logprobe.collectors.files import READABLE, make_durable, open_no_follow, replace_file
from logprobe.collectors.relay import protocol
from logprobe.collectors.spool.segments import SegmentPath, run_name, spool_dir
from logprobe.collectors.versions import MarkFile

LIVE_SECONDS: Final = 86400.0  # a run in which nothing has moved for so long is asked about in turn with others like it
_MARKS_BYTES: Final = 1 << 20  # of marks in one call: the service takes four times as much in all
_FROM_SERVICE: Final = "set by the service\n"  # of a kill switch that is taken back when the service does so
_MOST_BYTES: Final = 1 << 20  # of directives
_FIRST, _LAST = 1.0, 60.0  # seconds between two calls, whatever the service asks for
ABANDONED_SECONDS: Final = 86400.0  # an empty folder this old belongs to a writer that has ended


class _RunMarks:
    """The marks of one run on this node, and how far each side knows the other's."""

    def __init__(self, home: Path, run: str) -> None:
        self._file = MarkFile(home, run).path
        self._known: set[str] = set()
        self._offset = 0
        self._unsent: list[str] = []
        self.cursor = 0  # in the service's file

    def outgoing(self, most: int) -> list[str]:
        """Lines that the service may not have, at most `protocol.MARKS` and `most` bytes of them. Raises `OSError`."""
        self._read()
        sizes = accumulate(len(line.encode()) for line in self._unsent[: protocol.MARKS])
        return self._unsent[: sum(size <= most for size in sizes)]

    def acknowledged(self, number: int) -> None:
        """The service has the first `number` of them."""
        del self._unsent[:number]

    def take(self, lines: list[str], cursor: int) -> None:
        """Adds what the service has and this node has not. Raises `OSError`."""
        self._read()
        new = [line for line in dict.fromkeys(lines) if line not in self._known and is_mark(line)]
        if new:
            append_lines(self._file, new)
            self._known.update(new)
        self.cursor = cursor

    def _read(self) -> None:
        lines, self._offset = read_lines(self._file, self._offset)
        fresh = [line for line in dict.fromkeys(lines) if line not in self._known and is_mark(line)]
        self._known.update(fresh)
        self._unsent += fresh


class RunSync(TypedDict):
    """What a node says of a run: its queue, its new weight marks, and how far it has those of others."""

    queue: QueueLength
    marks: list[str]
    cursor: int


class Sync(TypedDict):
    """What a node tells the service. `time`: of its clock. `sent`: counts of what it sent."""

    protocol: int
    node: str
    relay: str
    version: str | None
    time: float
    problem: str | None
    sent: dict[str, Any]
    runs: dict[str, RunSync]


class Exchange:
    """Makes the documents of ``sync`` and follows the answers. Used by one thread."""

    def __init__(
        self,
        home: Path,
        relay: str,
        version: str | None,
        runs: frozenset[str] = frozenset(),
        *,
        node: str = "",
    ) -> None:
        """`runs`: to be kept up to date besides those that have a folder in the spool or marks. `node`: its name, "":
        that of its host."""
        self._home = home
        self._relay = relay
        self._version, self._node = version, node
        self._runs = runs
        self._marks: dict[str, _RunMarks] = {}
        self._known: frozenset[str] = frozenset()  # runs of this node
        self._asked = ""  # of the runs at rest, the last that was asked about

    def documents(self, lengths: Mapping[str, Length], problem: str | None, sent: Mapping[str, Any]) -> Iterator[Sync]:
        """What this node says, in as many calls as the service takes `protocol.SYNC_RUNS` for. Raises `OSError`."""
        names = self._turn(lengths)
        for first in range(0, max(len(names), 1), protocol.SYNC_RUNS):
            yield self._document(names[first : first + protocol.SYNC_RUNS], lengths, problem, sent)

    def _turn(self, lengths: Mapping[str, Length]) -> list[str]:
        """Whom this turn asks about: every run that is live here, newest first, then the next call's worth of those at
        rest."""
        touched = {run: length.touched for run, length in lengths.items()}
        for run, modified in _marked_runs(self._home):
            touched[run] = max(touched.get(run, 0.0), modified)
        touched.update(dict.fromkeys(self._runs, math.inf))
        self._known = frozenset(touched)
        since = time.time() - LIVE_SECONDS
        live = sorted((run for run, when in touched.items() if when >= since), key=lambda run: (-touched[run], run))
        resting = sorted(run for run, when in touched.items() if when < since)
        position = bisect_right(resting, self._asked)
        turn = (resting[position:] + resting[:position])[: protocol.SYNC_RUNS]
        self._asked = turn[-1] if turn else ""
        return live + turn

    def _document(
        self, names: Sequence[str], lengths: Mapping[str, Length], problem: str | None, sent: Mapping[str, Any]
    ) -> Sync:
        now, room = time.time(), _MARKS_BYTES
        runs: dict[str, RunSync] = {}
        for name in names:
            runs[name] = self._of_run(name, lengths.get(name, Length()), now, room)
            room -= sum(len(line.encode()) for line in runs[name]["marks"])
        return {
            "protocol": protocol.PROTOCOL,
            "node": self._node or socket.gethostname(),
            "relay": self._relay,
            "version": self._version,
            "time": now,
            "problem": problem,
            "sent": dict(sent),
            "runs": runs,
        }

    def _of_run(self, run: str, length: Length, now: float, room: int) -> RunSync:
        marks = self._marks.setdefault(run, _RunMarks(self._home, run))
        return {"queue": length.document(now), "marks": marks.outgoing(room), "cursor": marks.cursor}

    def follow(self, asked: Mapping[str, Any], answer: Mapping[str, Any]) -> float:
        """Takes over what the service says; → seconds until the next call. Raises `OSError`, `ValueError`, `TypeError`
        or `KeyError`."""
        for run, news in dict(answer["runs"]).items():
            if run not in asked["runs"]:
                continue
            self._marks[run].acknowledged(len(asked["runs"][run]["marks"]))
            self._marks[run].take([str(line) for line in news["marks"]], int(news["cursor"]))
            _follow_directives(self._home, run, news.get("directives"), stopped=news.get("stopped") is not False)
        for run in self._known.intersection(
            map(str, answer.get("stopped", ()))
        ):  # also of runs that are asked about later
            stop(DirectiveFile(self._home, run))
        return min(max(float(answer.get("again", _FIRST)), _FIRST), _LAST)


def _follow_directives(home: Path, run: str, content: str | None, *, stopped: bool) -> None:
    """Makes the node's files say what the service's say. A kill switch that someone set on the node stays. Raises
    `OSError`."""
    file = DirectiveFile(home, run)
    if content is not None and len(content) <= _MOST_BYTES and file.content() != content.encode():
        replace_file(file.path, content.encode(), mode=READABLE)
    if stopped:
        stop(file)
    elif _text(file.stop_path) == _FROM_SERVICE:
        file.stop_path.unlink(missing_ok=True)


def stop(file: DirectiveFile) -> None:
    """Sets the kill switch as the service has it. Raises `OSError`."""
    if not file.stop_path.exists():
        file.stop_path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file.stop_path, _FROM_SERVICE.encode(), mode=READABLE)


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def _marked_runs(home: Path) -> list[tuple[str, float]]:
    """Runs that have marks, and when the newest was made."""
    marked = []
    with suppress(OSError), os.scandir(home / "versions") as entries:
        for entry in entries:
            if entry.name.endswith(".jsonl"):
                with suppress(OSError):
                    marked.append(
                        (run_name(entry.name.removesuffix(".jsonl")), entry.stat(follow_symlinks=False).st_mtime)
                    )
    return marked


def read_lines(file: Path, offset: int, most: int = 1 << 20) -> tuple[list[str], int]:
    """Complete lines from `offset` on, at most `most` bytes of them, and where they end. A file that became shorter is
    read from the start.

    Raises `OSError`.
    """
    try:
        opened = open_no_follow(file)
    except FileNotFoundError:
        return [], 0
    with opened:
        start = offset if offset <= os.fstat(opened.fileno()).st_size else 0
        opened.seek(start)
        data = opened.read(most)
    complete = data[: data.rfind(b"\n") + 1]
    return complete.decode("utf-8", "replace").splitlines(), start + len(complete)


def append_lines(file: Path, lines: list[str]) -> None:
    """Each line by one write: concurrent readers and writers see whole lines."""
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        for line in lines:
            os.write(descriptor, line.encode() + b"\n")
    finally:
        os.close(descriptor)


def is_mark(line: str) -> bool:
    """Whether a line could be a mark: engines and trainers read the file with others' lines in it, but nothing else is
    passed on."""
    if len(line) > protocol.MARK_BYTES:
        return False
    try:
        document = json.loads(line)
        return isinstance(document, dict) and "version" in document and float(document["applied_at"]) >= 0
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


@dataclass(frozen=True, slots=True)
class Waiting:
    """One segment. `modified`: seconds since the epoch."""

    where: SegmentPath
    nbytes: int
    modified: float

    @property
    def name(self) -> str:
        """``RUN/WRITER/FILE``, as the protocol names it."""
        return self.where.segment_id


class QueueLength(TypedDict):
    """A `Length` as the service is told. `oldest_seconds`: age of the oldest segment; None: nothing waits."""

    segments: int
    bytes: int
    oldest_seconds: float | None


@dataclass(slots=True)
class Length:
    """Of one run's queue. `oldest`: seconds since the epoch; `touched`: when a segment last came or went, likewise."""

    segments: int = 0
    nbytes: int = 0
    oldest: float | None = None
    touched: float = 0.0

    def document(self, now: float) -> QueueLength:
        """As JSON values; the age on this node's clock, which need not be right but measures durations."""
        age = None if self.oldest is None else round(max(0.0, now - self.oldest), 3)
        return {"segments": self.segments, "bytes": self.nbytes, "oldest_seconds": age}


class SpoolQueue:
    """The spool of one home, looked at again and again. Opens no file and follows no link.

    Attributes:
        unread: What the last look could not read, and why; None when it saw everything.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.unread: str | None = None
        self._spool = spool_dir(home)
        self._lengths: dict[str, Length] = {}

    def waiting(self) -> list[Waiting]:
        """Everything that waits, oldest first, segments of one writer in the order of their numbers."""
        segments: list[Waiting] = []
        unread: list[OSError] = []
        lengths: dict[str, Length] = {}
        for run in _folders(self._spool, unread):
            length = lengths.setdefault(run_name(run.name), Length())
            length.touched = max(length.touched, _modified(run))
            writers = _folders(Path(run.path), unread)
            for writer in writers:
                length.touched = max(length.touched, _modified(writer))
                segments += _segments(Path(writer.path), unread)
            if not writers:
                _remove_abandoned(Path(run.path))
        self.unread = f"the spool cannot be read: {unread[0]}" if unread else None
        segments.sort(key=lambda waiting: (waiting.modified, waiting.name))
        _count(lengths, segments)
        self._lengths = lengths
        return segments

    def lengths(self) -> dict[str, Length]:
        """Of each run that has a folder here, as `waiting` saw it last. Safe from any thread."""
        return dict(self._lengths)

    def forget(self, sent: Iterable[Waiting]) -> None:
        """Removes what the service has. One that cannot be removed is sent again, which does no harm."""
        for waiting in sent:
            with suppress(OSError):
                waiting.where.path.unlink(missing_ok=True)

    def set_aside(self, waiting: Waiting) -> Path:
        """Moves what the service will never take to ``quarantine/``, so that it holds up nothing. Raises `OSError`."""
        target = self.home / "quarantine" / waiting.name
        make_durable(target.parent)
        waiting.where.path.rename(target)
        return target


def _count(lengths: Mapping[str, Length], segments: Iterable[Waiting]) -> None:
    for waiting in segments:  # oldest first
        length = lengths[waiting.where.run]
        length.segments += 1
        length.nbytes += waiting.nbytes
        length.oldest = waiting.modified if length.oldest is None else length.oldest


def _modified(folder: os.DirEntry[str]) -> float:
    with suppress(OSError):
        return folder.stat(follow_symlinks=False).st_mtime
    return 0.0


def _folders(folder: Path, unread: list[OSError]) -> list[os.DirEntry[str]]:
    folders: list[os.DirEntry[str]] = []
    with _noted(unread), os.scandir(folder) as entries:
        folders += [entry for entry in entries if entry.is_dir(follow_symlinks=False) and _is_text(entry.name)]
    return folders


@contextmanager
def _noted(unread: list[OSError]) -> Iterator[None]:
    """A missing file is not an error."""
    try:
        yield
    except FileNotFoundError:
        pass
    except OSError as error:
        unread.append(error)


def _is_text(name: str) -> bool:
    return name.isprintable() and name.encode("utf-8", "replace").decode() == name


def _segments(folder: Path, unread: list[OSError]) -> list[Waiting]:
    listed: list[os.DirEntry[str]] = []
    with _noted(unread), os.scandir(folder) as entries:
        listed += entries
    if not listed:
        _remove_abandoned(folder)
    segments = []
    for entry in listed:
        with suppress(OSError, SegmentError):  # gone, or no segment: nothing that could be sent
            status = entry.stat(follow_symlinks=False)
            if entry.is_file(follow_symlinks=False):
                segments.append(Waiting(SegmentPath.parse(Path(entry.path)), status.st_size, status.st_mtime))
    return segments


def _remove_abandoned(folder: Path) -> None:
    with suppress(OSError):  # it is in use again
        if time.time() - folder.stat().st_mtime > ABANDONED_SECONDS:
            folder.rmdir()
