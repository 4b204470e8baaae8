"""Recorded runs against the reference: from a home, from folders, and across homes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import median

import pytest
from recorded_home import SAMPLE_DATA, ingest_recorded

from logprobe.app.text.comparison import outcome
from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.compare import Comparison, History, Places, compare, compared

MISMATCH = (
    "backend.k3_kl",
    "backend.logprob_abs_diff_mean",
    "backend.ratio_mean",
    "backend.ess",
    "backend.prob_pearson",
)


@pytest.fixture(scope="module")
def found(recorded_runs: Path) -> Comparison:
    with Places(str(recorded_runs)) as places:
        runs = [places.find(name) for name in ("v1-initial", "v1-fixed", "late-growth")]
        return compare(runs, places.find("v0-reference"))


def verdicts(found: Comparison, number: int) -> dict[str, str]:
    return {item.metric: item.verdict for item in found.pairings[number].metrics}


def test_the_first_attempt_is_worse_from_its_first_step(found: Comparison) -> None:
    initial = verdicts(found, 0)
    assert {initial[metric] for metric in MISMATCH} == {"worse"}
    assert initial["reward"] == "worse"
    assert found.pairings[0].leaves_at == 0
    assert [item.fact for item in found.pairings[0].relevant][:2] == ["engine.logprobs_mode", "updates.cache_cleared"]


def test_the_mended_run_is_the_same_in_everything(found: Comparison) -> None:
    assert set(verdicts(found, 1).values()) == {"same"}
    assert found.pairings[1].leaves_at is None


def test_growth_that_begins_late_is_dated_and_only_what_is_common_is_compared(found: Comparison) -> None:
    late = found.pairings[2]
    manifest = json.loads((SAMPLE_DATA / "late-growth" / "RUN.json").read_text())
    assert abs(late.growth.since_step - manifest["onset_step"]) <= 60
    assert (late.steps, late.common, late.beyond) == (800, 300, 500)
    assert outcome(late).endswith(
        f"; it goes on for 500 steps that are not compared: critical since step {late.growth.since_step}"
    )
    assert [found.pairings[number].beyond for number in (0, 1)] == [0, 0]
    reward = next(item for item in late.metrics if item.metric == "reward")
    trend = found.histories[3].trend("reward")
    assert reward.final == median(trend[step] for step in range(270, 300))  # where the baseline's is from, too
    assert [item.fact for item in late.relevant] == ["sampling.temperature", "trainer.temperature"]


def test_an_overlay_has_every_step_of_every_run(found: Comparison) -> None:
    overlay = found.overlay("backend.k3_kl")
    assert {label: len(points) for label, points in overlay.items()} == {
        "v0-reference": 300, "v1-initial": 300, "v1-fixed": 300, "late-growth": 800,
    }  # fmt: skip
    assert found.overlay("routing_agreement") == {}


def test_an_overlay_breaks_where_steps_are_missing_not_where_one_took_long() -> None:
    steps = (0, 1, 2, 3, 50, 51)
    seconds = {0: 0.0, 1: 1.0, 2: 900.0, 3: 901.0, 50: 902.0, 51: 903.0}
    run = History("run", steps, seconds=seconds, trends={"reward": dict.fromkeys(steps, 1.0)})
    points = compared([run], run, axis="time", metrics=["reward"]).overlay("reward")["run"]
    assert [x for x, value in points if math.isnan(value)] == [902.0]
    assert len(points) == len(steps) + 1


def test_another_home_is_compared_as_this_one_is(tmp_path: Path) -> None:
    for name in ("this", "other"):
        ingest_recorded(tmp_path / name, "faults/healthy")
    with Places(str(tmp_path / "this")) as places:
        here, there = places.find("faults/healthy"), places.find(f"{tmp_path / 'other'}:faults/healthy")
        both = compare([there], here, metrics=["backend.k3_kl", "reward"])
        assert both.pairings[0].common == both.pairings[0].steps > 0
        ours, theirs = (run.trend("backend.k3_kl") for run in both.histories)
        assert ours == pytest.approx(theirs)


def test_a_name_without_a_home_is_refused() -> None:
    with Places(None) as places, pytest.raises(ConfigurationError, match="pass --home DIR"):
        places.find("v0")
