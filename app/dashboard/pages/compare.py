"""Compare: runs of the home, and of those that `logprobe up --also` names, against a baseline, metric by metric."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
import streamlit as st

from logprobe.app.dashboard.charts.downsample import thin
from logprobe.app.dashboard.charts.packing import packed
from logprobe.app.dashboard.charts.panels import why_missing
from logprobe.app.dashboard.charts.scales import wants_log
from logprobe.app.dashboard.data.comparing import Comparer
from logprobe.app.dashboard.data.feed import RunView
from logprobe.app.dashboard.data.other_places import other_places
from logprobe.app.dashboard.data.stale_cache import Cached, StaleCache
from logprobe.app.dashboard.elements.links import from_address
from logprobe.app.dashboard.theme import RUN_DASHES, Theme
from logprobe.app.dashboard.views.page import show
from logprobe.app.dashboard.views.session import asked, feed, guarded, home, is_new, kept, theme
from logprobe.app.report import comparison as html
from logprobe.app.runs import Run
from logprobe.app.text import tables
from logprobe.app.text.comparison import COLUMNS, ONSETS, TONES, alt_of, goes_bad, numbers, onset_rows, outcome
from logprobe.app.text.numbers import number
from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.compare import Comparison, MetricVerdict, Pairing, Place
from logprobe.monitor.compare.comparison import AXES, METRICS, Axis, positions
from logprobe.monitor.compare.ratio import ratios
from logprobe.monitor.judging.parity import Setting
from logprobe.monitor.metrics.catalog import KEYS
from logprobe.monitor.metrics.catalog import metric as declared

_MOST_POINTS: Final = 800  # of a line on a small chart


def run_looks(comparison: Comparison, theme: Theme) -> list[dict[str, str]]:
    """Name, colour and dash of each line: the baseline's first, in the neutral colour."""
    colors = (theme.neutral, *theme.runs)
    return [
        {"name": run.label, "color": colors[at % len(colors)], "dash": RUN_DASHES[at % len(RUN_DASHES)]}
        for at, run in enumerate(comparison.histories)
    ]


def charts_of(comparison: Comparison, metrics: Sequence[str]) -> list[dict[str, object]]:
    """One chart per metric; a line's `run` is its place in `run_looks`."""
    return [_chart(comparison, key) for key in metrics]


def help_of(key: str) -> str:
    """What a metric is, and how it is computed."""
    metric = declared(key)
    return f"{metric.words} {metric.formula}"


def _chart(comparison: Comparison, key: str) -> dict[str, object]:
    items = [next(item for item in pairing.metrics if item.metric == key) for pairing in comparison.pairings]
    lines = list(_chart_lines(comparison, key))
    values = np.concatenate([y for _, _, y in lines]) if lines else np.empty(0)
    return {
        "key": key,
        "title": items[0].label.partition(", distance")[0],
        "help": help_of(key),
        "unit": declared(key).unit,
        "log": wants_log(values[np.isfinite(values)]) if len(values) else False,
        "alt": alt_of(comparison, items),
        "missing": "" if lines else f"not measured, {why_missing(key)}",
        "lines": [{"run": run, "x": packed(x, "f4"), "y": packed(y, "f4")} for run, x, y in lines],
        "ratio": _ratio(items, comparison.widths),
    }


def _chart_lines(comparison: Comparison, key: str) -> Iterator[tuple[int, Any, Any]]:
    overlay = comparison.overlay(key)
    for run, history in enumerate(comparison.histories):
        if history.label in overlay:
            x, y = (np.array(column, np.float64) for column in zip(*overlay[history.label], strict=True))
            yield run, *thin(x, y, max_points=_MOST_POINTS)


def _ratio(items: Sequence[MetricVerdict], widths: Sequence[float]) -> dict[str, object]:
    """Per run, blocks as [x, ratio, low, high]; logarithmic where they span decades."""
    lines = [ratios(item.trajectory, width) for item, width in zip(items, widths, strict=True)]
    values = np.array([number for line in lines for ratio in line for number in (ratio.value, ratio.low, ratio.high)])
    return {
        "lines": [
            {"run": run, "blocks": [[block.at, block.value, block.low, block.high] for block in line]}
            for run, line in enumerate(lines, start=1)
        ],
        "log": wants_log(values) if len(values) else False,
        "of": "distances" if ", distance" in items[0].label else "values",
        "missing": "no ratio: the baseline is 0"
        if any(item.level for item in items)
        else "too few common steps for a ratio",
    }


