"""Where each step stands on every x axis that a chart can have: steps, tokens, time, steps since the onset. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from logprobe.app.dashboard.charts.downsample import Window
from logprobe.app.dashboard.data.series import Floats, RunSeries, Steps

AXES: Final = {"step": "steps", "tokens": "tokens", "time": "time", "onset": "steps since the onset"}
_NO_ONSET: Final = "the diagnosis has found no onset"
_UNITS: Final = (("days", 86400, 3), ("hours", 3600, 2), ("minutes", 60, 2), ("seconds", 1, 0))  # from so many of it on


@dataclass(frozen=True)
class Axis:
    """The x axis of a chart.

    Attributes:
        kind: a key of `AXES`.
        steps: of each run, ascending.
        places: where they stand on the axis; NaN where that is unknown.
        title: beside the axis.
        tickformat: plotly's.
        unit: of the places, where a label needs one.
    """

    kind: str
    steps: tuple[Steps, ...]
    places: tuple[Floats, ...]
    title: str = "step"
    tickformat: str = ",d"
    unit: str = ""

    def place(self, steps: npt.ArrayLike, run: int = 0) -> Floats:
        """Places of any steps of a run: between known ones in proportion, before the first and after the last at
        these."""
        at = np.asarray(steps, dtype=np.float64)
        if self.kind in {"step", "onset"}:
            return at if not len(self.steps[run]) else at + (self.places[run][0] - self.steps[run][0])
        known = np.isfinite(self.places[run])
        placed: Floats = np.interp(at, self.steps[run][known], self.places[run][known])
        return placed

    def range(self, window: Window | None) -> tuple[float, float]:
        """The range that shows the steps of `window`, or all of them (None), with a little room around."""
        ends = [edge for places in self.places for edge in _ends(places)] or [0.0, 1.0]
        low, high = (min(ends), max(ends)) if window is None else self.place(window).tolist()
        room = max(0.5 if self.kind in {"step", "onset"} else 0.0, 0.005 * (high - low))
        room = room or 0.5 * (max(ends) - min(ends)) / max(1, len(self.steps[0])) or 0.5
        return low - room, high + room


def axis_of(runs: Sequence[RunSeries], onsets: Sequence[int | None] = (), wanted: str = "step") -> Axis:
    """The axis that is `wanted`, or that of steps where some run has no place on it. `onsets`: of each run."""
    steps = tuple(run.steps for run in runs)
    if wanted not in AXES or wanted == "step" or why_not(runs, onsets, wanted):
        return Axis("step", steps, tuple(run.steps.astype(np.float64) for run in runs))
    if wanted == "onset":
        places = tuple((run.steps - (onset or 0)).astype(np.float64) for run, onset in zip(runs, onsets, strict=True))
        return Axis("onset", steps, places, AXES["onset"], "+,d")
    if wanted == "tokens":
        return Axis("tokens", steps, tuple(run.trained for run in runs), "tokens trained on", "~s", "tokens")
    longest = max(float(np.nanmax(run.elapsed)) for run in runs)
    unit, seconds, _ = next(each for each in _UNITS if longest >= each[1] * each[2])
    return Axis("time", steps, tuple(run.elapsed / seconds for run in runs), f"{unit} since the first step", "", unit)


def why_not(runs: Sequence[RunSeries], onsets: Sequence[int | None], wanted: str) -> str:
    """Why an axis cannot be shown; "": it can."""
    reasons = {
        "tokens": [_no_tokens(run) for run in runs],
        "time": [_no_times(run) for run in runs],
        "onset": [_NO_ONSET for onset in onsets if onset is None] if onsets else [_NO_ONSET],
    }
    return next(filter(None, reasons.get(wanted, ())), "")


def _ends(places: Floats) -> list[float]:
    finite = places[np.isfinite(places)]
    return [float(finite.min()), float(finite.max())] if len(finite) else []


def _no_tokens(run: RunSeries) -> str:
    unknown = int(np.count_nonzero(~np.isfinite(run.tokens)))
    if unknown:
        return f"the number of trained tokens is unknown at {unknown:,} of {len(run.steps):,} steps"
    return "" if run.tokens.any() else "no trained tokens were recorded, only metrics"


def _no_times(run: RunSeries) -> str:
    return "" if np.isfinite(run.elapsed).any() else "no step has a recorded time"
