"""`logprobe show RUN --metrics --as FRAMEWORK`: what it prints, and that it is the view of the recorded tokens."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import record

from logprobe.app import cli
from logprobe.collectors.recorder.recorder import Recorder
from logprobe.monitor import peers
from logprobe.monitor.home import Home
from logprobe.monitor.store.retention import Retention, RetentionPolicy
from logprobe.monitor.store.store import Store

STEPS = 3


@pytest.fixture(scope="module")
def ingested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("peers") / "home"
    record(home, "toy-run", steps=range(2))
    recorder = Recorder(home, "told-run")
    for step in range(STEPS):
        assert recorder.training(step=step, sample_ids=[f"s{step}-{i}" for i in range(4)], **batch(step))
    assert recorder.close()
    assert run_ingest(home) == 0
    return home


def run_ingest(home: Path) -> int:
    return cli.main(["up", "--once", "--home", str(home)])


def batch(step: int) -> dict[str, Any]:
    random = np.random.default_rng(step)
    shape = (4, 6)
    rollout = -random.exponential(size=shape).astype(np.float32) - 0.01
    trainer = np.minimum(rollout + random.normal(scale=0.05, size=shape).astype(np.float32), -1e-4)
    mask = random.random(shape) < 0.7
    mask[:, 0] = mask[:, -1] = True
    mask[3] = False  # a sequence that was masked out
    return {
        "token_ids": random.integers(0, 99, shape),
        "mask": mask,
        "rollout_logprobs": rollout,
        "trainer_logprobs": trainer,
        "current_logprobs": (trainer + 0.01).astype(np.float32),
        "advantages": random.normal(size=shape).astype(np.float32),
    }


def run(home: Path, name: str, *arguments: str) -> int:
    return cli.main(["show", "--metrics", name, "--home", str(home), *arguments])


@pytest.mark.parametrize("peer", peers.PEERS)
def test_the_json_holds_the_view_of_what_was_recorded(
    ingested: Path, peer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert run(ingested, "told-run", "--as", peer, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert list(document) == ["run", "as", "steps"]
    assert (document["run"], document["as"]) == ("told-run", peer)
    assert [(entry["step"], entry["seen"]) for entry in document["steps"]] == [(step, 4) for step in range(STEPS)]
    for entry in document["steps"]:
        told = batch(entry["step"])
        expected = peers.view(
            peer,
            told["rollout_logprobs"],
            told["trainer_logprobs"],
            told["mask"],
            current_logprobs=told["current_logprobs"],
            advantages=told["advantages"],
        )
        assert all(math.isfinite(value) for value in expected.values())
        assert entry["metrics"] == pytest.approx(expected, rel=1e-9, abs=1e-15)


def test_options_steps_and_short_names(ingested: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    chosen = ["--option", "rollout_is=token", "--option", "rollout_is_threshold=1.01", "--metric", "rollout_is_mean"]
    assert run(ingested, "told-run", "--as", "verl", *chosen, "--steps", "1") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["step", "sequences", "seen", "rollout_is_mean"]
    told = batch(1)
    sides = (told["rollout_logprobs"], told["trainer_logprobs"], told["mask"])
    expected = peers.view("verl", *sides, rollout_is="token", rollout_is_threshold=1.01)["rollout_is_mean"]
    assert lines[2].split() == ["1", "4", "4", f"{expected:.5g}"]


def test_the_table_shows_each_peers_headline(ingested: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, peer in peers.PEERS.items():
        capsys.readouterr()
        assert run(ingested, "toy-run", "--as", name) == 0
        header, _, *rows = capsys.readouterr().out.splitlines()
        assert header.split() == ["step", "sequences", "seen", *peer.headline]
        assert "–" not in rows[0].split()


def test_without_raw_tokens_it_says_so(ingested: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = tmp_path / "home"
    shutil.copytree(ingested, home)
    with Store.open(Home(home)) as store:
        Retention(store, RetentionPolicy(max_bytes=0)).run_once()
    assert run(home, "told-run", "--as", "verl") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "raw tokens with log-probs of both sides are kept for none of these steps" in line


def test_a_sample_of_raw_tokens_is_not_passed_off_as_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorder = Recorder(tmp_path, "sampled-run", raw_fraction=0.5, worst_sequences=1)
    sizes = {"token_ids": 5, "rollout_logprobs": -1.0, "trainer_logprobs": -1.1}
    lists = {name: [np.full(3, value) for _ in range(40)] for name, value in sizes.items()}
    assert recorder.training(step=0, sample_ids=[f"s{i}" for i in range(40)], **lists)
    assert recorder.close()
    assert run_ingest(tmp_path) == 0
    capsys.readouterr()
    assert run(tmp_path, "sampled-run", "--as", "openrlhf") == 0
    shown = capsys.readouterr()
    step, sequences, seen, value = shown.out.splitlines()[2].split()
    assert (step, sequences, value) == ("0", "40", "0.1")
    assert 1 <= int(seen) < 40
    assert "cover only sequences whose raw tokens are kept" in shown.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--as", "ver"], "no peer 'ver'; did you mean 'verl'?"),
        (["--as", "verl", "--option", "rollout_iss=token"], "did you mean 'rollout_is'?"),
        (["--as", "verl", "--option", "rollout_is"], "write NAME=VALUE"),
        (["--as", "verl", "--metric", "kll"], "did you mean"),
    ],
)
def test_errors_say_what_to_do(
    ingested: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(ingested, "toy-run", *arguments) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["--option", "rollout_is=token"], ["--as", "verl", "--slice", "rank"], ["--as", "verl", "--per-step"]]
)
def test_wrong_usage_exits_with_2(ingested: Path, arguments: list[str]) -> None:
    assert run(ingested, "toy-run", *arguments) == 2