MOST: Final = 5  # runs beside the baseline: more lines cannot be distinguished
SHOWN: Final = (
    "backend.k3_kl", "total.clamp_log_ratio_new_old_indicator", "total.kl_new_old", "entropy", "reward", "weight_lag_mean",
)  # fmt: skip
_MOST_CHARTS: Final = 12
_AXIS_WORDS: Final = {"step": "step", "tokens": "tokens", "time": "time", "onset": "since onset"}
_ELSEWHERE: Final = (
    "Runs of this home, and of those that `logprobe up --also` names. Recorded folders and bundles are compared by "
    "`logprobe compare RUN… --baseline RUN`, where a RUN can be `HOME:RUN`, a folder or a `.logprobe` file."
)


@dataclass(frozen=True)
class Choice:
    """What the address asks for, as far as it can be had.

    Attributes:
        baseline: None: none is chosen.
        runs: compared with it, at most `MOST`; empty: none is chosen.
        axis: what their steps are aligned by.
        shown: metrics that have a chart.
        notes: what of the address could not be had.
    """

    baseline: str | None
    runs: tuple[str, ...]
    axis: Axis = "step"
    shown: tuple[str, ...] = SHOWN
    notes: tuple[str, ...] = ()

    @property
    def metrics(self) -> tuple[str, ...]:
        """All that are judged: the usual ones, and those that have a chart."""
        return tuple(dict.fromkeys([*METRICS, *self.shown]))


def choice_of(runs: Sequence[str], opened: str, address: Mapping[str, str | None]) -> Choice:
    """What is compared.

    Args:
        runs: runs of the home.
        opened: the run that the bar shows; compared unless the address names others.
        address: `baseline`, `runs`, `align` and `metric`, as far as it has them.
    """
    asked = from_address(address.get("runs")) or (opened,)
    baseline = address.get("baseline")
    if baseline is None and len(runs) == 2:  # noqa: PLR2004 -- two runs: there is nothing to choose
        baseline = next(name for name in runs if name not in asked[:1])
    chosen = [name for name in dict.fromkeys(asked) if name in runs and name != baseline]
    shown = tuple(dict.fromkeys(map(_whole, from_address(address.get("metric"))))) or SHOWN
    axis = address.get("align") or "step"
    missing = [name for name in dict.fromkeys((*asked, baseline or opened)) if name not in runs]
    return Choice(
        baseline=baseline if baseline in runs else None,
        runs=tuple(chosen[:MOST]),
        axis=cast("Axis", axis) if axis in AXES else "step",
        shown=tuple(key for key in shown if key in KEYS)[:_MOST_CHARTS] or SHOWN,
        notes=tuple(_notes(missing, chosen[MOST:], shown, axis)),
    )


def _notes(missing: Sequence[str], too_many: Sequence[str], shown: Sequence[str], axis: str) -> Iterator[str]:
    yield from (f"There is no run called {name} here." for name in missing)
    yield from (f"{name} is left out: at most {MOST} runs can be distinguished." for name in too_many)
    yield from (f"There is no metric {key}." for key in shown if key not in KEYS)
    for key in [key for key in shown if key in KEYS][_MOST_CHARTS:]:
        yield f"{key} is left out: there are at most {_MOST_CHARTS} charts."
    if axis not in AXES:
        yield f"Runs cannot be aligned by {axis}."


def _whole(key: str) -> str:
    """The key with its pair: other pages leave the pair out of the address, and mean the usual one."""
    return key if key in KEYS or f"backend.{key}" not in KEYS else f"backend.{key}"


def chooser(choice: Choice, runs: Sequence[Run], problems: Sequence[str] = ()) -> dict[str, object]:
    """What can be chosen, and what is; `problems`: why runs are missing, or nothing can be compared."""
    return {
        "runs": [run.name for run in runs],
        "baseline": choice.baseline,
        "chosen": list(choice.runs),
        "most": MOST,
        "align": choice.axis,
        "axes": [[key, words] for key, words in _AXIS_WORDS.items()],
        "metrics": [key for key in KEYS if key not in choice.metrics],
        "shown": list(choice.shown),
        "notes": [*choice.notes, *filter(None, problems)],
        "elsewhere": _ELSEWHERE,
        "missing": _missing(choice, runs),
    }


