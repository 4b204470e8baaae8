"""A process that is forked is as one that was started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import forked
import pytest
from processes import SECONDS

SEEN = """
import json, os, signal, sys
seen = {
    "name": __name__, "file": globals().get("__file__"), "arguments": sys.argv, "path": sys.path[0], "folder": os.getcwd(),
    "variable": os.environ.get("LOGPROBE_MARK"), "variables": len(os.environ), "parent": os.getppid() == int(sys.argv[1]),
    "session": os.getsid(0) == os.getpid(), "umask": os.umask(0), "said": sys.stdin.read(), "module": "duckdb" in dir(),
    "interrupt": signal.getsignal(signal.SIGINT) is signal.default_int_handler, "open": sorted(os.listdir("/proc/self/fd"))[:4],
    "threads": len(os.listdir("/proc/self/task")), "main": sys.modules["__main__"].__name__,
}
print(json.dumps(seen), flush=True)
os.close(0)
raise ValueError("the last line")
"""


@pytest.mark.parametrize("how", ["program", "file"])
@pytest.mark.parametrize("session", [False, True])
def test_it_sees_the_same_and_is_seen_the_same(tmp_path: Path, how: str, session: bool) -> None:
    (tmp_path / "program.py").write_text(SEEN)
    program = ["-c", SEEN] if how == "program" else [str(tmp_path / "program.py")]
    command = [sys.executable, *program, str(os.getpid()), "α"]
    environment = {**os.environ, "LOGPROBE_MARK": "β"}

    def told(kind: type[subprocess.Popen]) -> tuple[dict, list[str], int]:
        process = kind(
            command, env=environment, cwd=tmp_path, text=True, start_new_session=session,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        out, errors = process.communicate("asked", timeout=SECONDS)
        return json.loads(out), errors.splitlines()[-1:], process.returncode

    seen, errors, code = told(forked.Popen)
    assert (seen, errors, code) == told(subprocess.Popen)
    assert (errors, code) == (["ValueError: the last line"], 1)
    assert seen["parent"]


def test_signals_go_to_it_and_its_end_is_told() -> None:
    code = "import sys, time; print('there', flush=True); time.sleep(600)"
    for number, status in ((signal.SIGTERM, -15), (signal.SIGKILL, -9)):
        with forked.Popen([sys.executable, "-c", code], stdout=forked.PIPE, stderr=forked.DEVNULL) as process:
            assert process.stdout.readline() == b"there\n"
            assert process.poll() is None
            process.send_signal(number)
            assert process.wait(SECONDS) == status


def test_what_an_interpreter_reads_when_it_starts_gets_one_of_its_own() -> None:
    code = [sys.executable, "-c", "import sys; print(sys.flags.optimize, 'duckdb' in sys.modules)"]
    assert forked.run(code, timeout=SECONDS).stdout == "0 True\n"
    environment = {**os.environ, "PYTHONOPTIMIZE": "1"}
    assert forked.run(code, timeout=SECONDS, env=environment).stdout == "1 False\n"
