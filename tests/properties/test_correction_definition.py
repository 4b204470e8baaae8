"""Weights and masks of a correction against its definition, written out a second time: one sequence at a time, one token at a time, with `math` alone.

Every combination of the fields of a configuration is drawn, on padded batches, tensors and lists; and laws that hold whatever the formulas are.
Recorded frameworks are compared elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from logprobe.collectors.correction import CorrectionConfig, Report, correct

LEVELS = ("token", "sequence", "geometric")
BOUNDS = st.one_of(st.none(), st.floats(0.05, 0.999), st.sampled_from([0.0, 0.5, 0.9]))
UPPERS = st.one_of(st.none(), st.floats(1.001, 20.0), st.sampled_from([1.0, 1.01, 2.0]))
NEAR = 1e-9  # a value so near to its bound may fall on either side
Bounded = tuple[float, float | None, float | None]  # a value with its bounds


def clamp(d: float) -> float:
    return min(20.0, max(-20.0, d))


def rho(d: float) -> float:
    """ρ = exp(clamp(d, ±20))."""
    return math.exp(clamp(d))


def at_level(level: str, values: list[float]) -> float:
    total = math.fsum(values)
    return total if level == "sequence" else total / len(values)


def is_inside(bounded: Bounded) -> bool:
    """Bounds are inclusive; None: no such bound."""
    value, lower, upper = bounded
    return (lower is None or value >= lower) and (upper is None or value <= upper)


def is_near(bounded: Bounded) -> bool:
    value = bounded[0]
    return any(bound is not None and abs(value - bound) <= NEAR * max(1.0, abs(value)) for bound in bounded[1:])


@dataclass
class Sequence:
    """Log-probs of the engine and the trainer, and advantages, of the tokens under the mask."""

    r: list[float]
    t: list[float]
    advantages: list[float]

    @property
    def d(self) -> list[float]:
        return [t - r for r, t in zip(self.r, self.t, strict=True)]


class Definition:
    """What becomes of one sequence, before normalization."""

    def __init__(self, config: CorrectionConfig, sequence: Sequence) -> None:
        self.config, self.sequence = config, sequence
        self.d = [clamp(d) for d in sequence.d] if config.clamp == "token" else sequence.d
        self.ratios = self._ratios(config.is_level or "token")

    def _ratios(self, level: str) -> list[float]:
        if level == "token":
            return [rho(d) for d in self.d]
        return [rho(at_level(level, self.d))] * len(self.d)

    def weight(self, ratio: float) -> float:
        """What a ratio becomes: limited above (truncate), on both sides (clip), or itself (mask)."""
        config = self.config
        if config.is_level is None:
            return 1.0
        low = -math.inf if config.is_lower is None or config.is_mode != "clip" else config.is_lower
        high = math.inf if config.is_upper is None or config.is_mode == "mask" else config.is_upper
        return min(max(ratio, low), high)

    def masking(self) -> Iterator[Bounded]:
        """Per token, the ratio that the weights' bounds are about."""
        config = self.config
        truncates = config.is_mode == "truncate"
        for ratio in self.ratios if config.is_level is not None else ():
            yield ratio, None if truncates else config.is_lower, config.is_upper

    def rejection(self) -> Iterator[Bounded]:
        """Per token, what rejection judges it by."""
        config, measured = self.config, self._measured()
        for value, advantage in zip(measured, self.sequence.advantages, strict=True):
            lower, upper = config.rs_lower, config.rs_upper
            if config.rs_by_advantage:
                lower, upper = (None, upper) if advantage > 0 else (lower, None)
            yield value, lower, upper

    def _measured(self) -> list[float]:
        config, s = self.config, self.sequence
        pairs = list(zip(s.r, s.t, strict=True))
        per_token = {
            "ratio": lambda: [rho(d) for d in self.d],
            "k2": lambda: [clamp(d) ** 2 / 2 for d in s.d],
            "k3": lambda: [rho(d) - 1 - clamp(d) for d in s.d],
            "prob_diff": lambda: [math.exp(t) - math.exp(r) for r, t in pairs],
            "binary_kl": lambda: [binary_kl(math.exp(r), math.exp(t)) for r, t in pairs],
        }[config.rs_measure]()
        if config.rs_level == "token":
            return per_token
        if config.rs_level == "max":  # the token that is furthest out decides
            bounds = (config.rs_lower, config.rs_upper)
            return [min(per_token, key=lambda value: is_inside((value, *bounds)))] * len(per_token)
        if config.rs_measure == "ratio":
            return self._ratios(str(config.rs_level))
        return [at_level(str(config.rs_level), per_token)] * len(per_token)

    def whole(self) -> Iterator[tuple[str, Bounded]]:
        """What the whole sequence is judged by, under the name of its share in the report."""
        config, s = self.config, self.sequence
        if config.veto is not None:
            yield "veto_seq_frac", (min(math.exp(max(d, -700)) for d in s.d), config.veto, None)

    @property
    def dropped_by(self) -> list[str]:
        return [name for name, bounded in self.whole() if not is_inside(bounded)]

    @property
    def kept(self) -> list[bool]:
        config = self.config
        masked = [is_inside(bounded) for bounded in self.masking()] if config.is_mode == "mask" else []
        rejected = [is_inside(bounded) for bounded in self.rejection()] if config.rs_level is not None else []
        every = [not self.dropped_by] * len(self.d)
        return [all(flags) for flags in zip(every, masked or every, rejected or every, strict=True)]

    @property
    def undecided(self) -> bool:
        """Whether some value is so near to a bound that rounding decides; at level max any token's may be."""
        config = self.config
        judged = [*self.masking(), *(self.rejection() if config.rs_level is not None else ())]
        if config.rs_level == "max":
            single = Definition(config.replace(rs_level="token"), self.sequence)
            judged += single.rejection()
        return any(map(is_near, [*judged, *(bounded for _, bounded in self.whole())]))


