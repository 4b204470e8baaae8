"""Comparison of runs in words: outcome, numbers and onsets. The functions are pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from logprobe.app.text.numbers import number
from logprobe.monitor.compare import Comparison, MetricVerdict, Pairing
from logprobe.monitor.compare.comparison import AXES, Axis, where
from logprobe.monitor.judging.growth_rule import K3
from logprobe.monitor.judging.judgement import Growth

TONES: Final = {"worse": "bad", "better": "good", "same": "good", "differs": "unsure", "unknown": "unsure"}
COLUMNS: Final = ("metric", "verdict", "run", "baseline", "ratio", "how this was decided")
ONSETS: Final = ("run", "K3 leaves the baseline", "by its own past", "since step", "doubles in steps")
_STEADY: Final = "steady"
_HIGH: Final = "steady, but high from the first step"
_SHOWN: Final = 4  # metrics in a sentence


def sentence(pairing: Pairing, axis: Axis = "step") -> str:
    """Return the outcome for one run in a sentence that begins with its name."""
    return f"{pairing.run}: {outcome(pairing, axis)}"


def outcome(pairing: Pairing, axis: Axis = "step") -> str:
    """Return the outcome for one run."""
    worse, better, same, unknown = (pairing.of(verdict) for verdict in ("worse", "better", "same", "unknown"))
    parts = [f"{word} in {_names(items)}" for word, items in (("worse", worse), ("better", better)) if items]
    parts += [] if parts else [f"the same in {len(same)} of {len(pairing.metrics)} metrics"]
    parts += [f"unknown in {len(unknown)}"] if unknown else []
    left = "" if pairing.leaves_at is None else f"; K3 leaves the baseline {where(pairing.leaves_at, axis)}"
    return f"{', '.join(parts)}{left}{_beyond(pairing)}"


def goes_bad(pairing: Pairing) -> bool:
    """Return true if K3 grows relative to the run's past and the run continues after the compared steps."""
    return bool(pairing.beyond) and pairing.growth.verdict in {"growing", "critical"}


def _beyond(pairing: Pairing) -> str:
    """Return the number of steps after the compared ones, and their verdict if K3 grows there."""
    if not pairing.beyond:
        return ""
    since = "" if pairing.growth.since_step is None else f" since step {pairing.growth.since_step:,}"
    became = f": {pairing.growth.verdict}{since}" if goes_bad(pairing) else ""
    return f"; it goes on for {pairing.beyond:,} steps that are not compared{became}"


def _names(items: Sequence[MetricVerdict]) -> str:
    names = [brief(item.label) for item in items[:_SHOWN]]
    return ", ".join(names) + (f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else "")


def brief(label: str) -> str:
    """Return a short name of a metric, without its aggregation and without the default pair.

    >>> brief("ρ, mean (backend), distance from 1"), brief("K3 (update)")
    ('ρ', 'K3 (update)')
    """
    return label.partition(",")[0].removesuffix(" (backend)")


def verdict_row(item: MetricVerdict) -> list[str]:
    """Return the row under `COLUMNS`: levels over the common steps, their ratio, and the reason of the verdict."""
    levels = (None, None) if item.level is None else (item.level.value, item.level.reference)
    return [item.label, item.verdict, *(number(value) for value in (*levels, item.ratio)), item.reason]


def onset_rows(comparison: Comparison) -> list[list[str]]:
    """Return the rows under `ONSETS`, the baseline's first."""
    first, *others = comparison.histories
    rows = [[first.label, "is the baseline", *growth_words(first.growth)]]
    for run, pairing in zip(others, comparison.pairings, strict=True):
        words, *numbers_of = growth_words(run.growth)
        word = _HIGH if words == _STEADY and _high_from_start(pairing) else words
        rows.append([run.label, _left(pairing, comparison.axis), word, *numbers_of])
    return rows


def _high_from_start(pairing: Pairing) -> bool:
    """Return true if K3 is above the baseline's band from the first common steps on."""
    track = next((item.trajectory for item in pairing.metrics if item.metric == K3), None)
    if track is None or track.side != "above" or not track.blocks:
        return False
    return track.leaves_step == track.blocks[0].first_step


def _left(pairing: Pairing, axis: Axis) -> str:
    if pairing.leaves_at is not None:
        return where(pairing.leaves_at, axis)
    judged = any(item.metric == K3 and item.verdict != "unknown" for item in pairing.metrics)
    return "does not" if judged else "–"


def growth_words(growth: Growth) -> list[str]:
    """Return verdict, onset and doubling time. A steady K3 may be large, so it does not make a run healthy."""
    word = _STEADY if growth.verdict == "healthy" else growth.verdict.replace("_", " ")
    return [word, number(growth.since_step), number(growth.doubling_steps)]


def alt_of(comparison: Comparison, items: Sequence[MetricVerdict]) -> str:
    """Return a description of a metric's chart in words. `items`: verdict on the metric for each run."""
    drawn = ", ".join(comparison.overlay(items[0].metric)) or "no run"
    verdicts = "; ".join(
        f"{pairing.run} {item.verdict}" for pairing, item in zip(comparison.pairings, items, strict=True)
    )
    return f"{items[0].label} of {drawn} over {AXES[comparison.axis]}. Against {comparison.baseline}: {verdicts}."
