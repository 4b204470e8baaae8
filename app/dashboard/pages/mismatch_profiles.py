"""The Mismatch page's small multiples: the gap by place, by probability and by weight lag, for one range of steps or two. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from logprobe.app.dashboard.data.mismatch import Side
from logprobe.app.dashboard.data.series import Steps
from logprobe.app.dashboard.data.visible import Visible, ends, visible
from logprobe.app.dashboard.theme import Theme
from logprobe.app.text.numbers import number
from logprobe.monitor.analysis.slices import rank

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


def profiles_of(sides: Sequence[Side], pair: str, asked: str | None, theme: Theme, why_absent: str) -> dict[str, Any]:
    """Data of `browser/profiles.js`. `why_absent`: what to record for the pair, where it has no log-probs at all; else ""."""
    return {
        "pair": pair,
        "color": theme.color(pair),
        "choice": asked if asked == ENDS or len(sides) > 1 else "view",
        "sides": [{"name": side.name, "steps": side.seen.words} for side in sides],
        "measures": [{"title": title, "unit": unit} for _, title, unit in MEASURES],
        "columns": [_column(name, sides, why_absent) for name in DIMENSIONS],
    }


def _column(dimension: str, sides: Sequence[Side], why_absent: str) -> dict[str, Any]:
    title, words = DIMENSIONS[dimension]
    tables = [_valid(side.buckets[dimension]) for side in sides]
    labels = sorted({label for table in tables for label in table["label"].to_pylist()}, key=rank)
    column = {"key": dimension, "title": title, "help": words, "labels": labels, "note": _note(dimension, sides)}
    if not labels:
        return column | {"missing": why_absent or _NO_PROFILE}
    by_side = [_values(table, labels) for table in tables]
    return column | {"values": [[side[key] for side in by_side] for key, _, _ in MEASURES]}


def _valid(table: pa.Table) -> pa.Table:
    """Without the bucket of broken tokens, which have no log-ratio; the table of metrics counts them."""
    return table.filter(table["log_ratio_mean"].is_valid())


def _note(dimension: str, sides: Sequence[Side]) -> str:
    """Where the weight lag stands on fewer steps than the rest."""
    fewer = [side for side in sides if (side.lag_steps.first, side.lag_steps.last) != (side.seen.first, side.seen.last)]
    return f"{', '.join(side.lag_steps.words for side in fewer)} only" if dimension == "weight_lag" and fewer else ""


def _values(table: pa.Table, labels: Sequence[str]) -> dict[str, list[dict[str, Any] | None]]:
    """Per measure one entry per label: the number, and how people read it; None where the bucket has no token."""
    rows = {row["label"]: row for row in table.to_pylist()}
    total = sum(row["tokens"] for row in rows.values())
    for row in rows.values():
        row["share"] = row["tokens"] / total if total else None
    return {key: [_entry(rows.get(label), key) for label in labels] for key, _, _ in MEASURES}


def _entry(row: Mapping[str, Any] | None, key: str) -> dict[str, Any] | None:
    if row is None or row[key] is None:
        return None
    value = float(row[key])
    return {"value": value, "text": f"{value:.1%}" if key == "share" else number(value), "tokens": row["tokens"]}