def _missing(choice: Choice, runs: Sequence[Run]) -> str:
    if len(runs) < 2:  # noqa: PLR2004 -- a run and a baseline
        return "There is only one run here: a comparison needs two."
    if choice.baseline is None:
        return "Choose a baseline: the run to compare the others with."
    return "" if choice.runs else "Choose at least one run to compare with the baseline."


def compare_data(comparison: Comparison, choice: Choice, theme: Theme) -> dict[str, object]:
    """What `browser/compare.js` draws of a comparison."""
    return {
        "looks": run_looks(comparison, theme),
        "verdicts": [_verdict(pairing, comparison) for pairing in comparison.pairings],
        "matrix": _matrix(comparison, choice),
        "tables": {"head": list(COLUMNS), "runs": [_table(pairing) for pairing in comparison.pairings]},
        "onsets": {"head": list(ONSETS), "rows": onset_rows(comparison)},
        "charts": charts_of(comparison, choice.shown),
        "axis": {"key": comparison.axis, "words": AXES[comparison.axis], "cell": max(comparison.widths)},
        "settings": _settings(comparison),
    }


def values_of(comparison: Comparison, metrics: Sequence[str]) -> pa.Table:
    """What the charts are drawn from: run, step, its place on another axis, a column per metric; null where there is no
    value."""
    axis = [] if comparison.axis == "step" else [AXES[comparison.axis]]
    rows: list[dict[str, object]] = []
    for run in comparison.histories:
        trends, places = {key: run.trend(key) for key in metrics}, positions(run, comparison.axis)
        for step in sorted({step for trend in trends.values() for step in trend}):
            values = {key: trend.get(step) for key, trend in trends.items()}
            rows.append({"run": run.label, "step": step, **{name: places.get(step) for name in axis}, **values})
    kinds = [("run", pa.string()), ("step", pa.int64()), *((name, pa.float64()) for name in [*axis, *metrics])]
    return pa.Table.from_pylist(rows, schema=pa.schema(kinds))


def _verdict(pairing: Pairing, comparison: Comparison) -> dict[str, object]:
    tone = next((TONES[word] for word in ("worse", "better") if pairing.of(word)), _quiet(pairing))
    common = f"{pairing.common:,} of {pairing.steps:,} steps in common with {comparison.baseline}"
    note = " · ".join(filter(None, [_final_reward(pairing), common]))
    return {
        "run": pairing.run,
        "words": outcome(pairing, comparison.axis),
        "tone": "bad" if goes_bad(pairing) else tone,
        "note": note,
    }


def _final_reward(pairing: Pairing) -> str:
    reward = next((item for item in pairing.metrics if item.metric == "reward" and item.final is not None), None)
    return (
        ""
        if reward is None
        else f"final reward of the common steps {number(reward.final)}, baseline {number(reward.reference_final)}"
    )


def _quiet(pairing: Pairing) -> str:
    return "good" if pairing.of("same") else "unsure"


def _matrix(comparison: Comparison, choice: Choice) -> list[dict[str, object]]:
    """A line per metric, a cell per run."""
    of_metric = zip(*(pairing.metrics for pairing in comparison.pairings), strict=True)
    return [
        {"key": items[0].metric, "label": items[0].label, "help": help_of(items[0].metric), "shown": items[0].metric in choice.shown, "cells": list(map(_cell, items))}
        for items in of_metric
    ]  # fmt: skip


def _cell(item: MetricVerdict) -> dict[str, str]:
    return {"verdict": item.verdict, "tone": TONES[item.verdict], "change": _change(item), "reason": item.reason}


def _change(item: MetricVerdict) -> str:
    """How far apart, where it says something: times the baseline, or a difference where that is 0."""
    if item.verdict in {"same", "unknown"} or item.level is None:
        return ""
    times = item.level.difference + 1 if item.level.factor else item.ratio
    if times is not None:
        return f"{number(times)}×"
    return f"{'+' if item.level.difference > 0 else ''}{number(item.level.difference)}"


