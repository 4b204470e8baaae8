"""The supervisor, with real child processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
from processes import eventually

from logprobe.app.processes import supervisor
from logprobe.app.processes.supervisor import Child, ChildFailedError, Supervisor

SLEEPER = "import pathlib, os, time; pathlib.Path({path!r}).open('a').write(f'{{os.getpid()}}\\n'); time.sleep(600)"


def sleeper(path: Path) -> Child:
    """A child that writes its process id down, and sleeps. It is up once the id can be read, which is later than the file is there."""
    return Child(path.name, [sys.executable, "-c", SLEEPER.format(path=str(path))], ready=lambda: bool(pids(path)))


def pids(path: Path) -> list[int]:
    return (
        [int(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        if path.exists()
        else []
    )


class Running:
    """A supervisor at work in a thread."""

    def __init__(self, *children: Child) -> None:
        self.stop = threading.Event()
        self.said: list[str] = []
        self.ready = threading.Event()
        self.error: BaseException | None = None
        self._supervisor = Supervisor(children, stop=self.stop, say=self.said.append, on_ready=self.ready.set)
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self._supervisor.run()
        except BaseException as error:
            self.error = error

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self._thread.join(90)
        assert not self._thread.is_alive()


def assert_said(running: Running, words: str) -> None:
    (line,) = running.said
    assert line == words.format("; `dmesg` shows whether memory ran out")


def test_a_killed_child_is_started_again_and_all_end_together(tmp_path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    with Running(sleeper(one), sleeper(two)) as running:
        assert running.ready.wait(90)
        os.kill(pids(one)[0], signal.SIGKILL)
        eventually(lambda: len(pids(one)) == 2, "a second process")
        assert_said(running, "the one ended unexpectedly (killed by SIGKILL{}); restart in 0.5 s")
    assert running.error is None
    assert not any(psutil.pid_exists(pid) for pid in pids(one) + pids(two))
    assert len(pids(two)) == 1  # the other was left alone


@pytest.mark.parametrize(
    ("proven", "delays"),
    [(3600.0, ["0.2 s", "0.4 s", "0.8 s", "0.8 s"]), (0.2, ["0.2 s", "0.2 s"])],  # a child that lasts starts over
)
def test_restarts_come_ever_later_until_a_child_lasts(tmp_path, monkeypatch, proven, delays) -> None:
    monkeypatch.setattr(supervisor, "_FIRST_DELAY", 0.2)
    monkeypatch.setattr(supervisor, "_LONGEST_DELAY", 0.8)
    monkeypatch.setattr(supervisor, "_PROVEN_SECONDS", proven)
    starts = tmp_path / "starts"
    program = f"import time; open({str(starts)!r}, 'a').write('x'); time.sleep(0.3)"
    with Running(Child("brief", [sys.executable, "-c", program], ready=starts.exists)) as running:
        eventually(lambda: len(running.said) >= len(delays), "so many ends")
    assert [line.rpartition(" in ")[2] for line in running.said[: len(delays)]] == delays


def test_a_child_that_never_came_up_is_not_started_again(tmp_path) -> None:
    other = tmp_path / "other"
    with Running(sleeper(other), Child("broken", [sys.executable, "-c", "exit(3)"], ready=lambda: False)) as running:
        eventually(lambda: running.error, "the supervisor gives up")
    assert isinstance(running.error, ChildFailedError)
    assert str(running.error) == "the broken did not start (exit status 3); see its message above"
    assert not any(psutil.pid_exists(pid) for pid in pids(other))


def test_a_child_that_was_killed_while_it_started_is_started_again(tmp_path) -> None:
    starts, up = tmp_path / "starts", tmp_path / "up"
    program = (
        f"import os, time; n = open({str(starts)!r}, 'a').write('x'); "
        f"os.path.getsize({str(starts)!r}) < 2 and os.kill(os.getpid(), 9); open({str(up)!r}, 'w'); time.sleep(600)"
    )
    with Running(Child("unlucky", [sys.executable, "-c", program], ready=up.exists)) as running:
        assert running.ready.wait(90)
        assert_said(running, "the unlucky ended unexpectedly (killed by SIGKILL{}); restart in 0.5 s")
    assert running.error is None


def test_a_child_deaf_to_sigterm_is_killed(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(supervisor, "_STOP_SECONDS", 0.3)
    path = tmp_path / "deaf"
    program = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEPER.format(path=str(path))
    with Running(Child("deaf", [sys.executable, "-c", program], ready=lambda: bool(pids(path)))) as running:
        assert running.ready.wait(90)
    assert not psutil.pid_exists(pids(path)[0])


SUPERVISE = """
import signal, sys, threading
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_supervisor import sleeper
from logprobe.app.processes.supervisor import Supervisor, stop_on_signals
with stop_on_signals() as stop:
    Supervisor([sleeper(Path({path!r}))], stop=stop, say=print).run()
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGHUP])
def test_no_child_outlives_the_supervisor(tmp_path, how) -> None:
    path = tmp_path / "child"
    program = SUPERVISE.format(tests=str(Path(__file__).parent), path=str(path))
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent / "support")}
    process = subprocess.Popen([sys.executable, "-c", program], env=environment)
    eventually(lambda: pids(path), "a child")
    process.send_signal(how)
    assert process.wait(90) == (-how if how is signal.SIGKILL else 0)
    eventually(lambda: not psutil.pid_exists(pids(path)[0]), "the child is gone")


def test_nohup_keeps_the_end_of_the_terminal_from_it() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with supervisor.stop_on_signals() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.wait(0.5)
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_and_a_second_one_does_not_wait_for_deaf_children(how: signal.Signals) -> None:
    with supervisor.stop_on_signals() as stop:
        os.kill(os.getpid(), how)
        assert stop.wait(60)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(how)


def test_a_tether_whose_parent_is_gone_starts_nothing(tmp_path) -> None:
    path = tmp_path / "never"
    nobody = str(os.getppid())  # anyone but the parent
    command = [sys.executable, "-m", "logprobe.app.processes.die_with_parent", nobody, "touch", str(path)]
    assert subprocess.run(command, timeout=120, check=False).returncode == 1
    assert not path.exists()
