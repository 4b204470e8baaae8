"""Figures are valid plotly figures, honest about what is missing, and small enough to send."""

from __future__ import annotations

import csv
import io
import itertools
import json
from dataclasses import replace
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

from logprobe.app.dashboard.charts.axes import axis_of, why_not
from logprobe.app.dashboard.charts.downsample import MAX_POINTS
from logprobe.app.dashboard.charts.figures import steps_figure
from logprobe.app.dashboard.charts.look import Look
from logprobe.app.dashboard.charts.packing import unpacked
from logprobe.app.dashboard.charts.panels import OVERVIEW, Line, Panel, metrics_of, why_missing
from logprobe.app.dashboard.charts.scales import log_ticks, scale_of
from logprobe.app.dashboard.charts.steps_chart import Key, chart_of
from logprobe.app.dashboard.charts.tiles import change, tiles_of
from logprobe.app.dashboard.data.events import Event
from logprobe.app.dashboard.data.feed import RunView
from logprobe.app.dashboard.data.series import RunSeries
from logprobe.app.dashboard.data.visible import Visible
from logprobe.app.dashboard.theme import DARK, LIGHT, Theme, theme_for
from logprobe.app.dashboard.views.chart import table_of


def run_of(n: int, *, without: tuple[str, ...] = (), **columns: Any) -> RunSeries:
    rng = np.random.default_rng(0)
    values = {metric: np.abs(rng.normal(1e-3, 1e-4, n)) for metric in metrics_of(OVERVIEW) if metric not in without}
    values |= {f"{pair}.coverage": np.ones(n) for pair in ("backend", "update", "total", "reference")}
    values |= {metric.replace("__", "."): np.asarray(column, dtype=np.float64) for metric, column in columns.items()}
    return RunSeries("v1-initial", n, np.arange(n), np.full(n, 100.0), values)


def drawn(figure: dict[str, Any], row: str, line: int = 0) -> tuple[np.ndarray, np.ndarray]:
    (trace,) = [t for t in figure["data"] if t["meta"].get("row") == row and t["meta"].get("line") == line]
    x, y = (unpacked(trace[axis]) for axis in "xy")
    return x, y


@pytest.mark.parametrize("theme", [LIGHT, DARK])
@pytest.mark.parametrize("n", [1, 2, 300, 5000])
def test_plotly_accepts_the_figure(theme: Theme, n: int) -> None:
    events = [Event("weights", step, f"weights {step}") for step in range(min(n, 50))] + [
        Event("config", 1, "engine changed"),
        Event("weights", None, "later"),
    ]
    figure = steps_figure([run_of(n)], OVERVIEW, events, theme)
    go.Figure(figure)  # raises on unknown properties and values
    assert json.loads(json.dumps(figure)) == figure


def test_rows_share_one_x_axis_and_do_not_overlap() -> None:
    figure = steps_figure([run_of(50)], OVERVIEW, [], LIGHT)
    assert {trace.get("xaxis", "x") for trace in figure["data"]} == {"x"}
    domains = sorted(axis["domain"] for name, axis in figure["layout"].items() if name.startswith("yaxis"))
    assert len(domains) == len(OVERVIEW) + 1
    assert all(below[1] < above[0] for below, above in itertools.pairwise(domains))
    assert figure["layout"]["yaxis2"]["type"] == "log"  # K3


def test_null_values_are_gaps() -> None:
    k3 = [1e-4, np.nan, 2e-4, np.nan, 1e-4, 1e-4]
    figure = steps_figure([run_of(6, backend__k3_kl=k3)], OVERVIEW, [], LIGHT)
    np.testing.assert_allclose(drawn(figure, "y2")[1], k3, rtol=1e-6)
    (line,) = [trace for trace in figure["data"] if trace["meta"].get("row") == "y2" and trace["meta"]["line"] == 0]
    assert line["marker"]["size"] == [4, 0, 4, 0, 0, 0]  # a point between two gaps, which no line shows
    assert not any(trace["connectgaps"] for trace in figure["data"] if "row" in trace["meta"])


def test_long_runs_are_thinned_behind_an_envelope() -> None:
    k3 = np.full(50_000, 1e-4)
    k3[33_333] = 1.0
    figure = steps_figure([run_of(50_000, backend__k3_kl=k3)], OVERVIEW, [], LIGHT)
    x, y = drawn(figure, "y2")
    assert len(x) <= MAX_POINTS
    assert y.max() == 1.0
    bands = [t for t in figure["data"] if t.get("fill") == "toself" and t["yaxis"] == "y2"]
    assert len(bands) == 3  # one per pair
    edges = unpacked(bands[0]["y"])
    assert len(edges) <= MAX_POINTS
    assert (np.nanmin(edges), np.nanmax(edges)) == (pytest.approx(1e-4), 1.0)
    assert len(json.dumps(figure)) < 1_500_000


