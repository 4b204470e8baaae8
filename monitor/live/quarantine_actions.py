"""User actions on quarantined files: retry or drop. They run in the service, or directly if none is running.

Both actions are idempotent. The file is moved or removed first, then its row is replaced by an audit entry. If the
process is killed between the two steps, the next start removes the row.
"""

from __future__ import annotations

import os
import shutil
import stat
import threading
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal, TypedDict

from logprobe.collectors.errors import ConfigurationError, SegmentError, StoreError
from logprobe.collectors.files import DISK, make_durable
from logprobe.collectors.spool.segments import SegmentPath, run_dir
from logprobe.monitor import queries
from logprobe.monitor.home import Home
from logprobe.monitor.service import actions
from logprobe.monitor.service.jobs import Part
from logprobe.monitor.store.store import Store

RETRY: Final = "quarantine.retry"
DROP: Final = "quarantine.drop"

_PLACE: Final = "quarantine/"
_DEPTH: Final = 3  # <run>/<writer>/<file>

Row = Mapping[str, Any]


def part(store: Store, _: threading.Event) -> Part:
    """Return the service component that offers these actions."""
    return Part(actions=actions.offered(_ACTIONS, store))


class Handled(TypedDict):
    """Result for one file. `gone`: the file no longer existed."""

    file: str
    status: Literal["returned", "dropped", "gone"]


def perform(home: Home, name: str, document: Mapping[str, Any]) -> Handled:
    """Perform one action through the running service, or else directly on the locked data directory.

    Raises `ConfigurationError` for an invalid request, `HomeBusyError` or `StoreError` if the data directory is
    unavailable.
    """
    handled: Handled = actions.perform(_ACTIONS, home, name, document)
    return handled


def full_name(file: str) -> str:
    """Return the file's name in the store. The prefix ``quarantine/`` is optional.

    >>> full_name("run/writer/x.arrow")
    'quarantine/run/writer/x.arrow'
    """
    return file if file.startswith(_PLACE) else _PLACE + file


def _retry(store: Store, document: Mapping[str, Any], now: datetime) -> Handled:
    """Handle a retry request ``{"file", "author"}``."""
    return _handle(store, document, now, _put_back, ("returned", "moved back to the spool"))


def _drop(store: Store, document: Mapping[str, Any], now: datetime) -> Handled:
    """Handle a drop request ``{"file", "author"}``."""
    return _handle(store, document, now, _remove, ("dropped", "dropped from quarantine"))


def _handle(
    store: Store,
    document: Mapping[str, Any],
    now: datetime,
    do: Callable[[Home, Path, Row], None],
    done: tuple[Literal["returned", "dropped"], str],
) -> Handled:
    name, author = full_name(actions.text(document, "file")), actions.text(document, "author")
    rows = [row for row in queries.quarantine_list(store, run=None).to_pylist() if row["path"] == name]
    if not rows:
        return {"file": name, "status": "gone"}
    status: Literal["returned", "dropped", "gone"]
    status, words = done
    # Ingest may set the file aside again at once: its row must come after this one is gone.
    with store.transaction() as cursor:
        try:
            do(store.home, store.home.path / name, rows[0])
        except FileNotFoundError:
            status, words = "gone", "removed from the list: the file no longer exists"
        except OSError as error:
            raise StoreError(
                f"{name} cannot be moved or removed ({error}); check its permissions and try again"
            ) from error
        store.execute(cursor, "quarantine_forget", path=name)
        about = f"{rows[0]['reason']}, {rows[0]['bytes']:,} bytes: {rows[0]['message']}"
        actions.note(store, cursor, now, author=author, action=words, what=name, words=about)
    return {"file": name, "status": status}


def _put_back(home: Home, file: Path, row: Row) -> None:
    target = home.path / row["origin"]
    _check_segment_place(home, target)
    if os.path.lexists(target):
        raise ConfigurationError(f"{row['origin']} already exists in the spool; move that file away and retry")
    file.lstat()  # what is gone needs no folder
    make_durable(target.parent)
    file.rename(target)
    DISK.sync(target.parent)  # before the row goes


def _check_segment_place(home: Home, target: Path) -> None:
    """Raise `ConfigurationError` if ingest cannot accept a file at that path."""
    try:
        run = SegmentPath.parse(target).run
        depth = len(target.relative_to(home.spool).parts)
    except (SegmentError, ValueError):
        run, depth = "", 0
    if depth != _DEPTH or run_dir(home.path, run) != target.parent.parent:
        raise ConfigurationError(
            f"{home.relative(target)} is not a valid segment path, so a retry cannot help; drop the file, or move it "
            "by hand"
        )


def _remove(_: Home, file: Path, __: Row) -> None:
    if stat.S_ISDIR(file.lstat().st_mode):
        shutil.rmtree(file)
    else:
        file.unlink()


_ACTIONS: Final[actions.Actions] = {
    RETRY: ("move a file from quarantine back to the spool", _retry),
    DROP: ("permanently delete a file from quarantine", _drop),
}
