"""Settings of the rule that judges the growth of K3, see `growth`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

K3: Final = "backend.k3_kl"  # the metric that is judged


@dataclass(frozen=True, slots=True)
class Threshold:
    """One degree of growth: the medians of the last `short` and `long` steps exceed multiples of the baseline.

    It is raised after `confirm` such steps in a row. It is withdrawn after `clear_steps` consecutive steps with a short
    median below `clear_ratio` times the baseline.
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
        calibrate_from: first step of the baseline, after the start-up.
        calibrate_to: step at which the baseline freezes.
        block: steps of a block, enough for a median that is immune to single spikes.
        quantile: quantile of the block medians that defines the baseline.
        floor: minimum of K3, the lower end of healthy dense models. Smaller values are rounding noise and count as
            this.
        follows: shortest doubling time of the baseline in steps, since entropy and longer answers move K3.
        steady: longest doubling time in steps of a steady rise that the baseline does not follow.
        fast: longest doubling time in steps that counts as growth within the range of the setup.
        blind: number of consecutive steps without a value after which there is no verdict.
        growing: threshold of the verdict "growing".
        critical: threshold of the verdict "critical".
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
