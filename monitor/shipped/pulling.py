"""Transfer of segments from a bucket to the spool. `mirror` later removes the objects of durable segments.

A run with an unwritable spool folder does not delay other runs. A later round retries its segments. An object that
contradicts its name remains, since its sender may repair it. The object is reported and checked again after 10 seconds,
with back-off to 10 minutes.
"""

from __future__ import annotations

import json
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Final

from logprobe.collectors.errors import ConfigurationError, SegmentError
from logprobe.collectors.shipping.bucket import SPOOL, Bucket, Entry
from logprobe.collectors.spool.segments import run_name
from logprobe.monitor.home import Home
from logprobe.monitor.live.scan import scan
from logprobe.monitor.service.jobs import INCOMPLETE, Progress
from logprobe.monitor.settings import limits
from logprobe.monitor.shipped.landing import land

SECONDS: Final = 0.5
_AT_ONCE: Final = 8
_TOGETHER: Final = 64  # segments in memory
_TOGETHER_BYTES: Final = 32 << 20
_MOST: Final = 2000  # segments in one round
_AGAIN_SECONDS: Final = (10.0, 600.0)
_OWNER: Final = "owner.json"
_OWNER_SECONDS: Final = 10.0  # between two looks at who pulls
_SPOOL_SECONDS: Final = 5.0  # between two looks at the size of the spool
_MOST_NAMED: Final = 3


@dataclass(slots=True)
class _Bad:
    words: str
    pause: float
    again: float  # on the monotonic clock


