"""What the Weights page says of lanes, replicas and comparisons; unknown is said to be so."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from logprobe.app.dashboard.data.series import RunSeries
from logprobe.app.dashboard.pages.weights import (
    PANELS,
    age_of,
    lanes_blocks,
    status_lines,
    timeline,
    versions_blocks,
    with_replicas,
)
from logprobe.app.dashboard.pages.weights_study import contrasts_blocks, switch_points, version_points
from logprobe.monitor.analysis.weight_updates import Arrival, Lane, ReplicaLag
from logprobe.monitor.event_study import Contrast
from logprobe.monitor.metrics.catalog import KEYS

T0 = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
ARRIVAL = Arrival(
    version="16", step=15, arrived_at=T0, pause_mode="keep", cache_cleared=False, loaded=True, delay=0.03, pause=0.04, reloads=0,
    backwards=False, skipped=0,
)  # fmt: skip
ENGINE = Lane(
    source="engine", replica="left", updates=17, newest_version="16", behind=0, usual_stride=1, all_skipped=0,
    all_backwards=0, all_unloaded=0, all_reloads=0, cleared=0, kept=16, unknown=0, usual_delay=0.03, longest_delay=0.5, usual_pause=0.04, longest_pause=0.6,
    pauses=["keep"], arrivals=(ARRIVAL,),
)  # fmt: skip
TRAINER = replace(ENGINE, source="trainer", replica=None, kept=0, pauses=None, usual_delay=None, usual_pause=None)


def cells(lane: Lane) -> list[str]:
    (block,) = lanes_blocks([lane])
    return list(block["rows"][0]["cells"])


def aged(largest: list[float], mean: list[float] | None = None) -> RunSeries:
    values = {"weight_lag_max": np.array(largest), "weight_lag_mean": np.array(mean or largest)}
    return RunSeries("r", 1, np.arange(len(largest)), np.ones(len(largest)), values)


@pytest.mark.parametrize(
    ("largest", "words", "unusual"),
    [
        ([0.0] * 100, "sampled by the newest weights.", False),
        ([0.0] * 80 + [7.0] * 20, "by weights up to 7 versions old, 7 on average; usual in this run: up to 0. The lag grew", True),
        ([4.0] * 80 + [7.0] * 20, "by weights up to 7 versions old, 7 on average.", False),
        ([1.0] * 80 + [2.0] * 20, "by weights up to 2 versions old, 2 on average.", False),
        ([0.0] * 80 + [1.0] * 20, "by weights up to 1 version old, 1 on average.", False),
        ([0.0] * 5 + [np.nan] * 10 + [7.0] * 12, "by weights up to 7 versions old, 7 on average.", False),  # too few before
        ([7.0], "in the newest step were sampled by weights up to 7 versions old", False),
    ],
)  # fmt: skip
def test_engines_that_keep_up_do_not_hide_how_old_the_tokens_are(
    largest: list[float], words: str, unusual: bool
) -> None:
    age = age_of(aged(largest))
    _, line = status_lines([TRAINER, ENGINE], age)
    assert words in line["text"]
    assert line["tone"] == ("warning" if unusual else "")
    trainer, engine = lanes_blocks([TRAINER, ENGINE], age)[0]["rows"]
    assert ("trains on tokens of weights up to 7 versions old" in trainer["cells"][-1]) is unusual
    assert (trainer["tone"], engine["cells"][-1]) == ("warning" if unusual else "", "nothing")


def test_a_lag_that_nobody_measured_is_not_talked_of() -> None:
    assert age_of(aged([np.nan] * 30)) is None


@pytest.mark.parametrize(
    ("lanes", "words", "tone"),
    [
        ([], "weights.mark", "unknown"),
        ([TRAINER], "Only the trainer has recorded updates", "unknown"),
        ([TRAINER, ENGINE], "keeps up with the newest weights, version `16`", ""),
        ([TRAINER, ENGINE, replace(ENGINE, replica="right", newest_version="9", behind=4)], "engine right lags behind at version `9`, 4 versions behind", "warning"),
        ([TRAINER, replace(ENGINE, newest_version=None, behind=None)], "engine left never reported its weight version", "warning"),
        ([TRAINER, ENGINE, replace(ENGINE, replica="right", newest_version="1", behind=15)], "1 of 2 engines: engine right stopped updating", "critical"),
    ],
)  # fmt: skip
def test_the_first_line_says_who_does_not_keep_up(lanes: list[Lane], words: str, tone: str) -> None:
    (line,) = status_lines(lanes)
    assert words in line["text"]
    assert line["tone"] == tone


def test_a_lane_says_what_was_out_of_the_ordinary_and_what_is_not_known() -> None:
    assert cells(ENGINE) == [
        "engine left",
        "16",
        "17",
        "0.03 s, at most 0.5 s",
        "0.04 s, at most 0.6 s, mode keep",
        "kept 16×",
        "nothing",
    ]
    odd = replace(ENGINE, all_skipped=2, all_backwards=1, all_unloaded=5, unknown=3, all_reloads=1, usual_stride=4)
    assert cells(odd)[2] == "17, every 4 versions"
    assert cells(odd)[-1].split("; ") == [
        "2 versions skipped",
        "1 update to an older version",
        "5 versions announced but never loaded",
        "3 updates without a version: call weights.mark after the load",
        "1 reload of the same version",
    ]
    unseen = replace(
        ENGINE, kept=0, pauses=None, usual_delay=None, longest_delay=None, usual_pause=None, longest_pause=None
    )
    assert cells(unseen)[3:6] == ["–", "none seen", "unknown"]


def test_the_timeline_has_the_trainer_on_top_and_the_worst_engine_next() -> None:
    late = replace(ENGINE, replica="slow", behind=12, arrivals=())
    drawn = timeline([ENGINE, late, TRAINER], "all")
    assert [(lane["name"], lane["tone"], lane["note"]) for lane in drawn["lanes"]] == [
        ("trainer", "", ""),
        ("engine slow", "critical", "12 behind"),
        ("engine left", "", ""),
    ]
    assert drawn["from"] == drawn["to"] == T0.timestamp()
    (arrival,) = drawn["lanes"][2]["arrivals"]
    assert (arrival["kept"], arrival["delay"], "skipped" in arrival) == (True, 0.03, False)
    assert "engine slow: 17 updates, newest version 16, 12 behind." in drawn["alt"]
    many = timeline([replace(ENGINE, replica=str(at)) for at in range(40)], "all")
    assert (len(many["lanes"]), many["hint"]) == (24, "all; 16 lanes more in the table")


def test_replicas_stand_beside_the_run_the_oldest_weights_first() -> None:
    series = RunSeries("r", 1, np.array([3, 4, 5]), np.ones(3), {"weight_lag_mean": np.ones(3)})
    lags = [
        ReplicaLag("a", np.array([3, 5]), np.array([0.0, 1.0]), np.array([0.0, 1.0])),
        ReplicaLag("b", np.array([4]), np.array([7.0]), np.array([9.0])),
        ReplicaLag(None, np.array([4]), np.array([np.nan]), np.array([np.nan])),
    ]
    panels, beside, keys = with_replicas(series, lags)
    assert [key.name for key in keys] == ["engine b", "engine a", "engine"]
    np.testing.assert_array_equal(beside[1].column("weight_lag_mean"), [0.0, np.nan, 1.0])
    assert [line.name for line in panels[0].lines] == ["mean", "max", "engine b", "engine a", "engine"]
    assert with_replicas(series, lags[:1]) == (PANELS, [], [])


def test_every_line_is_in_the_catalog() -> None:
    assert {line.metric for panel in PANELS for line in panel.lines} <= set(KEYS)


def distance(place: int | None, mean: float | None = 0.1, error: float | None = 0.01) -> dict[str, Any]:
    return {"distance": place, "sequences": 3, "tokens": 30, "broken": 1, "logprob_abs_diff_mean": mean, "logprob_abs_diff_error": error, "k3_kl": 0.002}  # fmt: skip


def test_points_around_a_switch_have_words_and_a_level_to_compare_with() -> None:
    drawn = switch_points([distance(-2), distance(0, error=None), distance(3, None), distance(None, 0.05)], "steps 1–9")
    assert [(point["x"], point["error"]) for point in drawn["points"]] == [(-2, 0.01), (0, None)]
    assert drawn["points"][0]["words"] == "2 before: 0.1 ± 0.01, K3 0.002, 30 tokens, 1 broken left out"
    assert drawn["reference"]["words"].startswith("sequences without a switch: 0.05")
    assert "no in-flight updates" in switch_points([distance(None)], "")["empty"]
    assert "No raw tokens" in switch_points([], "")["empty"]


def version(name: str | None, k3: float | None, **more: Any) -> dict[str, Any]:
    return {
        "version": name,
        "k3_kl": k3,
        "mixed": False,
        "sequences": 2,
        "broken": 0,
        "first_step": 1,
        "last_step": 1,
    } | more


def test_versions_stand_at_their_numbers_and_the_others_are_told() -> None:
    rows = [
        version("12", 0.2),
        version("10", 0.1),
        version("9", None),
        version(None, 0.3, mixed=True),
        version(None, None),
    ]
    drawn = version_points(rows, "")
    assert [(point["x"], point["y"]) for point in drawn["points"]] == [(10, 0.1), (12, 0.2)]
    assert drawn["log"]
    assert [point["x"] for point in version_points([version("b", 0.0), version("a", 0.1)], "")["points"]] == [0, 1]
    assert not version_points([version("b", 0.0), version("a", 0.1)], "")["log"]
    (words,) = versions_blocks(rows)
    assert words["text"] == "2 sequences of several versions: K3 0.3; 2 sequences of unknown version: K3 –."


@pytest.mark.parametrize(
    ("contrast", "verdict", "tone"),
    [
        (Contrast("cached", 0.3, 0.1, 0.01), "larger: 0.2 ± 0.01", "critical"),
        (Contrast("before_switch", 0.3, 0.1, 0.01), "larger: 0.2 ± 0.01", "warning"),
        (Contrast("in_flight", 0.1, 0.3, 0.01), "smaller: −0.2 ± 0.01", ""),
        (Contrast("after_switch", 0.1, 0.1, 0.01), "no significant difference: 0 ± 0.01", ""),
        (Contrast("cached", 0.1, None, None), "not measured", ""),
    ],
)
def test_a_comparison_says_what_it_means(contrast: Contrast, verdict: str, tone: str) -> None:
    (block,) = contrasts_blocks([contrast])
    (line,) = block["rows"]
    assert line["cells"][3] == verdict
    assert line["tone"] == tone
    assert line["cells"][4]
