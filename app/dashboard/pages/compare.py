"""Compare page: runs of all data directories against a baseline, metric by metric."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Final, cast

import numpy as np
import streamlit as st

from logprobe.app.dashboard import data, ui
from logprobe.app.dashboard.figures import Chart, Curve, Row, rows_chart
from logprobe.app.dashboard.panels import why_missing
from logprobe.app.dashboard.reading.other_places import other_places
from logprobe.app.dashboard.steps import unit_beside_label
from logprobe.app.dashboard.theme import Theme
from logprobe.app.dashboard.thinning import wants_log
from logprobe.app.dashboard.ui import Line
from logprobe.app.runs import Run
from logprobe.app.text.comparison import COLUMNS, ONSETS, TONES, alt_of, goes_bad, onset_rows, outcome, verdict_row
from logprobe.app.text.numbers import number
from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.compare import Comparison, History, MetricVerdict, Pairing, Place, compared, history
from logprobe.monitor.compare.comparison import AXES, METRICS, Axis, positions
from logprobe.monitor.compare.ratio import ratios
from logprobe.monitor.judging.parity import Setting
from logprobe.monitor.metrics.catalog import KEYS
from logprobe.monitor.metrics.catalog import metric as declared

MOST: Final = 5  # runs beside the baseline: more lines cannot be distinguished
MOST_CHARTS: Final = 12
SHOWN: Final = (
    "backend.k3_kl",
    "total.clamp_log_ratio_new_old_indicator",
    "total.kl_new_old",
    "entropy",
    "reward",
    "weight_lag_mean",
)
PACE: Final = 10.0  # times what it took: a run that is live is compared again a little less often than it grows
_DASHES: Final = ("solid", "solid", "dash", "dot", "dashdot", "longdash")  # no two of neighbouring colour have the same
_ELSEWHERE: Final = (
    "Recorded folders and bundles are compared by `logprobe compare RUN… --baseline RUN`, where a RUN can be `HOME:RUN`, a folder or "
    "a `.logprobe` file."
)


def draw(run: Run) -> None:
    """Draw the page."""
    others = other_places().look()
    runs = dict(data.look().runs or {}) | dict(others.runs)
    for problem in others.problems:
        ui.write(problem, "warning")
    baseline, names, axis, shown = _choice(run, list(runs))
    why = missing(baseline, names, len(runs))
    if why:
        ui.write(why, "info")
        ui.write(_ELSEWHERE)
        return
    metrics = tuple(dict.fromkeys([*METRICS, *shown]))
    try:
        version, comparison = _compared(runs[baseline], [runs[name] for name in names], axis, metrics)
    except ConfigurationError as error:
        ui.write(str(error).replace("use --align step", "align by step"), "warning")
        return
    _verdicts(comparison)
    _matrix(comparison)
    with ui.guarded("curves"):
        _curves(comparison, version, shown)
    ui.title("Onsets", "where K3 left the baseline's band, and since which step it has grown by the run's own past")
    ui.table("onsets", ONSETS, [Line(row) for row in onset_rows(comparison)])
    ui.title("Configuration", "settings that differ, those that affect log-probs first")
    head = ["setting", comparison.baseline, *(pairing.run for pairing in comparison.pairings), "required for parity"]
    ui.table("settings", head, settings(comparison), empty="All recorded settings are the same.")


def _choice(run: Run, runs: Sequence[str]) -> tuple[str, list[str], Axis, list[str]]:
    """Offer a choice of baseline, runs, axis and charted metrics. With two runs, the other run is the baseline."""
    usual = next((name for name in runs if name != run.name), "") if len(runs) == 2 else ""  # noqa: PLR2004 - nothing to choose
    for key in ("baseline", "runs"):
        asked = st.query_params.get_all(key)
        for name in [each for each in asked if each not in runs]:
            ui.write(f"There is no run called {name} here.", "info")
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        baseline = st.selectbox(
            "baseline",
            runs,
            runs.index(usual) if usual else None,
            key="baseline",
            bind="query-params",
            persist_state="session",
            placeholder="choose a baseline",
            width=300,
        )
        if not st.session_state.get("runs") and "runs" not in st.query_params and baseline != run.name:
            st.session_state["runs"] = [run.name]
        names = st.multiselect(
            "runs",
            [name for name in runs if name != baseline],
            key="runs",
            bind="query-params",
            persist_state="session",
            max_selections=MOST,
            width=420,
        )
        axis = ui.choice("align by", tuple(AXES), "align", label_visibility="visible")
    shown = st.multiselect("charts", list(KEYS), list(SHOWN), key="compared metrics", max_selections=MOST_CHARTS)
    return baseline or "", [name for name in names if name != baseline], cast("Axis", axis), shown or list(SHOWN)


def missing(baseline: str, names: Sequence[str], runs: int) -> str:
    """Return the reason why no comparison is possible, or "" if one is possible."""
    if runs < 2:  # noqa: PLR2004 -- a run and a baseline
        return "There is only one run here: a comparison needs two."
    if not baseline:
        return "Choose a baseline: the run to compare the others with."
    return "" if names else "Choose at least one run to compare with the baseline."


def _compared(
    baseline: Run, others: Sequence[Run], axis: Axis, metrics: tuple[str, ...]
) -> tuple[Hashable, Comparison]:
    """Return the comparison with the versions of its runs, which are current or slightly stale."""

    def read(run: Run) -> History:
        place = other_places().place(run.name) or Place(run.name, run.name, data.reader())
        return data.kept(("history", run.name, metrics), data.version_of(run), lambda: history(place, metrics))

    def make() -> Comparison:
        first, *rest = [read(run) for run in everyone]
        return compared(rest, first, axis=axis, metrics=metrics)

    everyone = (baseline, *others)
    version = tuple(map(data.version_of, everyone))
    return data.versioned(("comparison", axis, metrics, tuple(run.name for run in everyone)), version, make, pace=PACE)


# --- In words ---


def _verdicts(comparison: Comparison) -> None:
    for pairing in comparison.pairings:
        words, tone = verdict_of(pairing, comparison)
        ui.write(words, tone)


def verdict_of(pairing: Pairing, comparison: Comparison) -> tuple[str, str]:
    """Return the outcome for one run, and its tone."""
    quiet = "good" if pairing.of("same") else "unsure"
    tone = next((TONES[word] for word in ("worse", "better") if pairing.of(word)), quiet)
    reward = next((item for item in pairing.metrics if item.metric == "reward" and item.final is not None), None)
    final = (
        ""
        if reward is None
        else f"final reward of the common steps {number(reward.final)}, baseline {number(reward.reference_final)}"
    )
    common = f"{pairing.common:,} of {pairing.steps:,} steps in common with {comparison.baseline}"
    note = "; ".join(filter(None, [final, common]))
    return f"{pairing.run}: {outcome(pairing, comparison.axis)}. {note[:1].upper()}{note[1:]}.", "bad" if goes_bad(
        pairing
    ) else tone


def _matrix(comparison: Comparison) -> None:
    """Draw a table of final values and verdicts over the common steps, with a line per metric and a cell per run."""
    ui.title(
        "Verdicts",
        "final values of the common steps; worse and better: beyond noise and margin over the steps that both runs have",
    )
    head = [
        "metric",
        f"final: {comparison.baseline}",
        *(name for pairing in comparison.pairings for name in (f"final: {pairing.run}", "verdict")),
    ]
    lines = []
    for items in zip(*(pairing.metrics for pairing in comparison.pairings), strict=True):
        cells = [
            items[0].label,
            number(items[0].reference_final),
            *(cell for item in items for cell in (number(item.final), verdict_words(item))),
        ]
        worst = next((tone for tone in ("bad", "unsure") if any(TONES[item.verdict] == tone for item in items)), "")
        lines.append(Line(cells, worst if worst == "bad" else ""))
    ui.table("verdicts", head, lines)
    for pairing in comparison.pairings:
        with st.expander(f"{ui.unmarked(pairing.run)}: numbers and reasons", key=f"numbers of {pairing.run}"):
            tones = ("bad" if TONES[item.verdict] == "bad" else "" for item in pairing.metrics)
            rows = [Line(verdict_row(item), tone) for item, tone in zip(pairing.metrics, tones, strict=True)]
            ui.table(f"numbers of {pairing.run}", COLUMNS, rows)


def verdict_words(item: MetricVerdict) -> str:
    """Return a verdict with the difference over the common steps, and any contradiction by the final values."""
    if item.verdict in {"same", "unknown"} or item.level is None:
        return item.verdict
    times = item.level.difference + 1 if item.level.factor else item.ratio
    apart = (
        f"{number(times)}× the level"
        if times is not None
        else f"{'+' if item.level.difference > 0 else ''}{number(item.level.difference)}"
    )
    return f"{item.verdict}, {apart}{turned(item)}"


def turned(item: MetricVerdict) -> str:
    """Return a remark if the final values differ in the opposite direction from the levels, or "" otherwise."""
    if item.level is None or item.final is None or item.reference_final is None:
        return ""
    level, final = item.level.value - item.level.reference, item.final - item.reference_final
    return "; at the end the other way round" if level * final < 0 else ""


# --- As curves ---


def _curves(comparison: Comparison, version: Hashable, shown: Sequence[str]) -> None:
    ui.title("Curves", "values, and below them their ratio to the baseline; shaded is what noise and margin explain")
    on_steps = comparison.axis == "step"
    if on_steps:
        ui.zoom()
    last = int(max(max(positions(run, comparison.axis).values(), default=0) for run in comparison.histories))
    window = ui.window(range(last + 1)) if on_steps else None
    made = {key: _curve(comparison, (version, window), key, window) for key in shown}
    drawn = [(key, chart) for key, chart in made.items() if chart is not None]
    for pair in (drawn[at : at + 2] for at in range(0, len(drawn), 2)):
        for place, (key, chart) in zip(st.columns(2, gap="medium"), pair, strict=False):
            with place:
                ui.plot(f"curve {key}", chart, None if on_steps else lambda _: None)
    absent = [f"{declared(key).label}: {why_missing(key)}" for key, chart in made.items() if chart is None]
    if absent:
        st.caption(ui.unmarked(f"not measured: {'; '.join(absent)}"))


def _curve(comparison: Comparison, version: Hashable, key: str, window: tuple[int, int] | None) -> Chart | None:
    place = ("curve", key, ui.theme().mode, comparison.axis)
    return ui.made(place, version, lambda: chart_of(comparison, key, ui.theme(), window))


def chart_of(comparison: Comparison, key: str, theme: Theme, window: tuple[float, float] | None = None) -> Chart | None:
    """Return a metric's values of all runs over ratios to the baseline, or None if it was not measured."""
    items = [next(item for item in pairing.metrics if item.metric == key) for pairing in comparison.pairings]
    colors = (theme.neutral, *theme.runs)
    overlay = comparison.overlay(key)
    curves = []
    for at, run in enumerate(comparison.histories):
        if run.label in overlay:
            x, y = (np.array(column, np.float64) for column in zip(*overlay[run.label], strict=True))
            curves.append(Curve(run.label, x, y, colors[at % len(colors)], _DASHES[at % len(_DASHES)], run.label))
    if not curves:
        return None
    values = np.concatenate([curve.y for curve in curves])
    about = declared(key)
    log = wants_log(values[np.isfinite(values)])
    title = items[0].label.partition(", distance")[0]
    rows = [
        Row(
            title,
            curves,
            unit_beside_label(key),
            f"{about.words}\n{about.formula}",
            log,
            height=150,
        )
    ]
    blocks = [ratios(item.trajectory, width) for item, width in zip(items, comparison.widths, strict=True)]
    lines = []
    for at, of_run in enumerate(blocks, start=1):
        if of_run:
            x, y, low, high = (
                np.array([getattr(block, name) for block in of_run], dtype=np.float64)
                for name in ("at", "value", "low", "high")
            )
            name = comparison.histories[at].label
            lines.append(
                Curve(name, x, y, colors[at % len(colors)], _DASHES[at % len(_DASHES)], name, band=(low, high))
            )
    note = "no ratio: the baseline is 0" if any(item.level for item in items) else "too few common steps for a ratio"
    if lines:
        known = np.concatenate([curve.y for curve in lines])
        rows.append(
            Row(
                "ratio to the baseline",
                lines,
                log=wants_log(known[np.isfinite(known)]),
                limits=[("baseline", 1.0)],
                height=80,
            )
        )
        note = ""
    axis = AXES[comparison.axis]
    return rows_chart(
        f"{key} {window}",
        rows,
        theme,
        alt=alt_of(comparison, items),
        window=window,
        axis=axis,
        legend=True,
        note=note,
    )


# --- Settings ---


def settings(comparison: Comparison) -> list[Line]:
    """Return settings that differ between a run and the baseline.

    The table has a line per setting and a cell per run, "" for equal values.
    """
    relevant = [{item.fact: item for item in pairing.relevant} for pairing in comparison.pairings]
    others = [{item.fact: item for item in pairing.differences} for pairing in comparison.pairings]
    return [*_setting_lines(relevant, "yes"), *_setting_lines(others, "")]


def _setting_lines(of_runs: Sequence[Mapping[str, Setting]], depends: str) -> Iterator[Line]:
    for fact in dict.fromkeys(fact for each in of_runs for fact in each):
        items = [each.get(fact) for each in of_runs]
        reference = next(item.reference_words for item in items if item is not None)
        yield Line([fact, reference, *("" if item is None else item.words for item in items), depends])
