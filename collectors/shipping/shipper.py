"""Shipper of a node: one process per data directory that moves finished segments to a safe place.

Content and name identify a segment, so a repeated put has no effect and an interrupted one is repeated. A segment is
removed from the node's disk once the place has proven that it has the bytes. The oldest segment is first. A failed
segment waits and is retried after 0.25 to 15 seconds. A second thread fetches the control documents each second.

The shipper also ends if its credentials are refused, because its successor may have newer ones.
"""

from __future__ import annotations

import hashlib
import json
import logging
import random
import socket
import threading
import time
import zlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from logprobe.collectors import locks
from logprobe.collectors.clock import machine
from logprobe.collectors.errors import HomeBusyError, SegmentError
from logprobe.collectors.health import Problem
from logprobe.collectors.locks import FileLock
from logprobe.collectors.recorder.runtime import new_writer_id, own_version
from logprobe.collectors.recorder.tables import rows_table
from logprobe.collectors.shipping.control import Follower
from logprobe.collectors.shipping.place import Place
from logprobe.collectors.shipping.queue import Length, SpoolQueue, Waiting
from logprobe.collectors.spool.safe_read import read_regular
from logprobe.collectors.spool.segments import SpoolWriter

LOGGER: Final = logging.getLogger("logprobe.shipper")
COMPONENT: Final = "shipper"
REFUSED: Final = "not_shipped"
LOOK_SECONDS: Final = 0.2  # between two looks at a spool that was empty
CONTROL_SECONDS: Final = 1.0
NOTE_SECONDS: Final = 60.0  # between two notes about this node; a new problem is noted at once
_FIRST_PAUSE: Final = 0.25  # seconds; doubles with every failure in a row
_LONGEST_PAUSE: Final = 15.0
_AT_ONCE: Final = 4  # each waits for a round trip
_BATCH: Final = 32  # segments between two looks at the spool
_LOCK_SECONDS: Final = 15.0  # a shipper that is about to end may hold the lock for so long
_QUIET_SECONDS: Final = 2.0  # with no collector left, before a tethered shipper ends
_REFUSED_SECONDS: Final = 60.0  # of refused credentials before it ends
_LIVE_SECONDS: Final = 86400.0  # a run in which nothing has moved for so long is not asked about
_LATE_SECONDS: Final = 30.0  # a segment that waits for less is on its way
_LOG_SECONDS: Final = 30.0  # between two lines about the same trouble
_END_SECONDS: Final = 5.0
_MOST_RUNS: Final = 1000  # in one note