def binary_kl(p: float, q: float) -> float:
    """Of this token against all others, from the engine to the trainer."""
    return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))


def normalizer(config: CorrectionConfig, found: list[Definition]) -> float:
    """Mean weight over tokens at level token, over sequences at the others; in mode ``mask`` of the ratios or of the weights."""

    def measured(definition: Definition) -> list[float]:
        zeros = config.is_mode == "mask" and config.normalize_by == "weights"
        pairs = zip(definition.ratios, definition.masking(), strict=True)
        return [0.0 if zeros and not is_inside(bounded) else definition.weight(ratio) for ratio, bounded in pairs]

    by_sequence = [measured(definition) for definition in found]
    weights = [w for ws in by_sequence for w in (ws if config.is_level == "token" else ws[:1])]
    return math.fsum(weights) / len(weights)


@st.composite
def configurations(draw: st.DrawFn) -> CorrectionConfig:
    """Every combination of the fields that makes sense."""
    fields: dict[str, Any] = {"is_level": draw(st.sampled_from([None, *LEVELS]))}
    if fields["is_level"] is not None:
        fields |= {"is_mode": draw(st.sampled_from(["truncate", "clip", "mask"])), "normalize": draw(st.booleans())}
        fields |= {"is_lower": draw(BOUNDS), "is_upper": draw(UPPERS)}
        fields["normalize_by"] = draw(st.sampled_from(["ratios", "weights"]))
        if fields["is_mode"] == "clip" and fields["is_lower"] is None:
            fields["is_lower"] = 0.5
        if fields["is_mode"] == "mask" and fields["is_lower"] is None and fields["is_upper"] is None:
            fields["is_upper"] = 2.0
    if draw(st.booleans()):
        lower, upper = draw(BOUNDS), draw(UPPERS)
        fields |= {"rs_level": draw(st.sampled_from([*LEVELS, "max"])), "rs_lower": lower, "rs_upper": upper}
        fields["rs_upper"] = 2.0 if lower is None and upper is None else upper
        fields["rs_measure"] = draw(st.sampled_from(["ratio", "ratio", "k2", "k3", "prob_diff", "binary_kl"]))
        if fields["rs_measure"] == "prob_diff":
            fields |= {"rs_lower": -draw(st.floats(0.01, 0.5)), "rs_upper": draw(st.floats(0.01, 0.5))}
        elif fields["rs_measure"] != "ratio":
            fields |= {"rs_lower": None, "rs_upper": draw(st.floats(1e-3, 1.0))}
        fields["rs_by_advantage"] = fields["rs_level"] == "token" and draw(st.booleans())
    fields["veto"] = draw(st.one_of(st.none(), st.floats(1e-6, 0.9)))
    fields["denominator"] = draw(st.sampled_from(["keep", "renormalize"]))
    fields["clamp"] = draw(st.sampled_from(["level", "token"]))
    return CorrectionConfig(**fields)


@dataclass
class Batch:
    """Arrays [batch, time]; with junk where the mask is 0, also in between."""

    rollout: np.ndarray
    trainer: np.ndarray
    advantages: np.ndarray
    mask: np.ndarray

    def sequences(self) -> dict[int, Sequence]:
        """By row, of those that have a token."""
        sides = (self.rollout, self.trainer, self.advantages)
        rows = {at: flags for at, flags in enumerate(self.mask) if flags.any()}
        return {at: Sequence(*(side[at][flags].tolist() for side in sides)) for at, flags in rows.items()}


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    shape = (draw(st.integers(1, 5)), draw(st.integers(1, 12)))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rollout = -random.exponential(2.0, shape) - 1e-3
    spread = draw(st.sampled_from([0.01, 0.3, 1.0, 15.0]))
    trainer = np.minimum(rollout + spread * random.normal(0, 1, shape), -1e-3)
    mask = random.random(shape) < draw(st.sampled_from([0.3, 0.9, 1.0]))
    junk = draw(st.sampled_from([np.nan, np.inf, -9999.0, 5.0]))
    sides = [np.where(mask, side, junk) for side in (rollout, trainer, random.normal(0, 1, shape))]
    return Batch(*sides, mask)


