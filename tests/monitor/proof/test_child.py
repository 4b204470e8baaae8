"""What a process of a scorer answers when its work fails: one line that says why."""

from __future__ import annotations

import json
from pathlib import Path

import pydantic
import pytest

from logprobe.monitor.proof.scorers.child import _answer


class Settings(pydantic.BaseModel):
    seats: int


def many() -> None:
    Settings(seats="many")  # type: ignore[arg-type]


def lacking() -> None:
    Settings()  # type: ignore[call-arg]


def caused() -> None:
    raise RuntimeError("a wrapper") from KeyError("the cause")


def several_lines() -> None:
    raise ValueError("1 validation error\n\nof another kind\nand more")


def silent() -> None:
    raise ValueError


def ended() -> None:
    raise SystemExit("the end")


@pytest.mark.parametrize(
    ("fails", "words"),
    [
        (many, "ValidationError: Input should be a valid integer, unable to parse string as an integer"),
        (lacking, "ValidationError: Field required"),
        (several_lines, "ValueError: 1 validation error"),
        (caused, "KeyError: 'the cause'"),
        (silent, "ValueError: no message"),
        (ended, "SystemExit: the end"),
    ],
)
def test_the_words_of_an_error(tmp_path: Path, fails, words: str) -> None:
    job, answer = tmp_path / "job.json", tmp_path / "answer.json"
    job.write_text("{}")
    _answer(lambda *_: fails(), job, answer)
    assert json.loads(answer.read_text()) == {"error": words}
