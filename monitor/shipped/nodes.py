"""Notes of nodes about their queues, with size, age and obstacle. The store keeps the last note of each node."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa

from logprobe.collectors.files import open_no_follow, stamp_of
from logprobe.collectors.plain_text import harmless
from logprobe.monitor.home import Home
from logprobe.monitor.service.jobs import Progress
from logprobe.monitor.store.store import Store

if TYPE_CHECKING:
    from logprobe.collectors.shipping.bucket import Bucket

SECONDS: Final = 5.0
FOLDER: Final = "nodes"  # of a home, where a Ray cluster's landing keeps them
_FORGET_DAYS: Final = 7
_MOST_BYTES: Final = 1 << 20
_MOST_NODES: Final = 10_000
_WORDS: Final = 300
_ROWS: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("run", "node", "version", "problem")),
        ("seen_at", pa.timestamp("us", "UTC")),
        *((name, pa.int64()) for name in ("segments", "bytes")),
        *((name, pa.float64()) for name in ("oldest_seconds", "clock_ahead_seconds")),
    ]
)


@dataclass(frozen=True, slots=True)
class Note:
    """Existing note. `written`: time of writing by the clock of the place."""

    name: str
    tag: object
    written: datetime


class Source(Protocol):
    """Source of notes."""

    def listed(self) -> Iterable[Note]:
        """List the notes. Raises `OSError`."""

    def read(self, note: Note) -> bytes | None:
        """Return the text of a note, or None if it was removed. Raises `OSError`."""


class InBucket:
    """Source of notes that nodes put into a bucket."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def listed(self) -> Iterator[Note]:
        """List the notes (see `Source`)."""
        from logprobe.collectors.shipping.bucket import NODES  # noqa: PLC0415 - needs an extra that most do not have

        for entry in self._bucket.entries(NODES):
            if entry.size <= _MOST_BYTES:
                yield Note(entry.name, (entry.tag, entry.modified), entry.modified)

    def read(self, note: Note) -> bytes | None:
        """Read a note (see `Source`)."""
        return self._bucket.get(note.name)


class InFolder:
    """Source of notes that a Ray cluster's landing wrote."""

    def __init__(self, home: Home) -> None:
        self._folder = home.path / FOLDER

    def listed(self) -> Iterator[Note]:
        """List the notes (see `Source`)."""
        for path in self._folder.glob("[!.]*.json"):
            stamp = stamp_of(path)
            if stamp is not None:
                yield Note(str(path), stamp, datetime.fromtimestamp(stamp[0] / 1e9, UTC))

    def read(self, note: Note) -> bytes | None:
        """Read a note (see `Source`)."""
        try:
            with open_no_follow(Path(note.name)) as file:
                return file.read(_MOST_BYTES)
        except FileNotFoundError:
            return None


class Nodes:
    """Ingest of notes into the store. Only one thread at a time may use it."""

    def __init__(self, store: Store, source: Source) -> None:
        self._store, self._source = store, source
        self._seen: dict[str, object] = {}
        self._hosts: dict[str, str] = {}  # name of a node → its note

    def once(self) -> Progress:
        """Store new notes. Raises `OSError` or `StoreError`."""
        rows: list[Mapping[str, Any]] = []
        seen: dict[str, object] = {}
        said: Progress = {}
        for note in self._source.listed():
            if len(seen) >= _MOST_NODES:
                said = {"problem": f"there are more than {_MOST_NODES:,} nodes; the others are not shown"}
                break
            seen[note.name] = note.tag
            if self._seen.get(note.name) != note.tag:
                content = self._source.read(note)
                rows += [] if content is None else self._rows(note, content)
        self._seen = seen
        if rows:
            with self._store.transaction() as cursor:
                self._store.execute(cursor, "replace", pa.Table.from_pylist(rows, schema=_ROWS), table="nodes")
                self._store.execute(cursor, "nodes_forget", now=self._store.time.now(), days=_FORGET_DAYS)
        return {"nodes": len(seen), **said}

    def _rows(self, note: Note, content: bytes) -> Iterator[Mapping[str, Any]]:
        """Yield the rows of a note, none for an invalid one."""
        try:
            said = json.loads(content)
            node, problem = harmless(str(said["node"]))[:_WORDS], said.get("problem")
            if self._hosts.setdefault(node, note.name) != note.name:  # two machines with one name
                node = Path(note.name).name.removesuffix(".json")
            common = {
                "node": node,
                "seen_at": self._store.time.now(),
                "version": None if said.get("version") is None else str(said["version"])[:_WORDS],
                "problem": None if problem is None else harmless(str(problem))[:_WORDS],
                "clock_ahead_seconds": _finite(said["time"] - note.written.timestamp()),
            }
            rows = [
                {
                    "run": str(run),
                    "segments": int(queue["segments"]),
                    "bytes": int(queue["bytes"]),
                    "oldest_seconds": None if queue["oldest_seconds"] is None else _finite(queue["oldest_seconds"]),
                    **common,
                }
                for run, queue in said["runs"].items()
            ]
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError):
            return
        yield from rows


def _finite(value: float) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("not a number")
    return number