def test_a_band_is_broken_where_there_are_gaps_and_where_all_is_drawn() -> None:
    k3 = np.linspace(1e-4, 2e-4, 10_000)
    k3[5000:6000] = np.nan
    run = run_of(10_000, backend__k3_kl=k3)
    for look, hidden in ((Look(), (5000, 6000)), (Look((2000, 3000)), (2000, 3000))):
        figure = steps_figure([run], OVERVIEW[:1], [], LIGHT, look=look)
        band = next(t for t in figure["data"] if t["meta"].get("of") == 0)
        x, y = unpacked(band["x"]), unpacked(band["y"])
        breaks = np.flatnonzero(np.isnan(y))
        for polygon in np.split(x, breaks + 1):
            inside = polygon[:-1]
            assert not ((inside.min(initial=np.inf) < hidden[0]) & (inside.max(initial=-np.inf) > hidden[1]))
        go.Figure(figure)


def test_what_is_looked_at_in_a_long_run_is_drawn_whole() -> None:
    run = run_of(50_000)
    x, _ = drawn(steps_figure([run], OVERVIEW, [], LIGHT, look=Look((20_000, 21_500))), "y2")
    assert len(x) <= MAX_POINTS
    assert set(range(20_000, 21_501)) <= set(x)
    assert (x[0], x[-1]) == (0, 49_999)


@pytest.mark.parametrize("n", [300, 3000])
def test_a_smoothed_line_stands_before_its_values(n: int) -> None:
    run = run_of(n)
    figure = steps_figure([run], OVERVIEW[:1], [], LIGHT, look=Look(smooth=11))
    smooth = [trace for trace in figure["data"] if "smooth" in trace["meta"]]
    assert [trace["meta"]["smooth"] for trace in smooth] == [11, 11, 11]
    assert np.ptp(unpacked(smooth[0]["y"])) < np.ptp(run.column("backend.k3_kl"))
    behind = [
        trace for trace in figure["data"] if trace["meta"].get("line") is not None and "smooth" not in trace["meta"]
    ]
    assert {trace["opacity"] for trace in behind} == {0.28}


def test_the_axis_of_a_row_is_around_what_is_in_view() -> None:
    k3 = np.geomspace(1e-4, 1.0, 401)
    run = run_of(401, backend__k3_kl=k3, update__k3_kl=k3, total__k3_kl=k3)
    whole, part, flat = (
        steps_figure([run], OVERVIEW[:1], [], LIGHT, look=look)["layout"]["yaxis2"]
        for look in (Look(), Look((0, 100)), Look((0, 100), linear=frozenset({"backend.k3_kl"})))
    )
    assert "range" not in whole  # plotly's
    assert (part["type"], flat["type"]) == ("log", "linear")
    assert part["range"] == pytest.approx([-4 - 0.08 * 1.01, -3 + 0.01 + 0.08 * 1.01])  # one point beyond either side
    assert flat["range"][1] == pytest.approx(1.08 * 1.0233e-3 - 0.08 * 1e-4, rel=1e-3)


def test_hidden_lines_are_not_drawn_and_the_rest_fills_the_row() -> None:
    run = run_of(30, update__kl=np.full(30, 1e3))
    kl = OVERVIEW[1]
    figure = steps_figure([run], [kl], [], LIGHT, look=Look(hide=frozenset({"update"})))
    assert {trace["meta"]["role"] for trace in figure["data"] if "line" in trace["meta"]} == {"backend", "total"}
    assert figure["layout"]["yaxis2"]["range"][1] < 1


def test_a_logarithmic_axis_has_no_place_for_nothing_and_less() -> None:
    k3 = [0.0, 1e-3, -1.0, 1e-2]
    figure = steps_figure([run_of(4, backend__k3_kl=k3)], OVERVIEW[:1], [], LIGHT)
    np.testing.assert_allclose(drawn(figure, "y2")[1], [np.nan, 1e-3, np.nan, 1e-2], rtol=1e-6)


