"""The rule by which growth of K3 is judged, see `growth`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

K3: Final = "backend.k3_kl"  # the metric that is judged


@dataclass(frozen=True, slots=True)
class Threshold:
    """One degree of growth: the medians of the last `short` and `long` steps exceed multiples of the baseline.

    It is raised after `confirm` such steps in a row, and withdrawn after `clear_steps` steps in a row whose short
    median is below `clear_ratio` times the baseline.
    """

    short: int
    short_ratio: float
    long: int
    long_ratio: float
    confirm: int
    clear_ratio: float
    clear_steps: int


@dataclass(frozen=True, slots=True)
class GrowthRule:
    """Windows in measured steps, counted from the first step of a configuration.

    Attributes:
        calibrate_from: first step of the baseline: what comes before is start-up.
        calibrate_to: the step with which the baseline freezes.
        block: steps of a block; a median of so many is immune to single spikes.
        quantile: of the block medians, that is the baseline.
        floor: K3 below it counts as this: the lower end of healthy dense models; what moves below it is rounding.
        follows: steps in which the baseline may double after it was set, as entropy and longer answers move K3.
        steady: most steps in which K3 doubles in a steady rise that the baseline does not follow.
        fast: most steps in which K3 doubles for growth to count within the range of its setup.
        blind: after so many steps in a row without a value there is no verdict.
        growing: when K3 is growing.
        critical: when it has grown so far that the run is in danger.
    """

    calibrate_from: int = 20
    calibrate_to: int = 200
    block: int = 5
    quantile: float = 0.9
    floor: float = 1e-5
    follows: float = 700.0
    steady: float = 500.0
    fast: float = 100.0
    blind: int = 40
    growing: Threshold = Threshold(10, 2.0, 40, 1.5, confirm=3, clear_ratio=1.5, clear_steps=20)
    critical: Threshold = Threshold(10, 3.0, 30, 2.0, confirm=1, clear_ratio=2.0, clear_steps=40)


RULE: Final = GrowthRule()
