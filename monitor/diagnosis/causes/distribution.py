"""r and t are log-probs of two different distributions over the same model's logits.

What tells them apart is which of the two was sampled from: E[ρ] = 1 when r was, E[1/ρ] = 1 when t was.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from logprobe.monitor.diagnosis.causes.alignment import unrelated
from logprobe.monitor.diagnosis.causes.cause import CERTAIN, INFERRED, KNOWN, LIKELY, Sign
from logprobe.monitor.diagnosis.evidence import HEALTHY, SLIGHT, Evidence, Gap
from logprobe.monitor.diagnosis.measures import SIGNIFICANT, correlation, logit, residual, slope
from logprobe.monitor.diagnosis.siblings import Siblings, siblings_of
from logprobe.monitor.diagnosis.tokens import Tokens

_ONE_SIDED: Final = 0.99  # share of log-ratios with one sign; noise and staleness have half
_NO_SCALE: Final = 0.01  # temperatures that close are one
_WIDER: Final = 0.05
_HELPS: Final = 0.8  # of what is left between siblings without a scale; training alone leaves 0.99 of it
_EXPLAINS: Final = 0.5  # of the variance of d
_RELATED: Final = 0.5  # correlation of r and t; below they are not of the same tokens
_SHARPER: Final = 0.95  # share of likely tokens that one side makes still likelier; noise and staleness have about half
_LIKELY_TOKEN: Final = 0.6
_TINY: Final = 1e-5  # log-ratios below are float32 rounding
_TAIL_ONLY: Final = 0.5  # effect of a truncation that is not reported: both sides may still agree
_CONCERNED: Final = 0.1  # of the tokens: a renormalisation moves nearly all
_GRAMMAR: Final = -3.0  # a log-ratio below leaves less than 5 % of the probability: no truncation in use cuts that much
_FEWEST: Final = 200


def raw_logprobs(evidence: Evidence) -> Sign | None:
    """Reported before temperature and penalties, although sampled after them."""
    setup, gap = evidence.setup, evidence.gap
    applied = _applied(evidence)
    if (setup.logprobs_mode or "").endswith("logits"):
        return None  # no log-probs of any distribution
    if setup.raw and applied:
        effect = 1.0 if any(value != 1 for value in setup.temperatures) or setup.penalties else _TAIL_ONLY
        sure = CERTAIN if gap.n else KNOWN
        return Sign(sure, effect, _raw_numbers(evidence), _raw_words(evidence, applied), since_step=evidence.start)
    scale = None if evidence.scaled or setup.raw is False else _scale(evidence)
    if scale is None or scale.sampled != "trainer":
        return None
    return Sign(
        INFERRED if evidence.tokens is not None else LIKELY,
        1.0,
        {**_raw_numbers(evidence), "temperature_implied": scale.temperature, "misfit": scale.misfit},
        f"The log-probs reported are not those of the distribution sampled from (mean ρ − 1 = {gap.ratio.value:+.3g}, "
        f"{gap.ratio.z:.0f} standard errors), while the trainer's are: they look as if temperature {scale.temperature:.2g} was not "
        "applied to them (inferred from the numbers).",
        since_step=evidence.start,
    )


def _raw_numbers(evidence: Evidence) -> dict[str, float | str | None]:
    inverse = None if evidence.tokens is None else evidence.tokens.inverse_ratio
    temperatures = evidence.setup.temperatures
    return {
        "logprobs_mode": evidence.setup.logprobs_mode,
        "temperature": temperatures[0] if temperatures else None,
        "ratio_deviation": evidence.gap.ratio.value,
        "calibration_z": evidence.gap.ratio.z,
        "inverse_ratio_deviation": None if inverse is None else inverse.value,
        "inverse_calibration_z": None if inverse is None else inverse.z,
        "k3_kl": evidence.gap.k3,
    }


def _applied(evidence: Evidence) -> list[str]:
    """What the engine does to logits before it samples."""
    setup = evidence.setup
    hot = [f"temperature {value:g}" for value in setup.temperatures if value != 1]
    return hot + [f"{name} {value:g}" for name, value in (*setup.penalties.items(), *setup.truncations.items())]


def _raw_words(evidence: Evidence, applied: list[str]) -> str:
    ratio = evidence.gap.ratio
    seen = (
        f"mean ρ − 1 = {ratio.value:+.3g}, {ratio.z:.0f} standard errors"
        if evidence.gap.n
        else "no trainer log-prob to compare with"
    )
    return (
        f"logprobs_mode is {evidence.setup.logprobs_mode}: the engine samples with {', '.join(applied)} but reports log-probs without, so they "
        f"belong to another distribution than the tokens ({seen})."
    )


def temperature_mismatch(evidence: Evidence) -> Sign | None:
    """The engine reports the distribution it samples from; the trainer scales its logits by another temperature."""
    setup = evidence.setup
    declared = _declared_mismatch(evidence)
    scale = None if evidence.scaled else _scale(evidence)
    if declared is None and setup.penalties and setup.raw is False and not evidence.scaled:
        return _penalties(evidence)
    if evidence.scaled or (declared is None and (scale is None or scale.sampled != "rollout")):
        return None
    implied = math.nan if scale is None else scale.temperature
    temperature = setup.temperatures[0] if setup.temperatures else None
    if declared is not None:
        told = f"the engine samples at {declared[0]:g}, the trainer's configuration says {declared[1]:g}"
    else:
        told = f"inferred from the numbers: the two differ by a factor of about {implied:.2g} in temperature"
    return Sign(
        CERTAIN if declared else INFERRED if evidence.tokens is not None else LIKELY,
        1.0,
        {
            "temperature": temperature,
            "trainer_temperature": setup.trainer_temperature,
            "temperature_implied": implied,
            "calibration_z": evidence.gap.ratio.z,
            "k3_kl": evidence.gap.k3,
        },
        f"The engine's log-probs are those it sampled from, the trainer's are of another temperature: {told}.",
        since_step=evidence.start,
    )


def _penalties(evidence: Evidence) -> Sign | None:
    """The engine penalises tokens before it samples, which no trainer we know of does."""
    if not evidence.gap.k3 > SLIGHT:
        return None
    named = ", ".join(f"{name} {value:g}" for name, value in evidence.setup.penalties.items())
    return Sign(
        KNOWN,
        1.0,
        {**evidence.setup.penalties, "k3_kl": evidence.gap.k3, "calibration_z": evidence.gap.ratio.z},
        f"The engine samples and reports with {named}; the trainer's log-probs (K3 {evidence.gap.k3:.2g}) are of logits without.",
        since_step=evidence.start,
        fix="Sample with `presence_penalty=0, frequency_penalty=0, repetition_penalty=1`, or apply the same penalties to the trainer's logits.",
    )


def _declared_mismatch(evidence: Evidence) -> tuple[float, float] | None:
    """Temperatures of engine and trainer where both are known and differ, and the numbers do not contradict."""
    setup = evidence.setup
    theirs, ours = setup.temperatures, setup.trainer_temperature
    if setup.raw is not False or len(theirs) != 1 or ours is None or math.isclose(theirs[0], ours, rel_tol=1e-6):
        return None
    return (theirs[0], ours) if evidence.gap.k3 > SLIGHT else None


@dataclass(frozen=True, slots=True)
class Scale:
    """One side's log-probs are those of the other at another temperature.

    Attributes:
        beta: t's distribution is r's to this power, normalised.
        misfit: what is left between them, relative; NaN where no two tokens of one context were seen.
        sampled: which side was sampled from.
    """

    beta: float
    misfit: float
    sampled: str

    @property
    def temperature(self) -> float:
        """That the side which was not sampled from lacks."""
        return 1 / self.beta if self.sampled == "trainer" else self.beta


def _scale(evidence: Evidence) -> Scale | None:
    tokens, gap = evidence.tokens, evidence.gap
    if gap.n < _FEWEST or not gap.k3 > SLIGHT or gap.correlation < _RELATED or _one_sided(evidence):
        return None
    if tokens is None or len(tokens) < _FEWEST:
        return _scale_of_moments(gap)
    siblings = siblings_of(tokens)
    found = _exact_scale(siblings) if siblings else _bounded_scale(tokens) or _regressed_scale(tokens)
    if found is None:
        return None
    beta, misfit = found
    return Scale(beta, misfit, "trainer" if _rollout_is_off(tokens) else "rollout")


def _scale_of_moments(gap: Gap) -> Scale | None:
    """From statistics alone: one side's log-probs vary more than the other's; noise and staleness change that by less."""
    if not abs(gap.scale - 1) > _WIDER or gap.k3 < HEALTHY:
        return None
    return Scale(gap.scale, math.nan, "trainer" if gap.ratio.z > SIGNIFICANT else "rollout")


def _rollout_is_off(tokens: Tokens) -> bool:
    """Whether t rather than r was sampled from: by the one of E[ρ] and E[1/ρ] that is not 1, or is further from it."""
    off, inverse = tokens.ratio, tokens.inverse_ratio
    if (off.z > SIGNIFICANT) == (inverse.z > SIGNIFICANT):
        return off.value > inverse.value
    return off.z > SIGNIFICANT


def _exact_scale(siblings: Siblings) -> tuple[float, float] | None:
    """Tokens of one context: Δt = β·Δr. A fault that is no scale leaves as much at β as at 1."""
    beta = siblings.slope
    misfit, unscaled = siblings.misfit(beta), siblings.misfit(1.0)
    if not beta > 0 or abs(beta - 1) < max(_NO_SCALE, SIGNIFICANT * misfit / math.sqrt(len(siblings.r))):
        return None
    return (beta, misfit) if misfit < _HELPS * unscaled else None


def _bounded_scale(tokens: Tokens) -> tuple[float, float] | None:
    """Without siblings: one side gives every likely token a higher probability.

    With p a token's softer probability and q ∝ p^β, β > 1: Σ_j p_j^β ≤ p^β + (1 − p)^β, with equality where one other token has all the
    rest, hence logit q ≥ β·logit p. Among likely tokens the smallest ratio of logits comes near β; the 2nd percentile keeps single odd
    tokens out.
    """
    for soft_N, sharp_N, inverse in ((tokens.r, tokens.t, False), (tokens.t, tokens.r, True)):
        likely = (np.exp(soft_N) > _LIKELY_TOKEN) & (soft_N < -_TINY) & (sharp_N < -_TINY / 10)
        soft, sharp = soft_N[likely], sharp_N[likely]
        if len(soft) >= _FEWEST // 4 and np.mean(sharp > soft) >= _SHARPER:
            beta = float(np.quantile(logit(sharp) / logit(soft), 0.02))
            return (1 / beta if inverse else beta, math.nan) if beta > 1 + _NO_SCALE else None
    return None


def _regressed_scale(tokens: Tokens) -> tuple[float, float] | None:
    """Without siblings or likely tokens (a flat policy): d is mostly a multiple of r, which noise and staleness are not."""
    for x, y, inverse in ((tokens.r, tokens.t, False), (tokens.t, tokens.r, True)):
        explained = correlation(x, y - x) ** 2
        beta = slope(x, y)
        if explained > _EXPLAINS and beta > 1 + _WIDER:
            return (1 / beta if inverse else beta, math.sqrt(1 - explained))
    return None


def truncated_support(evidence: Evidence) -> Sign | None:
    """Top-p, top-k or min-p on one side: the other side's log-probs are all lower, by at most −ln of what was kept."""
    cut, side = evidence.setup.truncations, _one_sided(evidence)
    side = side or (-1 if cut and _loses_mass(evidence) else 0)
    if side == 0 or evidence.scaled or (cut and evidence.setup.raw):
        return None
    zeros = _exact_zeros(evidence.tokens)
    declared = bool(cut) and side < 0
    known_uncut = evidence.setup.samplings is not None and not cut
    if not declared and (known_uncut or _grammar_share(evidence) > 0.001):  # noqa: PLR2004
        return None
    kept = math.exp(evidence.gap.min_d if side < 0 else -evidence.gap.max_d)
    numbers = {
        **cut,
        "one_sided_share": max(evidence.gap.up, evidence.gap.down),
        "kept_at_least": kept,
        "exact_zeros": zeros,
    }
    bounded = "top_p" not in cut or kept >= cut["top_p"] - 0.01
    known = ", ".join(f"{name} {value:g}" for name, value in cut.items()) if declared else "inferred from the numbers"
    return Sign(
        (CERTAIN if bounded else KNOWN) if declared else (INFERRED if zeros > 0.005 else LIKELY),  # noqa: PLR2004
        1.0,
        {**numbers, "ratio_deviation": evidence.gap.ratio.value, "calibration_z": evidence.gap.ratio.z},
        f"{'The engine' if side < 0 else 'The trainer'} renormalises over a part of the vocabulary ({known}) and the other side does not: all "
        f"log-ratios have one sign, and mean ρ − 1 is {evidence.gap.ratio.value:+.3g}.",
        since_step=evidence.start,
    )


