"""r and t are log-probs of two different distributions over the same model's logits.

What tells them apart is which of the two was sampled from: E[ρ] = 1 when r was, E[1/ρ] = 1 when t was.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import numpy as np

from logprobe.monitor.diagnosis.causes.alignment import unrelated
from logprobe.monitor.diagnosis.causes.cause import CERTAIN, INFERRED, KNOWN, LIKELY, UNNAMED, Sign
from logprobe.monitor.diagnosis.causes.scale import LEANING, gap_today, one_sign, scale_of
from logprobe.monitor.diagnosis.evidence.change_points import shifted_since
from logprobe.monitor.diagnosis.evidence.evidence import SLIGHT, Evidence, Gap
from logprobe.monitor.diagnosis.evidence.measures import SIGNIFICANT, log_mean, off_one, residual
from logprobe.monitor.diagnosis.evidence.tokens import Siblings, Tokens, siblings_of
from logprobe.monitor.diagnosis.result import Finding

_TAIL_ONLY: Final = 0.5  # effect of a truncation that is not reported: both sides may still agree
_GRAMMAR: Final = -3.0  # a log-ratio below leaves less than 5 % of the probability: no truncation in use cuts that much
_MASKED: Final = 0.001  # of the tokens, whose log-ratio only a grammar makes: fewer are single odd ones
_ALONE: Final = 0.005  # of the tokens, which one side gives all probability: a truncation left nothing else
_FEWEST: Final = 200  # tokens of a mean or a share
_CERTAINLY: Final = math.log(0.95)  # r of a token beside which hardly any other was possible
_OTHERS_TOO: Final = math.log(0.5)  # r of a token beside which others were as likely
_SPARED: Final = 0.2  # of the mass that all tokens lose
_MOSTLY: Final = 0.75  # of the log-ratios; noise of either side has half
_UNSURE: Final = -1e-4  # log-prob of a token beside one of exactly 0: float32 rounds to 0 only above −1e-7
_SLACK: Final = 0.01  # by which the probability that was kept may be below top-p: noise of both sides
_ONE_TEMPERATURE: Final = 1e-6  # relative: one of them may have been through float32

_NEVER_COMPARED: Final = frozenset({"missing_logprobs", "retokenization"})


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
    scale = None if evidence.scaled else scale_of(evidence)
    if scale is None or scale.sampled != "trainer":
        return None
    otherwise = f", although logprobs_mode says {setup.logprobs_mode}" if setup.raw is False else ""
    return Sign(
        INFERRED if evidence.tokens is not None and not otherwise else LIKELY,
        1.0,
        {**_raw_numbers(evidence), "temperature_implied": scale.temperature, "misfit": scale.misfit},
        f"The log-probs reported are not those of the distribution sampled from (mean ρ − 1 = {gap.ratio.value:+.3g}, "
        f"{gap.ratio.z:.0f} standard errors), while the trainer's are: they look as if temperature "
        f"{scale.temperature:.2g} was not "
        f"applied to them{otherwise} (inferred from the numbers).",
        since_step=evidence.start if scale.since is None else scale.since,
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
        f"logprobs_mode is {evidence.setup.logprobs_mode}: the engine samples with {', '.join(applied)} but reports "
        "log-probs without, so they "
        f"belong to another distribution than the tokens ({seen})."
    )


def temperature_mismatch(evidence: Evidence) -> Sign | None:
    """The engine reports the distribution it samples from; the trainer scales its logits by another temperature."""
    setup = evidence.setup
    declared = _declared_mismatch(evidence)
    scale = None if evidence.scaled else scale_of(evidence)
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
        since_step=evidence.start if scale is None or scale.since is None else scale.since,
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
        f"The engine samples and reports with {named}; the trainer's log-probs (K3 {evidence.gap.k3:.2g}) are of "
        "logits without.",
        since_step=evidence.start,
        fix="Sample with `presence_penalty=0, frequency_penalty=0, repetition_penalty=1`, or apply the same penalties "
        "to the trainer's logits.",
    )


def _declared_mismatch(evidence: Evidence) -> tuple[float, float] | None:
    """Temperatures of engine and trainer where both are known and differ, and the numbers do not contradict."""
    setup = evidence.setup
    theirs, ours = setup.temperatures, setup.trainer_temperature
    if (
        setup.raw is not False
        or len(theirs) != 1
        or ours is None
        or math.isclose(theirs[0], ours, rel_tol=_ONE_TEMPERATURE)
    ):
        return None
    return (theirs[0], ours) if evidence.gap.k3 > SLIGHT else None


def truncated_support(evidence: Evidence) -> Sign | None:
    """Top-p, top-k or min-p on one side: the other side's log-probs are all lower, by at most −ln of what was kept.

    Noise hides the one sign. What it does not hide: the engine gives a token all probability, and the trainer does not
    (one token was left).
    """
    cut, side = evidence.setup.truncations, one_sign(evidence)
    zeros = _exact_zeros(evidence.tokens)
    if side == 0 and _loses_mass(evidence) and (cut or zeros > _ALONE or _unlikely_lower(evidence.tokens)):
        side = -1
    if side == 0 or evidence.scaled or (cut and evidence.setup.raw):
        return None
    declared = bool(cut) and side < 0
    known_uncut = evidence.setup.samplings is not None and not cut
    if not declared and (known_uncut or _grammar_share(evidence) > _MASKED):
        return None
    kept = math.exp(evidence.gap.min_d if side < 0 else -evidence.gap.max_d)
    numbers = {
        **cut,
        "one_sided_share": max(evidence.gap.up, evidence.gap.down),
        "kept_at_least": kept,
        "exact_zeros": zeros,
    }
    bounded = "top_p" not in cut or kept >= cut["top_p"] - _SLACK
    grounds = ", ".join(f"{name} {value:g}" for name, value in cut.items()) if declared else "inferred from the numbers"
    return Sign(
        (CERTAIN if bounded else KNOWN) if declared else (INFERRED if zeros > _ALONE else LIKELY),
        1.0,
        {**numbers, "ratio_deviation": evidence.gap.ratio.value, "calibration_z": evidence.gap.ratio.z},
        f"{'The engine' if side < 0 else 'The trainer'} renormalises over a part of the vocabulary ({grounds}) and the "
        "other side does not: "
        f"mean ρ − 1 is {evidence.gap.ratio.value:+.3g}, {max(evidence.gap.up, evidence.gap.down):.0%} of the "
        "log-ratios have one sign, and "
        f"{zeros:.1%} of the tokens have all probability on one side only.",
        since_step=evidence.start,
    )


def structured_output_mask(evidence: Evidence) -> Sign | None:
    """A grammar masks the engine's logits; the trainer's softmax runs over the whole vocabulary."""
    declared, side = bool(evidence.setup.structured), one_sign(evidence)
    side = side or (-1 if declared and _loses_mass(evidence) else 0)
    grammar = _grammar_share(evidence)
    known_free = evidence.setup.samplings is not None and not declared
    if side >= 0 or evidence.scaled or known_free or (not declared and grammar <= _MASKED):
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
        f"The engine gives probability only to what a grammar allows ({told}); the trainer spreads it over the whole "
        "vocabulary: every "
        f"log-ratio is negative, down to {evidence.gap.min_d:.1f}.",
        since_step=evidence.start,
    )


def vocab_padding(evidence: Evidence) -> Sign | None:
    """One side's softmax includes rows that no token has: its log-probs are all a little lower."""
    setup, side = evidence.setup, one_sign(evidence)
    cut = bool(setup.truncations or setup.structured)
    if side == 0 or evidence.scaled or setup.samplings is None or cut or evidence.gap.k3 < LEANING:
        return None
    if _exact_zeros(evidence.tokens) > _ALONE:  # a whole probability for one token is a truncation's doing
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
        f"All log-probs of the {whose} are lower than the other side's (mean log-ratio {evidence.gap.d.value:+.3g}) "
        "although nothing is "
        f"truncated: padded vocabulary rows take probability in its softmax (inferred from the numbers).",
        since_step=evidence.start,
    )