class Shipper:
    """Shipper of one data directory until `stop` is set or its work is done.

    Args:
        home: data directory.
        place: where its segments go.
        stop: event that ends the shipper.
        drain: true to end once no segment waits.
        tethered: true to end once no collector of the node runs and no segment waits.
        runs: runs whose control documents are followed before their first record.

    Attributes:
        sent: number of shipped segments.
        problem: current reason that prevents shipping, or None.
    """

    def __init__(
        self,
        home: Path,
        place: Place,
        stop: threading.Event,
        *,
        drain: bool = False,
        tethered: bool = False,
        runs: frozenset[str] = frozenset(),
    ) -> None:
        self.queue = SpoolQueue(home)
        self.problem: str | None = None
        self.sent = 0
        self._home, self._place, self._stop = home, place, stop
        self._drain, self._tethered, self._runs = drain, tethered, runs
        self._refused_since: float | None = None
        self._logged: dict[str, float] = {}
        self._followed = threading.Event()
        self._writer = new_writer_id(COMPONENT)
        self._spools: dict[str, SpoolWriter] = {}
        self._aside = threading.Lock()
        self._notes = Notes(place, self._writer, self.queue)
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="logprobe-ship")

    def run(self) -> None:
        """Ship until the work is done.

        Raise `HomeBusyError` if another process ships or serves this data directory. Raise `PermissionError` if the
        place refuses the credentials repeatedly.
        """
        lock = self._lock()
        if lock is None:
            return
        following = threading.Thread(target=self._follow, name="logprobe-control", daemon=True)
        following.start()
        try:
            self._ship()
        finally:
            self._stop.set()
            following.join(_END_SECONDS)
            self._pool.shutdown(wait=False, cancel_futures=True)
            lock.release()

    def _lock(self) -> FileLock | None:
        """Return the lock of the data directory, or None if no work is left."""
        if FileLock(self._home / locks.SERVICE).held_elsewhere:
            raise HomeBusyError(
                f"{self._home} belongs to a running service, which reads its spool itself; do not ship it"
            )
        lock = FileLock(self._home / locks.SHIPPER)
        deadline = time.monotonic() + (_LOCK_SECONDS if self._tethered else 0.0)
        while not lock.take():
            if self._drain and not self.queue.waiting() and self.queue.unread is None:
                return None
            if not self._drain and time.monotonic() >= deadline:
                raise HomeBusyError(f"{self._home} has a shipper already; do not start another")
            if self._stop.wait(LOOK_SECONDS):
                raise HomeBusyError(f"{self._home} is in use by another shipper; wait for its end, or stop it")
        return lock

    # --- the spool ---

    def _ship(self) -> None:
        pause, quiet_since = 0.0, time.monotonic()
        while not self._stop.wait(pause):
            waiting = self.queue.waiting()
            if self.queue.unread is not None:
                self._log("unread", self.queue.unread)
            if waiting:
                quiet_since = time.monotonic()
            elif self._is_done(time.monotonic() - quiet_since):
                return
            batch = waiting[:_BATCH]
            done = list(self._pool.map(self._put, batch))
            if all(done):
                self.problem, self._refused_since = None, None
                pause = 0.0 if batch else LOOK_SECONDS
            else:
                self._give_up_if_refused()
                pause = min(max(2 * pause, _FIRST_PAUSE), _LONGEST_PAUSE)
                pause *= random.uniform(0.5, 1.0)  # noqa: S311 - nodes that lost one bucket do not come back at once

    def _put(self, waiting: Waiting) -> bool:
        """Ship one segment and return whether it no longer waits."""
        try:
            self._place.put(waiting.name, _content(waiting))
        except FileNotFoundError:
            return True
        except SegmentError as error:
            return self._set_aside(waiting, str(error))
        except OSError as error:
            if isinstance(error, PermissionError) and error.errno is None:  # of the place, not of a file
                self._refused_since = self._refused_since or time.monotonic()
            else:
                self._refused_since = None
            self.problem = str(error)
            self._log("put", f"{error}; the spool keeps everything")
            return False
        self.queue.forget([waiting])
        self.sent += 1
        return True

    def _set_aside(self, waiting: Waiting, words: str) -> bool:
        self._log("aside", f"{words}; it is moved to quarantine/ of {self._home}")
        try:
            self.queue.set_aside(waiting)
            with self._aside:
                self._report(waiting.where.run, f"a segment was not shipped and is in quarantine: {words}")
        except OSError as error:
            self._log("aside", f"{waiting.name} cannot be moved to quarantine, or noted: {error}")
            return False
        return True

    def _report(self, run: str, words: str) -> None:
        spool = self._spools.setdefault(run, SpoolWriter(self._home, run, self._writer))
        row = Problem(REFUSED, "error", words, count=1).row(COMPONENT, {"shipper": self._writer})
        spool.write("health", rows_table("health", [row]))

    def _give_up_if_refused(self) -> None:
        since = self._refused_since
        if since is not None and (self._drain or time.monotonic() - since > _REFUSED_SECONDS):
            raise PermissionError(
                f"{self.problem}; {len(self.queue.waiting())} segments stay in {self._home}; renew the credentials"
            )

    def _is_done(self, quiet: float) -> bool:
        if self._drain:
            return self.queue.unread is None and self._followed.is_set()
        return self._tethered and quiet > _QUIET_SECONDS and self._is_last()

    def _is_last(self) -> bool:
        """Return whether no collector runs.

        If true, keep the collectors' lock, so that none starts before this shipper ends.
        """
        collectors = FileLock(self._home / locks.COLLECTORS)
        if not collectors.take():
            return False
        if self.queue.waiting():
            collectors.release()
            return False
        return True  # kept until the process ends

    # --- what trainers are told, and what the service is told of this node ---

    def _follow(self) -> None:
        followers: dict[str, Follower] = {}
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="logprobe-control") as pool:
            while not self._stop.is_set():
                lengths = self.queue.lengths()
                live = self._live(lengths)
                for run in live - followers.keys():
                    followers[run] = Follower(self._place, self._home, run)
                problems = set(pool.map(self._look, [followers[run] for run in live])) - {None}
                self._followed.set()
                self._note(lengths, self.problem or self.queue.unread or next(iter(problems), None))
                self._stop.wait(CONTROL_SECONDS)
        self._note(self.queue.lengths(), self.problem or self.queue.unread, last=True)

    def _live(self, lengths: Mapping[str, Length]) -> set[str]:
        since = self.queue.now() - _LIVE_SECONDS
        return {run for run, length in lengths.items() if length.touched >= since} | self._runs

    def _look(self, follower: Follower) -> str | None:
        try:
            follower.look()
        except (OSError, ValueError) as error:
            self._log("control", f"what trainers are told is not known: {error}; the last stays in effect")
            return str(error)
        return None

    def _note(self, lengths: Mapping[str, Length], problem: str | None, *, last: bool = False) -> None:
        try:
            self._notes.write(lengths, problem, last=last)
        except OSError as error:
            self._log("note", f"the service is not told of this node: {error}")

    def _log(self, key: str, words: str) -> None:
        now = time.monotonic()
        if now - self._logged.get(key, -_LOG_SECONDS) >= _LOG_SECONDS:
            self._logged[key] = now
            LOGGER.warning("%s", words)


