"""A process that has imported modules, and forks others that go on as if a command had started them: see `forked`.

    python fork_server.py SOCKET [-]MODULE[?] …

A module with a minus is kept out while the others are imported, one with a question mark may be missing. Each message on the socket is a JSON document with the three standard streams as descriptors. It is answered with the number of the
process, and once that has the parent it should have, with another message.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import runpy
import signal
import socket
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

_STREAMS = 3
_PR_SET_PDEATHSIG = 1


class _KeptOut(MetaPathFinder):
    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if name in self._names:
            raise ModuleNotFoundError(f"{name} is kept out", name=name)


def main() -> dict[str, Any] | None:
    """What is to be run, in a process that was forked for it; None: nobody asks any more."""
    number, *modules = sys.argv[1:]
    connection = socket.socket(fileno=int(number))
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    keeper = _KeptOut(module[1:] for module in modules if module[0] == "-")
    sys.meta_path.insert(0, keeper)
    for module in modules:
        with suppress(*[ImportError] * module.endswith("?")):
            if module[0] != "-":
                import_module(module.rstrip("?"))
    sys.meta_path.remove(keeper)
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a thread would be missing in every fork"
    gc.collect()
    gc.freeze()  # what all share is not written to by a collection of one of them
    sys.stdout.flush()
    while True:
        document, streams, _, _ = socket.recv_fds(connection, 1 << 20, _STREAMS)
        if not document:
            return None
        between = os.fork()
        if between == 0:
            between = os.getpid()
            process = os.fork()
            if process:
                connection.send(str(process).encode())
                os._exit(0)  # so that the process is handed to the one that asks
            while os.getppid() == between:
                time.sleep(0.0005)
            connection.detach()
            signal.signal(signal.SIGINT, interrupt)
            return _become(json.loads(document), streams)
        os.waitpid(between, 0)
        connection.send(b"handed over")
        for stream in streams:
            os.close(stream)


def _become(job: dict[str, Any], streams: list[int]) -> dict[str, Any]:
    """All that a new process has of its own."""
    if job["session"]:
        os.setsid()
    if job["tethered"]:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(_STREAMS, os.sysconf("SC_OPEN_MAX"))
    sys.stdout.reconfigure(line_buffering=os.isatty(1))  # type: ignore[union-attr]
    os.chdir(job["folder"])
    os.umask(job["umask"])
    os.environ.clear()
    os.environ.update(job["environment"])
    time.tzset()
    return job


def _run(arguments: list[str]) -> None:
    """What the interpreter does with its arguments."""
    places = {"-P": [], "-m": [str(Path.cwd())], "-c": [""]}
    sys.path[:1] = places.get(arguments[0], [str(Path(arguments[0]).resolve().parent)])
    if arguments[0] == "-P":
        arguments = arguments[1:]
    if arguments[0] == "-m":
        name, sys.argv = arguments[1], arguments[1:]
        for started in (f"{name}.__main__", *(() if hasattr(sys.modules.get(name), "__path__") else (name,))):
            sys.modules.pop(started, None)  # it runs as __main__, as if nobody had imported it
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    elif arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        program = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(arguments[1], "<string>", "exec"), vars(program))
    else:
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__" and (asked := main()):
    _run(asked["arguments"])
