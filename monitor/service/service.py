"""Monitor service, the owner of one data directory, which runs the jobs and answers reads.

`logprobe.app.processes.service` is its process. The service holds the lock during its lifetime and publishes its
address and token in ``service.json``. On SIGTERM and SIGINT, the service finishes the current batch, writes the jobs'
accounts and closes the store.
"""

from __future__ import annotations

import os
import queue
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, cast

import pyarrow as pa

from logprobe.collectors.errors import ConfigurationError, ServiceUnavailableError
from logprobe.monitor import judgement, queries
from logprobe.monitor.home import Home, ServiceInfo, utc_now
from logprobe.monitor.judgement import Judgement
from logprobe.monitor.service import healthz, heap, scrape
from logprobe.monitor.service.action import Action
from logprobe.monitor.service.flight import FlightServer, Request
from logprobe.monitor.service.jobs import (
    LOGGER,
    PATIENCE,
    Job,
    Part,
    PartMaker,
    Progress,
    Schedule,
)
from logprobe.monitor.service.pipeline import Pipeline, backlog, note_spooled
from logprobe.monitor.service.status import Backlog, Ingested, JobAccount, Status
from logprobe.monitor.service.turns import as_of
from logprobe.monitor.store.courtesy import Rank
from logprobe.monitor.store.freezing import StoreBudget
from logprobe.monitor.store.retention import RetentionPolicy
from logprobe.monitor.store.sql import Desk, Limits
from logprobe.monitor.store.store import Store

INGEST_SECONDS: Final = 0.5
INGEST_REST: Final = 1.0  # times its processor time
INGEST_PAUSE: Final = 0.02  # seconds for each segment: statements cost the same for one step and for ten
INGEST_MOST_REST: Final = 0.8  # seconds: a record is to be in the store within two, see `judged`
_DERIVE_SECONDS: Final = 5.0  # what ingest left undone: a failure, or a stop in between
_DIAGNOSIS_SECONDS: Final = 1.0
_RETENTION_SECONDS: Final = 60.0
_FREEZE_SECONDS: Final = 20.0
_HEALTH_SECONDS: Final = 5.0
_OF_EACH_RUN: Final = frozenset({"waiting_seconds", "newest_seconds"})  # of the backlog: too long for the account
_HEALTH_PATIENCE: Final = 60.0
_INGEST_PATIENCE: Final = 300.0  # for one batch, and for the join and the steps that follow
_SIGNAL_SECONDS: Final = 0.25
_REFUSALS: Final = 2  # in a row
_REFUSED: Final = {
    "No space left on device": "is full: make room",
    "Disk quota exceeded": "has no quota left: make room",
    "Read-only file system": "is read-only: mount it writable",
}


