"""``/healthz``: 200 while the watched jobs do their work, 503 when one hangs or fails for longer than its patience."""

from __future__ import annotations

import json
import threading
import time
from http.client import HTTPConnection

import pytest
from processes import eventually

from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.service.healthz import HealthServer, Intake, describe
from logprobe.monitor.service.jobs import Job


def get(port: int, path: str = "/healthz") -> tuple[int, dict]:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
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
        assert go_on.wait(90)
        return {}

    job = Job("alerts", 1.0, work, patience=0.2)
    server = HealthServer(0, lambda: describe([job]))
    try:
        thread = threading.Thread(target=job.run)
        thread.start()
        assert hanging.wait(90)
        _, document = eventually(lambda: (found := get(server.port))[0] == 503 and found, "503")
        assert document["healthy"] is False
        assert document["jobs"]["alerts"]["healthy"] is False
        go_on.set()
        thread.join()
        begun = time.monotonic()
        job.run()
        assert job.unwell_seconds() <= time.monotonic() - begun
        job.patience = 3600.0
        assert get(server.port)[0] == 200
    finally:
        go_on.set()
        server.close()


def test_what_is_well_and_what_is_not() -> None:
    def work() -> dict:
        raise ConfigurationError("always")

    failing = Job("alerts", 1.0, work, patience=0.0)
    failing.run()
    assert describe([failing])["healthy"] is False
    job = Job("ingest", 1.0, dict, patience=3600.0)  # takes long, and is well as long as it gets somewhere
    job._succeeded = job._advanced = -1e6
    assert describe([job])["jobs"]["ingest"]["healthy"] is False
    job.beat()
    assert describe([job])["jobs"]["ingest"]["healthy"] is True
    behind = describe([], Intake(segments=9, lag_seconds=7200.0), patience=600.0)
    assert (behind["healthy"], behind["ingest"]["lag_seconds"]) == (True, 7200.0)
    stuck = describe([], Intake(segments=1, lag_seconds=700.0, stuck_files=1, stuck_seconds=601.0), patience=600.0)
    assert (stuck["healthy"], stuck["ingest"]["stuck_files"]) == (False, 1)


def test_other_paths_and_taken_ports_are_refused() -> None:
    server = HealthServer(0, lambda: {"healthy": True})
    try:
        assert get(server.port) == (200, {"healthy": True})
        assert get(server.port, "/etc/passwd")[0] == 404
        with pytest.raises(ConfigurationError, match="health_port"):
            HealthServer(server.port, dict)
    finally:
        server.close()
