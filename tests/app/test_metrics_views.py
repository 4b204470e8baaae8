"""`logprobe show RUN --metrics` by slice and as another framework would log it: what it prints."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import logprobe, record

from logprobe.collectors.recorder.recorder import Recorder
from logprobe.monitor import peers
from logprobe.monitor.home import Home
from logprobe.monitor.metrics import KEYS
from logprobe.monitor.store.retention import Retention, RetentionPolicy
from logprobe.monitor.store.store import Store

STEPS = 3


@pytest.fixture(scope="module")
def ingested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("views") / "home"
    record(home, "toy-run", steps=range(4))
    with Recorder(home, "told-run") as recorder:
        for step in range(STEPS):
            assert recorder.training(step=step, sample_ids=[f"s{step}-{i}" for i in range(4)], **batch(step))
    logprobe("up", "--once", "--home", home)
    return home


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


def table(home: Path, run: str, *arguments: str) -> list[list[str]]:
    """Cells of what is printed, without the line under the header."""
    header, _, *rows = logprobe("show", "--metrics", run, "--home", home, *arguments).stdout.splitlines()
    return [line.split() for line in (header, *rows)]


def document(home: Path, run: str, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(logprobe("show", "--metrics", run, "--home", home, "--json", *arguments).stdout)
    return found


# --- As another framework ---


@pytest.mark.parametrize("peer", peers.PEERS)
def test_a_framework_s_view_is_that_of_what_was_recorded(ingested: Path, peer: str) -> None:
    found = document(ingested, "told-run", "--as", peer)
    assert list(found) == ["run", "as", "steps"]
    assert (found["run"], found["as"]) == ("told-run", peer)
    assert [(entry["step"], entry["seen"]) for entry in found["steps"]] == [(step, 4) for step in range(STEPS)]
    for entry in found["steps"]:
        told = batch(entry["step"])
        sides = [told.pop(name) for name in ("rollout_logprobs", "trainer_logprobs", "mask")]
        del told["token_ids"]
        expected = peers.view(peer, *sides, **told)
        assert all(math.isfinite(value) for value in expected.values())
        assert entry["metrics"] == pytest.approx(expected, rel=1e-9, abs=1e-15)


def test_options_steps_and_short_names(ingested: Path) -> None:
    header, *rows = table(ingested, "toy-run", "--as", "verl")
    assert header == ["step", "sequences", "seen", *peers.PEERS["verl"].headline]
    assert "–" not in rows[0]
    chosen = ["--option", "rollout_is=token", "--option", "rollout_is_threshold=1.01", "--metric", "rollout_is_mean"]
    header, row = table(ingested, "told-run", "--as", "verl", *chosen, "--steps", "1")
    told = batch(1)
    sides = (told["rollout_logprobs"], told["trainer_logprobs"], told["mask"])
    expected = peers.view("verl", *sides, rollout_is="token", rollout_is_threshold=1.01)["rollout_is_mean"]
    assert header == ["step", "sequences", "seen", "rollout_is_mean"]
    assert row == ["1", "4", "4", f"{expected:.5g}"]


def test_without_raw_tokens_it_says_so(ingested: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    shutil.copytree(ingested, home)
    with Store.open(Home(home)) as store:
        Retention(store, RetentionPolicy(max_bytes=0)).run_once()
    (line,) = logprobe("show", "--metrics", "told-run", "--as", "verl", "--home", home, code=1).stderr.splitlines()
    assert "raw tokens with log-probs of both sides are kept for none of these steps" in line


def test_a_sample_of_raw_tokens_is_not_passed_off_as_all(home: Path) -> None:
    sizes = {"token_ids": 5, "rollout_logprobs": -1.0, "trainer_logprobs": -1.1}
    lists = {name: [np.full(3, value) for _ in range(40)] for name, value in sizes.items()}
    with Recorder(home, "sampled-run", raw_fraction=0.5, worst_sequences=1) as recorder:
        assert recorder.training(step=0, sample_ids=[f"s{i}" for i in range(40)], **lists)
    logprobe("up", "--once", "--home", home)
    shown = logprobe("show", "--metrics", "sampled-run", "--as", "openrlhf", "--home", home)
    step, sequences, seen, value = shown.stdout.splitlines()[2].split()
    assert (step, sequences, value) == ("0", "40", "0.1")
    assert 1 <= int(seen) < 40
    assert "cover only sequences whose raw tokens are kept" in shown.stderr


# --- By slice ---


def test_slices(ingested: Path) -> None:
    found = document(ingested, "toy-run", "--slice", "rank", "--steps", "1:")
    assert list(found) == ["run", "dimension", "frozen_steps", "slices"]
    assert (found["run"], found["dimension"], found["frozen_steps"]) == ("toy-run", "rank", 0)
    (entry,) = found["slices"]
    assert [entry[name] for name in ("step", "slice", "sequences", "tokens")] == [None, "0", 12, 192]
    assert list(entry["metrics"]) == list(KEYS)
    assert 0 < entry["metrics"]["backend.k3_kl"] < 1e-3
    assert entry["metrics"]["weight_lag_mean"] is None
    header, *_, last = table(ingested, "toy-run", "--slice", "weight_lag")
    assert header[:4] == ["weight_lag", "sequences", "tokens", "backend.k3_kl"]
    assert last[:3] == ["unknown", "16", "256"]
    header, *rows = table(ingested, "toy-run", "--slice", "length", "--per-step", "--metric", "reward")
    assert header == ["step", "length", "sequences", "tokens", "reward"]
    assert rows == [[str(step), "16–31", "4", "64", "1.5"] for step in range(4)]


def test_show_says_whether_the_log_probs_are_identical(ingested: Path) -> None:
    found = json.loads(logprobe("show", "toy-run", "--json", "--home", ingested).stdout)["bit_equality"]
    assert (found["verdict"], found["since_step"]) == ("different", 0)
    words = " ".join(logprobe("show", "toy-run", "--home", ingested).stdout.split())
    assert f"different: {found['reason']}" in words


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("--as ver", 1, "no peer 'ver'; did you mean 'verl'?"),
        ("--as verl --option rollout_iss=token", 1, "did you mean 'rollout_is'?"),
        ("--as verl --option rollout_is", 1, "write NAME=VALUE"),
        ("--as verl --metric kll", 1, "did you mean"),
        ("--as verl --slice rank", 2, "one of --slice and --as"),
        ("--as verl --per-step", 2, "--per-step goes with --slice"),
        ("--option a=b", 2, "--option goes with --as"),
        ("--slice lag", 1, "weight_lag"),
        ("--slice rank --steps 90:", 0, "no sequences in these steps"),
        ("--per-step", 2, "--per-step goes with --slice"),
        ("--pair total", 2, "--pair"),
    ],
)
def test_mistakes_say_what_to_do(ingested: Path, words: str, code: int, said: str) -> None:
    assert said in logprobe("show", "--metrics", "toy-run", "--home", ingested, *words.split(), code=code).stderr
