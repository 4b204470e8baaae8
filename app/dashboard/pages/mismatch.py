"""Mismatch page: metrics by pair, quantiles of log-ratios, profiles within sequences, slices of sequences, and
sampling weights.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa
import streamlit as st

from logprobe.app.dashboard import data, ui
from logprobe.app.dashboard.data import column, measured
from logprobe.app.dashboard.figures import Chart, Curve, Row, rows_chart
from logprobe.app.dashboard.pages import weights
from logprobe.app.dashboard.panels import NEEDED, PAIR_WORDS, panel_of, why_missing
from logprobe.app.dashboard.reading import mismatch as reading
from logprobe.app.dashboard.reading.mismatch import LAG, MOST_TAGS, Seen, Sliced
from logprobe.app.dashboard.steps import change, pairs_of, unit_beside_label
from logprobe.app.dashboard.theme import Theme
from logprobe.app.dashboard.thinning import spread
from logprobe.app.runs import Run
from logprobe.app.text.numbers import counted, number
from logprobe.monitor.analysis.log_ratio_quantiles import NAMES, Quantiles
from logprobe.monitor.analysis.slices import DIMENSIONS, TAG
from logprobe.monitor.metrics.catalog import CATALOG, KEYS
from logprobe.monitor.metrics.definition import PairMetric, StepMetric

Declared = PairMetric | StepMetric

USUAL: Final = "k3_kl"
MOST_SLICES: Final = 200
_GROUPS: Final = {
    "token": ("Over tokens", "each token weighs the same"),
    "sequence": ("Over sequences", "each sequence weighs the same, or counts as a whole"),
    "count": ("Counts", "completeness of the numbers, and broken tokens"),
    "step": ("Of the step", "of no pair: reported by the trainer, the engine and weight updates"),
}
_WORSE: Final = {"higher": "higher", "lower": "lower", "away from 0": "≠ 0", "away from 1": "≠ 1", "neither": "–"}
_BROKEN: Final = {"nonfinite_tokens": "non-finite tokens", "impossible_tokens": "impossible tokens"}
_PROFILES: Final = {
    "position": ("Position in the sequence", "decile of its tokens under the mask"),
    "turn": ("Position in its turn", "tokens since the turn began"),
    "probability": ("Probability", "of the token under the behaviour policy"),
}
_NO_PROFILE: Final = "no profile of these steps: their raw tokens were not kept, or they were not profiled yet"
_COLUMNS: Final = (
    "k3_kl",
    "logprob_abs_diff_mean",
    "kl",
    "ess",
    "calibration_z",
    "coverage",
    "weight_lag_mean",
    "reward",
)
_UNRECORDED: Final = {
    "weight_lag": "record weight_version with training records, and spans with rollouts",
    "weight_versions": "record spans with rollouts",
    "replica": "record rollouts with the name of their replica",
    "adapter": "record rollouts with the vLLM plugin, which knows their LoRA adapter",
    "environment": "record a tag `environment` with training records",
    "dataset": "record a tag `dataset` with training records",
    "cached_prefix": "record rollouts with cached_prefix_tokens",
    "finish_reason": "record rollouts with finish_reason",
    "rank": "record training with the rank of the trainer",
}


@dataclass(frozen=True)
class At:
    """The run with every metric, the steps in view, a pair, and its missing inputs ("" if none is missing)."""

    run: Run
    frame: pl.DataFrame
    seen: Seen
    pair: str
    absent: str


def draw(run: Run) -> None:
    """Draw the page."""
    if ui.choice("view", ("metrics", "weights"), "view") == "weights":
        weights.draw(run)
        return
    frame = data.frame_of(run, KEYS)
    window = ui.window(frame["step"])
    seen = Seen(int(frame["step"][0]), int(frame["step"][-1])) if window is None else Seen(*window, whole=False)
    keys = [metric.key for metric in CATALOG]
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        if str(st.query_params.get("metric", USUAL)) not in keys:  # with its pair, as other pages write it
            st.query_params["metric"] = str(st.query_params["metric"]).partition(".")[2] or USUAL
        name = ui.selection("metric", keys, USUAL, width=330)
        pair = ui.choice("pair", pairs_of(frame), "pair")
    at = At(run, frame, seen, pair, why_unmeasured(frame, pair))
    with ui.guarded("chart"):
        _metric(at, CATALOG[keys.index(name)])
    for title, part in (
        ("table of metrics", _table),
        ("quantiles", _quantiles),
        ("profiles", _profiles),
        ("slices", _slices),
    ):
        with ui.guarded(title):
            part(at)


def why_unmeasured(frame: pl.DataFrame, pair: str) -> str:
    """Return the missing input of a pair without log-probs on both sides, or "" if it has them."""
    return "" if measured(frame, f"{pair}.k3_kl") else f"not measured: needs {NEEDED[pair]}"


# --- Metrics ---


def _metric(at: At, declared: Declared) -> None:
    about = [
        declared.unit,
        "" if declared.worse == "neither" else f"worse when {declared.worse}",
        "a count" if declared.grain == "count" else f"over {declared.grain}s",
        f"also reported by {declared.source}" if declared.source else "",
    ]
    ui.title(declared.label, " · ".join(filter(None, about)))
    ui.write(f"{declared.words} `{declared.formula}`")
    ui.zoom()
    ui.steps_chart(
        f"metric {declared.key}",
        at.run,
        at.frame,
        (panel_of(declared, height=190),),
        diagnosis=data.diagnosis_of(at.run),
    )


def _table(at: At) -> None:
    of = "all steps" if at.seen.whole else at.seen.words
    ui.title(
        "All metrics",
        f"latest values of {of}, as a factor of the median of all earlier steps, or the difference from it",
    )
    ui.write(PAIR_WORDS[at.pair])
    for words in [*([at.absent] if at.absent else []), *broken_of(at.frame, at.seen)]:
        ui.write(words, "warning")
    version = (data.version_of(at.run)[:2], at.seen)
    rows = ui.made(
        ("metrics", at.run.name, at.pair), version, lambda: metric_rows(at.frame, at.pair, at.seen, at.absent)
    )
    st.dataframe(
        rows,
        hide_index=True,
        placeholder="–",
        height=420,
        alt="all metrics",
        key="all metrics",
        column_config={
            "trend": st.column_config.LineChartColumn("trend"),
            "what it is": st.column_config.TextColumn("what it is", width="large"),
            "group": st.column_config.TextColumn(
                "group", help="; ".join(f"{name}: {words}" for name, words in _GROUPS.values())
            ),
        },
    )


def metric_rows(frame: pl.DataFrame, pair: str, seen: Seen, absent: str) -> pl.DataFrame:
    """Return one row per metric of the catalog, by its groups, with the newest value in view and the usual one."""
    rows = [_metric_row(frame, metric, pair, seen, absent) for metric in CATALOG if key_of(metric, pair)]
    order = [name for name, _ in _GROUPS.values()]
    return pl.DataFrame(sorted(rows, key=lambda row: order.index(row["group"])), infer_schema_length=None)


def key_of(metric: Declared, pair: str) -> str | None:
    """Return the stored key of a metric for a pair, or None if the metric is not defined for the pair."""
    if isinstance(metric, StepMetric):
        return metric.key
    return f"{pair}.{metric.key}" if pair in metric.pairs else None


def _metric_row(frame: pl.DataFrame, metric: Declared, pair: str, seen: Seen, absent: str) -> dict[str, Any]:
    values, steps = column(frame, key_of(metric, pair) or ""), frame["step"].to_numpy()
    inside = np.flatnonzero((steps >= seen.first) & (steps <= seen.last) & np.isfinite(values))
    group = "step" if isinstance(metric, StepMetric) else metric.grain
    row = {
        "group": _GROUPS[group][0],
        "metric": metric.label,
        "key": metric.key,
        "unit": unit_beside_label(key_of(metric, pair) or metric.key),
    }
    about = {"worse": _WORSE[metric.worse], "what it is": f"{metric.words} {metric.formula}"}
    if not len(inside):
        why = (absent if group != "step" else "") or (
            why_missing(key_of(metric, pair) or metric.key) if metric.needs else "undefined for what was recorded"
        )
        if np.isfinite(values).any():
            why = f"no value at {seen.words}"
        return {**row, "value": None, "against usual": why, "trend": [], **about}
    newest = inside[-1]
    before = values[:newest][np.isfinite(values[:newest])]
    usual = float(np.median(before)) if len(before) else None
    words = (
        change(float(values[newest]), usual, log=metric.worse == "higher")
        .removesuffix(" vs median")
        .removesuffix(" median")
    )
    late = f" (of step {steps[newest]:,})" if (steps <= seen.last).sum() - 1 - newest > 5 else ""  # noqa: PLR2004 - engines join later
    return {
        **row,
        "value": number(float(values[newest])),
        "against usual": words + late,
        "trend": spread(values[inside], 100).tolist(),
        **about,
    }


def broken_of(frame: pl.DataFrame, seen: Seen) -> list[str]:
    """Return a sentence per pair with broken or missing tokens in the steps in view."""
    inside = frame.filter(pl.col("step").is_between(seen.first, seen.last))
    said = []
    for pair in pairs_of(frame):
        coverage = column(inside, f"{pair}.coverage")
        partial = int(np.count_nonzero(coverage < 1))
        if partial:
            counts = {words: np.nansum(column(inside, f"{pair}.{key}")) for key, words in _BROKEN.items()}
            broken = "".join(f"; {words}: {int(total):,}" for words, total in counts.items() if total)
            least = math.floor(1e4 * float(np.nanmin(coverage))) / 100  # never rounded up to 100
            steps = f"{partial:,} step{'' if partial == 1 else 's'}"
            said.append(f"{pair}: incomplete at {steps} in view, down to {least:g} % of the tokens{broken}")
    return said


# --- Quantiles ---


def _quantiles(at: At) -> None:
    of, found, old = reading.quantiles(at.run, at.frame, at.pair, at.seen)
    chart = ui.made(
        ("quantiles", at.run.name, at.pair, ui.theme().mode, at.seen.key),
        (of, at.absent),
        lambda: quantiles_chart(at.run.name, found, at.pair, theme=ui.theme(), why_absent=at.absent),
    )
    ui.title("Log-ratio quantiles", f"d = log π ({PAIR_WORDS[at.pair].partition(':')[0]}) over the tokens of each step")
    _older(old)
    ui.plot("quantiles", chart)


def quantiles_chart(run: str, found: Quantiles, pair: str, *, theme: Theme, why_absent: str) -> Chart:
    """Return a chart of the median of d with a band from the 10 % to the 90 % quantile, between those of 1 % and 99 %.

    `why_absent`: missing input of a pair without log-probs, or "".
    """
    columns, color = found.columns, theme.color(pair)
    first = columns.first + np.arange(columns.size) * columns.width
    middles = (first + np.minimum(first + columns.width - 1, columns.last)) / 2
    p1, p10, p50, p90, p99 = (found.d_C[name] for name in NAMES)
    curves = [
        Curve("p99", middles, p99, color, "dash"),
        Curve("p50, band p10 to p90", middles, p50, color, band=(p10, p90)),
        Curve("p1", middles, p1, color, "dash"),
    ]
    known = np.flatnonzero(np.isfinite(p50))
    newest = f"{number(p1[known[-1]])} to {number(p99[known[-1]])}" if len(known) else "not measured"
    return rows_chart(
        f"{run} {pair} {columns.first} {columns.last}",
        [Row("d", curves, unit="nats", height=220)],
        theme,
        alt=f"Quantiles of the log-ratio of the pair {pair}. 98 % of the newest tokens: {newest}.",
        note=" · ".join(left_out(found, why_absent)),
    )


def left_out(found: Quantiles, why_absent: str) -> Iterator[str]:
    """Yield the tokens and steps that the quantiles do not cover, with the reasons."""
    counts = found.counts_C
    expected, seen, drawn, broken = (int(counts[name].sum()) for name in ("expected", "seen", "drawn", "broken"))
    missing = expected - drawn - broken
    reasons = Counter[str]()
    for at in np.flatnonzero((counts["steps"] > 0) & (counts["drawn"] == 0)):
        reasons[_why({name: int(values[at]) for name, values in counts.items()}, why_absent)] += int(
            counts["steps"][at]
        )
    yield from (f"{counted(steps, 'step')} left out: {reason}" for reason, steps in reasons.items())
    if broken:
        yield f"{broken:,} broken tokens left out"
    if missing > 0 and drawn:
        yield f"{missing:,} of {expected:,} tokens have no log-ratio"
    if drawn and seen < expected:
        yield "raw tokens of some were removed or have not arrived yet"


def _why(column: Mapping[str, int], why_absent: str) -> str:
    if column["profiled"] < column["steps"]:
        return "not profiled yet: this follows within seconds"
    if not column["kept"]:
        return "raw tokens were not kept: record them, or raise the retention budget"
    if column["broken"]:
        return "every token with both log-probs is broken"
    return why_absent or "no token has both log-probs of this pair"


def _older(old: int | None) -> None:
    if old is not None:
        st.caption(f"as of step {old:,}; newer ones follow shortly")


# --- Profiles ---


def _profiles(at: At) -> None:
    seen, profiles, old = reading.profiles_of(at.run, at.pair, at.seen)
    ui.title("Profiles", f"where in a sequence and at which probability the mismatch is; {seen.words}")
    _older(old)
    for place, (dimension, (title, words)) in zip(st.columns(len(_PROFILES)), _PROFILES.items(), strict=True):
        with place:
            ui.title(title, words)
            rows = profile_rows(profiles[dimension])
            if not rows:
                ui.write(at.absent or _NO_PROFILE)
                continue
            largest = max((row["mean |d|"] for row in rows), default=0.0)
            st.dataframe(
                pl.DataFrame(rows),
                hide_index=True,
                placeholder="–",
                alt=title,
                key=f"profile {dimension}",
                column_config={
                    "mean |d|": st.column_config.ProgressColumn(
                        "mean |d|", format="%.2g", min_value=0, max_value=largest
                    ),
                    "mean d": st.column_config.NumberColumn("mean d", format="%.2g"),
                    "K3": st.column_config.NumberColumn("K3", format="%.2g"),
                    "tokens": st.column_config.NumberColumn("tokens", format="percent", help="share of the tokens"),
                },
            )


def profile_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Return a row per bucket. Omit the bucket of broken tokens, which has no log-ratio."""
    buckets = table.filter(table["log_ratio_mean"].is_valid()).to_pylist()
    total = sum(bucket["tokens"] for bucket in buckets)
    return [
        {
            "bucket": bucket["label"],
            "mean |d|": bucket["logprob_abs_diff_mean"],
            "mean d": bucket["log_ratio_mean"],
            "K3": bucket["k3_kl"],
            "tokens": bucket["tokens"] / total,
        }
        for bucket in buckets
    ]


