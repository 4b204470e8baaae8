"""Weights view of the Mismatch page: age of the sampling weights, lag of each engine, and effect of in-flight updates.

The slices of the Mismatch page show single replicas and versions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np
import polars as pl

from logprobe.app.dashboard import data, ui
from logprobe.app.dashboard.data import column
from logprobe.app.dashboard.figures import Chart, Curve, Mark, Row, rows_chart
from logprobe.app.dashboard.panels import Line as Series
from logprobe.app.dashboard.panels import Panel
from logprobe.app.dashboard.reading.mismatch import PACE, Seen
from logprobe.app.dashboard.theme import Theme
from logprobe.app.dashboard.ui import Line
from logprobe.app.runs import Run
from logprobe.app.text.numbers import counted, number
from logprobe.collectors.plain_text import harmless
from logprobe.monitor.analysis.event_study import Contrast, Question, around_updates, by_cached_prefix, contrasts
from logprobe.monitor.analysis.weight_updates import Lane, lanes

T = TypeVar("T")

STEPS: Final = 1000  # newest ones that are looked at sequence by sequence
TOKENS: Final = 2_000_000  # of the newest steps that are looked at token by token
_NEWEST: Final = 10  # steps that say how old the weights are now
_GREW: Final = 2.0  # times the usual lag; more is unusual
_TONES: Final = {"current": "", "behind": "warning", "stopped": "critical", "unknown": "warning"}


def _two(title: str, name: str, **more: Any) -> Panel:
    return Panel(
        (Series(f"{name}_mean", "neutral", "mean"), Series(f"{name}_max", "neutral", "max", "dot")), title, **more
    )


PANELS: Final = (
    _two("Weight lag", "weight_lag", from_zero=True, height=110),
    _two("Weight lag", "weight_lag_steps", from_zero=True),
    _two("Weight lag", "weight_lag_seconds", from_zero=True),
    Panel(
        (Series("mixed_version_frac", "neutral", "mixed"), Series("unknown_version_frac", "backend", "unknown", "dot")),
        "Mixed versions",
        from_zero=True,
    ),
    _two("Publish delay", "publish_delay_seconds", scale="auto"),
    _two("Pause for an update", "update_pause_seconds", scale="auto"),
    Panel((Series("publish_replicas", "neutral", "replicas"),), "Updated", from_zero=True),
)
_QUESTIONS: Final[Mapping[Question, tuple[str, str]]] = {
    "after_switch": ("first tokens of new weights", "sequences without a switch"),
    "before_switch": ("last tokens of old weights", "first tokens of new ones"),
    "cached": ("cached prompt tokens", "none cached"),
    "in_flight": ("in-flight update", "none"),
}
_MEANING: Final[Mapping[tuple[Question, str], str]] = {
    ("after_switch", "worse"): "Suggests that the KV cache of the old weights was kept: abort or recompute requests in flight, or clear the cache with the update. Tokens that are stale themselves add to it: see the lag above.",
    ("after_switch", "same"): "Requests continue as if they had started with the new weights.",
    ("after_switch", "better"): "Sequences without a switch are staler.",
    ("before_switch", "worse"): "Staleness: the trainer's weights are newer than those that sampled. It grows with the lag, and a correction is the remedy.",
    ("before_switch", "same"): "The weights change little between versions, or the trainer computed with the old ones.",
    ("before_switch", "better"): "The trainer computed with the old weights, or the version label is set too early.",
    ("cached", "worse"): "The prefix cache holds keys and values of old weights: reset it with every update.",
    ("cached", "same"): "Cached prompt tokens are harmless.",
    ("cached", "better"): "Requests without cached tokens are a different group: the first of a prompt, or after a reset. The cache is harmless.",
    ("in_flight", "worse"): "Tokens sampled across an update are further from the trainer: staleness, or a cache that was kept. See the switch above.",
    ("in_flight", "same"): "No detectable harm from in-flight updates.",
    ("in_flight", "better"): "Requests without an update are staler.",
}  # fmt: skip
_UNKNOWN: Final[Mapping[Question, str]] = {
    "after_switch": "Needs raw tokens of sequences with a switch and of sequences without.",
    "before_switch": "Needs raw tokens of sequences with a switch of versions.",
    "cached": "Needs at least two sequences of each kind that no update interrupted, recorded by the engine.",
    "in_flight": "Needs sequences with an update and sequences without, recorded by the engine.",
}


@dataclass(frozen=True)
class At:
    """A run, its steps in view, and the newest of them within the limits for sequences and for tokens."""

    run: Run
    frame: pl.DataFrame
    seen: Seen
    sequences: Seen
    tokens: Seen

    def once(self, name: str, steps: Seen, read: Callable[[], T]) -> T:
        """Return the result of `read` for these steps, or a stale result until the next rate-limited read."""
        return data.kept(("weights", name, self.run.name, self.seen.key), (self.run.revision, steps), read, pace=PACE)


def draw(run: Run) -> None:
    """Draw the view."""
    frame = data.frame_of(run, tuple(line.metric for panel in PANELS for line in panel.lines))
    window = ui.window(frame["step"])
    seen = Seen(int(frame["step"][0]), int(frame["step"][-1])) if window is None else Seen(*window, whole=False)
    at = At(run, frame, seen, newest(frame, seen), newest(frame, seen, tokens=TOKENS))
    for name, part in (("updates", _updates), ("lag", _lag), ("event study", _study)):
        with ui.guarded(name):
            part(at)


def newest(frame: pl.DataFrame, seen: Seen, tokens: float | None = None) -> Seen:
    """Return the newest of the steps in view, limited to `STEPS` steps or to an approximate number of tokens."""
    inside = frame.filter(pl.col("step").is_between(seen.first, seen.last))
    steps = inside["step"].to_numpy()
    chosen = steps[-STEPS:]
    if tokens is not None:
        known = np.cumsum(np.nan_to_num(column(inside, "tokens"))[::-1])[::-1]
        chosen = steps[(known <= tokens) | (steps == steps[-1])]
    return Seen(int(chosen[0]), int(chosen[-1]), whole=seen.whole and len(chosen) == len(frame))


# --- Updates ---


def _updates(at: At) -> None:
    known = at.once("lanes", at.seen, lambda: lanes(data.reader(), at.run.name))
    age = age_of(at.frame)
    for words, tone in status(known, age):
        ui.write(words, tone)
    if known:
        ui.title("Updates", "of the whole run; the trainer first, then the engines that are furthest behind")
        head = ("lane", "newest version", "updates", "to arrive", "pause", "prefix cache", "unusual")
        ui.table("lanes", head, [lane_line(lane, age) for lane in sorted(known, key=place)], fold=True)


def name_of(lane: Lane) -> str:
    """Display name of the lane."""
    if lane.source != "engine":
        return "trainer"
    return "engine" if lane.replica is None else f"engine {harmless(lane.replica)}"


@dataclass(frozen=True)
class Age:
    """Age, in versions, of the weights that sampled the trained tokens.

    Attributes:
        steps: number of the newest measured steps that it covers.
        oldest: median over steps of the largest lag.
        mean: median over steps of the mean lag.
        usual: median of the largest lag over all earlier steps, or None for too few.
    """

    steps: int
    oldest: float
    mean: float
    usual: float | None

    @property
    def grew(self) -> bool:
        """True if the age is more than double the usual one, and more than one version."""
        return self.usual is not None and self.oldest > max(_GREW * self.usual, self.usual + 1)

    @property
    def words(self) -> str:
        """Age of the weights, and the usual age if it grew."""
        before = f"; usual in this run: up to {number(self.usual)}" if self.grew else ""
        return f"up to {number(self.oldest)} version{'' if self.oldest == 1 else 's'} old, {number(self.mean)} on average{before}"


def age_of(frame: pl.DataFrame) -> Age | None:
    """Return the age of the weights in the newest steps, or None if no step has a lag."""
    largest, mean = column(frame, "weight_lag_max"), column(frame, "weight_lag_mean")
    usable = np.isfinite(largest) & np.isfinite(mean)
    largest, mean = largest[usable], mean[usable]
    if not largest.size:
        return None
    now, before = largest[-_NEWEST:], largest[:-_NEWEST]
    usual = float(np.median(before)) if before.size >= _NEWEST else None
    return Age(now.size, float(np.median(now)), float(np.median(mean[-_NEWEST:])), usual)


def status(known: Sequence[Lane], age: Age | None = None) -> Iterator[tuple[str, str]]:
    """Yield statements on the lag of the engines and the age of the sampling weights, or the missing input."""
    engines = [lane for lane in known if lane.source == "engine"]
    late = [lane for lane in engines if lane.state != "current"]
    if not known:
        yield (
            "No weight update was recorded: call `logprobe.collectors.weights.mark(version)` when the engines have loaded new weights.",
            "unknown",
        )
    elif not engines:
        yield (
            "Only the trainer has recorded updates, no engine: set up the vLLM plugin to see when weights arrive.",
            "unknown",
        )
    elif not late:
        version = next(lane.newest_version or "" for lane in known if lane.behind == 0)
        all_of = {1: "The engine keeps", 2: "Both engines keep"}.get(len(engines), f"All {len(engines):,} engines keep")
        yield f"{all_of} up with the newest weights, version `{harmless(version)}`.", ""
    else:
        worst = "critical" if any(lane.state == "stopped" for lane in late) else "warning"
        yield f"{len(late)} of {counted(len(engines), 'engine')}: {'; '.join(map(_late, late))}.", worst
    if age is not None:
        steps = f"the newest {age.steps:,} steps" if age.steps > 1 else "the newest step"
        sampled = f"weights {age.words}" if age.oldest else "the newest weights"
        waits = " The lag grew: batches wait between engine and trainer; bound how many." if age.grew else ""
        yield f"The tokens trained on in {steps} were sampled by {sampled}.{waits}", "warning" if age.grew else ""


def _late(lane: Lane) -> str:
    if lane.behind is None or lane.newest_version is None:
        return f"{name_of(lane)} never reported its weight version: call `logprobe.collectors.weights.mark(version)` after the load"
    state = "stopped updating" if lane.state == "stopped" else "lags behind"
    return f"{name_of(lane)} {state} at version `{harmless(lane.newest_version)}`, {counted(lane.behind, 'version')} behind"


def place(lane: Lane) -> tuple[bool, float, str]:
    """Return the sort key of the table. Unknown lanes come first."""
    return lane.source == "engine", -math.inf if lane.behind is None else -lane.behind, lane.replica or ""


def lane_line(lane: Lane, age: Age | None) -> Line:
    """Return a lane as a line of the table, over the whole run. `age`: age of the trained tokens' weights."""
    engine = lane.source == "engine"
    late = age is not None and age.grew and not engine
    unusual = [*odd_of(lane), *([f"trains on tokens of weights {age.words}"] if late and age is not None else [])]
    modes = ", ".join(harmless(mode) for mode in lane.pauses or ())
    pause = f"{_range(lane.usual_pause, lane.longest_pause)}{f', mode {modes}' if modes else ''}"
    if lane.usual_pause is None:
        pause = f"mode {modes}; duration unknown" if modes else "none seen" if engine else "–"
    cache = ", ".join(
        filter(
            None, [f"kept {lane.kept:,}×" if lane.kept else "", f"cleared {lane.cleared:,}×" if lane.cleared else ""]
        )
    )
    cells = [
        name_of(lane),
        harmless(lane.newest_version or "unknown") + (f", {lane.behind:,} behind" if lane.behind else ""),
        f"{lane.updates:,}" + (f", every {lane.usual_stride:,} versions" if lane.usual_stride > 1 else ""),
        _range(lane.usual_delay, lane.longest_delay),
        pause,
        (cache or "unknown") if engine else "–",
        "; ".join(unusual) or "nothing",
    ]
    return Line(cells, (_TONES[lane.state] or ("warning" if unusual else "")) if engine else "warning" if late else "")