def _table(pairing: Pairing) -> dict[str, object]:
    rows = [
        {"tone": TONES[item.verdict], "cells": [item.label, item.verdict, *numbers(item), item.reason]}
        for item in pairing.metrics
    ]
    return {"run": pairing.run, "rows": rows}


def _settings(comparison: Comparison) -> dict[str, object]:
    """What differs between any run and the baseline: a line per setting, a cell per run; "" where it is as the
    baseline's."""
    relevant = [{item.fact: item for item in pairing.relevant} for pairing in comparison.pairings]
    others = [{item.fact: item for item in pairing.differences} for pairing in comparison.pairings]
    rows = [*_lines(relevant, "yes"), *_lines(others, "")]
    head = ["setting", comparison.baseline, *(pairing.run for pairing in comparison.pairings), "required for parity"]
    return {"head": head, "rows": rows}


def _lines(of_runs: Sequence[Mapping[str, Setting]], depends: str) -> Iterator[list[str]]:
    for fact in dict.fromkeys(fact for settings in of_runs for fact in settings):
        items = [settings.get(fact) for settings in of_runs]
        reference = next(item.reference_words for item in items if item is not None)
        yield [fact, reference, *("" if item is None else item.words for item in items), depends]


_KEY: Final = "compare"
_ASKED: Final = ("baseline", "runs", "align", "metric")
_GIVEN: Final = "compare given"  # the download that was asked for last, so that it is made once
_FILE: Final = "compare file"


@cache
def _comparer(_: str) -> Comparer:
    return Comparer(lambda name: other_places().place(name) or Place(name, name, feed()))


@cache
def _drawn() -> StaleCache:
    return StaleCache(8)


def draw(run: Run, _: RunView) -> None:
    """Draws the page."""
    with guarded("comparison"):
        others = other_places().look()
        runs = {listed.name: listed for listed in feed().snapshot(run.name).runs or ()} | dict(others.runs)
        choice = choice_of(list(runs), run.name, {name: asked(name) for name in _ASKED})
        cached, problem = _compared(choice, runs)
        data = {
            "choice": chooser(choice, list(runs.values()), [*others.problems, problem]),
            "file": st.session_state.pop(_FILE, None),
        }
        wanted = show(_KEY, _KEY, data | ({} if cached is None else _drawing(cached, choice)))
        _give(wanted, None if cached is None else cached.value, choice)


def _compared(choice: Choice, runs: Mapping[str, Run]) -> tuple[Cached[Comparison] | None, str]:
    """The comparison, or why there is none."""
    if choice.baseline is None or not choice.runs:
        return None, ""
    baseline, others = runs[choice.baseline], tuple(runs[name] for name in choice.runs)
    comparer = _comparer(str(home()))
    try:
        return kept(
            f"{_KEY} {choice}",
            lambda: comparer.compare(others, baseline, axis=choice.axis, metrics=choice.metrics),
        ), ""
    except ConfigurationError as error:
        return None, str(error).replace("use --align step", "align by step")


def _drawing(cached: Cached[Comparison], choice: Choice) -> dict[str, object]:
    """Data of the comparison, with a version that is another whenever it is; made once for all sessions that look at
    the same."""
    colors = theme()
    key = (str(home()), choice, cached.state, colors.mode)
    drawn = _drawn().get(key, None, lambda: compare_data(cached.value, choice, colors) | {"version": f"{hash(key):x}"})
    data: dict[str, object] = drawn.value
    return data


def _give(wanted: Mapping[str, Any] | None, comparison: Comparison | None, choice: Choice) -> None:
    """Makes the file that was asked for, and redraws the page with it."""
    if comparison is None or not is_new(wanted, _GIVEN):
        return
    name = f"comparison-with-{comparison.baseline}"
    kind = wanted.get("id")
    if kind == "json":
        file = {"type": "application/json", "text": tables.dump(comparison.document())}
    elif kind == "csv":
        file = {"type": "text/csv;charset=utf-8", "text": tables.csv_text(values_of(comparison, choice.shown))}
    else:
        file = {"type": "text/html", "text": html.report(comparison)}
    st.session_state[_FILE] = file | {"name": f"{name}.{kind}", "at": wanted.get("at")}
    st.rerun(scope="fragment")
