"""A run that went on from a checkpoint under its name says so, and what a framework's user can do is said in the framework's words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recorded_home import ingest_recorded

from logprobe.app.cli import main
from logprobe.app.dashboard.data import events
from logprobe.app.text.gaps import gaps_of
from logprobe.collectors.recorder.recorder import Recorder
from logprobe.monitor.reader import open_reader


def train(recorder: Recorder, steps: range, attempt: str) -> None:
    for step in steps:
        recorder.training(
            step=step,
            sample_ids=[f"{attempt}-{step}-{row}" for row in range(4)],
            token_ids=np.ones((4, 6), np.int64),
            trainer_logprobs=np.full((4, 6), -1.0),
            mask=np.ones((4, 6)),
        )


def status(home: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    capsys.readouterr()
    main(["show", "run", "--home", str(home), *options])
    return capsys.readouterr().out


def test_steps_that_two_attempts_trained_are_named(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for attempt, steps in (("first", range(1, 5)), ("second", range(3, 7))):
        with Recorder(home, "run", rank=0) as recorder:
            train(recorder, steps, attempt)
    ingest_recorded(home)
    found = json.loads(status(home, capsys, "--json"))["attempts"]
    assert (found["steps"], found["first_step"], found["last_step"], found["older"]) == (2, 3, 4, 8)
    words = " ".join(status(home, capsys).split())
    assert "2 steps (3 to 4) were trained again without a declared beginning; 8 sequences" in words
    main(["doctor", "--home", str(home)])
    assert "use a new run name after returning to a checkpoint" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(("back_to", "steps"), [(2, (3, 2, 4, 12)), (3, None)])  # by one step, a thread may be late
def test_a_session_that_goes_back_says_so(
    home: Path, capsys: pytest.CaptureFixture[str], back_to: int, steps: tuple[int, ...] | None
) -> None:
    with Recorder(home, "run", rank=0) as recorder:
        train(recorder, range(1, 5), "first")
        train(recorder, range(back_to, 8), "second")
    ingest_recorded(home)
    found = json.loads(status(home, capsys, "--json"))["attempts"]
    said = None if found is None else (found["steps"], found["first_step"], found["last_step"], found["older"])
    assert said == steps


def test_a_session_that_goes_back_twice_says_each_step(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Recorder(home, "run", rank=0) as recorder:
        train(recorder, range(1, 5), "first")
        train(recorder, range(2, 8), "second")
        train(recorder, range(5, 10), "third")
    ingest_recorded(home)
    found = json.loads(status(home, capsys, "--json"))["attempts"]
    assert (found["steps"], found["first_step"], found["last_step"], found["older"]) == (6, 2, 7, 24)


def test_a_file_in_the_order_of_its_samples_has_one_attempt(
    home: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    names = {"token_ids": [1, 2], "rollout_logprobs": [-1.0, -2.0], "trainer_logprobs": [-1.0, -2.0]}
    steps = [(sample, step) for sample in range(4) for step in range(1, 9)]
    file = tmp_path / "by_sample.jsonl"
    file.write_text("".join(json.dumps({"step": at, "sample_id": f"{of}-{at}", **names}) + "\n" for of, at in steps))
    assert main(["import", str(file), "--run", "run", "--home", str(home)]) == 0
    ingest_recorded(home)
    assert json.loads(status(home, capsys, "--json"))["attempts"] is None


def test_a_file_whose_steps_go_back_says_so(home: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Its records have no times."""
    names = {"token_ids": [1, 2], "rollout_logprobs": [-1.0, -2.0], "trainer_logprobs": [-1.0, -2.0]}
    steps = [("first", step) for step in range(1, 5)] + [("second", step) for step in range(2, 8)]
    file = tmp_path / "resumed.jsonl"
    file.write_text("".join(json.dumps({"step": at, "sample_id": f"{of}-{at}", **names}) + "\n" for of, at in steps))
    assert main(["import", str(file), "--run", "run", "--home", str(home)]) == 0
    ingest_recorded(home)
    found = json.loads(status(home, capsys, "--json"))["attempts"]
    assert (found["steps"], found["first_step"], found["last_step"], found["older"]) == (3, 2, 4, 3)


def test_a_session_that_says_where_it_goes_back_to_counts_alone(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Recorder(home, "run", rank=0) as recorder:
        train(recorder, range(1, 5), "first")
        assert recorder.begins(2)
        train(recorder, range(2, 8), "second")
    ingest_recorded(home)
    found = json.loads(status(home, capsys, "--json"))["attempts"]
    assert (found["steps"], found["aside_steps"]) == (None, 3)


def test_an_attempt_that_says_where_it_begins_counts_alone(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for attempt, steps in (("first", range(1, 5)), ("second", range(3, 7))):
        with Recorder(home, "run", rank=0) as recorder:
            assert recorder.begins(steps[0])
            train(recorder, steps, attempt)
    ingest_recorded(home)
    words = " ".join(status(home, capsys).split())
    assert "2 steps (3 to 4) were trained again, and the newest attempt counts; 8 sequences of older ones" in words
    main(["doctor", "--home", str(home)])
    assert "✗ run:" not in capsys.readouterr().out
    with open_reader(home) as reader:
        (event,) = [event for event in events(reader, "run") if "attempt" in event.words]
    assert (event.kind, event.at) == ("restart", 3)


@pytest.mark.parametrize("ranks", [(0, 1), (None, None)])
def test_recorders_at_work_side_by_side_are_one_attempt(home: Path, capsys: Any, ranks: tuple[int | None, ...]) -> None:
    """The second one starts late, when the first has recorded the step already."""
    with Recorder(home, "run", rank=ranks[0]) as first:
        train(first, range(1, 3), "a")
        assert first.flush()
        with Recorder(home, "run", rank=ranks[1]) as second:
            train(second, range(1, 3), "b")
        train(first, range(3, 4), "a")
    ingest_recorded(home)
    assert json.loads(status(home, capsys, "--json"))["attempts"] is None


def test_gaps_are_mended_in_the_words_of_the_framework(home: Path) -> None:
    expected = {"trl": "use_vllm=True", "ms-swift": "--use_vllm true", "none": "pass rollout_logprobs="}
    for framework in expected:
        with Recorder(home, framework) as recorder:
            if framework != "none":
                recorder.config({"framework": framework}, kind="trainer_config")
            train(recorder, range(1, 2), "a")
    ingest_recorded(home)
    with open_reader(home) as reader:
        found = {row["run"]: dict(gaps_of(row)) for row in reader.read("cli_gaps", run=None).to_pylist()}
    for framework, words in expected.items():
        (remedy,) = [remedy for text, remedy in found[framework].items() if "rollout log-probs" in text]
        assert words in remedy
    assert not any("Recorder" in each or "pass " in each for each in found["trl"].values())
