"""Density, profiles and slices as the browser gets them: nothing unknown looks like nothing, and foreign names stay names."""

from __future__ import annotations

import io
from base64 import b64decode
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from logprobe.app.dashboard.charts.axes import axis_of
from logprobe.app.dashboard.charts.bars import bars_chart
from logprobe.app.dashboard.charts.density import density_of, oklab, ramp
from logprobe.app.dashboard.charts.heat import darkest, edges_of, heat_chart, tokens_of
from logprobe.app.dashboard.data.mismatch import LAG, MOST_TAGS, Side, Sliced
from logprobe.app.dashboard.data.series import RunSeries
from logprobe.app.dashboard.data.visible import Visible, visible
from logprobe.app.dashboard.pages.mismatch import compared, density_csv, profiles_csv, profiles_of
from logprobe.app.dashboard.pages.mismatch_slices import MOST_SLICES, columns_of, slices_of
from logprobe.app.dashboard.theme import DARK, LIGHT, Theme
from logprobe.monitor.analysis.log_ratio_density import Columns, Density
from logprobe.monitor.analysis.profiles import LOG_GAMMA
from logprobe.monitor.metrics.catalog import CATALOG

HOSTILE = "<img src=x onerror=alert(1)>"
STEPS = np.arange(100)


# --- Density ---


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("role", ["backend", "update", "total"])
def test_shades_look_equally_far_apart_and_leave_the_page(theme: Theme, role: str) -> None:
    shades = ramp(theme, role, 16)
    assert shades[0] == theme.page
    steps = np.diff([oklab(shade)[0] for shade in shades])
    assert np.abs(steps - steps.mean()).max() < 0.25 * abs(steps.mean())


def density(**changes: Any) -> Density:
    """Five columns of one step, of which the first has tokens."""
    tokens = np.zeros((5, 9), np.int64)
    tokens[0] = [0, 0, 10, 20, 40, 20, 10, 0, 0]
    one = np.ones(5, np.int64)
    fields = {"steps_C": one, "profiled_C": one, "kept_C": one, "expected_C": 100 * one, "seen_C": 100 * one}
    return Density(Columns(10, 14, 1), 10, 1e-4, 1e-2, tokens, np.zeros(5, np.int64), **(fields | changes))


def test_every_column_without_tokens_says_why_and_no_step_is_no_gap() -> None:
    grid = density(
        steps_C=np.array([1, 1, 1, 0, 1]),
        profiled_C=np.array([1, 0, 1, 0, 1]),
        kept_C=np.array([1, 0, 0, 0, 1]),
    )
    gaps = density_of(grid, "backend", LIGHT, "")["gaps"]
    assert [(gap["from"], gap["to"]) for gap in gaps] == [(1, 2), (2, 3), (4, 5)]
    assert "not profiled yet" in gaps[0]["why"]
    assert "raw tokens were not kept" in gaps[1]["why"]
    assert "no token has both log-probs" in gaps[2]["why"]
    assert density_of(density(), "update", LIGHT, "record it")["gaps"] == [{"from": 1, "to": 5, "why": "record it"}]


def test_broken_and_missing_tokens_are_counted_beside_the_picture() -> None:
    broken = density_of(Density(**{**vars(density()), "broken_C": np.array([3, 0, 0, 0, 0])}), "backend", LIGHT, "")
    assert broken["note"].startswith("3 broken tokens left out · 397 of 500 tokens have no density")


def test_ticks_are_powers_of_ten_on_both_sides_of_zero() -> None:
    drawn = density_of(density(), "backend", LIGHT, "")
    assert [tick["text"] for tick in drawn["ticks"]] == ["−0.01", "−0.001", "0", "0.001", "0.01"]
    places = [tick["at"] for tick in drawn["ticks"]]
    assert places == sorted(places)
    assert places[2] == drawn["rows"] / 2
    assert drawn["lines"][1]["at"] == [4.5, None, None, None, None]


@pytest.mark.parametrize(("floor", "ceiling"), [(1e-9, 1e-5), (1e-4, 20.0), (9e-8, 2e-5), (0.5, 0.6)])
def test_ticks_keep_clear_of_each_other(floor: float, ceiling: float) -> None:
    grid = Density(**{**vars(density()), "floor": floor, "ceiling": ceiling, "merged": 25})
    rows = 2 * round(float(np.log(ceiling / floor)) / (25 * LOG_GAMMA)) + 1
    ticks = density_of(Density(**{**vars(grid), "tokens_CB": np.ones((5, rows), np.int64)}), "backend", LIGHT, "")[
        "ticks"
    ]
    assert len(ticks) <= 9
    assert np.diff([tick["at"] for tick in ticks]).min(initial=np.inf) >= 0.05 * rows
    assert "0" in [tick["text"] for tick in ticks]


# --- Profiles ---