def test_a_look_is_what_the_address_says_and_nothing_else() -> None:
    steps = np.arange(100)
    asked = {"steps": "10:20", "x": "tokens", "smooth": "5000", "log": "a,b", "linear": "", "hide": "update"}
    assert Look.of(asked.get, steps) == Look(
        (10, 20), "tokens", 999, frozenset("ab"), frozenset(), frozenset({"update"})
    )
    odd = {"steps": "<script>", "x": "nowhere", "smooth": "\u0664", "hide": ","}
    assert Look.of(odd.get, steps) == Look()
    look = Look(log=frozenset({"a"}))
    assert look.other_scale("a", usual=False) == {"log": "", "linear": ""}
    assert look.other_scale("k3", usual=True) == {"log": "a", "linear": "k3"}
    assert look.switched("update") == {"hide": "update"}


def test_runs_beside_each_other_have_places_and_colours_of_their_own() -> None:
    first, other = run_of(30), replace(run_of(50), run="other")
    panels = [Panel(tuple(Line("backend.k3_kl", f"run {at}", name, run=at) for at, name in enumerate("ab")), "K3")]
    legend = [Key(name, f"run {at}") for at, name in enumerate("ab")]
    chart = chart_of(RunView(first), panels, LIGHT, beside=[RunView(other)], legend=legend)
    assert [(each["name"], len(unpacked(each["steps"]))) for each in chart["stops"]] == [
        ("v1-initial", 30),
        ("other", 50),
    ]
    assert [entry["color"] for entry in chart["legend"]] == list(LIGHT.runs[:2])
    assert [line["run"] for line in chart["rows"][0]["lines"]] == [0, 1]
    assert "other over 50" in chart["alt"]
    assert chart["figure"]["layout"]["xaxis"]["range"][1] > 49


def test_other_axes_have_places_or_a_reason() -> None:
    run = replace(run_of(3), times=np.array([1e9, np.nan, 1e9 + 60]))
    time, tokens, onset = (axis_of([run], [2], kind) for kind in ("time", "tokens", "onset"))
    np.testing.assert_array_equal(time.places[0], [0.0, np.nan, 60.0])
    assert (time.title, time.place(np.array([1.0])).tolist()) == ("seconds since the first step", [30.0])
    assert tokens.places[0].tolist() == [100, 200, 300]
    assert (onset.places[0].tolist(), onset.place(np.array([7.0])).tolist()) == ([-2, -1, 0], [5])
    unknown = replace(run, tokens=np.zeros(3), times=np.full(3, np.nan))
    assert all(why_not([unknown], [None], kind) for kind in ("tokens", "time", "onset"))
    assert {axis_of([unknown], [None], kind).kind for kind in ("tokens", "time", "onset", "nowhere")} == {"step"}


def test_marks_stand_at_their_places_and_say_what_happened() -> None:
    events = [Event("config", 1, "<b>engine</b> changed"), Event("weights", 2, "weights 2")]
    chart = chart_of(RunView(run_of(3), events=tuple(events)), OVERVIEW[:1], LIGHT, look=Look(x="tokens"))
    marks = {trace["meta"]["kind"]: trace for trace in chart["figure"]["data"] if "kind" in trace["meta"]}
    assert (marks["config"]["x"], marks["config"]["text"]) == ([200.0], ["step 1: &lt;b&gt;engine&lt;/b&gt; changed"])
    assert marks["weights"]["x"][0] == 300.0
    assert [shape["x0"] for shape in chart["figure"]["layout"]["shapes"]] == [200.0, 300.0]


def test_of_a_long_run_only_steps_that_are_drawn_can_be_gone_to() -> None:
    chart = chart_of(RunView(run_of(9000)), OVERVIEW[:1], LIGHT)
    (stops,) = chart["stops"]
    steps = unpacked(stops["steps"])
    assert len(steps) < 9000
    lines = [unpacked(chart["columns"][trace["x"]]) for trace in chart["figure"]["data"] if "line" in trace["meta"]]
    assert set(np.concatenate(lines)) <= set(steps)
    assert chart_of(RunView(run_of(9000)), OVERVIEW, LIGHT)["stops"] == [stops]  # those of the first row are enough
    (zoomed,) = chart_of(RunView(run_of(9000)), OVERVIEW, LIGHT, look=Look((4000, 5000)))["stops"]
    assert set(range(4000, 5001)) <= set(unpacked(zoomed["steps"]))
    short = chart_of(RunView(run_of(30)), OVERVIEW[:1], LIGHT)
    assert [trace["x"] for trace in short["figure"]["data"] if "line" in trace["meta"]] == [0, 0, 0]  # sent once


def test_a_chart_of_a_long_run_is_no_larger_than_a_screen_needs() -> None:
    short, long = (len(json.dumps(chart_of(RunView(run_of(n)), OVERVIEW, LIGHT))) for n in (MAX_POINTS, 100_000))
    assert long < 2 * short


