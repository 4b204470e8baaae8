"""`correct` against its definition: the configuration's words and METRICS' notation written down again, in plain float64 loops.

Nothing here is taken from the library: one sequence at a time, one token at a time, with `math`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logprobe.collectors.correction import CorrectionConfig, correct

LEVELS = ("token", "sequence", "geometric")
BOUNDS = st.one_of(st.none(), st.floats(0.05, 0.999), st.sampled_from([0.0, 0.5, 0.9]))
UPPERS = st.one_of(st.none(), st.floats(1.001, 20.0), st.sampled_from([1.0, 1.01, 2.0]))
NEAR = 1e-9  # a ratio so near to its bound may fall on either side


def rho(difference: float) -> float:
    """ρ = exp(clamp(d, ±20))."""
    return math.exp(min(20.0, max(-20.0, difference)))


def ratios(level: str, d: list[float]) -> list[float]:
    """ρ of a level for each token of one sequence."""
    if level == "token":
        return [rho(value) for value in d]
    total = math.fsum(d)
    return [rho(total if level == "sequence" else total / len(d))] * len(d)


def is_inside(value: float, lower: float | None, upper: float | None) -> bool:
    """Bounds are inclusive; None: no such bound."""
    return (lower is None or value >= lower) and (upper is None or value <= upper)


def weight(config: CorrectionConfig, value: float) -> float:
    """What a ratio becomes: limited above (truncate), on both sides (clip), or itself (mask)."""
    if config.is_level is None:
        return 1.0
    low = -math.inf if config.is_lower is None or config.is_mode != "clip" else config.is_lower
    high = math.inf if config.is_upper is None or config.is_mode == "mask" else config.is_upper
    return min(max(value, low), high)


@dataclass
class Expected:
    """One sequence under a configuration."""

    ratios: list[float]
    weights: list[float]
    kept: list[bool]


def expected(config: CorrectionConfig, d: list[float]) -> Expected:
    """What the definition says of one sequence's log-ratios, before normalization."""
    values = ratios(config.is_level or "token", d)
    kept = [True] * len(d)
    if config.is_level is not None and config.is_mode == "mask":
        kept = [is_inside(value, config.is_lower, config.is_upper) for value in values]
    if config.rs_level is not None:
        judged = ratios(config.rs_level, d)
        kept = [k and is_inside(v, config.rs_lower, config.rs_upper) for k, v in zip(kept, judged, strict=True)]
    if config.veto is not None and min(rho(value) for value in d) < config.veto:
        kept = [False] * len(d)
    return Expected(values, [weight(config, value) for value in values], kept)


def normalizer(config: CorrectionConfig, found: list[Expected]) -> float:
    """Mean weight over tokens at level token, over sequences at the others; of the ratios before masking."""
    if config.is_level == "token":
        weights = [value for sequence in found for value in sequence.weights]
    else:
        weights = [sequence.weights[0] for sequence in found]
    return math.fsum(weights) / len(weights)


def is_undecided(config: CorrectionConfig, d: list[float]) -> bool:
    """Whether some ratio is so near to a bound that rounding decides."""
    pairs = [
        (value, bound)
        for value in ratios(config.is_level or "token", d)
        for bound in (config.is_lower, config.is_upper)
    ]
    if config.rs_level is not None:
        pairs += [
            (value, bound) for value in ratios(config.rs_level, d) for bound in (config.rs_lower, config.rs_upper)
        ]
    pairs += [(rho(value), config.veto) for value in d]
    return any(bound is not None and abs(value - bound) <= NEAR * max(1.0, value) for value, bound in pairs)


