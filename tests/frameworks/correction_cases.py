"""Every correction that a framework's own loss is tried with, and the same losses by hand: token by token, in plain Python."""

from __future__ import annotations

import math
from itertools import product
from typing import Any, Final

import numpy as np

from logprobe.collectors.correction import CorrectionConfig
from logprobe.collectors.correction.presets import PRESETS

_BOUNDS: Final[dict[str, dict[str, Any]]] = {
    "truncate": {"is_upper": 1.2},
    "clip": {"is_lower": 0.8, "is_upper": 1.2},
    "mask": {"is_lower": 0.8, "is_upper": 1.2},
}
CASES: Final[dict[str, CorrectionConfig]] = {
    **{name: entry.config for name, entry in PRESETS.items()},
    **{
        f"{level} {mode} {denominator}": CorrectionConfig.from_dict(
            {"is_level": level, "is_mode": mode, "denominator": denominator, **_BOUNDS[mode]}
        )
        for level, mode, denominator in product(("token", "sequence", "geometric"), _BOUNDS, ("keep", "renormalize"))
    },
    **{
        f"reject by {measure} {level}": CorrectionConfig.from_dict(
            {"rs_level": level, "rs_measure": measure, "rs_upper": 0.05, "denominator": "renormalize"}
        )
        for measure, level in product(("k2", "k3", "binary_kl"), ("token", "geometric", "max"))
    },
    "normalized mask": CorrectionConfig(is_level="token", is_mode="mask", is_lower=0.8, normalize=True),
    "everything": CorrectionConfig(
        is_level="token", is_mode="clip", is_lower=0.5, rs_level="geometric", rs_lower=0.7, rs_upper=1.4, veto=0.05, normalize=True,
        denominator="renormalize",
    ),
}  # fmt: skip


def factors(config: CorrectionConfig, r: Any, t: Any, mask: Any, advantages: Any) -> tuple[Any, Any]:
    """Weights and kept tokens [batch, time] by the definitions; arrays of the same shape, advantages per sequence."""
    weights, keep = np.zeros(mask.shape), mask.astype(bool).copy()
    rows = [[place for place in range(mask.shape[1]) if row[place]] for row in mask]
    inside: list[float] = []
    for row, places in enumerate(rows):
        d = [float(t[row, p]) - float(r[row, p]) for p in places]
        each = _each_level(config.is_level, d, config.clamp)
        for p, x in zip(places, each, strict=True):
            rho = math.exp(_limit(x))
            beyond = _beyond(rho, config.is_lower if config.is_mode != "truncate" else None, config.is_upper)
            weights[row, p] = 1.0 if config.is_level is None else _bounded(config, rho)
            keep[row, p] &= not (config.is_level is not None and config.is_mode == "mask" and beyond)
        values = [(float(r[row, p]), float(t[row, p])) for p in places]
        for p, dropped in zip(places, _rejected(config, values, advantages[row]), strict=True):
            keep[row, p] &= not dropped
        if config.veto is not None and any(x < math.log(config.veto) for x in d):
            keep[row] = False
        counted = each if config.is_level == "token" else each[:1]
        for x in counted:
            rho = math.exp(_limit(x))
            zero = (
                config.is_mode == "mask"
                and config.normalize_by == "weights"
                and _beyond(rho, config.is_lower, config.is_upper)
            )
            inside.append(0.0 if zero else _bounded(config, rho))
    if config.normalize:
        weights /= sum(inside) / len(inside)
    return np.where(keep, weights, 0.0), keep


def _limit(x: float) -> float:
    return max(-20.0, min(20.0, x))


def _each_level(level: str | None, d: list[float], clamp: str) -> list[float]:
    """The log-ratio that each token of a sequence has at a level."""
    parts = [_limit(x) for x in d] if clamp == "token" else d
    if level in {None, "token"}:
        return parts
    total = math.fsum(parts)
    return [total if level == "sequence" else total / len(parts)] * len(parts)


def _beyond(value: float, lower: float | None, upper: float | None) -> bool:
    return (lower is not None and value < lower) or (upper is not None and value > upper)


def _bounded(config: CorrectionConfig, rho: float) -> float:
    if config.is_mode == "mask":
        return rho
    rho = rho if config.is_upper is None else min(rho, config.is_upper)
    return max(rho, config.is_lower or 0.0) if config.is_mode == "clip" else rho


def _rejected(config: CorrectionConfig, values: list[tuple[float, float]], advantage: float) -> list[bool]:
    """Of each token of a sequence, whether rejection drops it."""
    level, bounds = config.rs_level, (config.rs_lower, config.rs_upper)
    if level is None:
        return [False] * len(values)
    if config.rs_measure == "ratio":
        each = _each_level("token" if level == "max" else level, [t - r for r, t in values], config.clamp)
        measured = [math.exp(_limit(x)) for x in each]
    else:
        measured = [_measured(config.rs_measure, r, t) for r, t in values]
        if level in {"sequence", "geometric"}:
            total = math.fsum(measured)
            measured = [total if level == "sequence" else total / len(measured)] * len(measured)
    if level == "max":
        return [any(_beyond(value, *bounds) for value in measured)] * len(values)
    if not config.rs_by_advantage:
        return [_beyond(value, *bounds) for value in measured]
    return [_beyond(value, None, bounds[1]) if advantage > 0 else _beyond(value, bounds[0], None) for value in measured]


def _measured(measure: str, r: float, t: float) -> float:
    d = _limit(t - r)
    if measure == "k2":
        return d * d / 2
    if measure == "k3":
        return math.exp(d) - 1 - d
    p, q = math.exp(r), math.exp(t)
    if measure == "prob_diff":
        return q - p
    return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))


def reduced(loss: str, terms: list[Any], masks: list[Any], kept: list[Any], longest: int) -> list[float]:
    """What each micro-batch adds to the loss of an update: `terms` are weighted token losses, `kept` what divides."""
    every = max(1, sum(part.sum() for part in kept))
    result = []
    for term, mask, left in zip(terms, masks, kept, strict=True):
        total = (term * mask).sum(-1)
        if loss in {"grpo", "sapo"}:
            value = (total / np.maximum(left.sum(-1), 1)).mean() / len(kept)
        elif loss == "bnpo":
            value = total.sum() / max(1, left.sum()) / len(kept)
        elif loss in {"dapo", "cispo"}:
            value = total.sum() / every
        else:
            value = (total.sum() / (mask.shape[0] * longest) if loss == "dr_grpo" else total.mean()) / len(kept)
        result.append(float(value))
    return result
