"""The monitor service: owner of one home. Runs the jobs, answers reads.

    python -m logprobe.monitor.service --home DIR [--bind ADDRESS] [--port PORT]

It holds the home's lock from the first to the last moment, publishes its address and token in ``service.json``, and stops
cleanly on SIGTERM and SIGINT: the batch in hand is finished, the account of the jobs written, the store closed.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import queue
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final, TypeVar

import pyarrow as pa

from logprobe.collectors.errors import (
    ConfigurationError,
    HomeBusyError,
    LogprobeError,
    ServiceUnavailableError,
    StoreError,
)
from logprobe.monitor import account
from logprobe.monitor.flight import FlightServer, Parameters
from logprobe.monitor.home import Home, ServiceInfo, utc_now
from logprobe.monitor.jobs import LOGGER, Job, Schedule
from logprobe.monitor.pipeline import Pipeline, Report, backlog
from logprobe.monitor.retention import GIB, RetentionPolicy
from logprobe.monitor.store import Store

T = TypeVar("T")

# A reader that looks at the home for a moment (`logprobe sql` while no service runs) must not keep the service away.
_OPEN_PATIENCE: Final = 5.0
_LOCK_PATIENCE: Final = 0.5
_OPEN_PAUSE: Final = 0.1
_QUERY_SECONDS: Final = 55.0  # less than the reader waits, so that it hears the reason
_QUERY_ROWS: Final = 20_000_000  # a result is held in memory before it is sent

INGEST_SECONDS: Final = 0.5
_DERIVE_SECONDS: Final = 5.0  # what ingest left undone: a failure, or a stop in between
_RETENTION_SECONDS: Final = 60.0
_HEALTH_SECONDS: Final = 5.0
_SIGNAL_SECONDS: Final = 0.25


class Service:
    """One home's service: `run` until `shutdown`. Answers the Flight endpoint's calls."""

    def __init__(
        self, home: Home, *, host: str = "127.0.0.1", port: int = 0, policy: RetentionPolicy | None = None
    ) -> None:
        """Does nothing before `run`. `port` 0: any free one. `policy`: of raw tokens; None: the default one."""
        self._home = home
        self._host = host
        self._port = port
        self._policy = policy
        self._stop = threading.Event()
        # Not the event itself: setting it in a signal handler of the very thread that waits for it can deadlock on its lock.
        self._end_asked: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._started = utc_now()
        self._jobs: dict[str, Job] = {}
        self._store: Store

    def run(self) -> None:
        """Returns after `shutdown`. Raises `HomeBusyError`, `StoreError` or `ConfigurationError` when it cannot start."""
        with ExitStack() as stack:
            lock = stack.enter_context(_patiently(self._home.lock, _LOCK_PATIENCE))
            self._store = stack.enter_context(_patiently(lambda: Store.open(self._home), _OPEN_PATIENCE))
            self._jobs = self._make_jobs(Pipeline(self._store, self._stop, self._policy))
            account.restore(self._store, list(self._jobs.values()))
            server = self._listen(stack)
            lock.announce(f"{self._host}:{server.port}")
            schedule = Schedule(self._jobs.values())
            stack.callback(self._store.interrupt)  # a long query must not hold up the end
            stack.callback(self._save)
            stack.callback(schedule.stop)
            stack.callback(self._home.remove_service_info)
            schedule.start()
            LOGGER.info("serving %s at %s:%d", self._home.path, self._host, server.port)
            self._wait_for_the_end()
            LOGGER.info("stopping")

    def _wait_for_the_end(self) -> None:
        # The kernel may hand a signal to any thread, and Python's handler then runs here only once this thread wakes up by
        # itself: an endless wait could miss it.
        while True:
            with suppress(queue.Empty):
                self._end_asked.get(timeout=_SIGNAL_SECONDS)
                break
        self._stop.set()

    def _make_jobs(self, pipeline: Pipeline) -> dict[str, Job]:
        join = Job("join", _DERIVE_SECONDS, pipeline.join)
        step_metrics = Job("step_metrics", _DERIVE_SECONDS, pipeline.compute_steps)

        def follow_up(_: Report) -> None:
            # Each has an account of its own: a join that fails keeps nobody from seeing metrics.
            join.run(wait=True)
            step_metrics.run(wait=True)

        ingest = Job("ingest", INGEST_SECONDS, lambda: pipeline.ingest(follow_up))
        profiles = Job("profiles", _DERIVE_SECONDS, pipeline.profile)
        retention = Job("retention", _RETENTION_SECONDS, pipeline.retain)
        health = Job("health", _HEALTH_SECONDS, self._beat)
        return {job.name: job for job in (ingest, join, step_metrics, profiles, retention, health)}

    def _listen(self, stack: ExitStack) -> FlightServer:
        token = secrets.token_urlsafe(32)
        try:
            server = FlightServer(self, host=self._host, port=self._port, token=token)
        except (OSError, pa.ArrowException) as error:
            raise ConfigurationError(
                f"cannot listen on {self._host}:{self._port} ({error}); choose another --port or --bind"
            ) from error
        stack.callback(server.shutdown)
        self._home.write_service_info(
            ServiceInfo(host=self._host, port=server.port, token=token, pid=os.getpid(), started=self._started)
        )
        return server

    def _beat(self) -> dict[str, Any]:
        """The health job: the account of the jobs, and how far behind the service is."""
        account.save(self._store, list(self._jobs.values()))
        return backlog(self._home)

    def _save(self) -> None:
        try:
            account.save(self._store, list(self._jobs.values()))
        except LogprobeError as error:  # the account is worth less than a clean end
            LOGGER.warning("the account of the jobs was not saved: %s", error)

    def shutdown(self) -> None:
        """Asks for the end and returns at once. Safe in signal handlers and from any thread."""
        self._end_asked.put(None)

    def query(self, sql: str, params: Parameters) -> pa.Table:
        """One read-only statement, bounded in time and rows. Raises `QueryError`."""
        self._refuse_when_stopping()
        return self._store.query(sql, params, timeout=_QUERY_SECONDS, max_rows=_QUERY_ROWS)

    def read(self, name: str, params: Mapping[str, Any]) -> pa.Table:
        """One stored query. Raises `QueryError`."""
        self._refuse_when_stopping()
        return self._store.read(name, **params)

    def _refuse_when_stopping(self) -> None:
        if self._stop.is_set():
            raise ServiceUnavailableError(f"the service of {self._home.path} is stopping")

    def ingest(self) -> dict[str, Any]:
        """Ingests what lies in the spool now, and returns when readers can see it."""
        return dict(self._jobs["ingest"].run_now())

    def status(self) -> dict[str, Any]:
        """What the service says of itself: who, since when, its jobs, its backlog."""
        return {
            "running": True,
            "home": str(self._home.path),
            "pid": os.getpid(),
            "started": self._started,
            "jobs": {name: job.account().document() for name, job in self._jobs.items()},
            "backlog": backlog(self._home),
        }


def _patiently(attempt: Callable[[], T], seconds: float) -> T:
    """`attempt`, again for some seconds while something else holds the home or the store."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return attempt()
        except (HomeBusyError, StoreError):
            if time.monotonic() >= deadline:
                raise
        time.sleep(_OPEN_PAUSE)


