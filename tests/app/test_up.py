"""`logprobe up` as a process: a service that is killed comes back, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from processes import connected, end, eventually, logprobe, record, service, understood

from logprobe.app.commands.up import stack_of
from logprobe.app.dashboard.access.settings import Access
from logprobe.app.processes.stack import Stack
from logprobe.collectors.errors import ConfigurationError, HomeBusyError
from logprobe.collectors.recorder.recorder import Recorder
from logprobe.monitor.home import Home


@contextmanager
def up(home: Path, *arguments: str):
    command = [sys.executable, "-m", "logprobe.app.cli", "up", "--no-app", "--home", str(home), *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    try:
        yield process
    finally:
        end(process)


def steps(reader) -> int:
    return reader.query("SELECT count(*) AS n FROM step_summaries")["n"][0].as_py()


def test_a_killed_service_comes_back_and_a_killed_supervisor_takes_it_along(home) -> None:
    with up(home) as process, Recorder(home, "toy", rank=0) as recorder, connected(home) as reader:
        record(home, "other", steps=range(2))
        eventually(lambda: steps(reader) == 2, "two steps")
        first = Home(home).service_info()
        os.kill(first.pid, signal.SIGKILL)
        recorder.step(0, loss=1.0)
        assert recorder.flush(120)  # while nobody serves
        eventually(lambda: Home(home).service_info() != first, "another service")
        with connected(home) as again:
            eventually(lambda: steps(again) == 3, "what was recorded meanwhile is there")
        assert eventually(lambda: steps(reader) == 3, "the old reader goes on")
        child = psutil.Process(Home(home).service_info().pid)
        process.kill()
        text = end(process)
        eventually(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, "the service ends")
    assert "the monitor service ended unexpectedly (killed by SIGKILL" in text
    assert "Traceback" not in text
    eventually(lambda: Home(home).owner() is None, "its last thread has let go of the home")
    assert Home(home).service_info() is None  # it ended cleanly


def test_raw_tokens_are_kept_within_the_budget_that_was_asked_for(home) -> None:
    record(home, steps=range(2))
    logprobe("up", "--once", "--home", home)
    (home / "logprobe.yaml").write_text("server: {keep_gib: 1.0e-9}\n")
    with service(home) as reader:  # retention runs at the start, and says what it did when it is done
        account = lambda: reader.status()["jobs"]["retention"]["progress"]
        eventually(lambda: account().get("removed_bytes", 0) > 0, "raw tokens are removed")
        assert reader.query("SELECT count(*) AS n FROM tokens")["n"][0].as_py() == 0
        assert steps(reader) == 2  # metrics stay


def test_what_is_asked_of_the_dashboard_reaches_it(home) -> None:
    """What it makes of it: dashboard/test_access.py and test_pages.py."""
    asked = understood(["up", "--home", str(home), "--port", "0", "--read-only", "--public-url", "https://host/x"])
    access = stack_of(asked)._access
    assert Access.of(access.environment()) == Access(public_url="https://host/x", read_only=True)


def test_what_cannot_run_says_so_at_once(home, tmp_path) -> None:
    with Home(home).lock(), pytest.raises(HomeBusyError, match=f"in use by process {os.getpid()}"):
        Stack(Home(home))
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(
            ConfigurationError, match=rf"port {port} at 127\.0\.0\.1 cannot be used \(Address already in use\)"
        ):
            Stack(Home(tmp_path / "second"), port=port)
    assert Stack(Home(tmp_path / "third"), access=Access(address="::1"), port=0).url.startswith("http://[::1]:")
