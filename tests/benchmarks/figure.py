"""One measured figure of `make bench`.

A benchmark is a module `bench_<topic>.py` in this folder with `measure() -> list[Figure]`; `run.py` finds and runs them all.
Figures are ratios against a baseline measured in the same run, interleaved with it, because absolute times on shared machines
mean little. A figure with an absolute target still names its baseline where there is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Figure:
    """`value` (in `unit`) against `baseline_value` of `baseline`; `met` says whether `target` holds, None: no target."""

    name: str
    value: float
    unit: str
    target: str = ""
    met: bool | None = None
    baseline: str = ""
    baseline_value: float | None = None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """`value / baseline_value`, None without a baseline."""
        return None if not self.baseline_value else self.value / self.baseline_value


MOST_ERROR = 0.25  # of a formula in the documentation


def beside(name: str, value: float, said: float, unit: str, note: str = "") -> Figure:
    """What was measured beside what a formula of the documentation says."""
    met = abs(said / value - 1) <= MOST_ERROR
    return Figure(name, value, unit, f"formula within {MOST_ERROR:.0%}", met, "formula", said, note)


def fitted(name: str, x: Sequence[float], y: Sequence[float]) -> list[Figure]:
    """Constant and slope with the smallest relative errors."""
    weights = 1 / np.asarray(y)
    columns = np.stack([weights, np.asarray(x) * weights], axis=1)
    constant, slope = np.linalg.lstsq(columns, np.ones(len(y)), rcond=None)[0].tolist()
    return [Figure(f"{name} at rest, best fit", constant, ""), Figure(f"{name} of each, best fit", slope, "")]