def _range(usual: float | None, longest: float | None) -> str:
    return "–" if usual is None else f"{number(usual)} s, at most {number(longest)} s"


def odd_of(lane: Lane) -> Iterator[str]:
    """Yield the anomalies of a lane."""
    engine = lane.source == "engine"
    if engine and lane.state in {"behind", "stopped"}:
        yield "stopped updating" if lane.state == "stopped" else "lags behind"
    if lane.all_skipped:
        yield f"{counted(lane.all_skipped, 'version')} skipped"
    if lane.all_backwards:
        yield f"{counted(lane.all_backwards, 'update')} to an older version"
    if lane.all_unloaded and engine:
        yield f"{counted(lane.all_unloaded, 'version')} announced but never loaded"
    if lane.unknown:
        yield f"{counted(lane.unknown, 'update')} without a version: call weights.mark after the load"
    if lane.all_reloads and engine:
        yield f"{counted(lane.all_reloads, 'reload')} of the same version"


# --- Lag ---


def _lag(at: At) -> None:
    ui.title("Lag and delay", "age of the weights that sampled, and how long new ones took to arrive")
    ui.zoom()
    ui.steps_chart("weights", at.run, at.frame, PANELS, diagnosis=data.diagnosis_of(at.run))


# --- Around updates ---


