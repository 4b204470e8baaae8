"""Charts say what was measured, and nothing else: places, gaps, limits, marks, and text that stays text."""

from __future__ import annotations

import json
from base64 import b64decode
from typing import Any

import numpy as np
import plotly.graph_objects as go
import polars as pl
import pytest

from logprobe.app.dashboard.figures import (
    MOST_LINES,
    MOST_SYMBOLS,
    Curve,
    Mark,
    Row,
    packed_places,
    packed_values,
    rows_chart,
)
from logprobe.app.dashboard.pages.mismatch import quantiles_chart
from logprobe.app.dashboard.panels import OVERVIEW
from logprobe.app.dashboard.steps import absent, change, steps_chart, window_of
from logprobe.app.dashboard.theme import DARK, LIGHT
from logprobe.monitor.analysis.log_ratio_quantiles import NAMES, Columns, Quantiles

X = np.arange(100, dtype=np.float64)
MARKUP = "<b>bold</b>"


def unpacked(array: dict[str, str]) -> np.ndarray:
    return np.frombuffer(b64decode(array["bdata"]), dtype=f"<{array['dtype']}").astype(np.float64)


def one(y: np.ndarray, **row: Any) -> Any:
    return rows_chart("r", [Row("K3", [Curve("backend", X, y, LIGHT.backend, group="backend")], **row)], LIGHT, alt="")


def test_what_is_drawn_is_a_figure_that_plotly_takes_and_its_text_is_stable() -> None:
    marks = [
        Mark(kind, at, f"{MARKUP} {kind}")
        for at, kind in enumerate(("weights", "alert", "config", "restart", "correction"))
    ]
    rows = [
        Row(MARKUP, [Curve(MARKUP, X, X, LIGHT.backend, group=MARKUP)], unit=MARKUP, limits=[(MARKUP, 5.0)]),
        Row("log", [Curve("", X, X + 1, LIGHT.update)], log=True, around=(10.0, 2.0)),
    ]
    made = [rows_chart("r", rows, LIGHT, alt="a", marks=marks, since=50, legend=True) for _ in range(2)]
    assert made[0].text == made[1].text  # a diagnosis that changes nothing here sends nothing
    assert "<b>bold" not in made[0].text.replace("<b>&lt;b&gt;bold", "")
    assert made[0].words["1"] == f"{MARKUP} alert"  # as text: the browser puts it in as such
    assert json.loads(made[0].text)["layout"]["uirevision"] == "r"
    go.Figure(made[0].figure)


def test_an_axis_is_around_what_is_in_view_and_a_limit_is_always_in_it() -> None:
    chart = rows_chart(
        "r", [Row("a", [Curve("", X, X, LIGHT.backend)], limits=[("limit", 500.0)])], LIGHT, alt="", window=(10, 20)
    )
    low, high = chart.figure["layout"]["yaxis2"]["range"]
    assert (low < 10, high > 500) == (True, True)
    assert chart.figure["layout"]["xaxis"]["range"] == [9.5, 20.5]


def test_a_gap_stays_a_gap_and_a_lonely_value_is_a_dot() -> None:
    y = np.full(100, np.nan)
    y[50] = 3.0
    (trace,) = one(y).figure["data"]
    assert np.isnan(unpacked(trace["y"])).sum() == 99
    assert (trace["mode"], trace["marker"]["size"][50], trace["marker"]["size"][49]) == ("lines+markers", 4, 0)
    (trace,) = one(np.where(X == 3, 0.0, 1e-3), log=True).figure["data"]
    assert np.isnan(unpacked(trace["y"])[3])  # 0 has no place on a logarithmic axis
    assert one(np.full(100, np.nan)).figure["data"]  # nothing at all is no error


def test_headings_read_the_traces_that_they_name() -> None:
    curves = [
        Curve("a", X, X, LIGHT.backend, group="a", faint=True),
        Curve("a", X, X, LIGHT.backend, group="a"),
        Curve("b", X, X, LIGHT.update, group="b", band=(X - 1, X + 1)),
    ]
    chart = rows_chart("r", [Row("one", curves), Row("two", [curves[1]])], LIGHT, alt="", legend=True)
    named = [
        [(line["name"], chart.figure["data"][line["trace"]]["name"]) for line in row["lines"]] for row in chart.rows
    ]
    assert named == [[("a", "a"), ("b", "b")], [("", "a")]]  # neither the faint line nor the band is read
    assert [trace.get("showlegend") for trace in chart.figure["data"]] == [True, False, False, True, False]


def test_marks_beyond_the_limit_are_the_newest_ones() -> None:
    marks = [Mark("config", at, str(at)) for at in range(MOST_SYMBOLS + 1)]
    chart = rows_chart("r", [Row("a", [Curve("", X, X, LIGHT.backend)])], LIGHT, alt="", marks=marks)
    assert chart.figure["data"][-1]["x"] == list(range(1, MOST_SYMBOLS + 1))
    assert len(chart.figure["layout"]["shapes"]) == MOST_LINES
    assert len(chart.words) == MOST_SYMBOLS + 1  # keys read all of them