def _policy(gib: float | None, days: float | None) -> RetentionPolicy:
    policy = RetentionPolicy()
    if gib is not None:
        policy = replace(policy, max_bytes=int(gib * GIB) if math.isfinite(gib) else None)
    if days is not None:
        policy = replace(policy, max_age=timedelta(days=days) if math.isfinite(days) else None)
    return policy


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m logprobe.monitor.service", description="The monitor service of one home."
    )
    parser.add_argument("--home", required=True)
    parser.add_argument(
        "--bind", metavar="ADDRESS", default="127.0.0.1", help="address to listen on (default: %(default)s)"
    )
    parser.add_argument("--port", type=int, default=0, help="port to listen on (default: any free one)")
    parser.add_argument("--keep-gib", type=float, help="raw tokens kept, in GiB; inf: no limit")
    parser.add_argument("--keep-days", type=float, help="age of raw tokens kept, in days")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    arguments = _parser().parse_args(argv)
    logging.basicConfig(format="%(asctime)s %(name)s %(levelname)s %(message)s", level=logging.INFO)
    # Every tick is logged at INFO, a tick that finds its job still running at WARNING: neither is news here.
    logging.getLogger("apscheduler").setLevel(logging.ERROR)
    try:
        policy = _policy(arguments.keep_gib, arguments.keep_days)
        service = Service(Home(arguments.home), host=arguments.bind, port=arguments.port, policy=policy)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: service.shutdown())
        service.run()
    except LogprobeError as error:
        sys.stderr.write(f"logprobe: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
