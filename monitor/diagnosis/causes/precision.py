"""The engine computes the same function of the same weights with other rounding, other experts or fewer bits.

All of these leave E[ρ] = 1 (the engine reports what it samples from) and do not change from step to step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Final

import numpy as np

from logprobe.monitor.diagnosis.causes.cause import INFERRED, KNOWN, LIKELY, POSSIBLE, Sign
from logprobe.monitor.diagnosis.causes.updates import uninterrupted
from logprobe.monitor.diagnosis.evidence.change_points import change
from logprobe.monitor.diagnosis.evidence.evidence import SLIGHT, Evidence
from logprobe.monitor.diagnosis.evidence.measures import SIGNIFICANT, grid_share
from logprobe.monitor.diagnosis.evidence.tokens import VARIES, Spread, Tokens, spread_of
from logprobe.monitor.diagnosis.levels import ABOVE, BEYOND, DENSE, expected, round_number, traits_of

_ON_GRID: Final = 0.9  # of the values; by chance one in 65,536 is on bfloat16's grid
_BITS: Final = {"bfloat16": 7, "float16": 10}  # of the mantissa
_FEWEST: Final = 200  # tokens
_ROUNDED: Final = 1e-7  # K3 below is float32 arithmetic in another order, above it is 16-bit rounding
_NAMED: Final = 1e-3  # smaller noise of unknown origin is not worth a guess; its level is judged elsewhere
_QUANTIZED: Final = 3e-3  # bf16 is reported up to 1.6e-3 (miles), matched 8-bit rollouts from 3e-3 (verl, NeMo-RL)
_STALLED: Final = 3.0  # times: a rise from which updates may have stalled
_OFF_GRID: Final = 0.2  # of the differences of float32 logits 1 % are on it by chance
_UNKNOWN_PART: Final = 0.1  # effect of what is there, in a part that is unknown
_WORST: Final = 100  # one token in so many
_TAIL: Final = 0.3  # of K3, which those make; of normal noise they make 0.08
# Added to the confidence, so that of what the configuration says the largest loss of precision is named first.
_EXPERTS: Final = 0.01  # before a 16-bit dtype
_FEWER_BITS: Final = 0.02  # before experts and a 16-bit dtype
_ELIMINATED: Final = 0.05  # to LIKELY, where versions are known and neither side has 16-bit logits

Rule = Callable[[Evidence], Sign | None]


def _near_its_row(rule: Rule) -> Rule:
    """A precision explains as much as its row of the table says: beyond it the finding is a possibility, beyond all
    rows it is none."""

    @wraps(rule)
    def limited(evidence: Evidence) -> Sign | None:
        sign = rule(evidence)
        k3 = math.nan if sign is None else float(sign.evidence.get("k3_kl", math.nan))
        if sign is None or not k3 > (high := ABOVE * expected(traits_of(evidence))[1]):
            return sign
        if k3 > BEYOND:
            return None
        return replace(sign, confidence=min(sign.confidence, POSSIBLE), effect=sign.effect * high / ABOVE / k3)

    return limited


@_near_its_row
def low_precision(evidence: Evidence) -> Sign | None:
    """A 16-bit dtype on one side: by the grid of its values or logits, by configuration, or by the size of the
    noise."""
    rules = (_stored, _declared_dtype, _engine_grid, _undeclared_side, _unknown_noise)
    return next((sign for sign in (rule(evidence) for rule in rules) if sign is not None), None)


def _stored(evidence: Evidence) -> Sign | None:
    """Log-probs that were rounded after they had been computed."""
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
                    f"{share:.0%} of the {side} log-probs are {dtype} numbers: they were rounded after they had been "
                    "computed.",
                    since_step=evidence.start,
                    fix=f"Keep log-probs in float32 from logits to loss: the {side} are cast to {dtype} on their way.",
                )
    return None


def _declared_dtype(evidence: Evidence) -> Sign | None:
    """The configuration names a 16-bit dtype, and nothing says that the trainer has the same."""
    setup, dtype = evidence.setup, evidence.setup.engine_low_dtype
    k3, effect = _known_part(evidence)
    _, trainer_grid = evidence.grids
    full = setup.trainer_full_precision
    if full is None:
        # vLLM's dtype="auto" rounds a float32 checkpoint; the trainer has what it wrote.
        full = trainer_grid < _OFF_GRID or (math.isnan(trainer_grid) and "float32" in setup.engine("checkpoint_dtype"))
    if dtype is None or not k3 > _ROUNDED:
        return None
    return Sign(
        (KNOWN if full else LIKELY) if trainer_grid < _ON_GRID or math.isnan(trainer_grid) else POSSIBLE,
        effect,
        {"dtype": dtype, "trainer_dtype": setup.trainer_dtype, "trainer_on_grid_share": trainer_grid, "k3_kl": k3},
        f"The engine computes in {dtype}{', the trainer in more' if full else ''}: K3 of {k3:.2g} among tokens of the "
        f"same weights, {_range(evidence, k3)}.",
        since_step=evidence.start,
    )


def _range(evidence: Evidence, k3: float) -> str:
    traits = traits_of(evidence)
    if traits.nothing:
        return "for which no setup is recorded"
    low, high, _ = expected(traits)
    usual = f"{round_number(low)} to {round_number(high)}"
    return f"{'normal' if k3 <= high else 'above what is normal'} for this setup: {usual}"


def _engine_grid(evidence: Evidence) -> Sign | None:
    """The engine's logits are 16-bit numbers and the trainer's are not; no configuration needed."""
    engine_grid, trainer_grid = evidence.grids
    k3, effect = _known_part(evidence)
    if not (engine_grid > _ON_GRID and trainer_grid < _OFF_GRID and k3 > _ROUNDED):
        return None
    return Sign(
        INFERRED if k3 <= _QUANTIZED else LIKELY,
        effect,
        {"engine_on_grid_share": engine_grid, "trainer_on_grid_share": trainer_grid, "k3_kl": k3},
        f"The engine's logits are bfloat16 numbers ({engine_grid:.0%} of the differences between tokens of one "
        "context), the trainer's are not: K3 of "
        f"{k3:.2g}, {_range(evidence, k3)} (inferred from the numbers).",
        since_step=evidence.start,
    )


def _undeclared_side(evidence: Evidence) -> Sign | None:
    """The engine says float32 and there is noise all the same; whose it is is unknown without repeated contexts."""
    k3 = _k3(evidence)
    unseen = all(math.isnan(share) for share in evidence.grids)
    if not unseen or "float32" not in evidence.setup.engine("dtype") or evidence.setup.quantizations or not k3 > SLIGHT:
        return None
    if not _steady(evidence):
        return None
    return Sign(
        LIKELY if evidence.versions_known else POSSIBLE,
        _share(k3, evidence),
        {"engine_dtype": "float32", "k3_kl": k3, "calibration_z": evidence.gap.ratio.z},
        f"The engine's dtype is float32, yet noise of K3 {k3:.2g} is there from the first step on, is calibrated and "
        "does not grow: the trainer's forward "
        "pass or its lm_head is in a 16-bit dtype, or the weights were rounded on their way (inferred from the "
        "numbers).",
        since_step=evidence.start,
        fix="Compute the trainer's log-probs without autocast and with a float32 lm_head, and compare a tensor's "
        "checksum on both sides.",
    )


def _unknown_noise(evidence: Evidence) -> Sign | None:
    """Nothing is known of either side, and the noise is larger than healthy."""
    k3 = _k3(evidence)
    if (
        evidence.setup.engines
        or not _NAMED < k3 <= _QUANTIZED
        or not _steady(evidence)
        or not math.isnan(evidence.grids[0])
    ):
        return None
    return Sign(
        LIKELY if evidence.versions_known else POSSIBLE,
        _share(k3, evidence),
        {"k3_kl": k3, "calibration_z": evidence.gap.ratio.z},
        f"Noise of K3 {k3:.2g} is there from the first step on, is calibrated and does not grow, as with bfloat16 on "
        "one side (inferred from the "
        "numbers; the engine's configuration is not known).",
        since_step=evidence.start,
    )


@_near_its_row
def lm_head_precision(evidence: Evidence) -> Sign | None:
    """The trainer's logits are 16-bit numbers, the engine's are not."""
    engine_grid, trainer_grid = evidence.grids
    k3, effect = _known_part(evidence)
    if not (trainer_grid > _ON_GRID and engine_grid < _OFF_GRID and k3 > _ROUNDED):
        return None
    return Sign(
        INFERRED,
        effect,
        {"engine_on_grid_share": engine_grid, "trainer_on_grid_share": trainer_grid, "k3_kl": k3},
        f"The trainer's logits are bfloat16 numbers ({trainer_grid:.0%} of the differences between tokens of one "
        "context), the engine's are not: K3 of "
        f"{k3:.2g}, {_range(evidence, k3)} (inferred from the numbers; the layers before may be in bfloat16, too).",
        since_step=evidence.start,
    )


@_near_its_row
def quantized_rollout(evidence: Evidence) -> Sign | None:
    """8 bits or fewer in the engine, by configuration, or noise that no 16-bit dtype makes."""
    parts = evidence.setup.quantizations
    k3, effect = _known_part(evidence)
    if parts and k3 > SLIGHT:
        named = ", ".join(f"{name} {value}" for name, value in parts.items())
        return Sign(
            KNOWN + _FEWER_BITS,
            effect,
            {**parts, "k3_kl": k3},
            f"The engine is quantised ({named}) and the trainer is not: K3 of {k3:.2g} among tokens of the same "
            "weights.",
            since_step=evidence.start,
        )
    return _undeclared_quantization(evidence, _k3(evidence))


def _undeclared_quantization(evidence: Evidence, k3: float) -> Sign | None:
    """Steady, calibrated noise with neither side's logits in 16 bits, or too large for 16 bits."""
    engine_grid, trainer_grid = evidence.grids
    wide = engine_grid < _OFF_GRID and trainer_grid < _OFF_GRID and evidence.setup.engine_low_dtype is None
    full = "float32" in evidence.setup.engine("dtype")
    high = ABOVE * expected(traits_of(evidence))[1]
    if not _steady(evidence) or not k3 > (SLIGHT if wide and full else _NAMED if wide else high):
        return None
    if full and engine_grid > _OFF_GRID:
        return None
    return Sign(
        # A constant lag looks the same where versions are unknown; experts, another head or a trainer in train mode
        # where the setup is.
        LIKELY + _ELIMINATED if evidence.versions_known and wide else POSSIBLE,
        _share(k3, evidence),
        {
            "k3_kl": k3,
            "engine_on_grid_share": engine_grid,
            "trainer_on_grid_share": trainer_grid,
            "calibration_z": evidence.gap.ratio.z,
        },
        f"Noise of K3 {k3:.2g} is there from the first step on, is calibrated and does not grow, and "
        + ("neither side's logits are 16-bit numbers" if wide else "it is more than such a setup makes")
        + ": weights or cache of the engine have fewer bits (inferred from the numbers).",
        since_step=evidence.start,
    )


