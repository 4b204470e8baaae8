"""The relay of a node: one process per home that ships the spool and keeps marks and directives up to date.

It ends when it is asked to, with `drain` when everything that was there is acknowledged, and with `tethered` when no collector of the
node runs any more and the spool is empty. Killed at any moment it loses nothing: a segment is removed after its acknowledgement.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from random import Random
from typing import Any, Final

from logprobe.collectors import locks
from logprobe.collectors.errors import ConfigurationError, HomeBusyError, ServiceUnavailableError
from logprobe.collectors.locks import FileLock
from logprobe.collectors.recorder.runtime import new_writer_id
from logprobe.collectors.relay import protocol
from logprobe.collectors.relay.connection import Connection, Target
from logprobe.collectors.relay.exchange import Exchange
from logprobe.collectors.relay.notes import RunNotes
from logprobe.collectors.relay.pacing import Backoff, Bandwidth
from logprobe.collectors.relay.shipping import Shipped, Shipper
from logprobe.collectors.relay.spool_queue import SpoolQueue

LOGGER: Final = logging.getLogger("logprobe.relay")
LOOK_SECONDS: Final = 0.1  # between two looks at a spool that was empty
_LOCK_SECONDS: Final = 15.0  # a relay that is about to end may hold the lock for so long
_QUIET_SECONDS: Final = 2.0  # with no collector left, before a tethered relay ends
_LOG_SECONDS: Final = 30.0  # between two lines about the same trouble


@dataclass(frozen=True, slots=True)
class Options:
    """What a relay was asked to do. `rate`: bytes per second, None: no limit; `runs`: to follow though nothing is recorded yet."""

    home: Path
    target: Target
    rate: float | None = None
    drain: bool = False
    tethered: bool = False
    runs: frozenset[str] = frozenset()


class Relay:
    """`run` until `stop` is set or its work is done."""

    def __init__(self, options: Options, stop: threading.Event) -> None:
        self._options = options
        self._stop = stop
        self._id = new_writer_id("relay")
        self._queue = SpoolQueue(options.home)
        self._shipper = Shipper(self._queue, Connection(options.target), Bandwidth(options.rate))
        self._exchange = Exchange(options.home, self._id, _own_version(), options.runs)
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
                syncing.join(5)
                self.left = len(self._queue.waiting())
                self.unread = self._queue.unread

    # --- the spool ---

    def _ship(self) -> None:
        backoff = Backoff(Random())  # noqa: S311 - jitter
        quiet_since: float | None = None
        while not self._stop.is_set():
            waiting = self._shipper.due()
            if self._queue.unread is not None:
                self._log("unread", self._queue.unread)
            if not waiting:
                quiet_since = quiet_since or time.monotonic()
                if self._is_done(time.monotonic() - quiet_since):
                    return
                self._stop.wait(LOOK_SECONDS)
                continue
            quiet_since = None
            pause = self._attempt(waiting, backoff)
            self._stop.wait(pause)

    def _attempt(self, waiting: list[Any], backoff: Backoff) -> float:
        """Ships a batch; → seconds to wait before the next."""
        try:
            shipped = self._shipper.ship(waiting)
        except (ServiceUnavailableError, ConfigurationError) as error:
            return self._trouble("unreachable", str(error), backoff.failed())
        self._settle(shipped)
        if shipped.later is not None:
            return self._trouble("later", f"the service takes nothing now: {shipped.later}", backoff.failed())
        if shipped.stored:
            self._problem = None
            backoff.succeeded()
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
        for waiting, words in shipped.denied[:1]:
            self._problem = f"{waiting.where.run}: {words}"
            self._log("denied", f"{waiting.name} stays in the spool: {words}")

    def _trouble(self, key: str, words: str, pause: float) -> float:
        self._problem = words
        self._log(key, f"{words}; the spool keeps everything, next attempt in {pause:.1f} s")
        return pause

    def _is_done(self, quiet: float) -> bool:
        if self._options.drain:
            return self._synced.is_set() and not self._queue.waiting() and self._queue.unread is None
        # What cannot be read does not keep it: it may never be readable to this user, and the next collector's relay looks again.
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
        backoff = Backoff(Random())  # noqa: S311 - jitter
        connection = Connection(self._options.target)
        while not self._stop.is_set():
            pause = self._sync(connection, backoff)
            self._synced.set()
            self._note()
            self._stop.wait(pause)
        if not self._options.drain and not self._options.tethered:
            return
        self._sync(connection, backoff)  # the last word: nothing waits here

    def _sync(self, connection: Connection, backoff: Backoff) -> float:
        try:
            pause, sent = 0.0, asdict(self._shipper.counts)
            for asked in self._exchange.documents(self._queue.lengths(), self._trouble_now, sent):
                pause = self._exchange.follow(asked, connection.ask(protocol.SYNC, asked))
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


def _own_version() -> str | None:
    try:
        return version("logprobe")
    except PackageNotFoundError:
        return None


def default_runs() -> frozenset[str]:
    """The run that the environment names."""
    run = os.environ.get("LOGPROBE_RUN")
    return frozenset({run}) if run else frozenset()