# --- Slices ---


def _slices(at: At) -> None:
    ui.title(
        "Slices",
        "groups of sequences; worse than the rest: K3 at least 1.5 times that of all others, and four standard errors apart",
    )
    tags = reading.tags(at.run, at.frame, at.seen)
    offered = [*DIMENSIONS, *(f"{TAG}{name}" for name in tags[:MOST_TAGS] if name not in DIMENSIONS)]
    by = ui.selection("by", offered, LAG, width=240)
    sliced, old = reading.sliced(at.run, at.frame, at.pair, by, at.seen)
    notes = slice_notes(sliced, at.seen, by, tags)
    st.caption(ui.unmarked(" · ".join(filter(None, [at.absent, *notes]))))
    _older(old)
    chosen = [metric for metric in CATALOG if metric.key in _COLUMNS and key_of(metric, at.pair)]
    st.dataframe(
        slice_rows(sliced, at.pair, chosen),
        hide_index=True,
        placeholder="–",
        alt="slices",
        key="slices",
        column_config={
            "share of K3": st.column_config.ProgressColumn("share of K3", format="percent", min_value=0, max_value=1),
            "K3 over steps": st.column_config.LineChartColumn("K3 over steps"),
            **{
                metric.label: st.column_config.NumberColumn(
                    metric.label, help=f"{metric.words} {metric.formula}", format="%.3g"
                )
                for metric in chosen
            },
        },
    )


