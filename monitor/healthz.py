"""``/healthz`` and ``/metrics``: an HTTP endpoint for those who watch the service.

``/healthz`` says whether its watchful jobs still do their work:

200 when they do, 503 when one has not succeeded for longer than its patience: it hangs, or fails again and again. For a process
supervisor or an uptime check, so it asks for no token and says nothing about runs. ``/metrics`` is for Prometheus (`scrape`); where
others than this machine can reach it, it asks for the service's token, because it names runs.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from logprobe.collectors.errors import ConfigurationError, LogprobeError
from logprobe.monitor.jobs import Job
from logprobe.monitor.openmetrics import CONTENT_TYPE

PATH: Final = "/healthz"
METRICS: Final = "/metrics"
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
    """Answers ``GET /healthz`` and ``GET /metrics`` from the moment it is made until `close`."""

    def __init__(
        self,
        host: str,
        port: int,
        document: Callable[[], Mapping[str, Any]],
        metrics: Callable[[], str] = lambda: "# EOF\n",
        *,
        token: str | None = None,
    ) -> None:
        """`port` 0: any free one. `token`: asked for by ``/metrics``, unless `host` is this machine's own.

        Raises `ConfigurationError` when the address cannot be had.
        """
        asked = None if _is_loopback(host) else token
        try:
            self._server = _server_class(host)((host, port), _handler(document, metrics, asked))
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


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _handler(
    document: Callable[[], Mapping[str, Any]], metrics: Callable[[], str], token: str | None
) -> type[BaseHTTPRequestHandler]:
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
                self._answer(HTTPStatus.NOT_FOUND, {"error": f"there are only {PATH} and {METRICS}"})

        def _metrics(self) -> None:
            shown = self.headers.get("Authorization", "").encode()
            if token is not None and not hmac.compare_digest(shown, f"Bearer {token}".encode()):
                self._answer(HTTPStatus.UNAUTHORIZED, {"error": "show the service's token: Authorization: Bearer …"})
                return
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
            """A probe every few seconds is no news."""

    return Handler