def test_an_export_has_the_values_themselves_and_no_formula() -> None:
    run = replace(run_of(9000), run="=cmd()")
    look = Look((100, 104), hide=frozenset({"update"}))
    rows = list(csv.DictReader(io.StringIO(table_of([run], OVERVIEW[:1], look))))
    assert [int(row["step"]) for row in rows] == [100, 101, 102, 103, 104]
    assert [float(row["backend.k3_kl"]) for row in rows] == run.column("backend.k3_kl")[100:105].tolist()
    assert list(rows[0]) == ["run", "step", "tokens", "seconds", "backend.k3_kl", "total.k3_kl"]
    assert (rows[0]["run"], rows[0]["tokens"], rows[0]["seconds"]) == ("'=cmd()", "10100", "")
    assert len(table_of([run], OVERVIEW[:1], Look()).splitlines()) == 9001


def test_weight_updates_are_thinned_and_drawn_through_only_while_few() -> None:
    updates = [Event("weights", step, "") for step in range(5000)]
    figure = steps_figure([run_of(5000)], OVERVIEW, [*updates, Event("config", 7, "engine changed")], LIGHT)
    (ticks,) = [t for t in figure["data"] if t["meta"] == {"kind": "weights"}]
    assert len(ticks["x"]) <= MAX_POINTS
    assert [shape["x0"] for shape in figure["layout"]["shapes"]] == [7]
    dense = [Event("weights", step, "") for step in (*range(0, 50_000, 25), *range(48_000, 50_000))]
    (ticks,) = [
        t for t in steps_figure([run_of(50_000)], OVERVIEW, dense, LIGHT)["data"] if t["meta"] == {"kind": "weights"}
    ]
    placed = ticks["x"][::3]
    assert max(np.diff([0, *placed, 50_000])) <= 2 * 50_000 / (
        MAX_POINTS // 3
    )  # evenly, where they are dense as elsewhere
    few = steps_figure([run_of(10)], OVERVIEW, updates[:3], LIGHT)
    assert [shape["x0"] for shape in few["layout"]["shapes"]] == [0, 1, 2]


def test_the_chart_says_what_it_does_not_show() -> None:
    missing = ("weight_lag_mean", "weight_lag_max", *(m for m in metrics_of(OVERVIEW) if m.startswith("update.")))
    series = run_of(4, without=missing, backend__k3_kl=[0.0, 1e-4, 1e-4, 1e-4], backend__coverage=[1, 1, 0.5, 1])
    chart = chart_of(RunView(series), OVERVIEW, LIGHT)
    assert "Weight lag" not in {row["title"] for row in chart["rows"]}
    assert chart["absent"] == "Weight lag: not measured, needs weight_version, spans"
    assert chart["rows"][0]["note"] == "1 step at 0 or below, not drawn"
    assert chart["note"] == "backend: incomplete at 1 step"
    assert [entry["name"] for entry in chart["legend"]] == ["backend", "total"]


def test_headings_and_traces_name_the_same_rows() -> None:
    chart = chart_of(RunView(run_of(30, without=("entropy", "reward"))), OVERVIEW, LIGHT)
    traces = {(t["meta"]["row"], t["meta"]["line"]) for t in chart["figure"]["data"] if "line" in t["meta"]}
    assert traces == {(row["axis"], line["line"]) for row in chart["rows"] for line in row["lines"]}


def test_alt_text_has_the_newest_values_and_their_range() -> None:
    chart = chart_of(RunView(run_of(3, backend__k3_kl=[1e-4, 4e-4, 2e-4])), OVERVIEW, LIGHT)
    assert chart["alt"].startswith(
        "Metrics of run v1-initial over 3 steps. K3 (backend): 2.00e-4 nats at step 2, between 1.00e-4 and 4.00e-4."
    )


def test_tiles_show_the_newest_value_against_the_median() -> None:
    view = RunView(run_of(3, backend__k3_kl=[1e-4, 1e-4, 3e-4]), medians={"backend.k3_kl": 1e-4})
    tile = tiles_of(view, OVERVIEW, LIGHT)[0]
    assert (tile["value"], tile["unit"], tile["change"], tile["note"]) == ("3.00e-4", "nats", "3.00× median", "")
    assert tile["spark"] == [0.0, 0.0, 1.0]


