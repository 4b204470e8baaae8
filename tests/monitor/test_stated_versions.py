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

TOKENS = np.arange(10, 16)
SPANS = [(0, 2, "4"), (2, 6, "5")]


class Monitor:
    """A recorder and what the service does with its spool; steps have one sequence each, trained by version 6."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.recorder = Recorder(store.home.path, "run", rank=0)

    def train(self, step: int, **arguments: Any) -> None:
        defaults = {"sample_ids": [f"s{step}"], "weight_version": 6, "token_ids": [TOKENS]}
        tokens = arguments.get("token_ids", [TOKENS])
        whole = isinstance(tokens, np.ndarray)
        logprobs: Any = np.full(tokens.shape, -0.5) if whole else [np.full(6, -0.5)]
        assert self.recorder.training(step=step, **{**defaults, "trainer_logprobs": logprobs, **arguments})

    def sample(self, step: int, spans: Any) -> None:
        content = {"token_ids": [TOKENS], "logprobs": [np.full(6, -0.6, np.float32)]}
        assert self.recorder.rollout(sample_ids=[f"s{step}"], **content, weight_version=[spans])

    def settle(self) -> None:
        assert self.recorder.flush()
        take_in(self.store)

    def values(self, metric: str) -> list[float | None]:
        """Of all steps."""
        rows = self.store.query("SELECT value FROM metrics WHERE metric = ? ORDER BY step", [metric])
        return rows["value"].to_pylist()

    def sequences(self, column: str) -> list[Any]:
        return self.store.query(f"SELECT {column} FROM sequences ORDER BY step")[column].to_pylist()


@pytest.fixture
def monitor(home: Path) -> Iterator[Monitor]:
    with Store.open(Home(home)) as store:
        monitor = Monitor(store)
        yield monitor
        monitor.recorder.close()


def padded(per_token: Any) -> dict[str, Any]:
    """Six sampled tokens, a tool's answer before the third."""
    tokens, mask = np.array([[90, 10, 11, 91, 12, 13, 14, 15]]), np.array([[0, 1, 1, 0, 1, 1, 1, 1]])
    return {"token_ids": tokens, "mask": mask, "rollout_versions": per_token}


FORMS: list[dict[str, Any]] = [
    {"rollout_versions": [SPANS]},
    {"rollout_versions": [["4", "4", "5", "5", "5", "5"]]},
    {"rollout_versions": [np.array([4, 4, 5, 5, 5, 5])]},
    padded(np.array([[-1, 4, 4, -1, 5, 5, 5, 5]])),
    padded(np.array([[np.nan, 4, 4, np.nan, 5, 5, 5, 5]])),
    padded([SPANS]),
    padded([[4, 4, 5, 5, 5, 5]]),
    {"token_ids": TOKENS, "cu_seqlens": np.array([0, 6]), "rollout_versions": np.array([4, 4, 5, 5, 5, 5])},
]


def test_every_form_says_the_same_and_statistics_made_at_the_edge_carry_it_too(monitor: Monitor) -> None:
    for step, form in enumerate(FORMS):
        monitor.train(step, **form)
    with Recorder(monitor.store.home.path, "run", rank=1, raw_fraction=0.0, worst_sequences=0) as edge:
        monitor.recorder, recorder = edge, monitor.recorder
        monitor.train(len(FORMS), rollout_logprobs=[np.full(6, -0.6)], rollout_versions=[SPANS])
        monitor.recorder = recorder
    monitor.settle()
    count = len(FORMS) + 1
    assert monitor.sequences("raw_kept") == [True] * len(FORMS) + [False]
    assert monitor.values("weight_lag_mean") == pytest.approx([(2 * 2 + 4 * 1) / 6] * count)
    assert monitor.values("weight_lag_max") == [2] * count
    assert monitor.values("mixed_version_frac") == [1] * count
    assert monitor.values("unknown_version_frac") == [0] * count
    assert monitor.values("version_conflict_frac") == [None] * count, "nobody else said anything"
    assert monitor.sequences("version_source") == ["trainer"] * count
    assert [[tuple(span.values()) for span in spans] for spans in monitor.sequences("spans")] == [SPANS] * count


def test_beside_the_engine_each_fills_what_the_other_does_not_know(monitor: Monitor) -> None:
    for step, (sampled, stated) in enumerate(
        (([(0, 2, "4"), (2, 6, None)], [(2, 6, "5")]), ([(0, 6, "5")], 5), (None, SPANS))
    ):
        monitor.sample(step, sampled)
        monitor.train(step, rollout_versions=[stated])
    monitor.settle()
    assert monitor.values("weight_lag_mean") == pytest.approx([8 / 6, 1, 8 / 6])
    assert monitor.values("unknown_version_frac") == [0] * 3
    assert monitor.values("version_conflict_frac") == [None, 0, None]
    assert monitor.sequences("version_source") == ["both", "both", "trainer"]
    tokens = monitor.store.query("SELECT weight_version FROM tokens WHERE step = 0 ORDER BY position").to_pydict()
    assert tokens["weight_version"] == ["4", "4", "5", "5", "5", "5"]


def test_a_conflict_is_reported_and_diagnosed(monitor: Monitor, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_versions_that_do_not_fit_cost_only_themselves(monitor: Monitor) -> None:
    wrong: list[Any] = [[(0, 7, "4")], [4, 4, 4], [(0, 2)], np.array([0.5, 1, 1, 1, 1, 1])]
    for step, versions in enumerate(wrong):
        monitor.train(step, rollout_versions=[versions], rollout_logprobs=[np.full(6, -0.6)])
    monitor.settle()
    assert monitor.values("unknown_version_frac") == [1] * len(wrong)
    assert monitor.sequences("n") == [6] * len(wrong)
    told = monitor.store.query(
        "SELECT sum(count)::INT AS n, any_value(message) AS words FROM health_records WHERE event = 'bad_versions'"
    )
    assert told["n"].to_pylist() == [len(wrong)]
    assert "rollout_versions" in told["words"][0].as_py()
