"""Programs of ours without the second that their imports take: forked from one process that has them, see `fork_server`.

`Popen` and `run` are those of `subprocess`: what they start is a process of its own and our child, with environment, streams, working
directory and exit code of its own. That the commands start without such help is what `app/test_up.py`, `app/test_supervisor.py`,
`app/test_demo.py`, `contracts/test_package.py` and `scenarios` see, which do not use it.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import inspect
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from subprocess import DEVNULL, PIPE, TimeoutExpired
from types import SimpleNamespace
from typing import Any

import fork_server

__all__ = ["DEVNULL", "PIPE", "Popen", "TimeoutExpired", "run"]

# What the commands import. The service and many of them keep pandas out.
_PROGRAMS = (
    "-pandas",
    "logprobe.app.cli",
    "logprobe.app.processes.receiver",
    "logprobe.app.processes.service",
    "logprobe.collectors.relay.__main__",
)
_PAGES = ("streamlit.__main__", "logprobe.app.dashboard.application")

# An interpreter and its libraries read them when they start: one that differs needs an interpreter of its own.
_EARLY = ("PYTHON", "LD_", "LC_", "LANG", "MALLOC_", "GLIBC_", "COVERAGE_")
# No thread may run before the fork.
_ALONE = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
_ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith("LOGPROBE_")}
_PR_SET_CHILD_SUBREAPER = 36
_ASKING = threading.Lock()
_TETHER = "logprobe.app.processes.die_with_parent"


_ON: list[bool] = []


def begin() -> None:
    """From here on processes are forked. Until then, as in benchmarks, they are started as by `subprocess`."""
    _ON[:] = [True]


def on() -> bool:
    """Whether processes are forked."""
    return bool(_ON)


class Popen(subprocess.Popen[Any]):
    """As that of `subprocess`, of commands that begin with this interpreter."""

    modules: tuple[str, ...] = _PROGRAMS  # what the process that forks has imported
    environment: Mapping[str, str] = {}  # and has besides ours when it does

    def _execute_child(self, *given: Any) -> None:
        asked = inspect.signature(super()._execute_child).bind(*given).arguments
        how = SimpleNamespace(**asked)
        environment = dict(os.environ if how.env is None else how.env)
        if not on() or _early(environment) != _early(_ENVIRONMENT):
            super()._execute_child(*given)
            return
        assert not any((how.preexec_fn, how.shell, how.pass_fds, how.executable)), "only exec can do that"
        arguments = [os.fspath(argument) for argument in how.args]
        tether = [sys.executable, "-P", "-m", _TETHER, str(os.getpid())]
        tethered = arguments[: len(tether)] == tether
        python, *arguments = arguments[len(tether) :] if tethered else arguments
        assert python == sys.executable
        job = {
            "arguments": arguments,
            "environment": environment,
            "folder": str(how.cwd or Path.cwd()),
            "umask": _umask(),
            "session": how.start_new_session,
            "tethered": tethered,
        }
        streams = [
            number if stream == -1 else stream
            for number, stream in enumerate((how.p2cread, how.c2pwrite, how.errwrite))
        ]
        server = _server(_PAGES if "streamlit" in arguments[:3] else self.modules, tuple(self.environment.items()))
        self.pid = _fork(server, job, streams)
        self._child_created = True
        self._close_pipe_fds(how.p2cread, how.p2cwrite, how.c2pread, how.c2pwrite, how.errread, how.errwrite)


def run(command: list[str], *, timeout: float, **options: Any) -> subprocess.CompletedProcess[str]:
    """As that of `subprocess`, with what the process wrote as text."""
    with Popen(command, stdout=PIPE, stderr=PIPE, text=True, **options) as process:
        try:
            out, errors = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, errors)


def _fork(server: socket.socket, job: Mapping[str, Any], streams: list[int]) -> int:
    """Has a process forked, and adopts it as our child; → its number."""
    with _ASKING:
        _adopt(True)
        try:
            socket.send_fds(server, [json.dumps(job).encode()], streams)
            process, handed_over = server.recv(64), server.recv(64)
        finally:
            _adopt(False)
        assert handed_over, "the process that forks has ended; see what it wrote"
    return int(process)


def _adopt(orphans: bool) -> None:
    """Whether this process becomes the parent of those below it whose parent ends."""
    assert ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(orphans), 0, 0, 0) == 0


@functools.cache
def _server(modules: tuple[str, ...], environment: tuple[tuple[str, str], ...]) -> socket.socket:
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, fork_server.__file__, str(its.fileno()), *modules]
    with its:
        process = subprocess.Popen(
            command,
            stdin=DEVNULL,
            stdout=DEVNULL,
            pass_fds=[its.fileno()],
            env={**_ENVIRONMENT, **_ALONE, **dict(environment)},
        )
    atexit.register(_end, ours, process)
    return ours


def _end(connection: socket.socket, process: subprocess.Popen[bytes]) -> None:
    connection.close()
    process.wait(60)


def _early(environment: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in environment.items() if key.startswith(_EARLY)}


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask
