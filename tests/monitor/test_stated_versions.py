"""What the trainer says of the weights that sampled: every form it may have, alone, beside the engine's record, and against it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recorded_home import take_in

from logprobe.app.cli import main
from logprobe.app.doctor import examine
from logprobe.collectors import Recorder
from logprobe.monitor.home import Home
from logprobe.monitor.judging.diagnosing import diagnose
from logprobe.monitor.store.store import Store

KEYS = (
    "weight_lag_mean",
    "weight_lag_max",
    "mixed_version_frac",
    "unknown_version_frac",
    "version_conflict_frac",
)
TOKENS = np.arange(10, 16)
SPANS = [(0, 2, "4"), (2, 6, "5")]
PADDED_MASK = np.array([[0, 1, 1, 0, 1, 1, 1, 1]])  # six sampled tokens, a tool's answer before the third


class Monitor:
    """A recorder and what the service does with its spool."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.recorder = Recorder(store.home.path, "run", rank=0)

    def train(self, step: int, **arguments: Any) -> None:
        defaults = {"sample_ids": [f"s{step}"], "weight_version": 6, "rollout_logprobs": None}
        if "token_ids" not in arguments:
            defaults |= {"token_ids": [TOKENS], "mask": None}
        tokens = arguments.get("token_ids", [TOKENS])
        whole = isinstance(tokens, np.ndarray)
        logprobs: Any = np.full(tokens.shape, -0.5) if whole else [np.full(len(row), -0.5) for row in tokens]
        assert self.recorder.training(step=step, **{**defaults, "trainer_logprobs": logprobs, **arguments})

    def sample(self, step: int, spans: Any) -> None:
        assert self.recorder.rollout(
            sample_ids=[f"s{step}"],
            token_ids=[TOKENS],
            logprobs=[np.full(6, -0.6, np.float32)],
            weight_version=[spans],
        )

    def settle(self) -> None:
        assert self.recorder.flush()
        take_in(self.store)

    def step(self, step: int) -> dict[str, float | None]:
        rows = self.store.query("SELECT metric, value FROM metrics WHERE step = ?", [step]).to_pylist()
        values = {row["metric"]: row["value"] for row in rows}
        return {key: values[key] for key in KEYS}

    def sequence(self, step: int) -> dict[str, Any]:
        (row,) = self.store.query("SELECT * FROM sequences WHERE step = ?", [step]).to_pylist()
        return row


@pytest.fixture
def monitor(home: Path) -> Iterator[Monitor]:
    with Store.open(Home(home)) as store:
        monitor = Monitor(store)
        yield monitor
        monitor.recorder.close()


def padded(per_token: Any) -> dict[str, Any]:
    return {
        "token_ids": np.array([[90, 10, 11, 91, 12, 13, 14, 15]]),
        "mask": PADDED_MASK,
        "rollout_versions": per_token,
    }


def test_every_form_says_the_same(monitor: Monitor):
    forms: list[dict[str, Any]] = [
        {"rollout_versions": [SPANS]},
        {"rollout_versions": [["4", "4", "5", "5", "5", "5"]]},
        {"rollout_versions": [np.array([4, 4, 5, 5, 5, 5])]},
        padded(np.array([[-1, 4, 4, -1, 5, 5, 5, 5]])),
        padded(np.array([[np.nan, 4, 4, np.nan, 5, 5, 5, 5]])),
        padded([SPANS]),
        padded([[4, 4, 5, 5, 5, 5]]),
        {
            "token_ids": np.arange(10, 16),
            "cu_seqlens": np.array([0, 6]),
            "trainer_logprobs": np.full(6, -0.5),
            "rollout_versions": np.array([4, 4, 5, 5, 5, 5]),
        },
    ]
    for step, form in enumerate(forms):
        monitor.train(step, **form)
    monitor.settle()
    for step in range(len(forms)):
        assert monitor.step(step) == {
            "weight_lag_mean": pytest.approx((2 * 2 + 4 * 1) / 6),
            "weight_lag_max": 2,
            "mixed_version_frac": 1,
            "unknown_version_frac": 0,
            "version_conflict_frac": None,  # nobody else said anything
        }, step
        row = monitor.sequence(step)
        assert row["version_source"] == "trainer"
        assert [tuple(span.values()) for span in row["spans"]] == SPANS, step


