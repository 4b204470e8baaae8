"""Two runs on one axis: by step, tokens trained, time, or steps since growth began.

Steps of two runs rarely end at the same token or second. There the axis is cut into cells as wide as the larger of the two runs' median
steps; what falls into a cell counts with its mean, and cells that only one run reaches are not compared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from statistics import fmean, median
from typing import Final, Literal

from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.compare.history import History
from logprobe.monitor.diagnosis.parity.trajectories import Trend

Axis = Literal["step", "tokens", "time", "onset"]

AXES: Final[Mapping[Axis, str]] = {
    "step": "step",
    "tokens": "tokens trained",
    "time": "seconds since the first step",
    "onset": "steps since growth began",
}


def positions(run: History, axis: Axis) -> Mapping[int, float]:
    """Where each step of `run` lies on `axis`. Raises `ConfigurationError` when the run has nothing to align by."""
    if axis == "tokens":
        return run.tokens
    if axis == "time":
        if not run.seconds:
            raise ConfigurationError(f"{run.label} has no times to align by; use --align step")
        return run.seconds
    origin = 0
    if axis == "onset":
        if run.growth.since_step is None:
            raise ConfigurationError(f"{run.label} has no onset to align by: its K3 does not grow; use --align step")
        origin = run.growth.since_step
    return {step: float(step - origin) for step in run.steps}


def where(at: float, axis: Axis) -> str:
    """A place on `axis`, in words.

    >>> where(120.0, "step"), where(7300.0, "time"), where(-20.0, "onset")
    ('at step 120', 'after 7,300 s', '20 steps before growth began')
    """
    if axis == "onset":
        return f"{abs(at):,.0f} steps {'before' if at < 0 else 'after'} growth began"
    return {"step": f"at step {at:,.0f}", "tokens": f"at {at:,.0f} tokens", "time": f"after {at:,.0f} s"}[axis]


def cell_width(ours: Mapping[int, float], theirs: Mapping[int, float]) -> float:
    """The larger median distance of neighbouring positions; 1 where there are no two."""
    return max(_spacing(ours), _spacing(theirs)) or 1.0


def placed(trend: Trend, at: Mapping[int, float], width: float = 1.0) -> dict[int, float]:
    """`trend` by cell of the axis instead of by step; steps without a position are left out.

    >>> placed({0: 1.0, 1: 3.0, 2: 5.0, 3: 9.0}, {0: 10.0, 1: 19.0, 2: 20.0}, 10.0)
    {1: 2.0, 2: 5.0}
    """
    cells: dict[int, list[float]] = {}
    for step, value in trend.items():
        if step in at:
            cells.setdefault(math.floor(at[step] / width), []).append(value)
    return {cell: fmean(values) for cell, values in sorted(cells.items())}


def _spacing(at: Mapping[int, float]) -> float:
    ordered = sorted(at.values())
    gaps = [later - earlier for earlier, later in pairwise(ordered) if later > earlier]
    return median(gaps) if gaps else 0.0
