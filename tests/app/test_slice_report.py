"""`logprobe show RUN --metrics --slice DIMENSION`: what it prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from processes import record

from logprobe.app import cli
from logprobe.monitor.metrics import KEYS


@pytest.fixture(scope="module")
def ingested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("slices") / "home"
    record(home, "toy-run", steps=range(4))
    assert cli.main(["up", "--once", "--home", str(home)]) == 0
    return home


def run(home: Path, *arguments: str) -> int:
    return cli.main(["show", "--metrics", "toy-run", "--home", str(home), *arguments])


def test_the_json_is_the_public_document(ingested: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run(ingested, "--slice", "rank", "--steps", "1:", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert list(document) == ["run", "dimension", "frozen_steps", "slices"]
    assert document["frozen_steps"] == 0
    assert (document["run"], document["dimension"]) == ("toy-run", "rank")
    (entry,) = document["slices"]
    assert {name: entry[name] for name in ("step", "slice", "sequences", "tokens")} == {
        "step": None,
        "slice": "0",
        "sequences": 12,
        "tokens": 192,
    }
    assert list(entry["metrics"]) == list(KEYS)
    assert 0 < entry["metrics"]["backend.k3_kl"] < 1e-3
    assert entry["metrics"]["weight_lag_mean"] is None


def test_the_table_names_the_dimension_and_what_is_unknown(ingested: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run(ingested, "--slice", "weight_lag") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:4] == ["weight_lag", "sequences", "tokens", "backend.k3_kl"]
    assert lines[-1].split()[:3] == ["unknown", "16", "256"]
    assert run(ingested, "--slice", "length", "--per-step", "--metric", "reward") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["step", "length", "sequences", "tokens", "reward"]
    assert [line.split() for line in lines[2:]] == [[str(step), "16–31", "4", "64", "1.5"] for step in range(4)]


def test_errors_say_what_to_do(ingested: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(ingested, "--slice", "lag") == 1
    assert "weight_lag" in capsys.readouterr().err
    assert run(ingested, "--slice", "rank", "--steps", "90:") == 0
    assert "no sequences in these steps" in capsys.readouterr().err
    assert run(ingested, "--per-step") == 2
    assert "--per-step goes with --slice or --profile" in capsys.readouterr().err


def test_status_says_whether_the_log_probs_are_identical(ingested: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["show", "toy-run", "--json", "--home", str(ingested)]) == 0
    found = json.loads(capsys.readouterr().out)["on_policy"]
    assert (found["verdict"], found["since_step"]) == ("different", 0)
    assert cli.main(["show", "toy-run", "--home", str(ingested)]) == 0
    assert f"different: {found['reason']}" in " ".join(capsys.readouterr().out.split())
