"""Did it help? The trend of a run before and after the first corrected step, judged once enough steps have passed.

A correction repairs the objective, not the engine: K3 itself need not shrink. What is asked is whether it still doubles,
how much is masked, and what the gradient norm and the reward do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from logprobe.alerts.controller.before_after import FEWEST, QUANTITIES, typical
from logprobe.monitor.diagnosis.growth.trend import theil_sen
from logprobe.monitor.diagnosis.leading import alarms

Series = tuple[NDArray[np.int64], NDArray[np.float64]]

K3: Final = "backend.k3_kl"
SCALARS: Final = ("grad_norm", "reward")
MASKED: Final = "masked"  # share of the tokens that the trainer masked
_FACTORS: Final = {name: factor for name, _, _, factor in QUANTITIES}
_LEVEL: Final = 0.99  # of the interval that must lie above a flat trend
_SLOWEST: Final = 8  # windows; what takes longer to double is no growth that anybody would act on
_FAR: Final = 2.0  # a gradient norm that is so many times what it was has changed
ADVICE: Final = "lower the learning rate, or return to a checkpoint from before the onset"
_BOUND: Final = "bound the weight lag"


@dataclass(frozen=True, slots=True)
class Side:
    """One side of the switch: medians, and the steps in which K3 doubles (None: it does not, or too few points)."""

    steps: int
    k3: float | None
    doubling_steps: float | None
    growing: bool
    grad_norm: float | None
    reward: float | None
    low_reward: float | None  # lower quartile: what was usual


def remedy(findings: Iterable[Mapping[str, Any]]) -> str:
    """What to do about growth that a correction has not stopped; first the remedy of tokens that come from old weights.

    `findings`: of `Diagnosis.document`.
    """
    stale = any(each["cause"] == "staleness" and alarms(each) for each in findings)
    return f"{_BOUND}, {ADVICE}" if stale else ADVICE


def judge(
    series: Mapping[str, Series], from_step: int, window: int, findings: Iterable[Mapping[str, Any]] = ()
) -> dict[str, Any] | None:
    """The effect of a correction that began at `from_step`.

    Args:
        series: steps (int64, ascending) and values (float64) of `K3` and, where known, of `SCALARS` and `MASKED`.
        from_step: first corrected step.
        window: steps looked at on each side.
        findings: of the latest diagnosis, for the remedy.

    Returns:
        ``judgement`` ("still_growing", "halted", "steady"), ``worse`` (which of `SCALARS` are: a gradient norm that has doubled, a
        reward below the lower quartile of before), ``words``, ``before`` and ``after`` (see `Side`), ``masked``; None when either
        side has too few steps.
    """
    before = _side(series, from_step - window, from_step)
    after = _side(series, from_step, from_step + window)
    if min(before.steps, after.steps) < FEWEST:
        return None
    masked = typical(_between(series.get(MASKED), from_step, from_step + window)[1], factor=False)
    judgement = "still_growing" if after.growing else "halted" if before.growing else "steady"
    return {
        "judgement": judgement,
        "worse": _worse(before, after),
        "words": "; ".join(
            [
                _words(judgement, before, after, window, remedy(findings)),
                *_rest(series, from_step, window),
                *_masked(masked),
            ]
        ),
        "before": asdict(before),
        "after": asdict(after),
        "masked": masked,
    }


def _side(series: Mapping[str, Series], first: int, end: int) -> Side:
    steps, values = _between(series.get(K3), first, end)
    doubling = _doubling(steps, values, slowest=_SLOWEST * (end - first))
    rewards = _between(series.get("reward"), first, end)[1]
    return Side(
        low_reward=float(np.quantile(rewards, 0.25)) if rewards.size else None,
        steps=steps.size,
        k3=_median(values),
        doubling_steps=doubling,
        growing=doubling is not None,
        **{name: _median(_between(series.get(name), first, end)[1]) for name in SCALARS},
    )


def _between(series: Series | None, first: int, end: int) -> Series:
    if series is None:
        return np.empty(0, np.int64), np.empty(0)
    steps, values = series
    chosen = (steps >= first) & (steps < end) & np.isfinite(values)
    return steps[chosen], values[chosen]


def _doubling(steps: NDArray[np.int64], values: NDArray[np.float64], slowest: float) -> float | None:
    """In how many steps K3 doubles: 1 / Theil–Sen slope of log2 K3; None unless its whole interval lies above 0."""
    positive = values > 0
    if positive.sum() < FEWEST:
        return None
    slope = theil_sen(steps[positive], np.log2(values[positive]), confidence=_LEVEL)
    return 1.0 / slope.value if slope is not None and slope.low > 0 and slope.value * slowest >= 1 else None


def _median(values: NDArray[np.float64]) -> float | None:
    middle = float(np.median(values)) if values.size else math.nan
    return middle if math.isfinite(middle) else None


def _worse(before: Side, after: Side) -> list[str]:
    """Medians against what was usual before; what is unknown on a side is not compared."""
    norms, rewards = (before.grad_norm, after.grad_norm), (before.low_reward, after.reward)
    found = []
    if norms[0] is not None and norms[1] is not None and norms[1] > _FAR * norms[0]:
        found.append("grad_norm")
    if rewards[0] is not None and rewards[1] is not None and rewards[1] < rewards[0]:
        found.append("reward")
    return found


def _rest(series: Mapping[str, Series], from_step: int, window: int) -> list[str]:
    """What else was looked at, for people, in the numbers of `before_after.figures`; nothing of what is unknown."""
    parts = []
    for name in SCALARS:
        sides = (_between(series.get(name), first, first + window)[1] for first in (from_step - window, from_step))
        old, new = (typical(values, factor=_FACTORS[name]) for values in sides)
        if old is not None and new is not None:
            parts.append(f"{name.replace('grad_norm', 'gradient norm')} {old:.3g} → {new:.3g}")
    return parts


def _masked(masked: float | None) -> list[str]:
    return [] if masked is None else [f"{masked:.1%} of the tokens are masked"]


def _words(judgement: str, before: Side, after: Side, window: int, left: str) -> str:
    if judgement == "still_growing":
        return f"{window} steps later K3 still doubles every {after.doubling_steps:.0f} steps: {left}"
    if judgement == "halted":
        return f"{window} steps later K3 no longer grows; before, it doubled every {before.doubling_steps:.0f} steps"
    return f"K3 grew neither in the {window} steps before nor in those after"