def _unlikely_lower(tokens: Tokens | None) -> bool:
    """Whether t is lower where other tokens were likely, too, and the same where none was: of a certain token's
    probability nothing is cut."""
    if tokens is None:
        return False
    likely, unlikely = tokens.where(tokens.r > _CERTAINLY), tokens.where(tokens.r < _OTHERS_TOO)
    if min(len(likely), len(unlikely)) < _FEWEST:
        return False
    spared = abs(likely.ratio.value) < _SPARED * abs(tokens.ratio.value)
    lower = float(np.mean(unlikely.d < 0))
    return spared and (lower > _MOSTLY or (_surely(lower, len(unlikely)) and _shifted(unlikely)))


def _surely(lower: float, count: int) -> bool:
    """Whether this share of `count` signs is more than half by more than chance, also where noise is larger than what
    was cut."""
    return (2 * lower - 1) * math.sqrt(count) > SIGNIFICANT


def _shifted(tokens: Tokens) -> bool:
    """Whether the log-ratios as a whole are lower by what E[ρ] lacks, rather than a few of them by much."""
    return float(np.median(tokens.d)) < log_mean(tokens.ratio.value) / 2 < 0


def _loses_mass(evidence: Evidence) -> bool:
    """Whether t gives less than all probability to what was sampled from, as under a renormalisation on r's side, and
    other faults do not."""
    gap = evidence.gap
    off = off_one(gap.ratio.value, gap.ratio.z, gap.k3)
    return off and gap.ratio.value < 0 and gap.k3 > SLIGHT and not unrelated(evidence)


