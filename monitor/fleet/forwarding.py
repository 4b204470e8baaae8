"""What still arrives at a home of runs that another one has goes there: segments, weight marks, what relays say of
their queues.

Marks and directives come back. To the nodes nothing changes.

Towards the new home this one is what a node with a relay is to a service, only that this process reaches both folders.
"""

from __future__ import annotations

import errno
import filecmp
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from logprobe.collectors.errors import LogprobeError, ServiceUnavailableError
from logprobe.collectors.files import fsync_folder, make_durable
from logprobe.collectors.relay.exchange import RunMarks, follow_directives
from logprobe.collectors.spool.segments import run_dir
from logprobe.monitor import queries
from logprobe.monitor.deletion import places
from logprobe.monitor.deletion.part import delete_rows, in_tables
from logprobe.monitor.fleet.moved import Moved, MovedRuns
from logprobe.monitor.home import Home
from logprobe.monitor.reader import connect
from logprobe.monitor.relay.exchanges import Exchanges
from logprobe.monitor.relay.service_part import NOTE
from logprobe.monitor.service.jobs import INCOMPLETE
from logprobe.monitor.store.copies import copy_durably
from logprobe.monitor.store.store import Store

_MARKS_BYTES: Final = 1 << 20
_DESERTED_SECONDS: Final = 86400.0


class Forwarder:
    """Of one home. For one thread at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._moved = MovedRuns(store.home)
        self._marks: dict[str, RunMarks] = {}
        self._exchanges: dict[str, Exchanges] = {}

    def run_once(self) -> dict[str, Any]:
        """``{"moved_runs", "forwarded", "problem"}``: segments that went on. Raises `StoreError`."""
        gone = [moved for moved in self._moved.all().values() if moved.home is not None]
        forwarded, problem = 0, None
        for moved in gone:
            try:
                forwarded += self._forward(moved, Home(str(moved.home)))
            except (OSError, LogprobeError) as error:
                problem = problem or f"{moved.run} is not forwarded to {moved.to}, and waits: {error}"
        problem = self._pass_nodes_on(gone) or self._sweep(gone) or problem
        return {"moved_runs": len(gone), "forwarded": forwarded, "problem": problem, INCOMPLETE: problem is not None}

    def _forward(self, moved: Moved, to: Home) -> int:
        folder = run_dir(self._store.home.path, moved.run)
        if not folder.is_dir():  # nothing has come for a day: the run has ended, or goes to its home by itself
            self._marks.pop(moved.run, None)
            return 0
        if not to.database.exists():  # such as a disk that is not mounted
            raise FileNotFoundError(errno.ENOENT, f"{to.database} does not exist")
        number = 0
        for path in _files(folder):
            _hand_on(path, run_dir(to.path, moved.run) / path.parent.name / path.name)
            number += 1
        places.remove_deserted(folder, _DESERTED_SECONDS)
        self._exchange(moved, to)
        return number

    def _exchange(self, moved: Moved, to: Home) -> None:
        """As a relay does with a service."""
        home, run = self._store.home.path, moved.run
        there = self._exchanges.setdefault(str(to.path), Exchanges(to))
        if there.is_deleted(run):
            return
        marks = self._marks.setdefault(run, RunMarks(home, run))
        sent = marks.outgoing(_MARKS_BYTES)
        answer, _ = there.answer(run, sent, marks.cursor)
        marks.acknowledged(len(sent))
        marks.take(answer["marks"], answer["cursor"])
        follow_directives(home, run, answer["directives"], stopped=answer["stopped"])

    def _pass_nodes_on(self, gone: list[Moved]) -> str | None:
        """→ what keeps the other service from knowing how far nodes are behind."""
        homes = {moved.run: str(moved.home) for moved in gone}
        rows = queries.fleet_nodes(self._store, runs=list(homes)).to_pylist() if homes else []
        by_home: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            by_home.setdefault(homes[row["run"]], []).append({**row, "seen_at": _text(row["seen_at"])})
        for home, nodes in by_home.items():
            try:
                with connect(home) as reader:
                    reader.act(NOTE, {"nodes": nodes})
            except ServiceUnavailableError:
                continue  # they are newer the next time
            except LogprobeError as error:
                return str(error)
            with self._store.transaction() as cursor:
                self._store.execute(cursor, "fleet_nodes_forget", runs=sorted({node["run"] for node in nodes}))
        return None

    def _sweep(self, gone: list[Moved]) -> str | None:
        """Removes what jobs that had begun before a run left have stored of it since; → why there is more than that."""
        if not gone:
            return None
        runs = [moved.run for moved in gone]
        for run in sorted(in_tables(self._store, runs, lambda table: table != "relay_nodes")):
            if in_tables(self._store, [run], lambda table: table == "segments"):
                return (
                    f"{run} has records here, as in an older store that was put back by hand, and belongs to another "
                    "service: logprobe backup, and logprobe restore of that, leaves them out"
                )
            with self._store.transaction() as cursor:
                delete_rows(self._store, cursor, run)
                self._store.refresh_steps_view(cursor)
        return None


def _files(folder: Path) -> Iterator[Path]:
    """What collectors and relays have put into the folders of a run; hidden files are being written, or dealt with."""
    with suppress(FileNotFoundError):
        for writer in sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()):
            with suppress(FileNotFoundError):
                yield from sorted(
                    (
                        path
                        for path in writer.iterdir()
                        if path.is_file() and not path.is_symlink() and path.name[0] != "."
                    ),
                    key=lambda path: path.name,
                )


def _hand_on(source: Path, target: Path) -> None:
    """Moves a file durably; killed anywhere it is here, or there, or both, and then counts once. Raises `OSError`."""
    make_durable(target.parent)
    try:
        source.rename(target)
        fsync_folder(target.parent)
    except FileNotFoundError:  # another thread was faster, or a collector took it back
        if source.exists():
            raise
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        copy_durably(source, target)
        if not filecmp.cmp(source, target, shallow=False):
            target.unlink()
            raise OSError(errno.EIO, f"{target} is read back different from {source}") from error
        source.unlink()


def _text(moment: datetime) -> str:
    return moment.isoformat()