def test_a_tile_never_makes_something_up() -> None:
    series = run_of(3, without=("reward",), backend__kl=[1.0, 2.0, np.nan], backend__coverage=[1, 1, 0.99999])
    tiles = {tile["key"]: tile for tile in tiles_of(RunView(series), OVERVIEW, LIGHT)}
    assert tiles["reward"]["value"] == "–"
    assert tiles["reward"]["note"] == "not measured · needs rewards"
    assert tiles["backend.kl"]["value"] == "2"
    assert tiles["backend.kl"]["change"].endswith("step 1")
    assert tiles["backend.ess"]["note"] == "99.99 % of tokens measured"  # never rounded up to 100


def test_a_tile_says_that_engine_records_are_on_their_way() -> None:
    series = run_of(3, backend__k3_kl=[1e-4, 1e-4, np.nan], backend__coverage=[1, 1, 0])
    waiting, missing = (tiles_of(RunView(series, awaited=awaited), OVERVIEW, LIGHT)[0] for awaited in (True, False))
    assert (waiting["value"], waiting["note"]) == ("1.00e-4", "step 2: waiting for engine records")
    assert missing["note"] == "0 % of tokens measured"
    notes = [chart_of(RunView(series, awaited=awaited), OVERVIEW, LIGHT)["note"] for awaited in (True, False)]
    assert notes == ["", "backend: incomplete at 1 step"]


def test_sparklines_cover_the_steps_in_view_and_end_with_the_last() -> None:
    view = RunView(run_of(300, backend__kl=[*np.zeros(100), *np.linspace(0, 1, 200)]))
    whole, part = (tiles_of(view, OVERVIEW, LIGHT, seen) for seen in (None, Visible(0, 99, whole=False)))
    sparks = [next(tile["spark"] for tile in tiles if tile["key"] == "backend.kl") for tiles in (whole, part)]
    assert (len(sparks[0]), sparks[0][0], sparks[0][-1]) == (60, 0.0, 1.0)
    assert set(sparks[1]) == {0.5}


@pytest.mark.parametrize(
    ("value", "median", "log", "words"),
    [
        (3e-3, 1e-3, True, "3.00× median"),
        (5e-2, 1e-3, True, "50× median"),
        (1e-3, 1e-3, True, "= median"),
        (0.0, 1e-3, True, "−0.001 vs median"),
        (0.91, 0.95, False, "−0.04 vs median"),
        (0.0, 0.0, False, "= median"),
        (None, 1.0, False, ""),
        (1.0, None, True, ""),
    ],
)
def test_change_in_words(value: float | None, median: float | None, log: bool, words: str) -> None:
    assert change(value, median, log=log) == words


def test_every_panel_has_words_and_a_reason() -> None:
    for panel in OVERVIEW:
        assert panel.words
        assert why_missing(panel.metric)


def test_log_ticks() -> None:
    assert [log_ticks(decades) for decades in (0.1, 1.0, 3.0, 9.0)] == [None, "D2", 1, 3]


def test_themes() -> None:
    assert theme_for("dark") is DARK
    assert theme_for(None) is LIGHT


K3, CHI2 = OVERVIEW[0], OVERVIEW[2]


def test_one_point_far_below_does_not_flatten_the_rest() -> None:
    k3 = np.full(100, 1e-3)
    k3[0] = 1e-12
    run = run_of(100, backend__k3_kl=k3)
    scale = scale_of([run], K3)
    assert scale.range is not None
    assert scale.range[0] > -5
    assert scale.below == 1
    assert chart_of(RunView(run), OVERVIEW, LIGHT)["rows"][0]["note"] == "1 step below the axis; zoom in to see"
    assert steps_figure([run], OVERVIEW, [], LIGHT)["layout"]["yaxis2"]["range"] == list(scale.range)
    assert scale_of([run_of(100)], K3).range is None


def test_an_automatic_scale_is_logarithmic_once_values_span_decades() -> None:
    assert not scale_of([run_of(100)], CHI2).log
    assert scale_of([run_of(100, backend__chi2_token=np.geomspace(1e-3, 400, 100))], CHI2).log
    noise = np.random.default_rng(0).normal(0, 1e-3, 100)
    noise[-1] = 400.0
    assert not scale_of([run_of(100, backend__chi2_token=noise)], CHI2).log  # a logarithm would hide half of it


def test_a_value_that_stopped_coming_says_so() -> None:
    late = [1.0, 2.0, *[np.nan] * 8]
    tile = next(tile for tile in tiles_of(RunView(run_of(10, reward=late)), OVERVIEW, LIGHT) if tile["key"] == "reward")
    assert tile["note"] == "last measured at step 1"