def applied(config: CorrectionConfig, batch: Batch, of: Any = lambda side: side) -> Any:
    sides = (batch.rollout, batch.trainer, batch.mask, batch.advantages)
    rollout, trainer, mask, advantages = map(of, sides)
    return correct(config, rollout, trainer, mask, advantages=advantages)


def numbers(report: Report) -> dict[str, float]:
    """With NaN for what cannot be measured."""
    return {name: math.nan if value is None else value for name, value in report.items()}


def close(expected: Any) -> Any:
    return pytest.approx(expected, rel=1e-9, abs=1e-12, nan_ok=True)


@settings(max_examples=500, deadline=None)
@given(config=configurations(), batch=batches())
def test_weights_masks_and_report_are_those_of_the_definition(config: CorrectionConfig, batch: Batch) -> None:
    sequences = {at: Definition(config, sequence) for at, sequence in batch.sequences().items()}
    if any(each.undecided for each in sequences.values()):
        return
    divisor = normalizer(config, list(sequences.values())) if config.normalize and sequences else 1.0
    divisor = divisor if divisor > 1e-8 else 1.0
    weights, kept = np.zeros(batch.mask.shape), np.zeros(batch.mask.shape, bool)
    for at, each in sequences.items():
        under = batch.mask[at]
        kept[at, under] = each.kept
        of_ratios = [each.weight(ratio) for ratio in each.ratios]
        weights[at, under] = np.where(each.kept, of_ratios, 0.0) / divisor
    found = applied(config, batch)
    assert (found.mask == kept).all()
    assert found.weights == close(weights)
    assert (found.denominator_mask == (batch.mask if config.denominator == "keep" else kept)).all()

    def listed(side: np.ndarray) -> Any:
        return [row[flags] for row, flags in zip(side, batch.mask, strict=True)]

    lists = applied(config, batch, listed)
    for at, flags in enumerate(batch.mask):
        assert np.asarray(lists.weights[at]) == close(weights[at, flags])
        assert (np.asarray(lists.mask[at]) == kept[at, flags]).all()
    assert numbers(lists.report) == close(numbers(found.report))
    counts(found.report, list(sequences.values()), divisor)


def counts(report: Report, sequences: list[Definition], divisor: float) -> None:
    """What the definition drops, as the report counts it."""
    if not sequences:
        assert (report["tokens"], report["masked_frac"], report["ratio_mean"]) == (0, None, None)
        return
    dropped = [not kept for each in sequences for kept in each.kept]
    assert report["masked_frac"] == close(sum(dropped) / len(dropped))
    assert report["masked_seq_frac"] == close(sum(not any(s.kept) for s in sequences) / len(sequences))
    values = [value for each in sequences for value in each.ratios]
    assert report["ratio_mean"] == close(math.fsum(values) / len(values))
    assert report["veto_seq_frac"] == sum("veto_seq_frac" in each.dropped_by for each in sequences) / len(sequences)
    assert report["normalizer"] == close(divisor)
    assert report["clamped_tokens"] == sum(abs(d) > 20 for each in sequences for d in each.sequence.d)


BROKEN = (0.0, math.nan, math.inf, -math.inf, -9999.0, 1.0, 0.5)


@settings(max_examples=60, deadline=None)
@given(config=configurations(), batch=batches(), first=st.integers(0, len(BROKEN) - 1))
def test_broken_tokens_carry_no_weight_and_tensors_and_micro_batches_agree(
    config: CorrectionConfig, batch: Batch, first: int
) -> None:
    """Every third token of the engine is broken, and every fifth of the trainer, in one way after the other."""
    for side, every in ((batch.rollout, 3), (batch.trainer, 5)):
        places = side.ravel()[::every]
        places[:] = [BROKEN[(first + at) % len(BROKEN)] for at in range(places.size)]
    rollout, trainer = batch.rollout, batch.trainer
    broken = ~np.isfinite(rollout) | ~np.isfinite(trainer) | (rollout > 1e-6) | (trainer > 1e-6)
    broken |= (rollout <= -9999) | (trainer <= -9999) | ((rollout == 0) & (trainer < -1))
    for one in (CorrectionConfig(is_level="token"), config):  # the first drops nothing else
        found = applied(one, batch)
        assert (found.weights[broken] == 0).all()
        assert not found.mask[broken].any()
        assert found.report["broken_tokens"] == (broken & batch.mask).sum()

    tensors = applied(config, batch, torch.tensor)
    assert tensors.weights.numpy() == close(found.weights)
    assert (tensors.mask.numpy() == found.mask).all()
    assert numbers(tensors.report) == close(numbers(found.report))

    plain = config.replace(normalize=False)  # a batch is normalized as a whole
    parts = [applied(plain, batch, lambda side, row=row: side[row : row + 1]) for row in range(len(batch.mask))]
    whole = applied(plain, batch)
    assert np.concatenate([part.weights for part in parts]) == close(whole.weights)
    assert numbers(Report.merge(*(part.report for part in parts))) == close(numbers(whole.report))
