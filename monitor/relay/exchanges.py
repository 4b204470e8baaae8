"""Marks and directives of a home, as its nodes exchange them: marks are a set of lines that only grows."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypedDict

from logprobe.collectors.directives import DirectiveFile
from logprobe.collectors.relay import protocol
from logprobe.collectors.relay.exchange import append_lines, is_mark, read_lines
from logprobe.collectors.versions import MarkFile
from logprobe.monitor.deletion.tombstones import Tombstones
from logprobe.monitor.home import Home

_MOST_BYTES: Final = 64 << 20  # of one run's marks: some 400,000
_RUNS: Final = 4096  # remembered at a time
_ANSWER_BYTES: Final = 128 << 10  # of marks, for one run


class Directives(TypedDict):
    """The content of a run's file (None: it has none), and whether the kill switch is set."""

    directives: str | None
    stopped: bool


class Answer(Directives):
    """What a node has to know of a run: marks that it does not have, up to which byte of the file, and directives."""

    marks: list[str]
    cursor: int


class _RunMarks:
    def __init__(self, file: Path) -> None:
        self.file = file
        self._lock = threading.Lock()
        self._known: set[str] = set()
        self._offset = 0

    def add(self, lines: Sequence[str]) -> int:
        """Appends those that are new; → how many the file has no room for. Raises `OSError`."""
        with self._lock:
            self._read()
            new = [line for line in dict.fromkeys(lines) if line not in self._known]
            if self._offset + sum(map(len, new)) > _MOST_BYTES:
                return len(new)
            if new:
                append_lines(self.file, new)
                self._known.update(new)
            return 0

    def _read(self) -> None:
        """Also what the service's own machine marks."""
        while True:
            lines, self._offset = read_lines(self.file, self._offset)
            self._known.update(lines)
            if not lines:
                return


class Exchanges:
    """Of one home. Safe from any thread."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._tombstones = Tombstones(home)
        self._marks: dict[str, _RunMarks] = {}
        self._lock = threading.Lock()

    def is_deleted(self, run: str) -> bool:
        """Whether nothing of a run is taken: nodes that do not know keep their marks to themselves. Raises
        `StoreError`."""
        tombstone = self._tombstones.find(run)
        with self._lock:
            if tombstone is not None and tombstone.released_at is None:
                self._marks.pop(run, None)
                return True
        return False

    def _since(self, run: str) -> float | None:
        """Marks from before then belong to the run of this name that was deleted."""
        tombstone = self._tombstones.find(run)
        released = None if tombstone is None else tombstone.released_at
        return None if released is None else datetime.fromisoformat(released).timestamp()

    def answer(self, run: str, lines: Sequence[Any], cursor: int) -> tuple[Answer, list[str]]:
        """Takes a node's marks of `run`; → what the node has to know, and what was refused. Raises `OSError`."""
        marks = [
            line for line in lines[: protocol.MARKS] if isinstance(line, str) and "\n" not in line and is_mark(line)
        ]
        strange = len(lines) - len(marks)
        of_run, since = self._of(run), self._since(run)
        if since is not None:
            marks = [line for line in marks if float(json.loads(line)["applied_at"]) >= since]
        beyond = of_run.add(marks) if marks else 0
        refused = {
            f"{strange} lines for {run!r} that are no marks": strange,
            f"{beyond} weight marks of {run!r}: it has {_MOST_BYTES >> 20} MiB of them, and more are not kept": beyond,
        }
        newer, reached = read_lines(of_run.file, max(cursor, 0), _ANSWER_BYTES)
        return {"marks": newer, "cursor": reached, **self.directives(run)}, [
            reason for reason, happened in refused.items() if happened
        ]

    def directives(self, run: str) -> Directives:
        """Of a run. Raises `OSError`."""
        file = DirectiveFile(self._home.path, run)
        content = file.content()
        return {
            "directives": None if content is None else content.decode("utf-8", "replace"),
            "stopped": file.stop_path.exists(),
        }

    def _of(self, run: str) -> _RunMarks:
        with self._lock:
            if run not in self._marks:
                if len(self._marks) >= _RUNS:
                    del self._marks[next(iter(self._marks))]
                self._marks[run] = _RunMarks(MarkFile(self._home.path, run).path)
            return self._marks[run]
