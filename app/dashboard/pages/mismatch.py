"""The Mismatch page's table: every metric of the catalog, its pairs side by side. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from logprobe.app.dashboard.charts.panels import PAIR_WORDS, Line, Panel, pairs_of
from logprobe.app.dashboard.charts.tiles import change, spark, thinned
from logprobe.app.dashboard.data.series import Floats, RunSeries
from logprobe.app.dashboard.data.visible import Visible
from logprobe.app.dashboard.elements.blocks import Block, heading, text
from logprobe.app.dashboard.theme import DASHES, Theme
from logprobe.app.text.numbers import number, quantity
from logprobe.collectors.kernel.pairs import SIDES
from logprobe.monitor.metrics.definition import Metric, PairMetric, StepMetric

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


def panel_of(metric: Declared) -> Panel:
    """A row of the step chart for all pairs of a metric."""
    if isinstance(metric, PairMetric):
        lines = tuple(Line(f"{pair}.{metric.key}", pair, pair, DASHES[pair]) for pair in metric.pairs)
        return Panel(lines, metric.label, scale="log" if metric.key == USUAL else "auto", height=190)
    return Panel((Line(metric.key, "neutral", "step"),), metric.label, scale="auto", height=190)


def about(metric: Declared) -> list[Block]:
    """What the chosen metric is, as blocks of `browser/report.js`."""
    facts = [
        metric.unit,
        "" if metric.worse == "neither" else f"worse when {metric.worse}",
        "a count" if metric.grain == "count" else f"over {metric.grain}s",
        f"also reported by {metric.source}" if metric.source else "",
    ]
    return [heading(metric.label, " · ".join(filter(None, facts))), text(f"{metric.words} `{metric.formula}`")]


def grid_of(run: RunSeries, catalog: Sequence[Declared], seen: Visible, selected: str, theme: Theme) -> dict[str, Any]:
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
    return f"latest values of {'all steps' if seen.whole else seen.words}, as a factor of the median of all earlier steps or the difference from it"


def _row(metric: Metric, cells: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "key": metric.key,
        "label": metric.label,
        "unit": "" if metric.unit in {"fraction", "1e-4"} else metric.unit,
        "worse": _WORSE[metric.worse],
        "worse_help": "neither direction is worse" if metric.worse == "neither" else f"worse when {metric.worse}",
        "help": f"{metric.words}\n{metric.formula}",
        "cells": cells,
    }


def _pair_row(run: RunSeries, metric: PairMetric, seen: Visible, absent: Mapping[str, str]) -> dict[str, Any]:
    cells = {}
    for pair in absent:
        key = f"{pair}.{metric.key}"
        if pair not in metric.pairs:
            cells[pair] = {"value": "", "undefined": f"not defined for the pair {pair}"}
        else:
            cells[pair] = _cell(run, key, metric, seen) or _unknown(absent[pair], metric)
    return _row(metric, cells)


def _unknown(absent: str, metric: PairMetric) -> dict[str, Any]:
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


def _step_row(run: RunSeries, metric: StepMetric, seen: Visible) -> dict[str, Any]:
    cell = _cell(run, metric.key, metric, seen)
    return _row(
        metric, {"step": cell or {"value": "–", "missing": _needs(metric.needs) or "null at every step so far"}}
    )


def why_unmeasured(run: RunSeries, pair: str) -> str:
    """What to record for a pair without log-probs on both sides; "" for a pair that has them."""
    measured = measured_pairs(run)
    if pair in measured:
        return ""
    known = {side for each in measured for side in SIDES[each]}
    return _needs([side for side in SIDES[pair] if side not in known])


def measured_pairs(run: RunSeries) -> list[str]:
    """Pairs with log-probs on both sides at some step: with a token that could be compared."""
    return [pair for pair in SIDES if run.measured(f"{pair}.k3_kl")]


def _needs(names: Sequence[str]) -> str:
    """What to record; "" where nothing is missing."""
    named = [f"{name} ({_HOW[name]})" if name in _HOW else name.replace("_", " ") for name in names]
    return f"not measured: record {', '.join(named)}" if named else ""


def _cell(run: RunSeries, key: str, metric: Metric, seen: Visible) -> dict[str, Any] | None:
    """Newest value in view; None where there is none in the whole run."""
    column = run.column(key)
    if not np.isfinite(column).any():
        return None
    inside = np.flatnonzero((run.steps >= seen.first) & (run.steps <= seen.last))
    known = inside[np.isfinite(column[inside])]
    if not len(known):
        return {"value": "–", "missing": f"no value at {seen.words}"}
    at = known[-1]
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