class Service:
    """Service of one data directory, and its Flight endpoint. It lasts from `run` to `shutdown`."""

    def __init__(
        self,
        home: Home,
        *,
        health_port: int = 0,
        policy: RetentionPolicy | None = None,
        limits: Limits | None = None,
        budget: StoreBudget | None = None,
        parts: Sequence[PartMaker] = (),
        prepare: Callable[[Home], None] = lambda _: None,
        patience: float | None = None,
    ) -> None:
        """Set up the service without starting it.

        Args:
            home: data directory to serve.
            health_port: port of ``/healthz``, or 0 for any free port.
            policy: policy of raw tokens, or None for the default.
            limits: limits of users' statements, or None for the defaults.
            budget: budget of the store, or None for the default.
            parts: components besides ingest, metrics and retention.
            prepare: function called with the locked data directory before its store is opened.
            patience: seconds without progress of a job or access to a file after which ``/healthz`` returns 503, or
                None for the individual defaults.
        """
        self._home = home
        self._health_port = health_port
        self._policy = policy
        self._limits = limits
        self._budget = budget
        self._makers = tuple(parts)
        self._prepare = prepare
        self._stop = threading.Event()
        # Not the event itself: setting it in a signal handler of the very thread that waits for it can deadlock on its
        # lock.
        self._end_asked: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._started = utc_now()
        self.jobs: dict[str, Job] = {}
        self._patience = patience
        # When the spool was looked at last (monotonic), and what waited.
        self._waiting: tuple[float, Backlog] | None = None
        # Live runs that the health job found judged late, and the time from which on it has (monotonic).
        self._late: dict[str, tuple[Judgement, float]] = {}
        self._store: Store
        self._pipeline: Pipeline
        self._schedule: Schedule
        self._sql: Desk

    def run(self) -> None:
        """Run the service until `shutdown`. Raises `HomeBusyError`, `StoreError` or `ConfigurationError` if the start
        fails.
        """
        with ExitStack() as stack:
            lock = stack.enter_context(self._home.lock())
            self._prepare(self._home)
            store = stack.enter_context(Store.open(self._home))
            parts = self.assemble(store)
            server = self._listen(stack, {name: action for part in parts for name, action in part.actions.items()})
            lock.announce(f"{healthz.HOST}:{server.port}")
            schedule = self._schedule = Schedule(self.jobs.values())
            stack.callback(self._store.interrupt)  # a long query must not hold up the end
            for part in parts:
                stack.callback(part.close)
            stack.callback(schedule.stop)
            stack.callback(self._home.remove_service_info)
            schedule.start()
            LOGGER.info("serving %s at %s:%d", self._home.path, healthz.HOST, server.port)
            self._wait_for_the_end()
            LOGGER.info("stopping")

    def assemble(self, store: Store) -> Sequence[Part]:
        """Set up the jobs on an open store without starting them. Return the parts. Raises `ConfigurationError`."""
        self._store = store
        self._sql = Desk(store, self._limits)
        parts = [make(store, self._stop) for make in self._makers]
        self._pipeline = Pipeline(
            store,
            self._stop,
            self._policy,
            self._budget,
            paced=True,
            armed=lambda run: any(part.armed(run) for part in parts),
        )
        self.jobs = self._make_jobs(self._pipeline, parts)
        return parts

    def _wait_for_the_end(self) -> None:
        # The kernel may hand a signal to any thread, and Python's handler then runs here only once this thread wakes up
        # by itself: an endless wait could miss it.
        while True:
            with suppress(queue.Empty):
                self._end_asked.get(timeout=_SIGNAL_SECONDS)
                break
        self._stop.set()

    def _make_jobs(self, pipeline: Pipeline, parts: Sequence[Part]) -> dict[str, Job]:
        def told(work: Callable[[], Progress]) -> Progress:
            done = work()
            if done.get("armed"):
                self._ask_followers()
            return done

        diagnosis = Job("diagnosis", _DIAGNOSIS_SECONDS, partial(told, pipeline.diagnose), rank=Rank.JUDGEMENT)

        def follow_up(_: Ingested) -> None:
            self._schedule.soon(diagnosis)

        ingest = Job(
            "ingest",
            INGEST_SECONDS,
            lambda: pipeline.ingest(follow_up, ingest.beat),
            patience=_INGEST_PATIENCE,
            rest=INGEST_REST,
            pause=lambda done: INGEST_PAUSE * cast(Ingested, done)["segments"] if done else 0.0,
            most_rest=INGEST_MOST_REST,
            rank=Rank.JUDGEMENT,
        )
        profiles = Job("profiles", _DERIVE_SECONDS, lambda: pipeline.profile(profiles.beat))
        retention = Job("retention", _RETENTION_SECONDS, pipeline.retain)
        freezing = Job("store_budget", _FREEZE_SECONDS, pipeline.freeze)
        health = Job("health", _HEALTH_SECONDS, self._beat, patience=_HEALTH_PATIENCE, rank=Rank.JUDGEMENT)
        added = [job for part in parts for job in part.jobs]
        jobs = (
            ingest,
            profiles,
            diagnosis,
            *added,
            retention,
            freezing,
            health,
        )
        if self._patience is not None:
            for job in jobs:
                job.patience = job.seconds + self._patience
        for job in jobs:
            job.courtesy = self._store.courtesy
        return {job.name: job for job in jobs}

    def _ask_followers(self) -> None:
        for job in self.jobs.values():
            if job.follows:
                self._schedule.soon(job)

    def _listen(self, stack: ExitStack, actions: Mapping[str, Action]) -> FlightServer:
        token = secrets.token_urlsafe(32)
        health = healthz.HealthServer(
            self._health_port,
            lambda: healthz.describe(
                list(self.jobs.values()),
                self._intake(),
                late={run: found for run, (found, _) in self._late.items()},
                late_seconds=self._late_seconds(),
                patience=self._patience or PATIENCE,
                problems=[
                    *self._store.archive.problems(told=_REFUSED),
                    *self._store.said.problems(),
                    *self._full_disk(),
                ],
            ),
            lambda: scrape.exposition(self._store, self.jobs.values(), stuck=len(self._pipeline.delays)),
        )
        stack.callback(health.close)
        try:
            server = FlightServer(self, host=healthz.HOST, port=0, token=token, actions=actions)
        except (OSError, pa.ArrowException) as error:
            raise ConfigurationError(
                f"cannot listen on {healthz.HOST} ({error}); choose another health_port"
            ) from error
        stack.callback(server.shutdown)
        self._home.write_service_info(
            ServiceInfo(
                host=healthz.HOST,
                port=server.port,
                token=token,
                pid=os.getpid(),
                started=self._started,
                health_port=health.port,
            )
        )
        return server

    def _beat(self) -> Progress:
        """Record the lag of the service, as the health job."""
        waiting = backlog(self._home, self._store.archive.waits)
        self._waiting = (time.monotonic(), waiting)
        now = time.monotonic()
        note_spooled(self._store, waiting, datetime.now(UTC))
        rows = as_of(queries.runs_now(self._store.kept_records), datetime.now(UTC))
        live = judgement.read(self._store, [row["run"] for row in rows if row["live"]], datetime.now(UTC))
        late = {run: found for run, found in live.items() if found.overdue}
        self._late = {run: (found, self._late.get(run, (found, now))[1]) for run, found in late.items()}
        heap.trim()
        account = {name: value for name, value in waiting.items() if name not in _OF_EACH_RUN}
        return {**account, "judged_late": len(late)}

    def _late_seconds(self) -> float:
        """Return the longest delay of a run's judgement in seconds."""
        return max((time.monotonic() - since for _, since in self._late.values()), default=0.0)

    def _intake(self) -> healthz.Intake:
        """Return the state of the spool at the last run of the health job. A hanging disk must not block the caller."""
        delays = self._pipeline.delays
        seen, waiting = self._waiting or (time.monotonic(), None)
        oldest = waiting and waiting["oldest_seconds"]
        return healthz.Intake(
            segments=waiting and waiting["segments"],
            lag_seconds=None if oldest is None else oldest + time.monotonic() - seen,
            stuck_files=len(delays),
            stuck_seconds=delays.longest_seconds(),
        )

    def _full_disk(self) -> list[str]:
        """Return the error of a full disk immediately. A job fails until the operator frees space."""
        errors = [job.account().last_error or "" for job in self.jobs.values() if job.failures_in_a_row >= _REFUSALS]
        errors += self._store.archive.waiting().values()
        if errors:  # DuckDB does not always say why: "fsync failed!"
            errors.append(self._home.refusal() or "")
        refusals = {help_ for words, help_ in _REFUSED.items() if any(words in error for error in errors)}
        return [f"the disk of {self._home.path} {help_}; records wait in the spool" for help_ in sorted(refusals)]

    def shutdown(self) -> None:
        """Request the shutdown and return immediately. Safe in signal handlers and from any thread."""
        self._end_asked.put(None)

    def query(self, request: Request, gone: Callable[[], bool]) -> pa.Table:
        """Answer one client's statement within its limits. Raises `QueryError`."""
        self._refuse_when_stopping()
        return self._sql.answer(str(request.sql), request.params, first=request.first, gone=gone)

    def read(self, name: str, params: Mapping[str, Any]) -> pa.Table:
        """Answer one stored query. Raises `QueryError`."""
        self._refuse_when_stopping()
        return self._store.read(name, **params)

    def _refuse_when_stopping(self) -> None:
        if self._stop.is_set():
            raise ServiceUnavailableError(f"the service of {self._home.path} is stopping; start it again: logprobe up")

    def ingest(self) -> Progress:
        """Ingest the spool and return its `Ingested` once readers can see it."""
        return self.jobs["ingest"].run_now()

    def status(self) -> Status:
        """Return the status of the service: identity, start, jobs, backlog and unreadable files in the spool."""
        delays = self._pipeline.delays
        return {
            "running": True,
            "home": str(self._home.path),
            "pid": os.getpid(),
            "started": self._started,
            "jobs": {name: cast(JobAccount, asdict(job.account())) for name, job in self.jobs.items()},
            "backlog": backlog(self._home, self._store.archive.waits),
            "stuck": {"number": len(delays), "seconds": delays.longest_seconds(), "files": delays.document()},
        }
