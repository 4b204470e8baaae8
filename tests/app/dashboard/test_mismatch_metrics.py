"""The table of all metrics: every key once, what is unknown with its reason, values of the steps in view."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from logprobe.app.dashboard.charts.panels import panel_of
from logprobe.app.dashboard.data.series import RunSeries
from logprobe.app.dashboard.data.visible import Visible, ends, visible
from logprobe.app.dashboard.pages.mismatch import about, chosen, grid_of, why_unmeasured
from logprobe.app.dashboard.theme import LIGHT
from logprobe.monitor.metrics.catalog import CATALOG, KEYS, metric

STEPS = np.arange(10)
REFERENCE = {"reference.coverage": np.ones(10), "reference.k3_kl": np.full(10, 0.01), "reference.kl": np.full(10, 0.02)}
BACKEND = {"backend.k3_kl": np.full(10, 1e-3), "backend.ess": np.linspace(1.0, 0.55, 10)}


def run(**values: Any) -> RunSeries:
    return RunSeries("r", 1, STEPS, np.full(10, 100.0), {**BACKEND, **values})


def cells(series: RunSeries, key: str, asked: str | None = None) -> dict[str, Any]:
    grid = grid_of(series, CATALOG, visible(asked, series.steps), "k3_kl", LIGHT)
    (row,) = [row for group in grid["groups"] for row in group["rows"] if row["key"] == key]
    return dict(row["cells"])


def test_every_key_of_the_catalog_stands_in_the_table_once() -> None:
    grid = grid_of(run(**REFERENCE), CATALOG, visible(None, STEPS), "k3_kl", LIGHT)
    shown = [
        row["key"] if pair == "step" else f"{pair}.{row['key']}"
        for group in grid["groups"]
        for row in group["rows"]
        for pair, cell in row["cells"].items()
        if "undefined" not in cell
    ]
    assert sorted(shown) == sorted(KEYS)


def test_the_reference_policy_has_a_column_where_one_was_recorded() -> None:
    def columns(series: RunSeries) -> list[str]:
        return [pair["name"] for pair in grid_of(series, CATALOG, visible(None, STEPS), "k3_kl", LIGHT)["pairs"]]

    assert columns(run()) == ["backend", "update", "total"]
    assert columns(run(**REFERENCE)) == ["backend", "update", "total", "reference"]
    assert cells(run(**REFERENCE), "kl")["reference"]["value"] == "0.02"
    assert "reference" not in cells(run(), "kl")
    broken = run(**{"reference.coverage": np.zeros(10)})  # recorded, and every token of it broken
    assert "reference" in columns(broken)


@pytest.mark.parametrize(
    ("key", "pair", "why"),
    [
        ("kl", "update", "not measured: record current_logprobs (the trainer's log-probs at the update)"),
        ("kl", "total", "not measured: record current_logprobs (the trainer's log-probs at the update)"),
        ("kl_entropy_ratio", "backend", "not measured: record entropy"),
        ("prob_pearson", "backend", "undefined for what was recorded"),
        ("reward", "step", "not measured: record rewards"),
    ],
)
def test_what_is_not_measured_says_what_to_record(key: str, pair: str, why: str) -> None:
    cell = cells(run(), key)[pair]
    assert (cell["value"], cell["missing"]) == ("–", why)


def test_what_whole_pairs_lack_is_said_once() -> None:
    grid = grid_of(run(), CATALOG, visible(None, STEPS), "k3_kl", LIGHT)
    assert grid["absent"] == [
        "update, total: not measured: record current_logprobs (the trainer's log-probs at the update)"
    ]
    assert cells(run(), "kl")["update"]["said"]
    assert not cells(run(), "kl_entropy_ratio")["backend"]["said"]


def test_without_any_log_probs_both_sides_are_asked_for() -> None:
    empty = RunSeries("r", 1, STEPS, np.full(10, 100.0), {"backend.coverage": np.zeros(10)})
    assert "rollout_logprobs" in why_unmeasured(empty, "backend")
    assert "trainer_logprobs" in why_unmeasured(empty, "backend")
    assert why_unmeasured(run(), "backend") == ""


def test_the_newest_value_in_view_is_held_against_all_steps_before_it() -> None:
    whole = cells(run(), "ess")["backend"]
    assert (whole["value"], whole["change"]) == ("0.55", "−0.25")  # of 1.0 … 0.6, the median is 0.8
    zoomed = cells(run(), "ess", "3:4")["backend"]
    assert (zoomed["value"], zoomed["change"]) == ("0.8", "−0.125")
    assert len(zoomed["spark"]) == 2


def test_a_step_without_a_value_is_no_value() -> None:
    gap = np.array([1.0, 2.0, *[np.nan] * 8])
    late = cells(run(entropy=gap), "entropy")["step"]
    assert (late["value"], late["late"]) == ("2", "of step 1")
    assert cells(run(entropy=gap), "entropy", "5:8")["step"] == {"value": "–", "missing": "no value at steps 5–8"}


def test_what_is_broken_is_said_first_and_never_rounded_up_to_whole() -> None:
    coverage = np.where(STEPS == 4, 0.99999, 1.0)
    series = run(**{
        "backend.coverage": coverage, "total.coverage": np.where(STEPS < 2, 0.5, 1.0),
        "backend.nonfinite_tokens": np.where(STEPS == 4, 3.0, 0.0), "backend.impossible_tokens": np.zeros(10),
    })  # fmt: skip
    said = grid_of(series, CATALOG, visible(None, STEPS), "k3_kl", LIGHT)["broken"]
    assert said == [
        "backend: incomplete at 1 step in view, down to 99.99 % of the tokens; non-finite tokens: 3",
        "total: incomplete at 2 steps in view, down to 50 % of the tokens",
    ]
    assert grid_of(series, CATALOG, visible("5:9", STEPS), "k3_kl", LIGHT)["broken"] == []


@pytest.mark.parametrize(
    ("asked", "key"),
    [(None, "k3_kl"), ("ess", "ess"), ("update.ess", "ess"), ("reward", "reward"), ("nonsense", "k3_kl"), ("backend.", "k3_kl"), ("backend.reward", "reward")],
)  # fmt: skip
def test_the_address_names_a_metric_with_or_without_its_pair(asked: str | None, key: str) -> None:
    assert chosen(asked, CATALOG).key == key


def test_the_chart_of_a_metric_has_all_pairs_it_is_defined_for() -> None:
    assert [line.metric for line in panel_of(chosen("ess", CATALOG)).lines] == [
        "backend.ess",
        "update.ess",
        "total.ess",
    ]
    assert [line.metric for line in panel_of(chosen("kl_new_old", CATALOG)).lines] == ["total.kl_new_old"]
    assert [line.metric for line in panel_of(chosen("reward", CATALOG)).lines] == ["reward"]


def test_what_a_metric_is_comes_from_the_catalog() -> None:
    head, words = about(chosen("k3_kl", CATALOG))
    declared = metric("backend.k3_kl")
    assert (head["text"], declared.unit in head["note"]) == (declared.label, True)
    assert declared.words in words["text"]
    assert f"`{declared.formula}`" in words["text"]


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        (None, Visible(5, 90)),
        ("20:40", Visible(20, 40, whole=False)),
        ("40:20", Visible(5, 90)),
        ("20:", Visible(5, 90)),
        ("20:200", Visible(20, 90, whole=False)),
        ("0:1000", Visible(5, 90)),
        ("200:300", Visible(5, 90)),
        ("31:59", Visible(5, 90)),  # between two steps
        ("<b>:9", Visible(5, 90)),
        ("9", Visible(5, 90)),
    ],
)  # fmt: skip
def test_the_range_in_the_address_is_held_within_the_run(asked: str | None, wanted: Visible) -> None:
    assert visible(asked, np.array([5, 30, 60, 90])) == wanted


def test_the_ends_of_a_view_are_a_tenth_of_its_steps() -> None:
    steps = np.arange(0, 100, 2)
    first, last = ends(visible(None, steps), steps)
    assert (first.words, last.words) == ("steps 0–8", "steps 90–98")
    assert [each.words for each in ends(visible("10:14", steps), steps)] == ["step 10", "step 14"]


def test_what_is_asked_for_stays_the_same_while_a_whole_run_grows() -> None:
    steps, more = np.arange(0, 100), np.arange(0, 200)
    assert visible(None, steps).key == visible(None, more).key
    first, last = ends(visible(None, steps), steps)
    assert [first.key, last.key] == [each.key for each in ends(visible(None, more), more)]
    assert len({first.key, last.key, visible(None, steps).key, visible("0:9", steps).key}) == 4