def structured_output_mask(evidence: Evidence) -> Sign | None:
    """A grammar masks the engine's logits; the trainer's softmax runs over the whole vocabulary."""
    declared, side = bool(evidence.setup.structured), _one_sided(evidence)
    side = side or (-1 if declared and _loses_mass(evidence) else 0)
    grammar = _grammar_share(evidence)
    known_free = evidence.setup.samplings is not None and not declared
    if side >= 0 or evidence.scaled or known_free or (not declared and grammar <= 0.001):  # noqa: PLR2004
        return None
    told = "the sampling params name a grammar or allowed tokens" if declared else "inferred from the numbers"
    return Sign(
        CERTAIN if declared else LIKELY,
        1.0,
        {
            "one_sided_share": evidence.gap.down,
            "min_d": evidence.gap.min_d,
            "far_share": grammar,
            "exact_zeros": _exact_zeros(evidence.tokens),
        },
        f"The engine gives probability only to what a grammar allows ({told}); the trainer spreads it over the whole vocabulary: every "
        f"log-ratio is negative, down to {evidence.gap.min_d:.1f}.",
        since_step=evidence.start,
    )


def vocab_padding(evidence: Evidence) -> Sign | None:
    """One side's softmax includes rows that no token has: its log-probs are all a little lower."""
    setup, side = evidence.setup, _one_sided(evidence)
    cut = bool(setup.truncations or setup.structured)
    if side == 0 or evidence.scaled or setup.samplings is None or cut or evidence.gap.k3 < SLIGHT / 10:
        return None
    if _exact_zeros(evidence.tokens) > 0.005:  # noqa: PLR2004 - a whole probability for one token is a truncation's doing
        return None
    whose = "trainer" if side < 0 else "engine"
    return Sign(
        INFERRED,
        1.0,
        {
            "one_sided_share": max(evidence.gap.up, evidence.gap.down),
            "mean_d": evidence.gap.d.value,
            "calibration_z": evidence.gap.ratio.z,
        },
        f"All log-probs of the {whose} are lower than the other side's (mean log-ratio {evidence.gap.d.value:+.3g}) although nothing is "
        f"truncated: padded vocabulary rows take probability in its softmax (inferred from the numbers).",
        since_step=evidence.start,
    )


