"""The engine computes the same function of the same weights with other rounding, other experts or fewer bits.

All of these leave E[ρ] = 1 (the engine reports what it samples from) and do not change from step to step.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from logprobe.monitor.diagnosis.causes.cause import INFERRED, KNOWN, LIKELY, Sign
from logprobe.monitor.diagnosis.course import change
from logprobe.monitor.diagnosis.evidence import HEALTHY, SLIGHT, Evidence
from logprobe.monitor.diagnosis.measures import grid_share
from logprobe.monitor.diagnosis.spread import Spread, spread_of
from logprobe.monitor.diagnosis.tokens import Tokens

_ON_GRID: Final = 0.9  # of the values; by chance one in 65,536 is on bfloat16's grid
_BITS: Final = {"bfloat16": 7, "float16": 10}
_FEWEST: Final = 200
_ROUNDED: Final = 1e-7  # K3 below is float32 arithmetic in another order, above it is 16-bit rounding
_QUANTIZED: Final = 3e-3  # bf16 is reported up to 1.6e-3 (miles), matched 8-bit rollouts from 3e-3 (verl, NeMo-RL)
_STALLED: Final = 3.0
_VARIES: Final = 0.2  # of the gap's size: what two computations of the same context may differ by chance is far below
_TAIL: Final = 0.3


def low_precision(evidence: Evidence) -> Sign | None:
    """A 16-bit dtype on one side, by configuration, by the grid of its values, or by the size of the noise."""
    return (
        _on_grid(evidence)
        or _declared_dtype(evidence)
        or _trainer_noise(evidence, varies=True)
        or _unknown_noise(evidence)
    )


def _on_grid(evidence: Evidence) -> Sign | None:
    tokens = evidence.recorded
    if tokens is None or len(tokens) < _FEWEST:
        return None
    for dtype, bits in _BITS.items():
        for side, values in (("engine's", tokens.r), ("trainer's", tokens.t)):
            share = grid_share(values[np.isfinite(values)], bits)
            if share > _ON_GRID:
                return Sign(
                    KNOWN,
                    1.0,
                    {"dtype": dtype, "on_grid_share": share, "side": side, "k3_kl": evidence.gap.k3},
                    f"{share:.0%} of the {side} log-probs are {dtype} numbers: they were rounded after they had been computed.",
                    since_step=evidence.start,
                    fix=f"Keep log-probs in float32 from logits to loss: the {side} are cast to {dtype} on their way.",
                )
    return None


def _declared_dtype(evidence: Evidence) -> Sign | None:
    setup, dtype = evidence.setup, evidence.setup.engine_low_dtype
    full = setup.trainer_full_precision
    if full is None and "float32" in setup.engine("checkpoint_dtype"):
        full = True  # vLLM's dtype="auto" rounds such a checkpoint; the trainer has what it wrote
    spread = _spread(evidence)
    if dtype is None or (spread is not None and spread.both > _VARIES):
        return None
    k3 = _k3(evidence)
    if not k3 > (_ROUNDED if full else HEALTHY):
        return None
    return Sign(
        KNOWN if full else LIKELY,
        0.1 if evidence.scaled else _share(k3, evidence),
        {
            "dtype": dtype,
            "checkpoint_dtype": next(iter(setup.engine("checkpoint_dtype")), None),
            "trainer_dtype": setup.trainer_dtype,
            "k3_kl": k3,
        },
        f"The engine computes in {dtype}{', the trainer in float32' if full else ''}: K3 of {k3:.2g} among tokens of the same weights, "
        f"{'within' if k3 <= HEALTHY else 'above'} what is reported as healthy for dense models (1e-5 … 1e-3).",
        since_step=evidence.start,
    )


def _trainer_noise(evidence: Evidence, *, varies: bool) -> Sign | None:
    """The engine is known to compute in float32; so noise that does not change with time is the trainer's."""
    if (
        evidence.setup.engine_low_dtype
        or "float32" not in evidence.setup.engine("dtype")
        or evidence.setup.quantizations
    ):
        return None
    k3, spread = _k3(evidence), _spread(evidence)
    if not k3 > _ROUNDED or not _steady(evidence):
        return None
    if spread is not None and (spread.trainer > _VARIES) != varies:
        return None
    what = "whole computation" if varies else "last matrix product (lm_head)"
    return Sign(
        INFERRED if spread is not None else LIKELY - (0.05 if varies else 0),
        _share(k3, evidence),
        {"engine_dtype": "float32", "k3_kl": k3, **_spread_numbers(spread)},
        f"The engine computes in float32, yet noise of K3 {k3:.2g} is there from the first step on and does not grow: the trainer's {what} is "
        "in a 16-bit dtype (inferred from the numbers).",
        since_step=evidence.start,
        fix=None
        if not varies
        else "Compute the trainer's log-probs in the engine's dtype: no autocast around the forward pass that makes them.",
    )


def _unknown_noise(evidence: Evidence) -> Sign | None:
    k3 = _k3(evidence)
    if evidence.setup.engines or not HEALTHY < k3 <= _QUANTIZED or not _steady(evidence):
        return None
    return Sign(
        LIKELY,
        _share(k3, evidence),
        {"k3_kl": k3, "calibration_z": evidence.gap.ratio.z},
        f"Noise of K3 {k3:.2g} is there from the first step on, is calibrated and does not grow, as with bfloat16 on one side (inferred from the "
        "numbers; the engine's configuration is not known).",
        since_step=evidence.start,
    )


