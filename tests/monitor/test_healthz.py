"""``/healthz``: 200 while the watched jobs do their work, 503 when one hangs or fails for longer than its patience."""

from __future__ import annotations

import json
import socket
import threading
from http.client import HTTPConnection

import pytest
from processes import eventually, service

from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.healthz import HealthServer, describe
from logprobe.monitor.home import Home
from logprobe.monitor.jobs import Job


def get(port: int, path: str = "/healthz", host: str = "127.0.0.1") -> tuple[int, dict]:
    connection = HTTPConnection(host, port, timeout=10)
    connection.request("GET", path)
    response = connection.getresponse()
    document = json.loads(response.read())
    connection.close()
    return response.status, document


def test_a_job_that_hangs_makes_the_service_unwell_and_one_that_goes_on_well_again() -> None:
    hanging = threading.Event()
    go_on = threading.Event()

    def work() -> dict:
        hanging.set()
        assert go_on.wait(30)
        return {}

    job = Job("alerts", 1.0, work, patience=0.2)
    server = HealthServer("127.0.0.1", 0, lambda: describe([job]))
    try:
        thread = threading.Thread(target=job.run)
        thread.start()
        assert hanging.wait(30)
        _, document = eventually(lambda: (found := get(server.port))[0] == 503 and found, "503")
        assert document["healthy"] is False
        assert document["jobs"]["alerts"]["healthy"] is False
        go_on.set()
        thread.join()
        job.run()
        assert job.unwell_seconds() < 10
        job.patience = 60.0
        assert get(server.port)[0] == 200
    finally:
        go_on.set()
        server.close()


def test_a_job_that_only_fails_is_not_well() -> None:
    def work() -> dict:
        raise ConfigurationError("always")

    job = Job("alerts", 1.0, work, patience=0.0)
    job.run()
    assert describe([job])["healthy"] is False


def test_a_job_that_may_take_its_time_is_not_watched() -> None:
    assert describe([Job("ingest", 1.0, dict)]) == {"healthy": True, "jobs": {}}


def test_other_paths_and_taken_ports_are_refused() -> None:
    server = HealthServer("::1" if socket.has_ipv6 else "127.0.0.1", 0, lambda: {"healthy": True})
    host = "::1" if socket.has_ipv6 else "127.0.0.1"
    try:
        assert get(server.port, host=host) == (200, {"healthy": True})
        assert get(server.port, "/etc/passwd", host=host)[0] == 404
        with pytest.raises(ConfigurationError, match="--health-port"):
            HealthServer(host, server.port, dict)
    finally:
        server.close()


def test_the_service_tells_where_it_answers(home) -> None:
    with service(home):
        info = Home(home).service_info()
        status, document = get(info.health_port)
    assert (status, document["healthy"]) == (200, True)
    assert set(document["jobs"]) >= {"health"}
