"""``/healthz``: an HTTP endpoint that says whether the service's watchful jobs still do their work.

200 when they do, 503 when one has not succeeded for longer than its patience: it hangs, or fails again and again. For a process
supervisor or an uptime check, so it asks for no token and says nothing about runs.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.jobs import Job

PATH: Final = "/healthz"
_CLIENT_SECONDS: Final = 5.0  # a client that sends nothing holds no thread for longer


def describe(jobs: Iterable[Job]) -> dict[str, Any]:
    """Whether the jobs with a patience are well: ``{"healthy": …, "jobs": {name: {…}}}``.

    A job is well as long as its last success (at first: its making) is no longer ago than its patience, in seconds.
    """
    watched = {
        job.name: {
            "healthy": job.unwell_seconds() <= job.patience,
            "seconds_since_success": round(job.unwell_seconds(), 1),
            "patience_seconds": job.patience,
        }
        for job in jobs
        if job.patience is not None
    }
    return {"healthy": all(job["healthy"] for job in watched.values()), "jobs": watched}


class HealthServer:
    """Answers ``GET /healthz`` from the moment it is made until `close`."""

    def __init__(self, host: str, port: int, document: Callable[[], Mapping[str, Any]]) -> None:
        """`port` 0: any free one. Raises `ConfigurationError` when the address cannot be had."""
        try:
            self._server = _server_class(host)((host, port), _handler(document))
        except OSError as error:
            raise ConfigurationError(
                f"cannot listen on {host}:{port} ({error.strerror}); choose another --health-port"
            ) from error
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, name="logprobe-healthz", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops answering."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _server_class(host: str) -> type[ThreadingHTTPServer]:
    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """A probe that went away before its answer is no news."""

    return Server


def _handler(document: Callable[[], Mapping[str, Any]]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _CLIENT_SECONDS

        def do_GET(self) -> None:
            if self.path.partition("?")[0] != PATH:
                self._answer(HTTPStatus.NOT_FOUND, {"error": f"there is only {PATH}"})
                return
            content = document()
            self._answer(HTTPStatus.OK if content["healthy"] else HTTPStatus.SERVICE_UNAVAILABLE, content)

        def _answer(self, status: HTTPStatus, content: Mapping[str, Any]) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
            """A probe every few seconds is no news."""

    return Handler