def _loses_mass(evidence: Evidence) -> bool:
    """Whether t gives less than all probability to what was sampled from, as under a renormalisation on r's side, and other faults do not."""
    ratio = evidence.gap.ratio
    return ratio.z < -SIGNIFICANT and evidence.gap.k3 > SLIGHT and not unrelated(evidence)


def _one_sided(evidence: Evidence) -> int:
    """−1 when (nearly) all log-ratios beyond rounding are negative and the calibration says so, too; +1 likewise; else 0."""
    gap, tokens = evidence.gap, evidence.tokens
    if gap.n < _FEWEST or gap.k3 < SLIGHT / 10 or abs(gap.ratio.z) < SIGNIFICANT or unrelated(evidence):
        return 0
    up, down = gap.up, gap.down
    if tokens is not None and len(tokens):
        siblings = siblings_of(tokens)
        if siblings is not None and _exact_scale(siblings) is not None:
            return 0
        beyond = tokens.d[np.abs(tokens.d) > max(_TINY, 4 * _noise(siblings))]
        up, down = (
            (float(np.mean(beyond > 0)), float(np.mean(beyond < 0)))
            if len(beyond) >= _CONCERNED * len(tokens)
            else (0.5, 0.5)
        )
    return -1 if down >= _ONE_SIDED * (up + down) else 1 if up >= _ONE_SIDED * (up + down) else 0


