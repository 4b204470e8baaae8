"""Bucket → spool. A segment is taken once it is durable in the spool; its object goes once a pack holds it.

An object that is not what its name says stays where it is: its sender may be repairing it, so it is looked at again,
after 10 seconds at first and 10 minutes at last, and is named until then.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Final

from logprobe.collectors.errors import ConfigurationError, SegmentError
from logprobe.collectors.shipping.bucket import SPOOL, Bucket, Entry
from logprobe.collectors.spool.segments import run_dir
from logprobe.monitor import limits
from logprobe.monitor.home import Home
from logprobe.monitor.ingest.spool_scan import scan
from logprobe.monitor.service.jobs import INCOMPLETE, Progress
from logprobe.monitor.shipped.landing import land
from logprobe.monitor.shipped.packs import Pack, Packer, State, packs, unpacked

SECONDS: Final = 0.5
_AT_ONCE: Final = 8
_TOGETHER: Final = 64  # segments in memory
_TOGETHER_BYTES: Final = 32 << 20
_MOST: Final = 2000  # segments in one round
_AGAIN_SECONDS: Final = (10.0, 600.0)
_OWNER: Final = "owner.json"
_OWNER_SECONDS: Final = 10.0  # between two looks at who pulls
_LOOK_BACK_SECONDS: Final = 120.0  # after the start: what a service before this one packed at its end
_SPOOL_SECONDS: Final = 5.0  # between two looks at the size of the spool
_MOST_NAMED: Final = 3


@dataclass(slots=True)
class _Bad:
    words: str
    pause: float
    again: float  # on the monotonic clock


class Puller:
    """Moves what lies in a bucket into a home's spool. One per address; used by one thread at a time."""

    def __init__(self, bucket: Bucket, home: Home, deleted: Callable[[str], bool] = lambda _: False) -> None:
        """`deleted`: whether nothing is kept of a run. Raises `ConfigurationError` or `OSError`."""
        self._bucket, self._home, self._deleted = bucket, home, deleted
        self.state = State.of(home.path, bucket.address)
        self._packer = Packer(bucket, home.path, self.state)
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="logprobe-pull")
        self._owner = Owner(bucket, self.state, home)
        self._landed: set[str] = set()  # whose objects are still there
        self._packed: list[str] = []  # of these, those that a pack holds
        self._bad: dict[str, _Bad] = {}
        self._pulled = 0
        self._spool_at, self._spooled = 0.0, 0
        self._look_back = [0.0, time.monotonic() + _LOOK_BACK_SECONDS]

    def once(self) -> Progress:
        """Take what is new. Raises `OSError`; what is left comes next time."""
        self._owner.require()
        if self._is_behind():
            return self._progress(f"{self._spooled >> 20} MiB wait to be ingested; nothing more is pulled until then")
        self._take_packs()
        try:
            for some in _together(islice(self._new(), _MOST)):
                for name, landed in self._pool.map(self._land, some):
                    self._settle(name, landed)
                self._clear(self._packer.pack())
        finally:
            self._clear(self._packer.pack())
        return self._progress(None)

    def close(self) -> None:
        """Pack what waits, as far as the bucket lets it; what is not packed is pulled again."""
        try:
            self._clear(self._packer.pack(at_once=True))
        except OSError:
            return
        finally:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def erase(self, run: str) -> None:
        """Remove a deleted run from the bucket. Raises `OSError`."""
        folder = run_dir(self._home.path, run).name
        self._packer.drop(folder)
        names = [pack.entry.name for pack in packs(self._bucket, folder)]
        names += [entry.name for entry in self._bucket.entries(f"{SPOOL}{folder}/")]
        if names:
            self._bucket.remove(names)

    def _is_behind(self) -> bool:
        now = time.monotonic()
        if now >= self._spool_at:
            self._spooled = sum(item.nbytes for item in scan(self._home, now=time.time()).segments)
            self._spool_at = now + _SPOOL_SECONDS
        return self._spooled > limits.SHIPPED_SPOOL.value

    def _progress(self, problem: str | None) -> Progress:
        problems = [problem] if problem else []
        bad = [*self.state.damaged, *(bad.words for bad in self._bad.values())]
        if bad:
            problems.append(
                f"{len(bad):,} objects of {self._bucket.address} are not what their names say: "
                + "; ".join(bad[:_MOST_NAMED])
            )
        said = {"problem": "; ".join(problems), INCOMPLETE: True} if problems else {}
        return {"pulled": self._pulled, "not_packed": self._packer.waiting, "bad": len(bad), **said}

    # --- new segments ---

    def _new(self) -> Iterator[Entry]:
        listed, now = set(), time.monotonic()
        for entry in self._bucket.entries(SPOOL):
            listed.add(entry.name)
            bad = self._bad.get(entry.name)
            if entry.name in self._landed or (bad is not None and bad.again > now):
                continue
            if entry.size > limits.SHIPPED_SEGMENT.value:
                self._refuse(entry.name, f"{entry.name}: {entry.size:,} bytes; the limit is {limits.SHIPPED_SEGMENT}")
                continue
            yield entry
        self._bad = {name: bad for name, bad in self._bad.items() if name in listed}
        self._landed &= listed  # an eventual listing may name one again: it is taken again, and counts once

    def _land(self, entry: Entry) -> tuple[str, bytes | SegmentError | None]:
        """Return what has landed, or why nothing has; None: it is gone."""
        content = self._bucket.get(entry.name)
        if content is None:
            return entry.name, None
        try:
            land(self._home.path, entry.name.removeprefix(SPOOL), content)
        except SegmentError as error:
            return entry.name, error
        return entry.name, content

    def _settle(self, name: str, landed: bytes | SegmentError | None) -> None:
        if isinstance(landed, SegmentError):
            self._refuse(name, str(landed))
            return
        self._bad.pop(name, None)
        if landed is None:
            return
        self._pulled += 1
        self._spooled += len(landed)
        below = name.removeprefix(SPOOL)
        if self._deleted(below.partition("/")[0]):  # ingest removes it; nothing keeps it
            self._bucket.remove([name])
            return
        self._landed.add(name)
        self._packer.add(below, landed)

    def _refuse(self, name: str, words: str) -> None:
        first, last = _AGAIN_SECONDS
        before = self._bad.get(name)
        pause = first if before is None else min(2 * before.pause, last)
        self._bad[name] = _Bad(words, pause, time.monotonic() + pause)

    def _clear(self, packed: list[str]) -> None:
        """Remove objects whose segments a pack holds; those that cannot be removed now, next time."""
        self._packed += [f"{SPOOL}{name}" for name in packed]
        if self._packed:
            self._bucket.remove(self._packed)
            self._packed = []

    # --- packs of a home before this one ---

    def _take_packs(self) -> None:
        """Take what another home packed, or this one before it was restored from a backup. Interrupted, it goes on."""
        if not self._look_back or time.monotonic() < self._look_back[0]:
            return
        new = [pack for pack in packs(self._bucket) if not self.state.is_taken(pack)]
        for pack in sorted(new, key=lambda pack: (pack.home, pack.number)):
            if self._is_behind():
                break
            self.state.take(pack, damaged=not self._take(pack))
            self.state.save(self._home.path)
        else:
            del self._look_back[0]

    def _take(self, pack: Pack) -> bool:
        """Return whether what a pack holds has landed, all of it."""
        content = self._bucket.get(pack.entry.name)
        try:
            for name, segment in unpacked(pack, content) if content is not None else ():
                land(self._home.path, name, segment)
                self._pulled += 1
                self._spooled += len(segment)
        except SegmentError:
            return False
        return True


class Owner:
    """Who pulls from a bucket: the service that started last. One before it notices, and stops."""

    def __init__(self, bucket: Bucket, state: State, home: Home) -> None:
        self._bucket, self._address = bucket, bucket.address
        said = {"home": state.home, "host": socket.gethostname(), "folder": str(home.path), "at": time.time()}
        self._said = json.dumps(said).encode()
        self._tag: str | None = None
        self._next = 0.0
        self._other: str | None = None

    def require(self) -> None:
        """Raise `ConfigurationError` if another service pulls now, `OSError` if the bucket does not say."""
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


def _together(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """Group entries so that their bytes fit into memory."""
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