def test_numbers_travel_small_and_whole() -> None:
    assert packed_places(np.array([1.0, 2.0]))["dtype"] == "i4"
    assert packed_places(np.array([1.0, 2.0**40]))["dtype"] == packed_places(np.array([0.5]))["dtype"] == "f8"
    assert packed_values(np.array([1e-3, np.nan]))["dtype"] == "f4"
    assert packed_values(np.array([1e-44]))["dtype"] == packed_values(np.array([1e300]))["dtype"] == "f8"


# --- Steps ---


def frame(**columns: Any) -> pl.DataFrame:
    steps = list(range(10))
    base = {
        "step": steps,
        "tokens": [100.0] * 10,
        "time": [1e9 + 60.0 * at for at in steps],
        "backend.coverage": [1.0] * 10,
    }
    return pl.DataFrame({**base, "backend.k3_kl": [1e-3] * 10, **columns})


@pytest.mark.parametrize(
    ("asked", "seen"),
    [("2:5", (2, 5)), (" 2:5 ", (2, 5)), ("0:9", None), ("0:99", None), ("3:99", (3, 9)), ("20:30", None), ("5:2", None), ("a:b", None), ("", None), ("1" * 19 + ":2", None)],
)  # fmt: skip
def test_the_address_names_steps_no_wider_than_the_run(asked: str, seen: tuple[int, int] | None) -> None:
    assert window_of(asked, range(10)) == seen
    assert window_of("1:2", []) is None


def drawn(data: pl.DataFrame, **more: Any) -> Any:
    return steps_chart("r", data, OVERVIEW, LIGHT, **more)


def test_rows_without_a_value_are_named_with_what_they_need() -> None:
    chart = drawn(frame())
    assert [row["title"] for row in chart.rows] == ["K3"]
    assert "Weight lag: not measured, needs" in chart.note
    assert "KL to reference" not in chart.note  # optional
    assert absent(OVERVIEW, OVERVIEW) == ""
    assert change(1.0, None, log=True) == ""  # from an unknown median
    nothing = drawn(frame(**{"backend.k3_kl": [None] * 10}))
    assert nothing.rows[0]["title"] == "nothing was measured"


def test_what_rests_on_fewer_tokens_is_counted_but_for_what_still_arrives() -> None:
    short = frame(**{"backend.coverage": [1.0, 0.5, *[1.0] * 6, 0.5, 0.5]})
    assert "backend: incomplete at 3 steps" in drawn(short).note
    assert "backend: incomplete at 1 step" in drawn(short, awaited=True).note
    assert "incomplete" not in drawn(frame()).note


def test_normal_and_onset_are_marked() -> None:
    chart = drawn(frame(), baseline=1e-3, since=4, marks=[Mark("alert", 5, "fired")])
    shapes = chart.figure["layout"]["shapes"]
    (band,) = [shape for shape in shapes if shape["type"] == "rect"]
    assert (band["y0"], band["y1"]) == pytest.approx((0.5e-3, 2e-3))
    assert 4.0 in [shape["x0"] for shape in shapes]
    assert chart.words == {"5": "step 5: fired"}
    assert chart.figure["layout"]["yaxis2"]["type"] == "log"
    early = drawn(frame(), since=0)  # it was never otherwise
    assert not [note for note in early.figure["layout"]["annotations"] if "since" in note["text"]]


# --- Quantiles ---


def quantiles(d: list[float], **counts: list[int]) -> Quantiles:
    """Of one step a column, whose quantiles are `d`; of ten tokens each."""
    size = len(d)
    usual = {"steps": 1, "profiled": 1, "kept": 1, "expected": 10, "seen": 10, "drawn": 10, "broken": 0}
    values = {name: np.array(d) + at for at, name in enumerate(NAMES)}
    counts_C = {name: np.array(counts.get(name, [value] * size)) for name, value in usual.items()}
    return Quantiles(Columns(0, size - 1, 1), values, counts_C)


def test_quantiles_name_what_they_leave_out() -> None:
    made = quantiles([-1.0, -2.0, np.nan], kept=[1, 1, 0], broken=[0, 2, 0], drawn=[10, 8, 0])
    chart = quantiles_chart("r", made, "backend", theme=DARK, why_absent="")
    go.Figure(chart.figure)
    lines = {trace["name"]: unpacked(trace["y"])[:2].tolist() for trace in chart.figure["data"] if "name" in trace}
    assert lines == {"p99": [3, 2], "p50, band p10 to p90": [1, 0], "p1": [-1, -2]}
    assert chart.note.startswith("1 step left out: raw tokens were not kept")
    assert "2 broken tokens left out" in chart.note
    assert "10 of 30 tokens have no log-ratio" in chart.note


def test_a_step_that_was_not_profiled_says_so() -> None:
    made = quantiles([np.nan] * 2, profiled=[0, 1], broken=[0, 10], drawn=[0, 0])
    chart = quantiles_chart("r", made, "backend", theme=DARK, why_absent="")
    assert "not profiled yet" in chart.note
    assert "every token with both log-probs is broken" in chart.note
    assert "not measured" in chart.alt