class Notes:
    """Reports of this node's queues to the service: size, age and obstacle per run."""

    def __init__(self, place: Place, writer: str, queue: SpoolQueue) -> None:
        self._place, self._writer, self._queue = place, writer, queue
        self._node = socket.gethostname() or "host"
        self._next = 0.0
        self._problem: str | None = None
        self._runs: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """Name of the note, unique even for nodes that share a host name."""
        place = hashlib.sha256(f"{self._node} {machine() or self._writer}".encode()).hexdigest()[:8]
        return f"{self._node}.{place}"

    def write(self, lengths: Mapping[str, Length], problem: str | None, *, last: bool = False) -> None:
        """Write the pending reports. Raises `OSError`."""
        now = time.monotonic()
        new = not lengths.keys() <= self._runs or (problem is None) != (self._problem is None)
        if now < self._next and not new and not last:
            return
        stamp = self._queue.now()
        self._next, self._problem, self._runs = now + NOTE_SECONDS, problem, frozenset(lengths)
        document = {
            "node": self._node,
            "time": time.time(),
            "version": own_version(),
            "problem": problem,
            "runs": {run: _late(length, stamp) for run, length in _newest(lengths)},
        }
        self._place.note(self.name, json.dumps(document).encode())


def _content(waiting: Waiting) -> bytes:
    """Return the bytes of a segment. Raise `SegmentError` for bytes that differ from the written ones, or `OSError`."""
    content = read_regular(waiting.where.path)
    if zlib.crc32(content) != waiting.where.crc:
        raise SegmentError("checksum", f"{waiting.name}: the disk has other bytes than were written; check the disk")
    return content


def _newest(lengths: Mapping[str, Length]) -> Iterable[tuple[str, Length]]:
    return sorted(lengths.items(), key=lambda item: -item[1].touched)[:_MOST_RUNS]


def _late(length: Length, now: float) -> dict[str, object]:
    """Return the queue's length as JSON values, without segments that have waited only briefly.

    `now`: time by the clock that stamps files, which may be wrong. The age of the oldest segment is the difference of
    two stamps of this clock, or None if none waits.
    """
    if length.oldest is None or now - length.oldest < _LATE_SECONDS:
        return {"segments": 0, "bytes": 0, "oldest_seconds": None}
    age = round(max(0.0, now - length.oldest), 3)
    return {"segments": length.segments, "bytes": length.nbytes, "oldest_seconds": age}
