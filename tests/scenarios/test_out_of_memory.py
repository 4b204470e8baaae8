"""The kernel kills processes that take too much memory: each that logprobe has, while it works. Nothing acknowledged is lost, nothing counted twice.

By a control group where this user may make one, else by the same signal once a process has taken as much.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import hungry_host_program
import psutil
import pytest
from operator_homes import is_well, stored, waiting
from processes import connected, end, eventually, record, service

from logprobe.collectors.errors import LogprobeError
from logprobe.monitor.reader import connect

pytestmark = pytest.mark.long

MIB = 1 << 20
GROUPS = ((Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"), (Path("/sys/fs/cgroup"), "memory.max"))
SEQUENCES = "SELECT count(*) AS n FROM sequences"


class Memory:
    """What some processes may take together."""

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._members: list[int] = []
        self._group: Path | None = None
        self._limit = ""
        for place, limit in GROUPS:
            with suppress(OSError):
                folder = place / f"logprobe-test-{os.getpid()}-{nbytes}"
                folder.mkdir()
                if (folder / limit).exists():
                    self._group, self._limit = folder, limit
                    self.allow(nbytes)
                    return
                folder.rmdir()

    def allow(self, nbytes: int) -> None:
        """Other than before."""
        self._nbytes = nbytes
        if self._group is not None:
            (self._group / self._limit).write_text(str(nbytes))

    def limit(self, pid: int) -> None:
        """This process and those that it starts from now on."""
        self._members.append(pid)
        if self._group is not None:
            (self._group / "cgroup.procs").write_text(str(pid))

    def strike(self) -> None:
        """Without a group: kills the largest process, if all together have too much."""
        if self._group is not None:
            return
        sizes: dict[psutil.Process, int] = {}
        for pid in self._members:
            with suppress(psutil.Error):
                process = psutil.Process(pid)
                sizes |= {each: each.memory_info().rss for each in (process, *process.children(recursive=True))}
        if sum(sizes.values()) > self._nbytes:
            max(sizes, key=lambda each: sizes[each]).kill()

    def close(self) -> None:
        if self._group is not None:
            eventually(self._is_removed, "the group is empty")

    def _is_removed(self) -> bool:
        with suppress(OSError):
            if self._group is not None and self._group.exists():
                self._group.rmdir()
        return self._group is None or not self._group.exists()


@contextmanager
def memory(nbytes: int) -> Iterator[Memory]:
    limited = Memory(nbytes)
    try:
        yield limited
    finally:
        limited.close()


def is_killed(process: subprocess.Popen[bytes], limited: Memory) -> bool:
    limited.strike()
    return process.poll() is not None


def test_a_trainer_loses_nothing_that_was_acknowledged(home: Path) -> None:
    with memory(400 * MIB) as limited:
        command = [sys.executable, hungry_host_program.__file__, str(home)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as host:
            limited.limit(host.pid)
            eventually(lambda: is_killed(host, limited), "its memory is used up", 500)
            assert host.wait() == -signal.SIGKILL
            assert host.stdout is not None
            acknowledged = {name.decode() for name in host.stdout.read().split()}
    assert acknowledged
    with service(home) as reader:
        eventually(lambda: reader.ingest() is not None and not waiting(home), "all is taken in")
        rows = reader.query("SELECT sample_id FROM sequences WHERE run = 'toy'")["sample_id"].to_pylist()
    assert len(rows) == len(set(rows))
    assert acknowledged <= set(rows)


def test_a_service_is_started_again_until_it_has_enough(home: Path, tmp_path: Path) -> None:
    """`up` says each time what the reason is; with more memory all is there, once each."""
    record(home)
    with memory(110 * MIB) as limited, (tmp_path / "said").open("wb") as said:
        command = [sys.executable, "-m", "logprobe.app.cli", "up", "--no-app", "--home", str(home)]
        up = subprocess.Popen(command, stderr=said)
        try:
            limited.limit(up.pid)
            killed = b"the monitor service ended unexpectedly (killed by SIGKILL"

            def is_said() -> bool:
                limited.strike()
                return (tmp_path / "said").read_bytes().count(killed) >= 2

            eventually(is_said, "the service was killed twice", 500)
            limited.allow(4096 * MIB)
            assert up.poll() is None
            with connected(home) as reader:
                eventually(lambda: reader.ingest() is not None and not waiting(home), "all is taken in")
                assert stored(reader) == (12, 192)
                eventually(lambda: is_well(home), "/healthz is well")
        finally:
            end(up)


def test_a_service_at_work_and_a_dashboard_are_started_again(home: Path, tmp_path: Path) -> None:
    record(home)
    command = [sys.executable, "-m", "logprobe.app.cli", "up", "--home", str(home), "--port", "0"]
    with (tmp_path / "said").open("wb") as said:
        up = subprocess.Popen(command, stderr=said)
    try:
        eventually(lambda: b"dashboard at" in (tmp_path / "said").read_bytes(), "the dashboard answers", 500)
        with connected(home) as reader:
            eventually(lambda: reader.ingest() is not None and not waiting(home), "all is taken in")
        for words in ("streamlit", "processes.service"):
            (killed, *_) = below(up.pid, words)
            os.kill(killed, signal.SIGKILL)
            eventually(lambda words=words, killed=killed: set(below(up.pid, words)) - {killed}, f"another {words}")
            assert eventually(lambda: asked(home, SEQUENCES), "SQL is answered") == 12
        assert up.poll() is None
        record(home, steps=range(3, 4))
        with connected(home) as reader:
            eventually(lambda: reader.ingest() is not None and not waiting(home), "what came later is taken in")
            assert stored(reader) == (16, 256)
        eventually(lambda: is_well(home), "/healthz is well")
    finally:
        end(up)


def asked(home: Path, sql: str) -> int | None:
    """What a statement answers; None: it was refused."""
    with suppress(LogprobeError), connect(home) as reader:
        return int(reader.query(sql)["n"][0].as_py())
    return None


def below(pid: int, words: str) -> list[int]:
    """The processes below `pid` that have `words` in their command line."""
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.Error):
            if words in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found