def _exact_zeros(tokens: Tokens | None) -> float:
    """Share of tokens to which one side gives all probability while the other does not."""
    if tokens is None or not len(tokens):
        return 0.0
    low = np.minimum(tokens.r, tokens.t) < _UNSURE
    return float(np.mean(low & (np.maximum(tokens.r, tokens.t) == 0)))


def _grammar_share(evidence: Evidence) -> float:
    """Share of tokens whose log-ratio no truncation in use can explain."""
    tokens = evidence.tokens
    if tokens is None or not len(tokens):
        return 1.0 if evidence.gap.min_d < _GRAMMAR else 0.0
    return float(np.mean(tokens.d < _GRAMMAR))


def miscalibrated_logprobs(evidence: Evidence) -> Sign | None:
    """E[ρ] is not 1, by much more than the second order that a gap of calibrated log-probs has."""
    if not evidence.gap.n or evidence.scaled or evidence.explained - _NEVER_COMPARED or unrelated(evidence):
        return None
    gap = max((evidence.gap, gap_today(evidence)), key=lambda gap: abs(gap.ratio.z) if _off(gap) else -1.0)
    if not _off(gap):
        return None
    deviation = gap.ratio.value
    return Sign(
        UNNAMED,  # any rule that names the distribution comes before
        min(abs(deviation) / gap.k3, 1.0),
        {"ratio_deviation": deviation, "calibration_z": gap.ratio.z, "k3_kl": gap.k3},
        f"Mean ρ − 1 is {deviation:+.3g} ({gap.ratio.z:.0f} standard errors) where K3 is {gap.k3:.2g}: log-probs of "
        "the distribution sampled from have "
        "mean ρ = 1 however large the mismatch (inferred from the numbers).",
        since_step=shifted_since(evidence.series, math.copysign(1.0, deviation)),
    )


def _off(gap: Gap) -> bool:
    return gap.n >= _FEWEST and gap.k3 > SLIGHT and off_one(gap.ratio.value, gap.ratio.z, gap.k3)


def without_offset(evidence: Evidence, _finding: Finding) -> Evidence:
    """Log-ratios less what makes mean ρ differ from 1."""
    tokens = evidence.tokens
    if tokens is None or not len(tokens):
        return evidence.left("miscalibrated_logprobs")
    offset = log_mean(tokens.ratio.value)
    return evidence.left("miscalibrated_logprobs", tokens=tokens.with_d(tokens.d - offset))


def without_scale(evidence: Evidence, finding: Finding) -> Evidence:
    """What is left of d once both sides are brought to one temperature (since the finding's step) and normaliser.

    Exact for tokens that share their context with another one. Without such tokens approximate: the mean of d at each r
    (and entropy, where the trainer reports it) is taken off.
    """
    tokens, cause = evidence.tokens, finding.cause
    if tokens is None or not len(tokens):
        return evidence.left(cause, scaled=True)
    siblings = siblings_of(tokens)
    if siblings is not None:
        since = siblings.tokens.step >= (-math.inf if finding.since_step is None else finding.since_step)
        power = _power(evidence, cause, siblings.where(since) if since.sum() >= _FEWEST else siblings)
        power = power if math.isfinite(power) else 1.0
        return evidence.left(cause, tokens=siblings.scaled(np.where(since, power, 1.0)), scaled=True)
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
