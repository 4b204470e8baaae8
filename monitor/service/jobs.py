"""Background jobs of the service, with their schedules and an account of every run.

A `Job` wraps one piece of work and never raises. An error is counted, logged once and kept in its `Account`. The next
tick retries. The scheduler is APScheduler's. Late ticks run, and missed ticks coalesce.

A `Part` adds the jobs and actions of a higher layer, or of a larger component, to the service. The service does not
know alerts. The process that starts the service passes its parts. A part is created after the store is opened:

    def part(store: Store, stopping: threading.Event) -> Part:
        return Part(jobs=[Job("alerts", 1.0, Evaluator(store, stopping).run_once)])
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final, TypeAlias

from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_MISSED, JobExecutionEvent
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.jobstores.base import JobLookupError
from apscheduler.schedulers.background import BackgroundScheduler

from logprobe.collectors.errors import LogprobeError
from logprobe.monitor.service.action import Action
from logprobe.monitor.store.courtesy import Courtesy, Rank
from logprobe.monitor.store.store import Store

LOGGER: Final = logging.getLogger("logprobe.service")
Progress = Mapping[str, object]  # what a job did, and how far behind it is, as JSON values

PATIENCE: Final = 600.0  # seconds without a sign of progress after which a job counts as stuck or failing
# In what a job did: something is left undone for a reason that only a person can remove.
INCOMPLETE: Final = "incomplete"
_MOST_ERRORS: Final = 64  # distinct errors remembered per job
_WATCH_SECONDS: Final = 1.0


@dataclass(slots=True)
class Account:
    """Account of a job's runs. `last_error`: error of the last run, or None if it succeeded."""

    job: str
    started_at: datetime | None = None
    finished_at: datetime | None = None
    runs: int = 0
    failures: int = 0
    last_error: str | None = None
    progress: Progress = field(default_factory=dict)


class Job:
    """Scheduled piece of work, which runs in one thread at a time."""

    def __init__(
        self,
        name: str,
        seconds: float,
        work: Callable[[], Progress],
        *,
        patience: float = PATIENCE,
        rest: float = 0.0,
        pause: Callable[[Progress], float] = lambda _: 0.0,
        most_rest: float = 0.5,
        rank: Rank = Rank.OTHER,
        follows: bool = False,
    ) -> None:
        """Set up the job. `work`: function that returns its `Progress`.

        `patience`: seconds without a success or a `beat` after which the service is unhealthy. `rest`: pause after a
        run as a multiple of its processor time. `pause`: returns the seconds of the pause by what the run did. The
        longer of both counts, at most `most_rest` seconds. A pause makes work with a cost per run process more items
        per run. `rank`: rank that makes other jobs pause during the work, see `courtesy`. `follows`: true to run after
        each judgement of an armed run's growth and each diagnosis, in addition to the interval.
        """
        self.name = name
        self.seconds = seconds
        self.patience = patience
        self.failures_in_a_row = 0
        self._succeeded = self._advanced = time.monotonic()
        self._rest = rest
        self._pause = pause
        self._most_rest = most_rest
        self._rest_until = -math.inf
        self._asked = False
        self.rank = rank
        self.follows = follows
        self.courtesy = Courtesy()
        self._processor = 0.0  # seconds, since the service started
        self._work = work
        self._turn = threading.Lock()
        self._account = Account(name)
        self._seen: set[str] = set()

    def run(self, *, wait: bool = False) -> None:
        """Run once and never raise. During another run or a pause, do nothing, or queue a run with `wait`.

        A run requested by `ask` during another one follows it.
        """
        if not wait and time.monotonic() < self._rest_until:
            return
        if self._turn.acquire(blocking=wait):
            before = time.thread_time()
            try:
                self._run_as_asked()
            finally:
                spent = time.thread_time() - before  # of the processor: it does not depend on the load of the machine
                pause = max(self._rest * spent, self._pause(self._account.progress))
                self._rest_until = time.monotonic() + min(pause, self._most_rest)
                self._turn.release()

    def ask(self) -> None:
        """Request a run for news that a run in progress may have missed. Safe from any thread."""
        self._asked = True

    def _run_as_asked(self) -> None:
        while True:
            self._asked = False
            try:
                self._attempt()
            except Exception as error:  # noqa: BLE001 - the boundary of a background thread: counted, reported, retried
                self._failed(error)
                return
            if not self._asked:
                return

    def run_now(self) -> Progress:
        """Wait for a run in progress, then run. Raises the errors of the work."""
        with self._turn:
            try:
                return self._attempt()
            except Exception as error:
                self._failed(error)
                raise

    def account(self) -> Account:
        """Return a snapshot of the account. Safe from any thread."""
        return replace(self._account)

    def unwell_seconds(self) -> float:
        """Return the seconds since the last success, or since the job was created. Safe from any thread."""
        return time.monotonic() - self._succeeded

    def beat(self) -> None:
        """Record progress of the work. Long-running work calls this to show that it is not stuck."""
        self._advanced = time.monotonic()

    def silent_seconds(self) -> float:
        """Return the seconds since the last success or `beat`. Safe from any thread."""
        return time.monotonic() - max(self._succeeded, self._advanced)

    def _attempt(self) -> Progress:
        account = self._account
        account.started_at = datetime.now(UTC)
        begun, before = time.perf_counter(), time.thread_time()
        with self.courtesy.work(self.rank):
            progress = dict(self._work())
        self._processor += time.thread_time() - before
        account.progress = {
            **progress,
            "seconds": round(time.perf_counter() - begun, 6),
            "processor_seconds": round(self._processor, 3),
        }
        account.finished_at = datetime.now(UTC)
        account.runs += 1
        account.last_error = None
        if not progress.get(INCOMPLETE):
            self._succeeded = time.monotonic()
        self.failures_in_a_row = 0
        return progress

    def _failed(self, error: Exception) -> None:
        account = self._account
        account.runs += 1
        account.failures += 1
        self.failures_in_a_row += 1
        account.finished_at = datetime.now(UTC)
        account.last_error = f"{type(error).__name__}: {error}"
        kind = f"{type(error).__name__}: {str(error)[:80]}"
        if kind in self._seen:
            return
        if len(self._seen) >= _MOST_ERRORS:  # said again is better than never said
            self._seen.clear()
        self._seen.add(kind)
        expected = isinstance(error, LogprobeError)
        LOGGER.error(
            "job %s: %s; it will be retried", self.name, account.last_error, exc_info=None if expected else error
        )


