"""The relay of a node: one process per home that ships the spool and keeps marks and directives up to date.

It ends when it is asked to, with `drain` when everything that was there is acknowledged, and with `tethered` when no
collector of the node runs any more and the spool is empty. Killed at any moment it loses nothing: a segment is removed
after its acknowledgement.

It writes health records into the runs that it ships: how much waits, since what time, and what the service refused.

Segments are sent oldest first.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, Final

import pyarrow as pa

from logprobe.collectors import locks
from logprobe.collectors.errors import ConfigurationError, HomeBusyError, SegmentError, ServiceUnavailableError
from logprobe.collectors.health import Problem
from logprobe.collectors.locks import FileLock
from logprobe.collectors.recorder.runtime import new_writer_id, own_version
from logprobe.collectors.recorder.tables import rows_table
from logprobe.collectors.relay import protocol
from logprobe.collectors.relay.connection import Connection, Target
from logprobe.collectors.relay.exchange import Exchange
from logprobe.collectors.relay.pacing import Backoff, Bandwidth, Compression
from logprobe.collectors.relay.protocol import Outcome
from logprobe.collectors.shipping.queue import Length, QueueLength, SpoolQueue, Waiting
from logprobe.collectors.spool.safe_read import read_regular
from logprobe.collectors.spool.segments import SpoolWriter

LOGGER: Final = logging.getLogger("logprobe.relay")
LOOK_SECONDS: Final = 0.1  # between two looks at a spool that was empty
_LOCK_SECONDS: Final = 15.0  # a relay that is about to end may hold the lock for so long
_QUIET_SECONDS: Final = 2.0  # with no collector left, before a tethered relay ends
_LOG_SECONDS: Final = 30.0  # between two lines about the same trouble
SECONDS: Final = 30.0  # between two records of a run
COMPONENT: Final = "relay"
QUEUE: Final = "relay_queue"
REFUSED: Final = "relay_refused"
_SHORT: Final = 1.0  # seconds; a note of ours that waits for less is no reason for another
_LATE: Final = 60.0  # seconds; a segment that waits for longer is worth a warning
_LEAST_SECONDS: Final = 30.0  # for one upload
_SLOWEST: Final = 64 << 10  # bytes per second: an upload that is slower is cut off and tried again
_LAST_WORDS_SECONDS: Final = 5.0
_DENIED_SECONDS: Final = 30.0  # before a run is tried again whose segments the token may not write


@dataclass(frozen=True, slots=True)
class Options:
    """What a relay was asked to do. `rate`: bytes per second, None: no limit; `runs`: to follow though nothing is
    recorded yet; `node`: its name, "": that of its host."""

    home: Path
    target: Target
    rate: float | None = None
    drain: bool = False
    tethered: bool = False
    runs: frozenset[str] = frozenset()
    node: str = ""


class Relay:
    """`run` until `stop` is set or its work is done."""

    def __init__(self, options: Options, stop: threading.Event) -> None:
        self._options = options
        self._stop = stop
        self._id = new_writer_id("relay")
        self._queue = SpoolQueue(options.home)
        self._shipper = Shipper(self._queue, Connection(options.target), Bandwidth(options.rate))
        self._backoff = Backoff(Random())  # noqa: S311 - jitter
        self._notes = RunNotes(options.home, self._id)
        self._problem: str | None = None
        self._logged: dict[str, float] = {}
        self._synced = threading.Event()  # after the first answer, or once it is known that there is none
        self.left = 0  # segments that were not acknowledged
        self.unread: str | None = None  # why others may be left that could not be seen

    def run(self) -> None:
        """Raises `HomeBusyError` when another relay, or a service, works in this home."""
        with ExitStack() as stack:
            stack.enter_context(self._lock())
            syncing = threading.Thread(target=self._keep_in_step, name="logprobe-relay-sync", daemon=True)
            syncing.start()
            try:
                self._ship()
            finally:
                self._stop.set()
                syncing.join(_LAST_WORDS_SECONDS)
                self.left = len(self._queue.waiting())
                self.unread = self._queue.unread

    # --- the spool ---

    def _ship(self) -> None:
        quiet_since: float | None = None
        while not self._stop.is_set():
            waiting = self._queue.waiting()
            if self._queue.unread is not None:
                self._log("unread", self._queue.unread)
            due = [segment for segment in waiting if not self._shipper.is_denied(segment.where.run)]
            if not due:
                quiet_since = quiet_since or time.monotonic()
                if self._is_done(time.monotonic() - quiet_since):
                    return
                self._stop.wait(LOOK_SECONDS)
                continue
            quiet_since = None
            self._stop.wait(self._attempt(due))

    def _attempt(self, waiting: list[Waiting]) -> float:
        """Ships a batch; → seconds to wait before the next."""
        try:
            shipped = self._shipper.ship(waiting)
        except (ServiceUnavailableError, ConfigurationError) as error:
            return self._trouble("unreachable", str(error))
        self._settle(shipped)
        if shipped.later is not None:
            return self._trouble("later", f"the service takes nothing now: {shipped.later}")
        if shipped.stored:
            self._problem = None
            self._backoff.succeeded()
            return 0.0
        return LOOK_SECONDS

    def _settle(self, shipped: Shipped) -> None:
        for waiting, words in shipped.refused:
            self._log("refused", f"{waiting.name} was refused and set aside: {words}")
            try:
                self._queue.set_aside(waiting)
                self._notes.refused(waiting.where.run, words)
            except OSError as error:
                self._log("aside", f"{waiting.name} cannot be moved to quarantine, or noted: {error}")
        for words in dict.fromkeys(words for _, words in shipped.removed):
            self._log(words, words)
        for waiting, words in shipped.denied[:1]:
            self._problem = f"{waiting.where.run}: {words}"
            self._log("denied", f"{waiting.name} stays in the spool: {words}")

    def _trouble(self, key: str, words: str) -> float:
        pause, self._problem = self._backoff.failed(), words
        self._log(key, f"{words}; the spool keeps everything, next attempt in {pause:.1f} s")
        return pause

    def _is_done(self, quiet: float) -> bool:
        if self._options.drain:
            return self._synced.is_set() and not self._queue.waiting() and self._queue.unread is None
        # What cannot be read does not keep it: it may never be readable to this user, and the next collector's relay
        # looks again.
        return self._options.tethered and quiet > _QUIET_SECONDS and not self._queue.waiting() and self._is_last()

    def _is_last(self) -> bool:
        """Whether no collector runs; then none can start one that finds this relay in its place, until it has ended."""
        collectors = FileLock(self._options.home / locks.COLLECTORS)
        if not collectors.take():
            return False
        if self._queue.waiting():
            collectors.release()
            return False
        return True  # kept until the process ends

    @property
    def _trouble_now(self) -> str | None:
        return self._queue.unread or self._problem

    # --- marks, directives, the queue's length ---

    def _keep_in_step(self) -> None:
        """With the service, until the end."""
        backoff, connection = Backoff(Random()), Connection(self._options.target)  # noqa: S311 - jitter
        exchange = Exchange(self._options.home, self._id, own_version(), self._options.runs, node=self._options.node)
        while not self._stop.is_set():
            pause = self._sync(exchange, connection, backoff)
            self._synced.set()
            self._note()
            self._stop.wait(pause)
        if self._options.drain or self._options.tethered:
            self._sync(exchange, connection, backoff)  # the last word: nothing waits here

    def _sync(self, exchange: Exchange, connection: Connection, backoff: Backoff) -> float:
        try:
            pause, sent = 0.0, asdict(self._shipper.counts)
            for asked in exchange.documents(self._queue.lengths(), self._trouble_now, sent):
                pause = exchange.follow(asked, connection.ask(protocol.SYNC, asked))
        except (ServiceUnavailableError, ConfigurationError) as error:
            self._log("sync", f"marks and directives are not exchanged: {error}")
            return backoff.failed()
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            self._log("sync", f"marks and directives are not exchanged: {type(error).__name__}: {error}")
            return backoff.failed()
        backoff.succeeded()
        return pause

    def _note(self) -> None:
        try:
            self._notes.write(self._queue.lengths(), self._trouble_now)
        except OSError as error:
            self._log("notes", f"the queue's length cannot be written: {error}")

    # --- ---

    def _lock(self) -> FileLock:
        home = self._options.home
        if FileLock(home / locks.SERVICE).held_elsewhere:
            raise HomeBusyError(
                f"{home} belongs to a running service, which reads its spool itself; a relay is for other homes"
            )
        lock = FileLock(home / locks.RELAY)
        deadline = time.monotonic() + (_LOCK_SECONDS if self._options.tethered else 0.0)
        while not lock.take():
            if time.monotonic() >= deadline or self._stop.wait(LOOK_SECONDS):
                raise HomeBusyError(f"{home} has a relay already")
        return lock

    def _log(self, key: str, words: str) -> None:
        now = time.monotonic()
        if now - self._logged.get(key, -_LOG_SECONDS) >= _LOG_SECONDS:
            self._logged[key] = now
            LOGGER.warning("%s", words)


def default_runs() -> frozenset[str]:
    """The run that the environment names."""
    run = os.environ.get("LOGPROBE_RUN")
    return frozenset({run}) if run else frozenset()


class RunNotes:
    """Writes into the spool that it watches; a note travels like any other segment. `write` belongs to one thread."""

    def __init__(self, home: Path, writer: str) -> None:
        self._home = home
        self._writer = writer
        self._writers: dict[str, SpoolWriter] = {}
        self._next: dict[str, float] = {}
        self._longest: dict[str, QueueLength] = {}  # of the queue, since the last record
        self._lock = threading.Lock()

    def refused(self, run: str, words: str) -> None:
        """The service will never take a segment of `run`. Raises `OSError`."""
        message = f"the service refused a segment, which is in quarantine: {words}"
        self._put(run, Problem(REFUSED, "error", message, count=1))

    def write(self, lengths: Mapping[str, Length], problem: str | None) -> None:
        """Writes what is due. Raises `OSError`."""
        now = time.time()
        for run, length in lengths.items():
            self._keep_longest(run, length.document(now))
            if time.monotonic() >= self._next.get(run, 0.0) and _worth_noting(self._longest[run]):
                self._next[run] = time.monotonic() + SECONDS
                self._put(run, self._queue_record(self._longest.pop(run), problem))

    def _keep_longest(self, run: str, document: QueueLength) -> None:
        longest = self._longest.get(run)
        if longest is None or (document["oldest_seconds"] or 0.0) >= (longest["oldest_seconds"] or 0.0):
            self._longest[run] = document

    def _queue_record(self, length: QueueLength, problem: str | None) -> Problem:
        age = length["oldest_seconds"] or 0.0
        words = (
            f"{length['segments']} segments ({length['bytes']:,} bytes) waited for the service, the oldest for "
            f"{age:.1f} s"
        )
        late = age > _LATE
        return Problem(
            QUEUE, "warning" if late else "info", words + (f"; {problem}" if problem and late else ""), count=1
        )

    def _put(self, run: str, problem: Problem) -> None:
        with self._lock:
            writer = self._writers.setdefault(run, SpoolWriter(self._home, run, self._writer))
            writer.write("health", rows_table("health", [problem.row(COMPONENT, {"relay": self._writer})]))


def _worth_noting(length: QueueLength) -> bool:
    return length["segments"] > 1 or (length["oldest_seconds"] or 0.0) > _SHORT


@dataclass(slots=True)
class Counts:
    """What was done since the relay started."""

    segments: int = 0
    nbytes: int = 0
    sent: int = 0  # bytes on the wire, after compression
    refused: int = 0
    denied: int = 0


@dataclass(frozen=True, slots=True)
class Shipped:
    """What one upload came to."""

    stored: list[Waiting] = field(default_factory=list)
    refused: list[tuple[Waiting, str]] = field(default_factory=list)  # will never be taken; why
    denied: list[tuple[Waiting, str]] = field(default_factory=list)
    removed: list[tuple[Waiting, str]] = field(
        default_factory=list
    )  # of those stored: the service keeps none of their run
    later: str | None = None  # why the service takes nothing now


class Shipper:
    """One thread's way from the spool to the service."""

    def __init__(self, queue: SpoolQueue, connection: Connection, bandwidth: Bandwidth) -> None:
        self.counts = Counts()
        self._queue = queue
        self._connection = connection
        self._bandwidth = bandwidth
        self._compression = Compression()
        self._denied_until: dict[str, float] = {}  # run → on the monotonic clock

    def is_denied(self, run: str) -> bool:
        """Whether the service did not take segments of a run a short while ago."""
        return self._denied_until.get(run, 0.0) > time.monotonic()

    def ship(self, waiting: Sequence[Waiting]) -> Shipped:
        """Sends the first ones, as many as make one upload, and waits for the answer.

        Raises `ServiceUnavailableError` or `ConfigurationError`; then the service may have some of them, and all are
        sent again.
        """
        batch = _first(waiting)
        size = sum(segment.nbytes for segment in batch)
        started = time.monotonic()
        writer, answers = self._connection.upload(_LEAST_SECONDS + size / _SLOWEST)
        before = self.counts.sent
        try:
            unreadable = self._write(writer, batch)
            writer.done_writing()
            answer = answers.read()
            writer.close()
        except (pa.ArrowException, OSError) as error:
            raise self._connection.failed(error) from None
        self._compression.sent(self.counts.sent - before, time.monotonic() - started)
        return self._settle(batch, _outcomes(answer), unreadable)

    def _write(self, writer: Any, batch: Sequence[Waiting]) -> dict[str, str]:
        """Sends a batch; → what could not be sent, and why."""
        unreadable: dict[str, str] = {}
        for waiting in batch:
            try:
                data = pa.py_buffer(read_regular(waiting.where.path))
            except SegmentError as error:
                unreadable[waiting.name] = str(error)
                continue
            except OSError:  # gone, or not to be read now: it is found again if it is there
                continue
            for chunk in self._chunks(waiting.name, data):
                writer.write_batch(chunk)
        return unreadable

    def _chunks(self, name: str, data: pa.Buffer) -> Iterator[pa.RecordBatch]:
        for start in range(0, max(data.size, 1), protocol.CHUNK_BYTES):
            part = data.slice(start, min(protocol.CHUNK_BYTES, data.size - start))
            codec, small = self._compression.apply(part)
            self._bandwidth.spend(small.size)
            self.counts.sent += small.size
            yield protocol.chunk(name, data.size, part.size, codec, small)

    def _settle(self, batch: Sequence[Waiting], outcomes: dict[str, Outcome], unreadable: dict[str, str]) -> Shipped:
        shipped = Shipped()
        later = None
        for waiting in batch:
            outcome = outcomes.get(waiting.name)
            if waiting.name in unreadable:
                shipped.refused.append((waiting, unreadable[waiting.name]))
            elif outcome is None:
                continue
            elif outcome.status == "stored":
                shipped.stored.append(waiting)
                if outcome.words:
                    shipped.removed.append((waiting, outcome.words))
            elif outcome.status == "refused":
                shipped.refused.append((waiting, outcome.words))
            elif outcome.status == "denied":
                shipped.denied.append((waiting, outcome.words))
                self._denied_until[waiting.where.run] = time.monotonic() + _DENIED_SECONDS
            else:
                later = outcome.words
        self._queue.forget(shipped.stored)
        self._count(shipped)
        return replace(shipped, later=later)

    def _count(self, shipped: Shipped) -> None:
        self.counts.segments += len(shipped.stored)
        self.counts.nbytes += sum(waiting.nbytes for waiting in shipped.stored)
        self.counts.refused += len(shipped.refused)
        self.counts.denied += len(shipped.denied)


def _first(waiting: Sequence[Waiting]) -> list[Waiting]:
    batch: list[Waiting] = []
    size = 0
    for segment in waiting:
        batch.append(segment)
        size += segment.nbytes
        if size >= protocol.BATCH_BYTES or len(batch) >= protocol.BATCH_SEGMENTS:
            break
    return batch


def _outcomes(answer: Any) -> dict[str, Outcome]:
    """By segment. Raises `ServiceUnavailableError`: what is not answered was not acknowledged."""
    try:
        rows = json.loads(answer.to_pybytes())["segments"]
        return {
            str(row["segment"]): Outcome(str(row["segment"]), row["status"], str(row.get("words", ""))) for row in rows
        }
    except (AttributeError, ValueError, KeyError, TypeError) as error:
        raise ServiceUnavailableError("the service ended the upload without saying what became of it") from error