def _study(at: At) -> None:
    few, many, run = at.tokens, at.sequences, at.run.name
    switches = at.once(
        "switches", few, lambda: around_updates(data.reader(), run, steps=(few.first, few.last)).to_pylist()
    )
    cached = at.once(
        "cached", many, lambda: by_cached_prefix(data.reader(), run, steps=(many.first, many.last)).to_pylist()
    )
    ui.title(
        "Around a weight switch",
        f"mean |d| of the log-ratio by distance to the switch, ± 2 standard errors; {few.words}",
    )
    chart = switch_chart(switches, ui.theme())
    if chart is not None:
        ui.plot("switches", chart)
    elif switches:
        ui.write("No sequence of these steps was sampled by more than one version: no in-flight updates.")
    else:
        ui.write("No raw tokens of these steps are kept, or they were recorded without weight versions.")
    lines = [contrast_line(contrast) for contrast in contrasts(switches, cached)]
    ui.table("patterns", ("tokens or requests", "mean |d|", "against", "verdict", "what it means"), lines)


def switch_chart(rows: Sequence[Mapping[str, Any]], theme: Theme) -> Chart | None:
    """Return mean |d| by distance to a switch and of sequences without one, or None without a switch."""
    known = [group for group in rows if group["logprob_abs_diff_mean"] is not None]
    around = sorted((group for group in known if group["distance"] is not None), key=lambda group: group["distance"])
    if not around:
        return None
    place, mean, error = (
        np.array([group[name] for group in around], dtype=np.float64)
        for name in ("distance", "logprob_abs_diff_mean", "logprob_abs_diff_error")
    )
    curve = Curve("|d|", place, mean, theme.accent, band=(mean - 2 * error, mean + 2 * error))
    without = [group["logprob_abs_diff_mean"] for group in known if group["distance"] is None]
    limits = [("sequences without a switch", value) for value in without]
    broken = sum(group["broken"] for group in known)
    return rows_chart(
        "switches",
        [Row("mean |d|", [curve], from_zero=True, limits=limits, height=180)],
        theme,
        alt=f"Mean |d| at {len(around)} distances to a switch of weights, between {number(mean.min())} and {number(mean.max())}.",
        marks=[Mark("weights", 0.0, "first token of the new weights")],
        axis="tokens after the switch",
        tickformat="",
        note=f"{broken:,} broken tokens left out" if broken else "",
        zooms=False,
    )


def contrast_line(contrast: Contrast) -> Line:
    """Return a question and its answer in words."""
    group, others = _QUESTIONS[contrast.question]
    verdict = contrast.verdict
    answer = {"worse": "larger", "better": "smaller", "same": "no significant difference", "unknown": "not measured"}[
        verdict
    ]
    if contrast.gap is not None and contrast.other is not None and contrast.error is not None:
        answer = f"{answer}: {number(contrast.gap - contrast.other)} ± {number(contrast.error)}"
    harmful = verdict == "worse" and contrast.question in {"after_switch", "cached"}
    meaning = _MEANING.get((contrast.question, verdict)) or _UNKNOWN[contrast.question]
    cells = [group, number(contrast.gap), f"{others}: {number(contrast.other)}", answer, meaning]
    return Line(cells, "critical" if harmful else "warning" if verdict == "worse" else "")
