"""Whether a run is being recorded, by the newest thing heard of it anywhere: in the store, in the spool, with the relays of other nodes.

A collector that closed has ended; one that did not counts until it has been silent for long. Imports are no collectors: theirs is the time
of the records.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from logprobe.collectors.errors import SegmentError
from logprobe.collectors.spool.segments import SegmentPath, read_segment, run_dir
from logprobe.monitor.home import Home
from logprobe.monitor.store.store import Read

LOST: Final = timedelta(minutes=10)  # as `alerts.liveness` has it, with its steps
_LOST_STEPS: Final = 20.0
_IMPORT: Final = "import-"
_TRAINING: Final = frozenset({"training", "statistics", "step"})
_LAST: Final = 3  # health segments of a writer to look for its end in


@dataclass(frozen=True, slots=True)
class Sign:
    """Of one collector: when it was seen last, whether it said that it ended, and whether it records training steps."""

    seen: datetime
    closed: bool
    trains: bool


def newest_sign(read: Read, home: Home, run: str, now: datetime) -> str | None:
    """What says that a run is being recorded, in words; None: nothing does. `read`: of stored statements."""
    (row,) = [row for row in read("app_runs").to_pylist() if row["run"] == run] or [{"writers": []}]
    signs = {
        writer["name"]: Sign(writer["last_seen"], bool(writer["closed"]), bool(writer["trains"]))
        for writer in row["writers"]
    }
    for writer, sign in _waiting(home, run).items():
        known = signs.get(writer, sign)
        signs[writer] = replace(
            known,
            seen=max(known.seen, sign.seen),
            closed=known.closed or sign.closed,
            trains=known.trains or sign.trains,
        )
    lost = max(LOST, timedelta(seconds=_LOST_STEPS * (row.get("step_seconds") or 0.0)))
    found = _open_collector(signs, now - lost) or _imported(row, now - lost) or _relayed(read, run, now)
    return None if found is None else f"{found[0]} {_ago(now, found[1])}"


def _open_collector(signs: Mapping[str, Sign], since: datetime) -> tuple[str, datetime] | None:
    """The collector seen last that has not closed. Where trainers are known, only they decide: engines are often just killed."""
    collectors = {name: sign for name, sign in signs.items() if not name.startswith(_IMPORT)}
    deciding = {name: sign for name, sign in collectors.items() if sign.trains} or collectors
    present = [(sign.seen, name) for name, sign in deciding.items() if not sign.closed and sign.seen >= since]
    return (f"collector {max(present)[1]} was seen", max(present)[0]) if present else None


def _imported(row: Mapping[str, Any], since: datetime) -> tuple[str, datetime] | None:
    newest = row.get("last_record_at")
    alone = all(writer["name"].startswith(_IMPORT) for writer in row["writers"])
    return ("the newest record was made", newest) if alone and newest is not None and newest >= since else None


def _relayed(read: Read, run: str, now: datetime) -> tuple[str, datetime] | None:
    """A node whose relay still has something of the run."""
    nodes = [row for row in read("relay_nodes", run=run, now=now).to_pylist() if row["segments"] != 0]
    found = max(((row["seen_at"], row["node"]) for row in nodes), default=None)
    return None if found is None or now - found[0] > LOST else (f"node {found[1]} had records to send", found[0])


def _waiting(home: Home, run: str) -> dict[str, Sign]:
    """What the spool tells of each writer of a run: files that wait there or are being written."""
    found: dict[str, Sign] = {}
    with suppress(OSError), os.scandir(run_dir(home.path, run)) as writers:
        for writer in writers:
            files = sorted(path for path in Path(writer.path).glob("*.arrow") if not path.name.startswith("."))
            if files:
                kinds = {path.name.split(".")[1] for path in files}
                seen = datetime.fromtimestamp(max(_modified(path) for path in files), UTC)
                found[writer.name] = Sign(seen, _is_closed(files), bool(kinds & _TRAINING))
    return found


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0  # ingested meanwhile


def _is_closed(files: list[Path]) -> bool:
    """Whether the last of a writer's own words are a goodbye."""
    for path in [path for path in files if ".health." in path.name][-_LAST:]:
        with suppress(SegmentError, OSError):
            if "closed" in read_segment(SegmentPath.parse(path)).table["event"].to_pylist():
                return True
    return False


def _ago(now: datetime, then: datetime) -> str:
    seconds = max(0.0, (now - then).total_seconds())
    return f"{seconds:.0f} s ago" if seconds < LOST.total_seconds() else f"{seconds / 60:.0f} min ago"