def _noise(siblings: Siblings | None) -> float:
    """Size of what is not common to all tokens of a context: noise in either side; 0 where it cannot be told."""
    return 0.0 if siblings is None else float(np.median(np.abs(siblings.t - siblings.r)))


def _exact_zeros(tokens: Tokens | None) -> float:
    """Share of tokens to which one side gives all probability while the other does not."""
    if tokens is None or not len(tokens):
        return 0.0
    low = np.minimum(tokens.r, tokens.t) < -1e-4  # noqa: PLR2004 - float32 rounds to exactly 0 only above −1e-7
    return float(np.mean(low & (np.maximum(tokens.r, tokens.t) == 0)))


def _grammar_share(evidence: Evidence) -> float:
    """Share of tokens whose log-ratio no truncation in use can explain."""
    tokens = evidence.tokens
    if tokens is None or not len(tokens):
        return 1.0 if evidence.gap.min_d < _GRAMMAR else 0.0
    return float(np.mean(tokens.d < _GRAMMAR))


def without_scale(cause: str, evidence: Evidence) -> Evidence:
    """What is left of d once both sides are brought to one temperature and normaliser.

    Exact for tokens that share their context with another one. Without such tokens approximate: the mean of d at each r (and
    entropy, where the trainer reports it) is taken off.
    """
    tokens = evidence.tokens
    if tokens is None or not len(tokens):
        return evidence.left(cause, scaled=True)
    siblings = siblings_of(tokens)
    if siblings is not None:
        return evidence.left(cause, tokens=siblings.scaled(_power(evidence, cause, siblings)), scaled=True)
    drivers = [tokens.r] if np.isnan(tokens.entropy).any() else [tokens.r, tokens.entropy]
    left = evidence.left(cause, tokens=tokens.with_d(residual(tokens.d, *drivers)), scaled=True)
    return replace(left, blurred=True)


def _power(evidence: Evidence, cause: str, siblings: Siblings) -> float:
    """β of Δt = β·Δr: known from the configuration, or fitted."""
    temperatures = evidence.setup.temperatures
    if cause not in {"raw_logprobs", "temperature_mismatch"}:
        return 1.0
    if len(temperatures) != 1:
        return siblings.slope
    declared = (
        1 / temperatures[0]
        if cause == "raw_logprobs"
        else temperatures[0] / (evidence.setup.trainer_temperature or 1.0)
    )
    return min(declared, 1.0, siblings.slope, key=siblings.misfit)
