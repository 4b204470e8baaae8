"""The line with which a run begins: once per process group, by rank 0 alone, on stderr, and off by a variable."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, sys
from logprobe.collectors import Recorder
for _ in range(2):
    with Recorder(run="r", rank=int(sys.argv[1])) as recorder:
        recorder.step(1, loss=1.0)
if len(sys.argv) > 2 and not os.fork():
    with Recorder(run="r") as recorder:
        recorder.step(2, loss=1.0)
    os._exit(0)
os.wait() if len(sys.argv) > 2 else None
"""


def said(*arguments: str, **environment: str) -> str:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("LOGPROBE_")}
    command = [sys.executable, "-c", PROGRAM, *arguments]
    done = subprocess.run(
        command, env={**plain, **environment}, capture_output=True, text=True, check=True, start_new_session=True
    )
    assert done.stdout == ""
    return done.stderr


@pytest.mark.parametrize(("variable", "folder"), [("LOGPROBE_HOME", ""), ("XDG_DATA_HOME", "logprobe")])
def test_the_first_record_says_where_it_goes_once_per_process_group(tmp_path: Path, variable: str, folder: str) -> None:
    """The default data directory needs no option."""
    line = f"logprobe: recording run r to {tmp_path / 'h' / folder}; view: logprobe up\n"
    assert said("0", "fork", **{variable: str(tmp_path / "h")}) == line


@pytest.mark.parametrize(("rank", "environment"), [("1", {}), ("0", {"LOGPROBE_RECORD": "quiet"})])
def test_others_say_nothing(tmp_path: Path, rank: str, environment: dict[str, str]) -> None:
    assert said(rank, LOGPROBE_HOME=str(tmp_path / "h"), **environment) == ""