def slice_rows(sliced: Sliced, pair: str, columns: Sequence[Declared]) -> pl.DataFrame:
    """Return one row per slice. Names of slices are untrusted text."""
    rows = sliced.table.slice(0, MOST_SLICES).to_pylist()
    gaps = sliced.gaps.slice(0, MOST_SLICES).to_pylist()
    trends: dict[str | None, list[float | None]] = {}
    for name, value in zip(sliced.trend["slice"].to_pylist(), sliced.trend.columns[-1].to_pylist(), strict=True):
        trends.setdefault(name, []).append(value)
    made = []
    for row, gap in zip(rows, gaps, strict=True):
        worse = f"K3 {number(gap['times_rest'])}× that of all others, {number(gap['z'])} standard errors apart"
        made.append(
            {
                "slice": "unknown" if row["slice"] is None else row["slice"],
                "share of K3": gap["k3_share"],
                "worse than the rest": worse if gap["worse"] else None,
                "sequences": row["sequences"],
                "tokens": row["tokens"],
                **{metric.label: row.get(key_of(metric, pair) or "") for metric in columns},
                "K3 over steps": [value for value in trends.get(row["slice"], []) if value is not None][-60:],
            }
        )
    return pl.DataFrame(made, infer_schema_length=None) if made else pl.DataFrame({"slice": []})


def slice_notes(sliced: Sliced, seen: Seen, by: str, tags: Sequence[str]) -> Iterator[str]:
    """Yield the basis of the slices, and the omitted ones."""
    words = f"{sliced.sequences:,} sequences of {sliced.steps.words}"
    fewer = (sliced.steps.first, sliced.steps.last) != (seen.first, seen.last)
    yield f"{words}: the newest in view that fit one query; zoom in to choose others" if fewer else words
    hidden = sliced.table.num_rows - MOST_SLICES
    yield f"{hidden:,} more slices are not shown" if hidden > 0 else ""
    yield f"more than {MOST_TAGS} tags: the most frequent can be chosen" if len(tags) > MOST_TAGS else ""
    named = any(name is not None for name in sliced.table["slice"].to_pylist())
    yield "" if named else f"not recorded: {_UNRECORDED.get(by, 'no sequence has this tag')}"
