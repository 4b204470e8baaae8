"""Mismatch: every metric by pair, how log-ratios spread, where in the sequences the gap is, and in which of them."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import streamlit as st

from logprobe.app.dashboard.charts.axes import axis_of
from logprobe.app.dashboard.charts.bars import bars_chart
from logprobe.app.dashboard.charts.density import density_of
from logprobe.app.dashboard.charts.heat import darkest, heat_chart, tokens_of
from logprobe.app.dashboard.charts.look import Look
from logprobe.app.dashboard.charts.panels import PAIR_WORDS, pairs_of, panel_of
from logprobe.app.dashboard.charts.tiles import change, spark, thinned
from logprobe.app.dashboard.data.feed import RunView
from logprobe.app.dashboard.data.mismatch import MismatchData, Side
from logprobe.app.dashboard.data.series import Floats, RunSeries, Steps
from logprobe.app.dashboard.data.stale_cache import StaleCache
from logprobe.app.dashboard.data.visible import Visible, ends, visible
from logprobe.app.dashboard.elements.blocks import Block, heading, text
from logprobe.app.dashboard.pages.mismatch_slices import columns_of, slices_of
from logprobe.app.dashboard.theme import Theme
from logprobe.app.dashboard.views.chart import figure, steps_chart
from logprobe.app.dashboard.views.page import show
from logprobe.app.dashboard.views.report import report
from logprobe.app.dashboard.views.session import asked, catalog_of, feed, guarded, home, kept, made, put, theme
from logprobe.app.runs import Run
from logprobe.app.text.numbers import number, quantity
from logprobe.collectors.kernel.pairs import SIDES
from logprobe.monitor.analysis.slices import rank
from logprobe.monitor.metrics.catalog import CATALOG
from logprobe.monitor.metrics.definition import Metric, PairMetric, StepMetric
from logprobe.monitor.plain_text import csv_cell

ENDS: Final = "ends"
DIMENSIONS: Final = {
    "position": ("Position in the sequence", "decile of its tokens under the mask"),
    "turn": ("Position in its turn", "tokens since the turn began"),
    "probability": ("Probability", "of the token under the behaviour policy"),
    "weight_lag": ("Weight lag", "versions between the trainer's weights and those that sampled the sequence"),
}
MEASURES: Final = (
    ("logprob_abs_diff_mean", "mean |d|", "nats"),
    ("log_ratio_mean", "mean d", "nats"),
    ("k3_kl", "K3", "nats"),
    ("share", "share of tokens", ""),
)
_NO_PROFILE: Final = "no profile of these steps: their raw tokens were not kept, or they were not profiled yet"


def compared(asked: str | None, seen: Visible, steps: Steps) -> list[tuple[str, Visible]]:
    """Which ranges are shown: what is in view; its last tenth against its first; or what is in view against ``A:B``."""
    if asked == ENDS:
        first, last = ends(seen, steps)
        return [("last 10 % of the view", last), ("first 10 %", first)]
    in_view = [("in view", seen)]
    other = visible(asked, steps)
    return in_view if asked is None or other.whole else [*in_view, ("against", other)]


def profiles_of(
    sides: Sequence[Side], pair: str, asked: str | None, theme: Theme, why_absent: str
) -> dict[str, object]:
    """What `charts/bars.py` draws. `why_absent`: what to record for the pair, where it has no log-probs at all; else
    ""."""
    return {
        "pair": pair,
        "color": theme.color(pair),
        "choice": asked if asked == ENDS or len(sides) > 1 else "view",
        "sides": [{"name": side.name, "steps": side.seen.words} for side in sides],
        "measures": [{"title": title, "unit": unit} for _, title, unit in MEASURES],
        "columns": [_column(name, sides, why_absent) for name in DIMENSIONS],
    }


def _column(dimension: str, sides: Sequence[Side], why_absent: str) -> dict[str, object]:
    title, words = DIMENSIONS[dimension]
    tables = [_valid(side.buckets[dimension]) for side in sides]
    labels = sorted({label for table in tables for label in table["label"].to_pylist()}, key=rank)
    column: dict[str, object] = {
        "key": dimension,
        "title": title,
        "help": words,
        "labels": labels,
        "note": _profile_note(dimension, sides),
    }
    if not labels:
        return column | {"missing": why_absent or _NO_PROFILE}
    by_side = [_values(table, labels) for table in tables]
    return column | {"values": [[side[key] for side in by_side] for key, _, _ in MEASURES]}


def _valid(table: pa.Table) -> pa.Table:
    """Without the bucket of broken tokens, which have no log-ratio; the table of metrics counts them."""
    return table.filter(table["log_ratio_mean"].is_valid())


def _profile_note(dimension: str, sides: Sequence[Side]) -> str:
    """Where the weight lag stands on fewer steps than the rest."""
    fewer = [side for side in sides if (side.lag_steps.first, side.lag_steps.last) != (side.seen.first, side.seen.last)]
    return f"{', '.join(side.lag_steps.words for side in fewer)} only" if dimension == "weight_lag" and fewer else ""


def _values(table: pa.Table, labels: Sequence[str]) -> dict[str, list[dict[str, object] | None]]:
    """Per measure one entry per label: the number, and how people read it; None where the bucket has no token."""
    rows = {row["label"]: row for row in table.to_pylist()}
    total = sum(row["tokens"] for row in rows.values())
    for row in rows.values():
        row["share"] = row["tokens"] / total if total else None
    return {key: [_entry(rows.get(label), key) for label in labels] for key, _, _ in MEASURES}


def _entry(row: Mapping[str, Any] | None, key: str) -> dict[str, object] | None:
    if row is None or row[key] is None:
        return None
    value = float(row[key])
    return {"value": value, "text": f"{value:.1%}" if key == "share" else number(value), "tokens": row["tokens"]}


USUAL: Final = "k3_kl"
_LATE: Final = 5  # steps: what the engine reports joins a little after what the trainer does
_GROUPS: Final = {
    "token": ("Over tokens", "each token weighs the same"),
    "sequence": ("Over sequences", "each sequence weighs the same, or counts as a whole"),
    "count": ("Counts", "completeness of the numbers, and broken tokens"),
}
_WORSE: Final = {
    "higher": "higher",
    "lower": "lower",
    "away from 0": "≠ 0",
    "away from 1": "≠ 1",
    "neither": "–",
}
_BROKEN: Final = {"nonfinite_tokens": "non-finite tokens", "impossible_tokens": "impossible tokens"}
_HOW: Final = {
    "rollout_logprobs": "log-probs of the engine",
    "trainer_logprobs": "log-probs recomputed by the trainer before the update",
    "current_logprobs": "the trainer's log-probs at the update",
    "reference_logprobs": "log-probs of the reference policy",
}

Declared = PairMetric | StepMetric


def chosen(asked: str | None, catalog: Sequence[Declared]) -> Declared:
    """The metric that the address names, with or without its pair; the usual one for what there is not."""
    by_key = {metric.key: metric for metric in catalog}
    name = asked or USUAL
    pair, _, key = name.partition(".")
    return by_key.get(key if pair in SIDES and key else name) or by_key[USUAL]


def about(metric: Declared) -> list[Block]:
    """What the chosen metric is, as blocks of `views/report.py`."""
    facts = [
        metric.unit,
        "" if metric.worse == "neither" else f"worse when {metric.worse}",
        "a count" if metric.grain == "count" else f"over {metric.grain}s",
        f"also reported by {metric.source}" if metric.source else "",
    ]
    return [heading(metric.label, " · ".join(filter(None, facts))), text(f"{metric.words} `{metric.formula}`")]


def grid_of(
    run: RunSeries, catalog: Sequence[Declared], seen: Visible, selected: str, theme: Theme
) -> dict[str, object]:
    """Data of `browser/mismatch.js`: one line per key, grouped as the catalog groups; all values are text.

    Args:
        run: every metric of the catalog.
        catalog: its declarations, in its order.
        seen: the steps in view.
        selected: key of the metric whose chart is open, without a pair.
        theme: colours of the pairs.
    """
    absent = {pair: why_unmeasured(run, pair) for pair in pairs_of(run)}
    groups = [
        {"title": title, "note": note, "rows": [_pair_row(run, metric, seen, absent) for metric in members]}
        for title, note, members in _grouped(catalog)
    ]
    steps = [_step_row(run, metric, seen) for metric in catalog if isinstance(metric, StepMetric)]
    return {
        "run": run.run,
        "pairs": [{"name": pair, "help": PAIR_WORDS[pair], "color": theme.color(pair)} for pair in absent],
        "neutral": theme.neutral,
        "groups": [
            *groups,
            {
                "title": "Of the step",
                "note": "not of a pair: reported by the trainer, the engine and weight updates",
                "rows": steps,
            },
        ],
        "selected": selected,
        "note": _note(seen),
        "broken": broken_of(run, seen),
        "absent": _absent(absent),
    }


def as_of(step: int) -> str:
    """Says that the bar is ahead of what is shown."""
    return f"as of step {step:,}; newer ones follow shortly"


def broken_of(run: RunSeries, seen: Visible) -> list[str]:
    """What is broken or missing of the steps in view, a sentence per pair that has any."""
    inside = (run.steps >= seen.first) & (run.steps <= seen.last)
    return [words for pair in pairs_of(run) if (words := _broken(run, pair, inside))]


def _broken(run: RunSeries, pair: str, inside: npt.NDArray[np.bool_]) -> str:
    coverage = run.column(f"{pair}.coverage")[inside]
    partial = int(np.count_nonzero(coverage < 1))
    if not partial:
        return ""
    counts = {words: np.nansum(run.column(f"{pair}.{key}")[inside]) for key, words in _BROKEN.items()}
    broken = "".join(f"; {words}: {int(count):,}" for words, count in counts.items() if count)
    least = math.floor(1e4 * float(np.nanmin(coverage))) / 100  # never rounded up to 100
    steps = f"{partial:,} step{'' if partial == 1 else 's'}"
    return f"{pair}: incomplete at {steps} in view, down to {least:g} % of the tokens{broken}"


def _grouped(catalog: Sequence[Declared]) -> Iterator[tuple[str, str, list[PairMetric]]]:
    for grain, (title, note) in _GROUPS.items():
        members = [metric for metric in catalog if isinstance(metric, PairMetric) and metric.grain == grain]
        if members:
            yield title, note, members


def _note(seen: Visible) -> str:
    return (
        f"latest values of {'all steps' if seen.whole else seen.words}, as a factor of the median of all earlier steps "
        "or the difference from it"
    )


def _row(metric: Metric, cells: Mapping[str, Any]) -> dict[str, object]:
    return {
        "key": metric.key,
        "label": metric.label,
        "unit": "" if metric.unit in {"fraction", "1e-4"} else metric.unit,
        "worse": _WORSE[metric.worse],
        "worse_help": "neither direction is worse" if metric.worse == "neither" else f"worse when {metric.worse}",
        "help": f"{metric.words}\n{metric.formula}",
        "cells": cells,
    }


def _pair_row(run: RunSeries, metric: PairMetric, seen: Visible, absent: Mapping[str, str]) -> dict[str, object]:
    cells: dict[str, Mapping[str, object]] = {}
    for pair in absent:
        key = f"{pair}.{metric.key}"
        if pair not in metric.pairs:
            cells[pair] = {"value": "", "undefined": f"not defined for the pair {pair}"}
        else:
            cells[pair] = _cell(run, key, metric, seen) or _unknown(absent[pair], metric)
    return _row(metric, cells)


def _unknown(absent: str, metric: PairMetric) -> dict[str, object]:
    """A dash and why. What a whole pair lacks is said once above the table: `said`."""
    why = absent or _needs(metric.needs) or "undefined for what was recorded"
    return {"value": "–", "missing": why, "said": bool(absent)}


def _absent(reasons: Mapping[str, str]) -> list[str]:
    """Pairs that were not measured, those with one reason together."""
    return [
        f"{', '.join(pair for pair in reasons if reasons[pair] == why)}: {why}"
        for why in dict.fromkeys(reasons.values())
        if why
    ]


def _step_row(run: RunSeries, metric: StepMetric, seen: Visible) -> dict[str, object]:
    cell = _cell(run, metric.key, metric, seen)
    return _row(
        metric, {"step": cell or {"value": "–", "missing": _needs(metric.needs) or "null at every step so far"}}
    )


def why_unmeasured(run: RunSeries, pair: str) -> str:
    """What to record for a pair without log-probs on both sides; "" for a pair that has them."""
    measured = measured_pairs(run)
    if pair in measured:
        return ""
    recorded = {side for name in measured for side in SIDES[name]}
    return _needs([side for side in SIDES[pair] if side not in recorded])


def measured_pairs(run: RunSeries) -> list[str]:
    """Pairs with log-probs on both sides at some step: with a token that could be compared."""
    return [pair for pair in SIDES if run.measured(f"{pair}.k3_kl")]


def _needs(names: Sequence[str]) -> str:
    """What to record; "" where nothing is missing."""
    named = [f"{name} ({_HOW[name]})" if name in _HOW else name.replace("_", " ") for name in names]
    return f"not measured: record {', '.join(named)}" if named else ""


def _cell(run: RunSeries, key: str, metric: Metric, seen: Visible) -> dict[str, object] | None:
    """Newest value in view; None where there is none in the whole run."""
    column = run.column(key)
    if not np.isfinite(column).any():
        return None
    inside = np.flatnonzero((run.steps >= seen.first) & (run.steps <= seen.last))
    with_value = inside[np.isfinite(column[inside])]
    if not len(with_value):
        return {"value": "–", "missing": f"no value at {seen.words}"}
    at = with_value[-1]
    before = column[:at][np.isfinite(column[:at])]
    usual = float(np.median(before)) if len(before) else None
    return {
        "value": number(float(column[at])),
        "change": _short(change(float(column[at]), usual, log=metric.worse == "higher")),
        "change_help": f"latest value compared with the median of earlier steps, {quantity(usual, metric.unit)}",
        "late": f"of step {run.steps[at]:,}" if len(inside) and inside[-1] - at > _LATE else "",
        "spark": spark(thinned(column[inside]), log=_positive(column[inside]) and metric.key.endswith("_kl")),
    }


def _short(words: str) -> str:
    """A change without what it is against, which the table says once."""
    return words.removesuffix(" vs median").removesuffix(" median")


def _positive(values: Floats) -> bool:
    return bool((values[np.isfinite(values)] > 0).all())


_LOADS: Final = 4  # some 10 MB each


@dataclass(frozen=True)
class _Looking:
    """What is looked at. `view`: with every metric of the catalog; `absent`: what to record for the pair, "" where it
    is there."""

    run: Run
    view: RunView
    seen: Visible
    pairs: list[dict[str, str]]
    pair: str
    absent: str
    metric: Declared
    colors: Theme

    @property
    def about(self) -> str:
        """What the panels of one pair are about."""
        return f"{self.run.name} {self.pair} {self.absent} {self.seen} {self.colors.mode}"


@dataclass(frozen=True)
class _Panel:
    """What a panel shows: another `version` whenever `draw` would return something else."""

    version: str
    draw: Callable[[], dict[str, object]]


@cache
def _data(_home: str) -> MismatchData:
    return MismatchData(feed(), StaleCache(), StaleCache(_LOADS))


def draw(run: Run, view: RunView) -> None:
    """Draws the page."""
    with guarded("metrics"):
        series = catalog_of(run.name, view.series.revision)
        if series is not None:
            _sections(_looking(run, replace(view, series=series)))


def _looking(run: Run, view: RunView) -> _Looking:
    asked_pair = asked("pair")
    pairs = pairs_of(view.series)
    pair = asked_pair if asked_pair in pairs else pairs[0]
    return _Looking(
        run=run,
        view=view,
        seen=visible(asked("steps"), view.series.steps),
        pairs=[{"name": name, "help": PAIR_WORDS[name]} for name in pairs],
        pair=pair,
        absent=why_unmeasured(view.series, pair),
        metric=chosen(asked("metric"), CATALOG),
        colors=theme(),
    )


def _sections(at: _Looking) -> None:
    report("about", "chosen metric", about(at.metric))
    with guarded("chart"):
        steps_chart("metric", at.view, (panel_of(at.metric, height=190),))
    for kind, read, draw in (
        ("mismatch", _grid, _panel),
        ("heatmap", _density, _heat),
        ("profiles", _profiles, _multiples),
        ("slices", _slices, _panel),
    ):
        with guarded(kind):
            _section(kind, at, read, draw)


def _section(
    kind: str, at: _Looking, read: Callable[[_Looking], _Panel], draw: Callable[[str, _Looking, dict[str, Any]], None]
) -> None:
    """Draws what `read` found, or found last while the service is away; made again only when it is another."""
    panel = kept(f"{kind} {at.run.name}", lambda: read(at))
    if panel is not None:
        draw(kind, at, {"version": panel.version, **made(f"{kind} drawn", panel.version, panel.draw)})


def _panel(kind: str, at: _Looking, drawn: dict[str, Any]) -> None:
    show(kind, kind, {"run": at.run.name, "pairs": at.pairs, **drawn})


def _heat(kind: str, at: _Looking, drawn: dict[str, Any]) -> None:
    density = drawn["density"]
    shade = f"; darkest: {number(100 * drawn['darkest'])} % of a step's tokens per bin" if drawn["darkest"] else ""
    report(kind, kind, [heading("Log-ratio density", f"{density['axis']}{shade}"), *_older(drawn)])
    with st.container(horizontal=True, vertical_alignment="center"):
        pairs = {each["name"]: each["name"] for each in at.pairs}
        _choose(f"{kind} pair", "pair", pairs, at.pair, lambda pair: {"pair": pair})
        _csv_button(kind, at, partial(density_csv, density))
    figure(kind, drawn["chart"])


def _multiples(kind: str, at: _Looking, drawn: dict[str, Any]) -> None:
    profiles = drawn["profiles"]
    sides = "; ".join(f"{side['name']}: {side['steps']}" for side in profiles["sides"])
    where = "where in a sequence, at which probability, and from which weights the mismatch comes"
    report(kind, kind, [heading("Profiles", f"{where} · {sides}"), *_older(drawn)])
    with st.container(horizontal=True, vertical_alignment="center"):
        ranges = {"view": "in view", ENDS: "last 10 % against first 10 %"}
        chosen_range = profiles["choice"] if profiles["choice"] in ranges else "view"
        _choose(
            f"{kind} ranges", "ranges of steps", ranges, chosen_range,
            lambda choice: {"mismatch.profile": None if choice == "view" else choice},
        )  # fmt: skip
        against = "" if profiles["choice"] in ranges else profiles["choice"]
        st.session_state[f"{kind} against"] = against
        st.text_input(
            "against steps", key=f"{kind} against", placeholder="against steps, 0:49", max_chars=40, width=190,
            label_visibility="collapsed",
            on_change=lambda: put({"mismatch.profile": st.session_state[f"{kind} against"].strip() or None}),
        )  # fmt: skip
        _csv_button(kind, at, partial(profiles_csv, profiles))
    for place, column in zip(st.columns(len(profiles["columns"])), profiles["columns"], strict=True):
        with place:
            title: list[Block] = [heading(column["title"], column["note"] or column["help"])]
            missing = [text(column["missing"])] if "missing" in column else []
            report(f"{kind} {column['key']}", column["title"], [*title, *missing])
            if not missing:
                chart = bars_chart(column, profiles, at.run.name, at.colors)
                figure(f"{kind} {column['key']}", chart)


def _older(drawn: Mapping[str, Any]) -> list[Block]:
    return [text(drawn["old"], "unknown")] if drawn["old"] else []


def _choose(
    key: str, label: str, options: Mapping[str, str], chosen: str, state: Callable[[str], dict[str, str | None]]
) -> None:
    """One of a few; the address says which one it is."""
    st.session_state[key] = chosen
    st.segmented_control(
        label, list(options), format_func=options.__getitem__, key=key, label_visibility="collapsed", required=True,
        on_change=lambda: put(state(st.session_state[key])),
    )  # fmt: skip


def _csv_button(kind: str, at: _Looking, content: Callable[[], str]) -> None:
    name = re.sub(r"[^\w.-]+", "_", f"{at.run.name}-{kind}-{at.pair}.csv")
    st.download_button("CSV", content, name, "text/csv", key=f"{kind} csv", on_click="ignore", type="tertiary")


def density_csv(density: Mapping[str, Any]) -> str:
    """A row per bin in which a column has tokens."""
    tokens, ends = tokens_of(density), density["edges"]
    rows = []
    for column, bin_ in np.argwhere(tokens > 0).tolist():
        first = density["first"] + column * density["width"]
        last = min(density["last"], first + density["width"] - 1)
        rows.append([first, last, ends[bin_], ends[bin_ + 1], tokens[column, bin_], tokens[column].sum()])
    return _csv(["first step", "last step", "d from", "d to", "tokens", "tokens of these steps"], rows)


def profiles_csv(profiles: Mapping[str, Any]) -> str:
    """A row per bucket and range of steps."""
    rows = [
        [
            column["title"],
            label,
            side["steps"],
            *((values[at][place] or {}).get("value") for values in column["values"]),
            (column["values"][0][at][place] or {}).get("tokens"),
        ]
        for column in profiles["columns"]
        if "missing" not in column
        for place, label in enumerate(column["labels"])
        for at, side in enumerate(profiles["sides"])
    ]
    return _csv(["profile", "bucket", "steps", *(each["title"] for each in profiles["measures"]), "tokens"], rows)


def _csv(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    out = io.StringIO()
    lines = csv.writer(out, lineterminator="\r\n")
    lines.writerow(head)
    lines.writerows([csv_cell(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)
    return out.getvalue()


def _grid(at: _Looking) -> _Panel:
    version = f"{at.view.version} {at.seen} {at.metric.key} {at.colors.mode}"
    return _Panel(version, lambda: grid_of(at.view.series, CATALOG, at.seen, at.metric.key, at.colors))


def _density(at: _Looking) -> _Panel:
    data = _data(str(home()))
    cached = data.density(at.view.series, at.pair, at.seen, data.profiled(at.run.name))
    age = as_of(cached.value.columns.last) if cached.old else ""
    judged = at.view.diagnosis
    since = None if judged is None else judged.document["since_step"]

    x = Look.of(asked, at.view.series.steps).x

    def draw() -> dict[str, object]:
        drawn = density_of(cached.value, at.pair, at.colors, at.absent)
        tokens = tokens_of(drawn)
        chart = heat_chart(drawn, at.run.name, axis_of([at.view.series], [since], x), at.colors)
        return {"old": age, "density": drawn, "darkest": darkest(tokens) if tokens.any() else 0.0, "chart": chart}

    return _Panel(f"{at.about} {cached.state} {age} {since} {x}", draw)


def _profiles(at: _Looking) -> _Panel:
    data, run, choice = _data(str(home())), at.view.series, asked("mismatch.profile")
    profiled = data.profiled(run.run)
    sides = [data.side(run, at.pair, name, seen, profiled) for name, seen in compared(choice, at.seen, run.steps)]
    age = as_of(max(side.value.lag_steps.last for side in sides)) if any(side.old for side in sides) else ""

    def draw() -> dict[str, object]:
        profiles = profiles_of([side.value for side in sides], at.pair, choice, at.colors, at.absent)
        return {"old": age, "profiles": profiles}

    return _Panel(f"{at.about} {choice} {[side.state for side in sides]} {age}", draw)


def _slices(at: _Looking) -> _Panel:
    cached = _data(str(home())).sliced(at.view.series, at.pair, asked("mismatch.by"), at.seen)
    columns = columns_of(asked("mismatch.columns"), at.metric, CATALOG)
    age = as_of(cached.value.steps.last) if cached.old else ""

    def draw() -> dict[str, object]:
        drawn = slices_of(
            cached.value,
            pair=at.pair,
            columns=columns,
            catalog=CATALOG,
            seen=at.seen,
            theme=at.colors,
            why_absent=at.absent,
        )
        return {"old": age, **drawn}

    shown = ",".join(metric.key for metric in columns)
    return _Panel(f"{at.about} {cached.value.dimension} {cached.state} {shown} {age}", draw)