class Schedule:
    """Schedule that runs each job at its interval until stopped.

    The scheduler uses the wall clock. A clock that is set back by an hour would delay all jobs by an hour. A thread
    with the monotonic clock detects this and runs all jobs immediately.
    """

    def __init__(self, jobs: Iterable[Job], *, wall_clock: Callable[[], float] = time.time) -> None:
        """Set up the schedule without starting it. `wall_clock`: system clock in seconds since any epoch."""
        self.missed = 0
        self._wall_clock = wall_clock
        self._stopped = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="logprobe-clock", daemon=True)
        jobs = list(jobs)
        self._threads = ThreadPoolExecutor(max(1, len(jobs)))  # a job that hangs takes no other's thread
        self._scheduler = BackgroundScheduler(
            timezone=UTC,
            executors={"default": self._threads},
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
        )
        self._scheduler.add_listener(self._listen, EVENT_JOB_ERROR | EVENT_JOB_MISSED)
        for job in jobs:
            self._scheduler.add_job(
                job.run, "interval", seconds=job.seconds, id=job.name, name=job.name, next_run_time=datetime.now(UTC)
            )

    def start(self) -> None:
        """Run every job immediately, then on its schedule."""
        self._scheduler.start()
        self._watcher.start()

    def soon(self, job: Job) -> None:
        """Run `job` immediately, or after its present run. Safe from any thread."""
        job.ask()
        with suppress(JobLookupError):  # the schedule is stopping
            self._scheduler.modify_job(job.name, next_run_time=datetime.now(UTC))

    def stop(self) -> None:
        """Stop new runs and wait for those in progress."""
        self._stopped.set()
        if self._scheduler.running:
            # While it waits for its jobs the scheduler holds a lock that a job which calls `soon` waits for: so it does
            # not wait.
            self._scheduler.shutdown(wait=False)
            self._threads.shutdown(wait=True)

    def _watch(self) -> None:
        ahead = self._wall_clock() - time.monotonic()
        while not self._stopped.wait(_WATCH_SECONDS):
            before, ahead = ahead, self._wall_clock() - time.monotonic()
            if before - ahead > _WATCH_SECONDS:
                LOGGER.warning("the clock was set back by %.0f s; the jobs continue", before - ahead)
                self._run_all_now()

    def _run_all_now(self) -> None:
        for job in self._scheduler.get_jobs():
            job.modify(next_run_time=datetime.now(UTC))

    def _listen(self, event: JobExecutionEvent) -> None:
        self.missed += event.code == EVENT_JOB_MISSED
        outcome = "was missed" if event.code == EVENT_JOB_MISSED else f"failed: {event.exception}"
        LOGGER.error("the scheduled run of job %s %s", event.job_id, outcome)


@dataclass(frozen=True, slots=True)
class Part:
    """Component of the service with jobs, each in a separate thread, and named actions for clients.

    `armed`: function that returns whether the part may switch a correction of a run. Every stage prefers an armed run.
    `close`: called after the jobs end and before the store is closed, to end threads of the part.
    """

    jobs: Sequence[Job] = ()
    actions: Mapping[str, Action] = field(default_factory=dict)
    armed: Callable[[str], bool] = lambda _run: False
    close: Callable[[], None] = lambda: None


# Makes a part for an open store. The event is set when the service is about to stop: long work should then end early.
# Raises `ConfigurationError` when what it was configured with is wrong; the service does not start then.
PartMaker: TypeAlias = Callable[[Store, threading.Event], Part]
