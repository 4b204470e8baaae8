"""What the browser needs to draw a run over something else than its steps: where each step stands on every x axis.
Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from logprobe.app.dashboard.charts.downsample import MAX_POINTS, Indices, Window
from logprobe.app.dashboard.charts.lines import too_long
from logprobe.app.dashboard.charts.packing import packed, packed_steps
from logprobe.app.dashboard.data.series import Floats, RunSeries

_NO_ONSET: Final = "the diagnosis has found no onset"


def places_of(
    run: RunSeries, since: int | None, drawn: Iterable[Floats], window: Window | None = None
) -> dict[str, object]:
    """Places of the steps of a run; of a long run only of those that are `drawn` (x values of traces), and of all in
    `window` if they are few.

    Each of `tokens` (trained on, cumulative), `time` (seconds since the first step) and `onset` (the step the diagnosis
    names) is null where it is unknown; `why` says for what reason.
    """
    at = _drawn(run, drawn, window) if too_long(run) else np.arange(len(run.steps))
    why = {"tokens": _no_tokens(run), "time": _no_times(run), "onset": "" if since is not None else _NO_ONSET}
    return {
        "name": run.run,
        "steps": packed_steps(run.steps[at].astype(np.float64)),
        "tokens": None if why["tokens"] else packed(run.trained[at]),
        "time": None if why["time"] else packed(run.elapsed[at]),
        "onset": since,
        "why": {axis: reason for axis, reason in why.items() if reason},
    }


def _drawn(run: RunSeries, drawn: Iterable[Floats], window: Window | None) -> Indices:
    """Positions in `run.steps` of everything that is drawn, of the run's ends, and of what is in view when all of it
    can be drawn."""
    steps = np.unique(np.concatenate([run.steps[[0, -1]].astype(np.float64), *drawn]))
    wanted = np.isin(run.steps, steps)
    if window is not None:
        first, last = np.searchsorted(run.steps, window[0]), np.searchsorted(run.steps, window[1], side="right")
        if last - first <= MAX_POINTS:
            wanted[first:last] = True
    return np.flatnonzero(wanted)


def _no_tokens(run: RunSeries) -> str:
    unknown = int(np.count_nonzero(~np.isfinite(run.tokens)))
    if unknown:
        return f"the number of trained tokens is unknown at {unknown:,} of {len(run.steps):,} steps"
    return "" if run.tokens.any() else "no trained tokens were recorded, only metrics"


def _no_times(run: RunSeries) -> str:
    return "" if np.isfinite(run.elapsed).any() else "no step has a recorded time"