def buckets(*labels: str) -> pa.Table:
    rows = [
        {"label": label, "tokens": 10 * (at + 1), "logprob_abs_diff_mean": 0.1, "log_ratio_mean": -0.1, "k3_kl": 0.01}
        for at, label in enumerate(labels)
    ]
    broken = {"label": "broken", "tokens": 7, "logprob_abs_diff_mean": None, "log_ratio_mean": None, "k3_kl": None}
    return pa.Table.from_pylist([*rows, broken])


def side(name: str = "in view", *lags: str, lag_steps: Visible | None = None) -> Side:
    seen = Visible(0, 99)
    tables = {"position": buckets("0–10 %"), "turn": buckets("0", "≥ 5"), "probability": buckets(), LAG: buckets(*lags)}
    return Side(name, seen, tables, lag_steps or seen)


def test_ranges_that_are_compared_follow_the_address() -> None:
    seen = visible("20:59", STEPS)
    assert compared(None, seen, STEPS) == [("in view", seen)]
    assert [str(each.words) for _, each in compared("ends", seen, STEPS)] == ["steps 56–59", "steps 20–23"]
    assert [name for name, _ in compared("0:9", seen, STEPS)] == ["in view", "against"]
    assert compared("nonsense", seen, STEPS) == [("in view", seen)]


def test_buckets_of_two_ranges_stand_in_one_order_and_broken_tokens_in_none() -> None:
    drawn = profiles_of([side("a", "9", "10"), side("b", "1", "unknown")], "backend", "ends", LIGHT, "")
    lag = next(column for column in drawn["columns"] if column["key"] == LAG)
    assert lag["labels"] == ["1", "9", "10", "unknown"]
    first, second = lag["values"][0]
    assert [entry and entry["text"] for entry in first] == [None, "0.1", "0.1", None]
    assert [entry is None for entry in second] == [False, True, True, False]
    shares = lag["values"][3][0]
    assert [entry and entry["text"] for entry in shares] == [None, "33.3%", "66.7%", None]


def test_a_dimension_without_tokens_says_why_and_a_short_lag_says_its_steps() -> None:
    drawn = profiles_of([side(lag_steps=Visible(90, 99, whole=False))], "backend", None, LIGHT, "")
    by_key = {column["key"]: column for column in drawn["columns"]}
    assert "raw tokens were not kept" in by_key["probability"]["missing"]
    assert by_key[LAG]["note"] == "steps 90–99 only"
    absent = profiles_of([side()], "update", None, LIGHT, "record current_logprobs")
    assert {column.get("missing") for column in absent["columns"] if not column["labels"]} == {
        "record current_logprobs"
    }


# --- Slices ---


def test_slices_and_tags_beyond_what_is_shown_are_said() -> None:
    exactly = replace(sliced(*map(str, range(MOST_SLICES))), tags=[f"tag-{at}" for at in range(MOST_TAGS)])
    assert "more" not in drawn(exactly)["note"]
    more = replace(sliced(*map(str, range(MOST_SLICES + 1))), tags=[f"tag-{at}" for at in range(MOST_TAGS + 1)])
    page = drawn(more)
    assert page["note"].endswith("1 more slices are not shown · more than 20 tags: the most frequent can be chosen")
    assert len([each for each in page["dimensions"] if each["label"].startswith("tag ")]) == MOST_TAGS


def sliced(*names: str | None, worse: bool = False) -> Sliced:
    size = len(names)
    name = pa.array(names, pa.string())
    numbers = pa.array([float(at) for at in range(size)])
    return Sliced(
        dimension="tag:team",
        steps=Visible(90, 99, whole=False),
        sequences=10 * size,
        table=pa.table({"step": pa.nulls(size, pa.int64()), "slice": name, "sequences": pa.array([10] * size), "tokens": pa.array([100] * size), "backend.k3_kl": numbers, "reward": pa.nulls(size, pa.float64())}),
        gaps=pa.table({"slice": name, "k3_share": numbers, "times_rest": numbers, "z": numbers, "worse": pa.array([worse] * size)}),
        trend=pa.table({"slice": name, "backend.k3_kl": numbers}),
        tags=["team", HOSTILE],
    )  # fmt: skip


def drawn(of: Sliced, why_absent: str = "") -> dict[str, Any]:
    columns = columns_of("k3_kl,reward", CATALOG[0], CATALOG)
    return slices_of(
        of, pair="backend", columns=columns, catalog=CATALOG, seen=Visible(0, 99), theme=LIGHT, why_absent=why_absent
    )


def test_an_unknown_slice_is_called_so_and_an_unknown_value_is_no_zero() -> None:
    named, unknown = drawn(sliced(HOSTILE, None))["rows"]
    assert (named["slice"], named["unknown"]) == (HOSTILE, False)
    assert (unknown["slice"], unknown["unknown"]) == ("unknown", True)
    assert [cell["text"] for cell in named["cells"]] == ["0", "–", "–"]
    assert named["cells"][1]["value"] is None


