"""`logprobe show RUN --metrics --profile DIMENSION`: what it prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from processes import record

from logprobe.app import cli
from logprobe.monitor.analysis import profiles


@pytest.fixture(scope="module")
def ingested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("profiles") / "home"
    record(home, "toy-run", steps=range(4))
    assert cli.main(["up", "--once", "--home", str(home)]) == 0
    return home


def run(home: Path, *arguments: str) -> int:
    return cli.main(["show", "--metrics", "toy-run", "--home", str(home), *arguments])


def document(home: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    assert run(home, *arguments, "--json") == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_json_is_the_public_document(ingested: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(ingested, capsys, "--profile", "position", "--steps", "1:2")
    assert {name: found[name] for name in ("run", "profile", "pair")} == {
        "run": "toy-run",
        "profile": "position",
        "pair": "backend",
    }
    assert [bucket["label"] for bucket in found["buckets"]] == [f"{10 * i}–{10 * i + 10} %" for i in range(10)]
    assert sum(bucket["tokens"] for bucket in found["buckets"]) == 2 * 64
    assert {bucket["step"] for bucket in found["buckets"]} == {None}
    assert all(bucket["logprob_abs_diff_mean"] > 0 for bucket in found["buckets"])


def test_quantiles_say_how_exact_they_are(ingested: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = document(ingested, capsys, "--profile", "log_ratio")
    assert whole["relative_error"] == profiles.ERROR == 0.01
    (quantiles,) = whole["quantiles"]
    assert quantiles["tokens"] == 256
    assert 0 < quantiles["q0.5"] <= quantiles["q0.9"] <= quantiles["q0.99"] <= quantiles["q0.999"]
    by_step = document(ingested, capsys, "--profile", "log_ratio", "--per-step")["quantiles"]
    assert [(row["step"], row["tokens"]) for row in by_step] == [(step, 64) for step in range(4)]


def test_the_tables(ingested: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run(ingested, "--profile", "turn") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["label", "tokens", "logprob_abs_diff_mean", "log_ratio_mean", "k3_kl"]
    assert [line.split()[0] for line in lines[2:]] == ["0", "1", "2", "3", "4", "≥"]
    assert run(ingested, "--profile", "log_ratio", "--per-step", "--steps", "2:") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["step", "tokens", "q0.5", "q0.9", "q0.99", "q0.999"]
    assert [line.split()[:2] for line in lines[2:]] == [["2", "64"], ["3", "64"]]


def test_errors_say_what_to_do(ingested: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(ingested, "--profile", "lag") == 1
    assert "position, turn, probability, log_ratio" in capsys.readouterr().err
    assert run(ingested, "--profile", "turn", "--pair", "update") == 0
    assert "no profile of these steps" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--profile", "turn", "--slice", "rank"], "one of --slice, --profile and --as"),
        (["--profile", "turn", "--as", "verl"], "one of --slice, --profile and --as"),
        (["--profile", "turn", "--metric", "reward"], "--metric does not go with --profile"),
        (["--pair", "total"], "--pair: pass --tokens, or --metrics with --profile"),
        (["--option", "a=b"], "--option goes with --as"),
    ],
)
def test_wrong_combinations(
    ingested: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], problem: str
) -> None:
    assert run(ingested, *arguments) == 2
    assert problem in capsys.readouterr().err
