"""``/healthz`` and ``/metrics``: an HTTP endpoint for monitoring.

``/healthz`` returns 200 while the jobs make progress and ingest works, else 503. It returns 503 after a job made no
progress for longer than its patience, or a file in the spool was unreadable for that long. It also returns 503 if a
live run has been judged late for more than a minute, or a known problem keeps records from arriving. ``/metrics`` is
for Prometheus (`scrape`). Both endpoints name runs and need no token. They listen only on the local address.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from logprobe.collectors.errors import ConfigurationError, LogprobeError
from logprobe.monitor.judgement import Judgement
from logprobe.monitor.service.jobs import PATIENCE, Job
from logprobe.monitor.service.scrape import CONTENT_TYPE

HOST: Final = "127.0.0.1"  # of everything that the service listens on
PATH: Final = "/healthz"
METRICS: Final = "/metrics"
LATE_PATIENCE: Final = 60.0  # seconds that a live run may be judged late
_MOST_NAMED: Final = 10
NONE: Final[Mapping[str, Judgement]] = {}
_CLIENT_SECONDS: Final = 5.0  # a client that sends nothing holds no thread for longer


@dataclass(frozen=True, slots=True)
class Intake:
    """State of ingest. None means unknown, or an empty spool.

    `lag_seconds`: age of the oldest segment in the spool. `stuck_files`: unreadable files and folders there.
    `stuck_seconds`: time since the first of them became unreadable.
    """

    segments: int | None = None
    lag_seconds: float | None = None
    stuck_files: int = 0
    stuck_seconds: float | None = None


def describe(
    jobs: Iterable[Job],
    intake: Intake | None = None,
    *,
    late: Mapping[str, Judgement] = NONE,
    late_seconds: float = 0.0,
    patience: float = PATIENCE,
    problems: Sequence[str] = (),
) -> dict[str, object]:
    """Return the health of jobs and ingest: ``{"healthy": …, "problems": […], "jobs": {name: {…}}, "ingest": {…}}``.

    A job is healthy if its last progress, or its creation, is at most its patience in seconds ago. Ingest is healthy if
    no file has been stuck for longer than `patience`. A lag alone is not unhealthy, since a backlog takes time. `late`:
    live runs that are not judged in time. `late_seconds`: longest delay among them, unhealthy above `LATE_PATIENCE`.
    `problems`: obstacles to the arrival of records, each in a sentence with the remedy.
    """
    watched = {job.name: _job(job) for job in jobs}
    others = {} if intake is None else {"ingest": _ingest(intake, patience)}
    others["judged"] = _judged(late, late_seconds)
    healthy = not problems and all(part["healthy"] for part in (*watched.values(), *others.values()))
    return {"healthy": healthy, "problems": list(problems), "jobs": watched, **others}


def _judged(late: Mapping[str, Judgement], seconds: float) -> dict[str, object]:
    sentences = [f"{run}: {late[run].late}" for run in list(late)[:_MOST_NAMED]]
    return {"healthy": seconds <= LATE_PATIENCE, "late_runs": len(late), "late": sentences}


def _job(job: Job) -> dict[str, object]:
    silent = job.silent_seconds()
    return {
        "healthy": silent <= job.patience,
        "seconds_since_success": round(job.unwell_seconds(), 1),
        "seconds_since_progress": round(silent, 1),
        "failures_in_a_row": job.failures_in_a_row,
        "patience_seconds": job.patience,
    }


def _ingest(intake: Intake, patience: float) -> dict[str, object]:
    return {
        "healthy": (intake.stuck_seconds or 0.0) <= patience,
        "waiting_segments": intake.segments,
        "lag_seconds": _rounded(intake.lag_seconds),
        "stuck_files": intake.stuck_files,
        "stuck_seconds": _rounded(intake.stuck_seconds),
        "patience_seconds": patience,
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)


class HealthServer:
    """HTTP server of ``GET /healthz`` and ``GET /metrics``, from its creation until `close`."""

    def __init__(
        self,
        port: int,
        document: Callable[[], Mapping[str, Any]],
        metrics: Callable[[], str] = lambda: "# EOF\n",
    ) -> None:
        """Listen on the local address. `port`: port number, or 0 for any free port.

        Raises `ConfigurationError` for an unavailable port.
        """
        try:
            self._server = _Server((HOST, port), _handler(document, metrics))
        except OSError as error:
            raise ConfigurationError(
                f"cannot listen on {HOST}:{port} ({error.strerror}); choose another health_port in the settings"
            ) from error
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, name="logprobe-healthz", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore the error of a probe that disconnected before its answer."""


def _handler(document: Callable[[], Mapping[str, Any]], metrics: Callable[[], str]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _CLIENT_SECONDS

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == PATH:
                content = document()
                self._answer(HTTPStatus.OK if content["healthy"] else HTTPStatus.SERVICE_UNAVAILABLE, content)
            elif path == METRICS:
                self._metrics()
            else:
                self._answer(HTTPStatus.NOT_FOUND, {"error": f"only {PATH} and {METRICS} exist"})

        def _metrics(self) -> None:
            try:
                text = metrics()
            except LogprobeError as error:  # Prometheus then marks the target as down
                self._answer(HTTPStatus.SERVICE_UNAVAILABLE, {"error": str(error)})
                return
            self._send(HTTPStatus.OK, text.encode(), CONTENT_TYPE)

        def _answer(self, status: HTTPStatus, content: Mapping[str, Any]) -> None:
            self._send(status, json.dumps(content).encode(), "application/json")

        def _send(self, status: HTTPStatus, body: bytes, content_type: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
            """Log nothing, since probes arrive every few seconds."""

    return Handler