def test_what_stands_out_is_marked_in_words() -> None:
    marked = drawn(sliced("a", "b", worse=True))["rows"][1]["worse"]
    assert marked == "K3 1× that of all others, 1 standard errors apart"
    assert drawn(sliced("a", "b"))["rows"][1]["worse"] == ""


def test_the_page_says_what_slices_stand_on_and_what_is_not_recorded() -> None:
    page = drawn(sliced("a"))
    assert page["note"].startswith("10 sequences of steps 90–99: the newest in view")
    assert page["missing"] == ""
    assert page["dimensions"][-1] == {"key": f"tag:{HOSTILE}", "label": f"tag {HOSTILE}"}
    assert drawn(sliced(None))["missing"] == "not recorded: no sequence has this tag"
    assert drawn(sliced("a"), "record it")["missing"] == "record it"


def test_the_metric_of_the_open_chart_is_always_a_column() -> None:
    ess = next(metric for metric in CATALOG if metric.key == "ess")
    assert [metric.key for metric in columns_of("k3_kl,nonsense", ess, CATALOG)] == ["k3_kl", "ess"]
    assert columns_of(None, ess, CATALOG)[0].key == "k3_kl"


# --- Charts ---


def test_the_picture_has_a_pixel_per_column_and_bin_and_is_as_wide_as_its_steps() -> None:
    series = RunSeries("r", steps=np.arange(10, 15), tokens=np.full(5, 100.0))
    drawn = density_of(density(), "backend", LIGHT, "")
    chart = heat_chart(drawn, "r", axis_of([series]), LIGHT)
    layout = chart["figure"]["layout"]
    (image,) = layout["images"]
    assert (image["x"], image["sizex"], image["y"], image["sizey"]) == (9.5, 5.0, 9, 9)
    pixels = np.asarray(Image.open(io.BytesIO(b64decode(image["source"].partition(",")[2]))))
    assert pixels.shape == (9, 5, 4)
    assert pixels[:, 0, 3].tolist() == [0, 0, 255, 255, 255, 255, 255, 0, 0]  # bins without a token are the page
    assert pixels[:, 1:, 3].max() == 0
    assert darkest(tokens_of(drawn)) == 0.2  # the middle bin, where all smaller |d| are, does not count
    over = heat_chart(drawn, "r", axis_of([series], wanted="tokens"), LIGHT)
    assert over["figure"]["layout"]["xaxis"]["title"]["text"] == "tokens trained on"
    (image,) = over["figure"]["layout"]["images"]
    assert np.asarray(Image.open(io.BytesIO(b64decode(image["source"].partition(",")[2])))).shape == (9, 20, 4)


def test_columns_are_where_their_steps_are_on_any_axis() -> None:
    series = RunSeries("r", steps=np.arange(5), tokens=np.array([10.0, 10.0, 100.0, 10.0, 870.0]))
    columns = {"first": 0, "last": 4, "width": 2}
    assert edges_of(columns, axis_of([series])).tolist() == [-0.5, 1.5, 3.5, 4.5]
    assert edges_of(columns, axis_of([series], wanted="tokens")).tolist() == [10, 70, 565, 1000]


def test_pointer_and_keys_read_columns_and_why_there_is_nothing() -> None:
    series = RunSeries("r", steps=np.arange(10, 15), tokens=np.full(5, 100.0))
    drawn = density_of(density(), "update", LIGHT, f"record it {HOSTILE}")
    (stops,) = heat_chart(drawn, "r", axis_of([series]), LIGHT)["stops"]
    assert stops["words"][0].startswith("step 10 · 100 tokens · d: p1 ")
    assert stops["words"][1] == f"step 11 · record it {HOSTILE}"  # the browser puts it in as text
    (reason,) = [
        words["text"]
        for words in heat_chart(drawn, "r", axis_of([series]), LIGHT)["figure"]["layout"]["annotations"]
        if "record" in words["text"]
    ]
    assert "<img" not in reason
    assert density_csv(drawn).splitlines()[1].startswith("10,10,")


def test_bars_have_a_row_per_measure_and_marks_of_the_other_range() -> None:
    sides = [side("now"), side("then")]
    drawn = profiles_of(sides, "backend", "ends", LIGHT, "")
    column = next(each for each in drawn["columns"] if "missing" not in each)
    chart = bars_chart(column, drawn, "r", LIGHT)
    traces = chart["figure"]["data"]
    assert [trace["type"] for trace in traces] == ["bar", "scatter"] * len(drawn["measures"])
    assert {trace["yaxis"] for trace in traces} == {row["axis"] for row in chart["rows"]}
    assert chart["stops"][0]["words"] == column["labels"]
    assert len(profiles_csv(drawn).splitlines()) > 2 * len(column["labels"])