def lm_head_precision(evidence: Evidence) -> Sign | None:
    """Rounding of the logits alone: noise, but the same in every batch."""
    return _trainer_noise(evidence, varies=False)


def quantized_rollout(evidence: Evidence) -> Sign | None:
    """8 bits or fewer in the engine, by configuration or by the size of the noise."""
    parts, k3 = evidence.setup.quantizations, _k3(evidence)
    if parts and k3 > SLIGHT:
        named = ", ".join(f"{name} {value}" for name, value in parts.items())
        return Sign(
            KNOWN + 0.02,  # more bits are lost here than to a 16-bit dtype next to it
            0.1 if evidence.scaled else _share(k3, evidence),
            {**parts, "k3_kl": k3},
            f"The engine is quantised ({named}) and the trainer is not: K3 of {k3:.2g} among tokens of the same weights.",
            since_step=evidence.start,
        )
    if evidence.setup.engines or not k3 > _QUANTIZED or not _steady(evidence):
        return None
    return Sign(
        LIKELY - 0.05,
        _share(k3, evidence),
        {"k3_kl": k3, "calibration_z": evidence.gap.ratio.z},
        f"Noise of K3 {k3:.2g} is there from the first step on, is calibrated and does not grow: more than bfloat16 explains, as with a quantised "
        "engine (inferred from the numbers; the engine's configuration is not known).",
        since_step=evidence.start,
    )


def moe_routing(evidence: Evidence) -> Sign | None:
    """A mixture of experts with a heavy tail: a few tokens went to other experts."""
    k3, tokens = _k3(evidence), _fresh(evidence)
    if (
        not evidence.setup.mixture_of_experts
        or evidence.scaled
        or not k3 > SLIGHT
        or tokens is None
        or not _steady(evidence)
    ):
        return None
    top = np.sort(tokens.k3)[::-1]
    tail = float(top[: max(len(top) // 100, 1)].sum() / max(top.sum(), 1e-300))
    if tail < _TAIL:
        return None
    return Sign(
        KNOWN + 0.01,
        _share(k3, evidence),
        {
            "k3_kl": k3,
            "share_of_worst_percent": tail,
            "architectures": str(next(iter(evidence.setup.engine("architectures")), None)),
        },
        f"The model is a mixture of experts, and 1 % of the tokens make {tail:.0%} of the gap: rounding sends single tokens to other experts in the "
        "engine than in the trainer.",
        since_step=evidence.start,
    )


def batch_variance(evidence: Evidence) -> Sign | None:
    """The same tokens after the same prompt get other log-probs in another batch."""
    spread, k3 = _spread(evidence), _k3(evidence)
    if spread is None or evidence.scaled or not k3 > _ROUNDED or not _steady(evidence):
        return None
    low = evidence.setup.engine_low_dtype is not None
    if spread.both <= _VARIES and (low or not evidence.setup.engines or spread.engine <= _VARIES):
        return None
    return Sign(
        INFERRED,
        _share(k3, evidence),
        {"k3_kl": k3, **_spread_numbers(spread)},
        f"The same tokens after the same prompt and weights get log-probs that vary by {spread.engine:.0%} of the gap in the engine and "
        f"{spread.trainer:.0%} in the trainer, from batch to batch: kernels whose result depends on the shape of the batch.",
        since_step=evidence.start,
    )


def _fresh(evidence: Evidence) -> Tokens | None:
    """Tokens of the trainer's own weights where there are enough; else those of unknown age or the newest there are."""
    tokens = evidence.tokens
    if tokens is None or not len(tokens):
        return None
    fresh = tokens.where(~(tokens.lag > 0))
    if len(fresh) >= _FEWEST:
        return fresh
    return tokens.where(tokens.lag <= np.nanmin(tokens.lag)) if np.isfinite(tokens.lag).any() else tokens


def _k3(evidence: Evidence) -> float:
    """K3 among tokens of the same weights; NaN where there are none."""
    tokens = _fresh(evidence)
    if tokens is not None:
        return float(tokens.k3.mean())
    fresh = evidence.slices.where(lambda row: not (row.lag or 0) > 0)
    return fresh.k3 if fresh.n >= _FEWEST else math.nan


def _share(k3: float, evidence: Evidence) -> float:
    return min(k3 / evidence.gap.k3, 1.0) if evidence.gap.k3 > 0 else 0.0


def _steady(evidence: Evidence) -> bool:
    """Whether the gap looks like noise: it does not rise at a step, and it is calibrated."""
    risen, ratio = change(evidence), evidence.gap.ratio
    calibrated = abs(ratio.value) < max(5 * ratio.error, evidence.gap.k3)
    return not evidence.scaled and calibrated and (risen is None or risen.ratio < _STALLED)


def _spread(evidence: Evidence) -> Spread | None:
    tokens = _fresh(evidence)
    return None if tokens is None or evidence.scaled else spread_of(tokens)


def _spread_numbers(spread: Spread | None) -> dict[str, float]:
    return (
        {}
        if spread is None
        else {"engine_spread": spread.engine, "trainer_spread": spread.trainer, "repeated_tokens": spread.n}
    )
