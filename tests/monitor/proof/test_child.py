"""What a process of a scorer answers when its work fails: one line that says why."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = """
import pydantic
from logprobe.monitor.proof.scorers.child import answer_job

class Settings(pydantic.BaseModel):
    seats: int
    rows: int

def main(job, folder):
    {fails}

answer_job(main)
"""


@pytest.mark.parametrize(
    ("fails", "words"),
    [
        (
            "Settings(seats='many', rows=1)",
            "ValidationError: Input should be a valid integer, unable to parse string as an integer",
        ),
        ("Settings()", "ValidationError: Field required"),
        ("raise ValueError('1 validation error\\n\\nof another kind\\nand more')", "ValueError: 1 validation error"),
        ("raise RuntimeError('a wrapper') from KeyError('the cause')", "KeyError: 'the cause'"),
        ("raise ValueError", "ValueError: no message"),
        ("raise SystemExit('the end')", "SystemExit: the end"),
    ],
)
def test_the_words_of_an_error(tmp_path: Path, fails: str, words: str) -> None:
    job, answer = tmp_path / "job.json", tmp_path / "answer.json"
    job.write_text("{}")
    program = [sys.executable, "-c", _PROGRAM.replace("{fails}", fails), str(job), str(answer)]
    with subprocess.Popen(program, stdin=subprocess.PIPE) as process:  # it ends with its standard input
        assert process.wait(120) == 0
    assert json.loads(answer.read_text()) == {"error": words}
