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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, TypedDict

from logprobe.collectors.directives import DirectiveFile
from logprobe.collectors.files import READABLE, open_no_follow, replace_file
from logprobe.collectors.relay import protocol
from logprobe.collectors.shipping.queue import Length, QueueLength
from logprobe.collectors.spool.segments import run_name
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