@st.composite
def configurations(draw: st.DrawFn) -> CorrectionConfig:
    """Every combination of the fields that makes sense."""
    fields: dict[str, Any] = {"is_level": draw(st.sampled_from([None, *LEVELS]))}
    if fields["is_level"] is not None:
        fields |= {"is_mode": draw(st.sampled_from(["truncate", "clip", "mask"])), "normalize": draw(st.booleans())}
        fields |= {"is_lower": draw(BOUNDS), "is_upper": draw(UPPERS)}
        if fields["is_mode"] == "clip" and fields["is_lower"] is None:
            fields["is_lower"] = 0.5
        if fields["is_mode"] == "mask" and fields["is_lower"] is None and fields["is_upper"] is None:
            fields["is_upper"] = 2.0
    if draw(st.booleans()):
        lower, upper = draw(BOUNDS), draw(UPPERS)
        fields |= {"rs_level": draw(st.sampled_from(LEVELS)), "rs_lower": lower, "rs_upper": upper}
        fields["rs_upper"] = 2.0 if lower is None and upper is None else upper
    fields["veto"] = draw(st.one_of(st.none(), st.floats(1e-6, 0.9)))
    fields["denominator"] = draw(st.sampled_from(["keep", "renormalize"]))
    return CorrectionConfig(**fields)


@st.composite
def batches(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rollout and trainer log-probs and a mask, float64 [batch, time]; with junk where the mask is 0, also in between."""
    shape = (draw(st.integers(1, 5)), draw(st.integers(1, 12)))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rollout = -random.exponential(2.0, shape) - 1e-3
    trainer = np.minimum(rollout + draw(st.sampled_from([0.01, 0.3, 1.0, 15.0])) * random.normal(0, 1, shape), -1e-6)
    mask = random.random(shape) < draw(st.sampled_from([0.3, 0.9, 1.0]))
    junk = draw(st.sampled_from([np.nan, np.inf, -9999.0, 5.0]))
    return np.where(mask, rollout, junk), np.where(mask, trainer, junk), mask


@settings(max_examples=300, deadline=None)
@given(config=configurations(), batch=batches())
def test_weights_and_masks_are_those_of_the_definition(config: CorrectionConfig, batch: tuple[np.ndarray, ...]) -> None:
    rollout, trainer, mask = batch
    rows = [np.flatnonzero(flags) for flags in mask]
    logratios = [[float(trainer[i, j] - rollout[i, j]) for j in places] for i, places in enumerate(rows)]
    filled = [(i, d) for i, d in enumerate(logratios) if d]
    if any(is_undecided(config, d) for _, d in filled):
        return
    sequences = {i: expected(config, d) for i, d in filled}
    divisor = normalizer(config, list(sequences.values())) if config.normalize and sequences else 1.0
    weights, kept = np.zeros(mask.shape), np.zeros(mask.shape, bool)
    for i, sequence in sequences.items():
        kept[i, rows[i]] = sequence.kept
        weights[i, rows[i]] = np.where(sequence.kept, sequence.weights, 0.0) / (divisor if divisor > 1e-8 else 1.0)
    found = correct(config, rollout, trainer, mask)
    assert (found.mask == kept).all()
    assert found.weights == pytest.approx(weights, rel=1e-9, abs=1e-12)
    assert (found.denominator_mask == (mask if config.denominator == "keep" else kept)).all()
    listed = correct(
        config, *([row[flags] for row, flags in zip(side, mask, strict=True)] for side in (rollout, trainer))
    )
    for i, places in enumerate(rows):
        assert np.asarray(listed.weights[i]) == pytest.approx(weights[i, places], rel=1e-9, abs=1e-12)


@settings(max_examples=100, deadline=None)
@given(config=configurations(), batch=batches())
def test_the_report_counts_what_the_definition_drops(config: CorrectionConfig, batch: tuple[np.ndarray, ...]) -> None:
    rollout, trainer, mask = batch
    logratios = [(trainer[i][mask[i]] - rollout[i][mask[i]]).tolist() for i in range(len(mask)) if mask[i].any()]
    if any(is_undecided(config, d) for d in logratios):
        return
    sequences = [expected(config, d) for d in logratios]
    report = correct(config, rollout, trainer, mask).report
    if not sequences:
        assert (report["tokens"], report["masked_frac"], report["ratio_mean"]) == (0, None, None)
        return
    dropped = [not kept for sequence in sequences for kept in sequence.kept]
    assert report["masked_frac"] == pytest.approx(sum(dropped) / len(dropped))
    assert report["masked_seq_frac"] == pytest.approx(sum(not any(s.kept) for s in sequences) / len(sequences))
    values = [value for sequence in sequences for value in sequence.ratios]
    assert report["ratio_mean"] == pytest.approx(math.fsum(values) / len(values), rel=1e-9)
