"""Answers people's statements: waits for a turn, takes a warm worker, hands it the rows it asks for, passes the result
on.

Whose query runs next: few at once, each client in turn, and none all places: one that asks a lot keeps nothing else
waiting.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, Self

import pyarrow as pa

from logprobe.collectors.errors import QueryError, ServiceUnavailableError
from logprobe.monitor.free_sql.answer import Answer
from logprobe.monitor.free_sql.limits import Limits
from logprobe.monitor.free_sql.process import AgainError, Snapshot, WorkerProcess
from logprobe.monitor.home import Home

LOGGER: Final = logging.getLogger("logprobe.sql")
_ATTEMPTS: Final = 5

Snapshots = Callable[[], AbstractContextManager[Snapshot]]
_LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Question:
    """One statement. `first`: only so many rows; `client`: the process that asks; `stop`: ends it when set."""

    sql: str
    params: Any = None
    first: int | None = None
    client: str = ""
    stop: threading.Event | None = None

    def document(self) -> dict[str, object]:
        """As a worker takes it."""
        return {"sql": self.sql, "params": self.params, "first": self.first}


class SqlService:
    """Where statements are answered, for one home. Safe to share between threads."""

    def __init__(self, home: Home, snapshots: Snapshots, limits: Limits | None = None, *, warm: bool = True) -> None:
        """Starts nothing. `snapshots`: each call opens one; `warm`: once a statement was asked, keep a worker ready for
        the next."""
        self.limits = limits or Limits()
        self._home = home
        self._snapshots = snapshots
        self._queue = FairQueue(self.limits)
        self._lock = threading.Lock()
        self._idle: list[WorkerProcess] = []
        self._busy: set[WorkerProcess] = set()
        self._catalog: tuple[str, bytes] | None = None
        self._warm = warm
        self._warned = False
        self._closed = False

    def answer(self, question: Question) -> Answer:
        """The result of one statement. Raises `QueryError` when it is refused or fails, `StoreError` without a
        store."""
        document = json.loads(json.dumps(question.document()))
        for _ in range(_ATTEMPTS - 1):
            with suppress(AgainError):
                return Answer(self._attempt(question, document))
        return Answer(self._attempt(question, document))

    def _attempt(self, question: Question, document: dict[str, object]) -> Iterator[pa.RecordBatch | bool]:
        began = time.monotonic()
        with ExitStack() as stack:
            stack.enter_context(self._queue.of(question.client, question.stop))
            worker = stack.enter_context(self._worker())
            snapshot = stack.enter_context(self._snapshots())
            self._catalog = catalog = snapshot.catalog(self._catalog)
            worker.await_ready()
            self._look_at(worker.layers)
            left = None if self.limits.seconds is None else max(0.0, self.limits.seconds - (time.monotonic() - began))
            yield from worker.answer(snapshot, catalog, document, seconds=left, stop=question.stop)

    def _look_at(self, layers: list[str]) -> None:
        if not layers and not self._warned:
            self._warned = True
            LOGGER.warning(
                "this kernel offers neither Landlock nor seccomp: only DuckDB itself prevents free SQL from accessing "
                "files"
            )

    @contextmanager
    def _worker(self) -> Iterator[WorkerProcess]:
        worker = self._take()
        try:
            yield worker
        finally:
            self._give_back(worker)

    def _take(self) -> WorkerProcess:
        with self._lock:
            if self._closed:
                raise ServiceUnavailableError(f"the service of {self._home.path} is stopping")
            while self._idle:
                worker = self._idle.pop()
                if not worker.used_up:
                    break
                worker.close()
            else:
                worker = WorkerProcess(self._home, self.limits)
            self._busy.add(worker)
            return worker

    def _give_back(self, worker: WorkerProcess) -> None:
        with self._lock:
            self._busy.discard(worker)
            if self._closed or worker.used_up:
                worker.close()
            else:
                self._idle.append(worker)
        self._warm_up()

    def _warm_up(self) -> None:
        """Has a worker ready for the next statement; returns at once."""
        with self._lock:
            if self._warm and not self._closed and not self._idle:
                with suppress(QueryError):  # whoever asks is told
                    self._idle.append(WorkerProcess(self._home, self.limits))

    def close(self) -> None:
        """Ends all workers; statements that run fail."""
        with self._lock:
            self._closed = True
            for worker in self._busy:
                worker.kill()
            for worker in self._idle:
                worker.close()
            self._idle.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


@dataclass(eq=False, slots=True)
class _Waiting:
    client: str
    mine: bool = False
    lost: bool = False  # its place in the queue, to somebody with a shorter one


class FairQueue:
    """A queue for `Limits.at_once` places. Safe to share between threads."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._changed = threading.Condition()
        self._running: list[str] = []
        self._waiting: list[_Waiting] = []

    @contextmanager
    def of(self, client: str, stop: threading.Event | None) -> Iterator[None]:
        """A place for the block, once it is this client's turn. Raises `QueryError` when it never is, or `stop` is
        set."""
        self._take(client, stop)
        try:
            yield
        finally:
            with self._changed:
                self._running.remove(client)
                self._admit()

    def _take(self, client: str, stop: threading.Event | None) -> None:
        place = _Waiting(client)
        with self._changed:
            self._waiting.append(place)
            self._admit()
            self._shorten()
            try:
                self._await(place, stop)
            except BaseException:
                if place.mine:
                    self._running.remove(client)
                elif not place.lost:
                    self._waiting.remove(place)
                self._admit()
                raise

    def _await(self, place: _Waiting, stop: threading.Event | None) -> None:
        seconds = self._limits.seconds
        deadline = None if seconds is None else time.monotonic() + seconds
        while not place.mine:
            if place.lost:
                raise QueryError(
                    f"{self._limits.waiting} queries are waiting already, most of them of this client; try again when "
                    "they have finished"
                )
            self._changed.wait(_LOOK_SECONDS)
            if stop is not None and stop.is_set():
                raise QueryError("the query was stopped")
            if deadline is not None and time.monotonic() > deadline and not place.mine and not place.lost:
                raise QueryError(
                    f"no free slot within {seconds:g} s: {self._limits.at_once} queries run at once, and others were "
                    "first; try again"
                )

    def _admit(self) -> None:
        """Gives free places to clients that run least, the longest waiting first."""
        most = max(1, self._limits.at_once - 1)
        while len(self._running) < self._limits.at_once:
            clients = Counter(self._running)
            free = [place for place in self._waiting if clients[place.client] < most]
            if not free:
                break
            chosen = min(free, key=lambda place: clients[place.client])
            self._waiting.remove(chosen)
            self._running.append(chosen.client)
            chosen.mine = True
        self._changed.notify_all()

    def _shorten(self) -> None:
        """Of a queue that is too long, the last of the client with the longest queue loses its place."""
        if len(self._waiting) <= self._limits.waiting:
            return
        clients = Counter(place.client for place in self._waiting)
        loser = max(reversed(self._waiting), key=lambda place: clients[place.client])
        self._waiting.remove(loser)
        loser.lost = True
        self._changed.notify_all()
