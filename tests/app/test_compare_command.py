"""`logprobe compare` on recorded runs, and its report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from logprobe.app.cli import main


def ask(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(["compare", *words]) == code
    return capsys.readouterr().out


def test_verdicts_for_people_and_for_programs(capsys: pytest.CaptureFixture[str], recorded_runs: Path) -> None:
    words = ("v1-initial", "v1-fixed", "--baseline", "v0-reference", "--home", str(recorded_runs))
    lines = ask(capsys, *words).splitlines()
    assert lines[0].startswith("v1-initial: worse in K3, ")
    assert lines[0].endswith("K3 leaves the baseline at step 0")
    assert lines[1].startswith("  why: raw logprobs: ")
    assert lines[1].endswith("`--logprobs-mode processed_logprobs` (vLLM; now raw_logprobs).")
    assert lines[2] == "v1-fixed: the same in 13 of 13 metrics"
    assert lines[4].startswith("differing setting")  # before what follows from it
    assert any(line.split() == ["engine.logprobs_mode", "raw_logprobs", "processed_logprobs"] for line in lines)
    document = json.loads(ask(capsys, *words, "--json"))
    assert document["baseline"]["run"] == "v0-reference"
    assert [run["metrics"][0]["verdict"] for run in document["runs"]] == ["worse", "same"]


def test_another_axis_and_other_metrics(capsys: pytest.CaptureFixture[str], recorded_runs: Path) -> None:
    words = ("v1-fixed", "--baseline", "v0-reference", "--home", str(recorded_runs))
    document = json.loads(ask(capsys, *words, "--align", "tokens", "--metric", "reward", "--json"))
    metrics = document["runs"][0]["metrics"]
    assert [(item["metric"], item["verdict"]) for item in metrics] == [("reward", "same")]
    assert document["runs"][0]["cell"] > 100
    assert main(["compare", *words, "--align", "onset"]) == 1
    assert "has no onset to align by" in capsys.readouterr().err


def test_mistakes_are_said_in_a_line(capsys: pytest.CaptureFixture[str], recorded_runs: Path) -> None:
    home = ("--home", str(recorded_runs))
    assert main(["compare", "v1", "--baseline", "v0-reference", *home]) == 1
    assert "did you mean" in capsys.readouterr().err
    words = ("compare", "v1-fixed", "--baseline", "v0-reference", *home)
    assert main([*words, "--metric", "k3"]) == 1
    assert "there is no metric 'k3'" in capsys.readouterr().err