@_near_its_row
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
    tail = float(top[: max(len(top) // _WORST, 1)].sum() / max(top.sum(), 1e-300))
    if tail < _TAIL:
        return None
    return Sign(
        KNOWN + _EXPERTS,
        _share(k3, evidence),
        {
            "k3_kl": k3,
            "share_of_worst_percent": tail,
            "architectures": str(next(iter(evidence.setup.engine("architectures")), None)),
        },
        f"The model is a mixture of experts, and 1 % of the tokens make {tail:.0%} of K3: rounding sends single tokens "
        "to other experts in the "
        "engine than in the trainer.",
        since_step=evidence.start,
    )


@_near_its_row
def batch_variance(evidence: Evidence) -> Sign | None:
    """Both sides compute the same way and differ: the same tokens get other log-probs in another batch or kernel."""
    spread, k3 = _spread(evidence), _k3(evidence)
    engine_grid, trainer_grid = evidence.grids
    both = engine_grid > _ON_GRID and trainer_grid > _ON_GRID
    varies = spread is not None and max(spread.engine, spread.trainer) > VARIES
    if evidence.scaled or not k3 > _ROUNDED or not (both or varies) or not _steady(evidence):
        return None
    told = (
        "Both sides' logits are bfloat16 numbers, so they compute alike"
        if both
        else "One side computes the same token differently each time"
    )
    return Sign(
        INFERRED if both else LIKELY,
        _share(k3, evidence),
        {"k3_kl": k3, "engine_on_grid_share": engine_grid, "trainer_on_grid_share": trainer_grid, **_numbers(spread)},
        f"{told}; what is left (K3 {k3:.2g}, {_range(evidence, k3)}) comes from kernels whose rounding depends on the "
        "shape of the batch (inferred from the "
        "numbers).",
        since_step=evidence.start,
    )


def trainer_not_deterministic(evidence: Evidence) -> Sign | None:
    """The trainer gives one token other log-probs each time, the engine does not; or its configuration has dropout, and
    K3 is above its row."""
    quiet = uninterrupted(evidence)  # what an update leaves behind in the engine differs from request to request, too
    spread, k3, dropouts = _spread(quiet), _k3(quiet), evidence.setup.dropouts
    traits = traits_of(evidence)
    if evidence.scaled or not k3 > ABOVE * (DENSE if traits.nothing else expected(traits)[1]):
        return None
    alone = spread is not None and spread.alone
    if not alone and not (dropouts and spread is None):
        return None
    told = (
        "the trainer computes the same token after the same context differently each time, the engine does not"
        if alone
        else f"the trainer's configuration has {', '.join(f'{name} {value:g}' for name, value in dropouts.items())}"
    )
    return Sign(
        INFERRED if alone else LIKELY,
        _share(k3, evidence),
        {"k3_kl": k3, **dropouts, **_numbers(spread)},
        f"K3 of {k3:.2g} is more than precision makes, and {told}: its log-probs were computed in train mode, with "
        "dropout or another random part"
        f"{'' if dropouts else ' (inferred from the numbers)'}.",
        since_step=evidence.start,
    )


def _fresh(evidence: Evidence) -> Tokens | None:
    """Tokens of the trainer's own weights, or of unknown age; None where there are too few: a gap of older ones is no
    numerics."""
    tokens = evidence.tokens
    return None if tokens is None or len(tokens.fresh) < _FEWEST else tokens.fresh


def _k3(evidence: Evidence) -> float:
    """K3 among tokens of the same weights; NaN where there are too few."""
    tokens = _fresh(evidence)
    if tokens is not None:
        return float(tokens.k3.mean())
    fresh = evidence.slices.where(lambda row: not (row.lag or 0) > 0)
    return fresh.k3 if fresh.n >= _FEWEST else math.nan


def _known_part(evidence: Evidence) -> tuple[float, float]:
    """K3 and effect of a cause that is known without its size: where all tokens are of older weights, its part is
    unknown."""
    k3 = _k3(evidence)
    if math.isnan(k3) and evidence.gap.n >= _FEWEST:
        return evidence.gap.k3, _UNKNOWN_PART
    return k3, _UNKNOWN_PART if evidence.scaled else _share(k3, evidence)


def _share(k3: float, evidence: Evidence) -> float:
    return min(k3 / evidence.gap.k3, 1.0) if evidence.gap.k3 > 0 else 0.0


def _steady(evidence: Evidence) -> bool:
    """Whether the gap looks like noise: it does not rise at a step, and it is calibrated."""
    risen, ratio = change(evidence), evidence.gap.ratio
    calibrated = abs(ratio.value) < max(SIGNIFICANT * ratio.error, evidence.gap.k3)
    return not evidence.scaled and calibrated and (risen is None or risen.ratio < _STALLED)


def _spread(evidence: Evidence) -> Spread | None:
    tokens = _fresh(evidence)
    return None if tokens is None or evidence.scaled else spread_of(tokens)


def _numbers(spread: Spread | None) -> dict[str, float]:
    if spread is None:
        return {}
    return {"engine_spread": spread.engine, "trainer_spread": spread.trainer, "repeated_tokens": spread.n}