def test_beside_the_engine_each_fills_what_the_other_does_not_know(monitor: Monitor):
    monitor.sample(0, [(0, 2, "4"), (2, 6, None)])
    monitor.train(0, rollout_versions=[[(2, 6, "5")]])
    monitor.sample(1, [(0, 6, "5")])
    monitor.train(1, rollout_versions=[5])
    monitor.sample(2, None)
    monitor.train(2, rollout_versions=[SPANS])
    monitor.settle()
    for step, lag in ((0, 8 / 6), (1, 1), (2, 8 / 6)):
        assert monitor.step(step)["weight_lag_mean"] == pytest.approx(lag)
        assert monitor.step(step)["unknown_version_frac"] == 0
    assert [monitor.step(step)["version_conflict_frac"] for step in range(3)] == [None, 0, None]
    assert [monitor.sequence(step)["version_source"] for step in range(3)] == ["both", "both", "trainer"]
    tokens = monitor.store.query("SELECT weight_version FROM tokens WHERE step = 0 ORDER BY position").to_pydict()
    assert tokens["weight_version"] == ["4", "4", "5", "5", "5", "5"]


def test_a_conflict_is_reported_and_diagnosed(monitor: Monitor, capsys: pytest.CaptureFixture[str]):
    for step in (3, 4):
        monitor.sample(step, [(0, 6, "4")])
        monitor.train(step, rollout_versions=[SPANS if step == 4 else 4])
    monitor.settle()
    found = diagnose(monitor.store, "run")
    (finding,) = [finding for finding in found["findings"] if finding["cause"] == "version_conflict"]
    assert finding["evidence"] == {"tokens_compared": 12, "tokens_differing": 4, "engine_older": 4, "engine_newer": 0}
    assert (finding["since_step"], finding["layer"]) == (4, "inference_path")
    monitor.store.close()
    words = "state different weight versions of 4 of 12 tokens (steps 4 to 4)"
    assert any(words in each.text and each.level == "problem" for each in examine(str(monitor.store.home.path)))
    main(["show", "run", "--home", str(monitor.store.home.path)])
    assert words in capsys.readouterr().out


@pytest.mark.parametrize(
    "wrong",
    [[[(0, 7, "4")]], [[4, 4, 4]], [[(0, 2)]], [np.array([0.5, 1, 1, 1, 1, 1])]],
    ids=["span outside", "too few", "no version", "no whole number"],
)
def test_versions_that_do_not_fit_cost_only_themselves(monitor: Monitor, wrong: Any):
    monitor.train(0, rollout_versions=wrong, rollout_logprobs=[np.full(6, -0.6)])
    monitor.settle()
    assert monitor.step(0)["unknown_version_frac"] == 1
    assert monitor.sequence(0)["n"] == 6
    (problem,) = monitor.store.query("SELECT message FROM health_records WHERE event = 'bad_versions'").to_pylist()
    assert "rollout_versions" in problem["message"]


def test_statistics_made_at_the_edge_carry_them_too(home: Path):
    with Store.open(Home(home)) as store:
        monitor = Monitor(store)
        monitor.recorder.close()
        monitor.recorder = Recorder(home, "run", rank=0, raw_fraction=0.0, worst_sequences=0)
        monitor.train(0, rollout_logprobs=[np.full(6, -0.6)], rollout_versions=[SPANS])
        monitor.settle()
        assert monitor.step(0)["weight_lag_mean"] == pytest.approx(8 / 6)
        assert not monitor.sequence(0)["raw_kept"]
        monitor.recorder.close()