class Puller:
    """Puller of segments from a bucket into the spool, one per address. Only one thread at a time may use it."""

    def __init__(self, bucket: Bucket, home: Home, deleted: Callable[[str], bool] = lambda _: False) -> None:
        """Set up the puller. `deleted`: function that returns whether a run was deleted."""
        self.owner = Owner(bucket, home)
        self.landed: dict[str, str] = {}  # RUN/WRITER/FILE whose object is still there → id of the segment
        self.late: set[str] = set()  # folders of deleted runs that have objects
        self._bucket, self._home, self._deleted = bucket, home, deleted
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="logprobe-pull")
        self._bad: dict[str, _Bad] = {}
        self._pulled = 0
        self._spool_at, self._spooled = 0.0, 0

    def once(self) -> Progress:
        """Pull new segments. The next call continues. Raises `OSError` of the bucket, or of the disk if no run's
        segments can be written.
        """
        self.owner.require()
        if self._is_behind():
            return self._progress(f"{self._spooled >> 20} MiB wait to be ingested; nothing more is pulled until then")
        refused, before = dict[str, OSError](), self._pulled  # of runs, by folder
        for part in _together(islice(self._new(), _MOST)):
            some = [entry for entry in part if _folder(entry) not in refused]
            for entry, landed in zip(some, self._pool.map(self._land, some), strict=True):
                if isinstance(landed, SegmentError):
                    self._refuse(entry.name.removeprefix(SPOOL), str(landed))
                elif isinstance(landed, OSError):
                    refused.setdefault(_folder(entry), landed)
                elif landed is not None:
                    self._settle(entry, landed)
        if not refused:
            return self._progress(None)
        first = next(iter(refused.values()))
        if self._pulled == before:
            raise first
        return self._progress(f"segments of {len(refused):,} runs wait in the bucket: {first}")

    def close(self) -> None:
        """Stop pending transfers. Unmerged segments are pulled again later."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _is_behind(self) -> bool:
        now = time.monotonic()
        if now >= self._spool_at:
            self._spooled = sum(item.nbytes for item in scan(self._home, now=self._home.now()).segments)
            self._spool_at = now + _SPOOL_SECONDS
        return self._spooled > limits.SHIPPED_SPOOL.value

    def _progress(self, problem: str | None) -> Progress:
        problems = [problem] if problem else []
        bad = [bad.words for bad in self._bad.values()]
        if bad:
            problems.append(
                f"{len(bad):,} objects of {self._bucket.address} are not what their names say: "
                + "; ".join(bad[:_MOST_NAMED])
            )
        said = {"problem": "; ".join(problems), INCOMPLETE: True} if problems else {}
        return {"pulled": self._pulled, "not_merged": len(self.landed), "bad": len(bad), **said}

    def _new(self) -> Iterator[Entry]:
        listed, late, now = set[str](), set[str](), time.monotonic()
        for entry in self._bucket.entries(SPOOL):
            name = entry.name.removeprefix(SPOOL)
            listed.add(name)
            folder = _folder(entry)
            if folder in late or self._deleted(run_name(folder)):
                late.add(folder)
                continue
            bad = self._bad.get(name)
            if name in self.landed or (bad is not None and bad.again > now):
                continue
            if entry.size > limits.SHIPPED_SEGMENT.value:
                self._refuse(name, f"{entry.name}: {entry.size:,} bytes; the limit is {limits.SHIPPED_SEGMENT}")
                continue
            yield entry
        self._bad = {name: bad for name, bad in self._bad.items() if name in listed}
        # An eventual listing may name one again: it is taken again, and counts once.
        self.landed = {name: id_ for name, id_ in self.landed.items() if name in listed}
        self.late = late

    def _land(self, entry: Entry) -> str | OSError | None:
        """Return the id of a landed segment, the reason for a refusal, or None if the object was removed.

        A `SegmentError` concerns its content, another `OSError` the disk.
        """
        content = self._bucket.get(entry.name)
        if content is None:
            return None
        try:
            return land(self._home.path, entry.name.removeprefix(SPOOL), content)
        except OSError as error:
            return error

    def _settle(self, entry: Entry, landed: str) -> None:
        name = entry.name.removeprefix(SPOOL)
        self._bad.pop(name, None)
        self._pulled += 1
        self._spooled += entry.size
        self.landed[name] = landed

    def _refuse(self, name: str, words: str) -> None:
        first, last = _AGAIN_SECONDS
        before = self._bad.get(name)
        pause = first if before is None else min(2 * before.pause, last)
        self._bad[name] = _Bad(words, pause, time.monotonic() + pause)


class Owner:
    """Service that pulls from a bucket, the last one started. An earlier service detects this and stops."""

    def __init__(self, bucket: Bucket, home: Home) -> None:
        self._bucket, self._address = bucket, bucket.address
        said = {
            "process": secrets.token_hex(8),
            "host": socket.gethostname(),
            "folder": str(home.path),
            "at": time.time(),
        }
        self._said = json.dumps(said).encode()
        self._tag: str | None = None
        self._next = 0.0
        self._other: str | None = None

    def require(self) -> None:
        """Raise `ConfigurationError` if another service pulls now, `OSError` if the bucket does not answer."""
        if time.monotonic() >= self._next and self._other is None:
            if self._tag is None:
                self._bucket.put(_OWNER, self._said)
            content, tag = self._bucket.changed(_OWNER, self._tag)
            if content is not None and content != self._said:
                self._other = _named(content)
            self._tag, self._next = tag, time.monotonic() + _OWNER_SECONDS
        if self._other is not None:
            raise ConfigurationError(
                f"another service pulls from {self._address} now ({self._other}); end one of them, or give each a "
                "prefix of its own"
            )


def _folder(entry: Entry) -> str:
    return entry.name.removeprefix(SPOOL).partition("/")[0]


def _together(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """Group entries within the memory limit."""
    some: list[Entry] = []
    for entry in entries:
        some.append(entry)
        if len(some) >= _TOGETHER or sum(one.size for one in some) >= _TOGETHER_BYTES:
            yield some
            some = []
    if some:
        yield some


def _named(content: bytes) -> str:
    try:
        said = json.loads(content)
        return f"{str(said['folder'])[:200]} on {str(said['host'])[:100]}"
    except (ValueError, LookupError, TypeError):
        return "unknown"
