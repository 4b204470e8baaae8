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
from logprobe.app.dashboard.figures import Chart, Curve, Mark, Row, rows_chart
from logprobe.app.dashboard.panels import Line as Series
from logprobe.app.dashboard.panels import Panel
from logprobe.app.dashboard.reading.mismatch import PACE, Seen, newest
from logprobe.app.dashboard.theme import Theme
from logprobe.app.dashboard.ui import Line
from logprobe.app.runs import Run
from logprobe.app.text.numbers import counted, number
from logprobe.collectors.plain_text import harmless
from logprobe.monitor import queries
from logprobe.monitor.analysis.weight_updates import Lane, lanes

T = TypeVar("T")

REACH: Final = 16  # tokens before and after a switch
TOKENS: Final = 2_000_000  # of the newest steps that are looked at token by token
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


@dataclass(frozen=True)
class At:
    """A run, its steps in view, and the newest of them within the limit for tokens."""

    run: Run
    frame: pl.DataFrame
    seen: Seen
    newest: Seen

    def once(self, name: str, steps: Seen, read: Callable[[], T]) -> T:
        """Return the result of `read` for these steps, or a stale result until the next rate-limited read."""
        return data.kept(("weights", name, self.run.name, self.seen.key), (self.run.revision, steps), read, pace=PACE)


def draw(run: Run) -> None:
    """Draw the view."""
    frame = data.frame_of(run, tuple(line.metric for panel in PANELS for line in panel.lines))
    window = ui.window(frame["step"])
    seen = Seen(int(frame["step"][0]), int(frame["step"][-1])) if window is None else Seen(*window, whole=False)
    at = At(run, frame, seen, newest(frame, seen, "tokens", TOKENS))
    for name, part in (("updates", _updates), ("lag", _lag), ("event study", _study)):
        with ui.guarded(name):
            part(at)


# --- Updates ---


def _updates(at: At) -> None:
    known = at.once("lanes", at.seen, lambda: lanes(data.reader(), at.run.name))
    ui.write(*status(known))
    if known:
        ui.title("Updates", "of the whole run; the trainer first, then the engines that are furthest behind")
        head = ("lane", "newest version", "updates", "to arrive", "pause", "prefix cache", "unusual")
        ui.table("lanes", head, [lane_line(lane) for lane in sorted(known, key=place)])


def name_of(lane: Lane) -> str:
    """Display name of the lane."""
    if lane.source != "engine":
        return "trainer"
    return "engine" if lane.replica is None else f"engine {harmless(lane.replica)}"


def status(known: Sequence[Lane]) -> tuple[str, str]:
    """Return a sentence on the lag of the engines, or on the missing input, with its tone."""
    engines = [lane for lane in known if lane.source == "engine"]
    late = [lane for lane in engines if lane.state != "current"]
    if not known:
        return (
            "No weight update was recorded: call `logprobe.collectors.weights.mark(version)` when the engines have loaded new weights.",
            "unknown",
        )
    if not engines:
        return (
            "Only the trainer has recorded updates, no engine: set up the vLLM plugin to see when weights arrive.",
            "unknown",
        )
    if late:
        worst = "critical" if any(lane.state == "stopped" for lane in late) else "warning"
        return f"{len(late)} of {counted(len(engines), 'engine')}: {'; '.join(map(_late, late))}.", worst
    version = next(lane.newest_version or "" for lane in known if lane.behind == 0)
    all_of = {1: "The engine keeps", 2: "Both engines keep"}.get(len(engines), f"All {len(engines):,} engines keep")
    return f"{all_of} up with the newest weights, version `{harmless(version)}`.", ""


def _late(lane: Lane) -> str:
    if lane.behind is None or lane.newest_version is None:
        return f"{name_of(lane)} never reported its weight version: call `logprobe.collectors.weights.mark(version)` after the load"
    state = "stopped updating" if lane.state == "stopped" else "lags behind"
    return f"{name_of(lane)} {state} at version `{harmless(lane.newest_version)}`, {counted(lane.behind, 'version')} behind"


def place(lane: Lane) -> tuple[bool, float, str]:
    """Return the sort key of the table. Unknown lanes come first."""
    return lane.source == "engine", -math.inf if lane.behind is None else -lane.behind, lane.replica or ""


def lane_line(lane: Lane) -> Line:
    """Return a lane as a line of the table, over the whole run."""
    engine = lane.source == "engine"
    unusual = list(odd_of(lane))
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
    return Line(cells, (_TONES[lane.state] or ("warning" if unusual else "")) if engine else "")


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
    steps, run = at.newest, at.run.name
    rows = at.once(
        "switches",
        steps,
        lambda: queries.event_study_switch(
            data.reader(), run=run, first=steps.first, last=steps.last, reach=REACH
        ).to_pylist(),
    )
    ui.title(
        "Around a weight switch",
        f"mean |d| of the log-ratio by distance to the switch, ± 2 standard errors; {steps.words}",
    )
    chart = switch_chart(rows, ui.theme())
    if chart is not None:
        ui.plot("switches", chart)
    elif rows:
        ui.write("No sequence of these steps was sampled by more than one version: no in-flight updates.")
    else:
        ui.write("No raw tokens of these steps are kept, or they were recorded without weight versions.")


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
        note=f"{broken:,} broken tokens left out" if broken else "",
        zooms=False,
    )
