"""Test "distribution": a different sampling distribution, or log-probs of different softmaxes.

E[ρ] = 1 if the rollout log-probs are those of the sampled distribution, and E[1/ρ] = 1 if the trainer's are. Two tokens
drawn in one context share the softmax's normaliser. With Δ over such siblings, Δt = β·Δr if one side divides its logits
by another temperature, and Δt = Δr if only the normaliser differs.
"""

from __future__ import annotations

import math
from typing import Final, Literal

import numpy as np

from logprobe.collectors.kernel.arithmetic import CLAMP
from logprobe.monitor.judging.counted import placeholder_ends
from logprobe.monitor.judging.course import affected_sequences, shape_of, short_rise
from logprobe.monitor.judging.declared import declared, listed
from logprobe.monitor.judging.frame import Bools, Frame
from logprobe.monitor.judging.judgement import Confidence, Finding
from logprobe.monitor.judging.level import far
from logprobe.monitor.judging.measures import SIGNIFICANT, Floats, clustered, correlation, k3_of, off_one
from logprobe.monitor.judging.proofs import vocabularies
from logprobe.monitor.judging.records import gap_of, windows
from logprobe.monitor.judging.thresholds import number
from logprobe.monitor.judging.tokens import Codes, Siblings, Tokens, siblings_of, spread_of

_EXACTLY: Final = 0.02  # of a temperature: siblings of a few thousand tokens tell it to 0.2 %


def distribution(frame: Frame) -> Finding | None:
    """Name a difference of the distributions, from settings, or else from the window with the surer finding."""
    stated = declared(frame)
    if stated is not None or not len(frame.series):
        return stated
    whole, today = _inferred(frame, frame), _inferred(frame.today, frame)
    if whole is None or today is None:
        return today or whole or _repeats(frame)
    if _sure(whole) != _sure(today):
        return max(whole, today, key=_sure)
    return today if shifted(frame) != frame.start else whole  # the whole window holds steps without it


def _sure(finding: Finding) -> tuple[Confidence, bool]:
    """Return a sort key of findings: first their confidence, then whether they name the reason."""
    return finding.confidence, finding.cause != "miscalibrated_logprobs"


def varies(frame: Frame) -> Finding | None:
    """Name a trainer that computes the same token differently each time, from the first steps on.

    That concerns every sequence. Where only some differ, these are computed otherwise than the others.
    """
    fresh, spread = None if frame.tokens is None else frame.tokens.fresh, None
    if fresh is not None and len(fresh) >= number("fewest"):
        spread = spread_of(fresh.where(np.isin(fresh.step, frame.first.steps))) or spread_of(fresh)
    own = frame.first.where(frame.first.own)
    k3 = own.k3 if own.n >= number("fewest") else frame.gap.k3
    beyond = k3 > far(frame)
    if (
        spread is not None
        and spread.alone
        and beyond
        and affected_sequences(frame.strata) >= number("affected_sequences")
    ):
        evidence = {"engine": spread.engine, "trainer": spread.trainer, "tokens": spread.n}
        return Finding("trainer_not_deterministic", Confidence.INFERRED, evidence=evidence)
    if frame.setup.dropouts and spread is None and beyond:
        return Finding(
            "trainer_not_deterministic", Confidence.POSSIBLE, evidence={"dropouts": listed(frame.setup.dropouts)}
        )
    return None


def shifted(frame: Frame) -> int | None:
    """Return the step at which K3 left its level, or the first step of the frame."""
    k3 = frame.series.k3
    measured = np.isfinite(k3)
    shape = shape_of(frame.series.step[measured], np.log(np.maximum(k3[measured], number("least_k3"))))
    at = short_rise(frame.strata.alike) if shape is None else shape.step
    return frame.start if at is None else at


def _inferred(frame: Frame, whole: Frame) -> Finding | None:
    """Name a difference of the distributions within one window."""
    gap, since = frame.gap, frame.start
    if gap.n < number("fewest") or not gap.k3 > number("slight") / 10:
        return None
    found = _constant(frame) or _misaligned(frame, whole)
    if found is not None or unrelated(frame, whole):
        return found or _apart(frame, whole)
    side = _side(frame)
    beta = None if side else _scale(frame)
    sampled = None if beta is None else _sampled(frame, whole, beta)
    if beta is not None and sampled is not None:
        return _scaled(frame, whole, beta, trainer=sampled == "trainer")
    off = gap.k3 > number("slight") and off_one(gap.ratio.value, gap.ratio.z, gap.k3)
    if not off and not side:
        return None
    low = side < 0 or (off and gap.ratio.value < 0)
    found = _one_sided(frame, since, side=side, low=low)
    if found is not None or not off:
        return found
    evidence = {"ratio": gap.ratio.value, "z": gap.ratio.z, "k3": gap.k3}
    if low:
        evidence["lost"] = -gap.ratio.value
    return Finding("miscalibrated_logprobs", Confidence.INFERRED, shifted(whole), evidence=evidence)


def _repeats(frame: Frame) -> Finding | None:
    """Name tokens that repeat their predecessor although the rollout log-probs hardly allow it.

    Of draws with a probability below a bound, at most that share can hit a token fixed in advance, whatever the text. A
    sampler that reuses a random number exceeds it.
    """
    tokens, rare = frame.tokens, number("rare_p")
    if tokens is None or len(tokens) < number("fewest") or tokens.nameless:
        return None
    follows = tokens.sequence[1:] == tokens.sequence[:-1]
    again = (tokens.token_id[1:] == tokens.token_id[:-1]) & (tokens.r[1:] < math.log(rare))
    share = clustered(again[follows].astype(np.float64), tokens.sequence[1:][follows])
    if not share.value - SIGNIFICANT * share.error > rare:
        return None
    return Finding(
        "miscalibrated_logprobs", Confidence.INFERRED, frame.start, evidence={"repeats": share.value, "rare": rare}
    )


def _scaled(frame: Frame, whole: Frame, beta: float, *, trainer: bool) -> Finding:
    """Name the side whose logits have another temperature.

    Raw log-probs are certain if the mismatch equals exactly the engine's own temperature.
    """
    implied = 1 / beta if trainer else beta
    theirs = frame.setup.temperatures
    declared_one = len(theirs) == 1 and theirs[0] != 1 and math.isclose(implied, theirs[0], rel_tol=_EXACTLY)
    cause = "raw_logprobs" if trainer else "temperature_mismatch"
    confidence = Confidence.INFERRED
    evidence: dict[str, object] = {"beta": beta, "temperature_implied": implied}
    if trainer and declared_one and frame.tokens is not None:
        confidence = Confidence.KNOWN
        evidence |= {"temperature": theirs[0], "stated_mode": frame.setup.logprobs_mode}
    ours = frame.setup.trainer_temperature
    if not trainer and ours is not None and len(theirs) > 1 and min(theirs) <= implied * ours <= max(theirs):
        confidence = Confidence.KNOWN
        evidence |= {"temperatures": f"{min(theirs):g} to {max(theirs):g}", "trainer": ours}
    return Finding(cause, confidence, shifted(whole), evidence=evidence)


def _one_sided(frame: Frame, since: int | None, *, side: int, low: bool) -> Finding | None:
    """Name the reason for removed or added probability on one side: a setting, or else a different softmax."""
    setup, tokens = frame.setup, frame.tokens
    distant = 0.0 if tokens is None or not len(tokens) else float(np.mean(tokens.d < -number("distant_d")))
    masks = distant > number("distant_share")
    evidence: dict[str, object] = {"up": frame.gap.up, "down": frame.gap.down, "ratio": frame.gap.ratio.value}
    if low and setup.structured:
        return Finding("structured_output_mask", Confidence.KNOWN, since, evidence=evidence)
    if low and setup.truncations:
        evidence["truncations"] = listed(setup.truncations)
        if True in setup.engine("return_sampling_mask"):
            evidence["masks"] = "return_sampling_mask"
        return Finding("truncated_support", Confidence.KNOWN, since, evidence=evidence)
    sizes = vocabularies(frame)
    if side and sizes is not None and sizes[0] != sizes[1]:
        evidence |= {"engine_rows": sizes[0], "trainer_rows": sizes[1]}
        return Finding("vocab_padding", Confidence.KNOWN, since, evidence=evidence)
    if setup.samplings is None and low:
        cause = "structured_output_mask" if masks else "truncated_support"
        cut = number("nucleus_zeros")
        unlikely = frame.series.total("zero_rollout") / max(frame.series.total("n_compared"), 1.0)
        if _cut_to_one(frame) > cut >= unlikely and not placeholder_ends(frame):
            return Finding(cause, Confidence.INFERRED, since, evidence=evidence)
        evidence["looks_like"] = cause
    return Finding("other_softmax", Confidence.INFERRED, since, evidence=evidence) if side else None


def _scale(frame: Frame) -> float | None:
    """Return β of Δt = β·Δr, or None if both sides have the same temperature."""
    tokens = frame.tokens
    if tokens is not None and len(tokens) >= number("fewest"):
        siblings = siblings_of(tokens.fresh if len(tokens.fresh) >= number("fewest") else tokens)
        if siblings is not None:
            return by_siblings(siblings)
    return _by_moments(frame)


def by_siblings(siblings: Siblings) -> float | None:
    """Return β of Δt = β·Δr, or None if siblings do not prove that the sides have different temperatures."""
    beta = siblings.slope
    misfit, plain = siblings.misfit(beta), siblings.misfit(1.0)
    error = misfit / math.sqrt(len(siblings.r) / 2)
    exact = misfit < number("scale_exact_misfit") * plain
    least = number("scale_exact") if exact else max(number("scale_least"), misfit**2)
    if not beta > 0 or abs(beta - 1) <= max(least, SIGNIFICANT * error):
        return None
    wanted = number("scale_misfit") if abs(beta - 1) > number("scale_least") else number("scale_exact_misfit")
    return beta if misfit < wanted * plain else None


def _by_moments(frame: Frame) -> float | None:
    """Return β from the regression of d on r if the engine's declared temperature predicts it, or None.

    Noise bends a regression, too, so that a bend without such a setting has other explanations.
    """
    gap, theirs = frame.gap, frame.setup.temperatures
    if len(theirs) != 1 or abs(theirs[0] - 1) <= number("scale_least") or frame.setup.trainer_temperature is not None:
        return None
    if gap.correlation < number("related") or gap.n < number("fewest"):
        return None
    bend = gap.correlation * gap.scale - 1
    spread = 1 + gap.scale**2 - 2 * (bend + 1)
    if not spread > 0 or abs(bend) < SIGNIFICANT * math.sqrt(spread * 4 / gap.n):
        return None
    low, high = number("bend_low"), number("bend_high")
    for expected in (theirs[0] - 1, 1 / theirs[0] - 1):
        if min(low * expected, high * expected) < bend < max(low * expected, high * expected):
            return 1 + bend
    return None


def _sampled(frame: Frame, whole: Frame, beta: float) -> Literal["engine", "trainer"] | None:
    """Return the side whose log-probs are those of the sampled distribution: E[ρ] = 1, or E[1/ρ] = 1.

    Returns None if a mean is below 1. Then one side is no softmax, for example after a clamp or a cut, and no
    temperature explains the mismatch. Suppose that the engine states a temperature T. Then β = T for a trainer without
    it, and β = 1/T for an engine whose log-probs precede it. Otherwise E[ρ] decides, because the trainer's noise leaves
    it at 1 but moves E[1/ρ].
    """
    since = shifted(whole)
    late = whole.series.within(whole.series.step[whole.series.step >= (since or 0)])
    gap = gap_of(late) if late.total("n") >= number("fewest") else frame.gap
    sizes = [(gap.ratio, gap.k3)]
    if whole.tokens is not None and len(whole.tokens):
        some = whole.tokens if since is None else whole.tokens.since(since)
        sizes.append((some.inverse_ratio, float(np.mean(k3_of(-some.d)))))
    if any(mean.value < 0 and off_one(mean.value, mean.z, k3) for mean, k3 in sizes):
        return None
    theirs = frame.setup.temperatures
    if len(theirs) == 1 and theirs[0] != 1:
        away, stated = math.log(beta), math.log(theirs[0])
        if min(abs(away - stated), abs(away + stated)) < abs(stated) / 2:
            return "engine" if abs(away - stated) < abs(away + stated) else "trainer"
    if len(sizes) == 1 or gap.ratio.z > SIGNIFICANT or sizes[1][0].z > SIGNIFICANT:
        return "trainer" if gap.ratio.z > SIGNIFICANT else "engine"
    return "trainer" if gap.ratio.value > sizes[1][0].value else "engine"


def _side(frame: Frame) -> int:
    """Return −1 or 1 if nearly all log-ratios beyond noise have that sign and E[ρ] agrees, or 0 otherwise."""
    gap, tokens = frame.gap, frame.tokens
    if gap.k3 < number("slight") / 10 or abs(gap.ratio.z) < SIGNIFICANT:
        return 0
    return one_sided(tokens) if tokens is not None and len(tokens) else _sign(gap.up, gap.down)


def one_sided(tokens: Tokens) -> int:
    """Return −1 or 1 if nearly all log-ratios beyond noise have that sign, or 0 otherwise or if a temperature explains
    them."""
    siblings = siblings_of(tokens)
    if siblings is not None and _is_scale(siblings):
        return 0
    noise = 0.0 if siblings is None else float(np.median(np.abs(siblings.t - siblings.r)))
    moved = tokens.d[np.abs(tokens.d) > max(number("rounding_d"), number("side_noise") * noise)]
    if len(moved) < max(number("side_tokens") * len(tokens), 1):
        return 0
    return _sign(float(np.mean(moved > 0)), float(np.mean(moved < 0)))


def _sign(up: float, down: float) -> int:
    one = number("one_sided") * (up + down)
    return -1 if down >= one else 1 if up >= one else 0


def _is_scale(siblings: Siblings) -> bool:
    """Return whether a different temperature explains siblings better than a different normaliser."""
    beta = siblings.slope
    misfit = siblings.misfit(beta)
    away = abs(beta - 1)
    sure = away > max(number("scale_exact"), SIGNIFICANT * misfit / math.sqrt(len(siblings.r)))
    return beta > 0 and sure and misfit < number("scale_exact_misfit") * siblings.misfit(1.0)


def _cut_to_one(frame: Frame) -> float:
    """Return the share of tokens that are certain at the engine alone. A cut leaves such tokens, a scale does not."""
    tokens = frame.tokens
    if tokens is None or not len(tokens):
        return 0.0
    return float(np.mean((tokens.r == 0) & (tokens.t < -number("placeholder_t") / 100)))


def unrelated(frame: Frame, whole: Frame) -> bool:
    """Return whether the sides have different texts or weights.

    This holds if most tokens exceed the setup's range and the two sides are unrelated. Tokens of one context show it
    directly, since their differences on one side do not predict those on the other.
    """
    if not frame.gap.k3 > far(whole):
        return False  # noise of this size spoils a correlation by itself
    if not frame.gap.correlation < number("related") and not _parted(frame):
        return False
    first = gap_of(whole.series.within(windows(whole.series.step)[0]))
    if first.n >= number("fewest") and first.correlation > number("was_related") and not _at_once(whole):
        return False  # policies that part by degrees
    # Few tokens that are far off spoil a correlation, too: those of one place, whether or not its column is recorded.
    return frame.gap.even > number("even")


def _parted(frame: Frame) -> bool:
    """Return whether the two sides' differences within a context are further from each other than from 0."""
    siblings = None if frame.tokens is None else siblings_of(frame.tokens.fresh)
    return siblings is not None and siblings.misfit(1.0) > number("siblings_unrelated")


def _apart(frame: Frame, whole: Frame) -> Finding | None:
    gap, tokens = frame.gap, frame.tokens
    if tokens is not None and gap.correlation > _neighbours(tokens) + number("neighbour_gain") and not _parted(frame):
        return None
    evidence: dict[str, object] = {"correlation": gap.correlation, "k3": gap.k3}
    return Finding("different_model", Confidence.INFERRED, shifted(whole), evidence=evidence)


def _constant(frame: Frame) -> Finding | None:
    """Name a value that stands for many log-probs of one side, far from what the other side computed.

    A context that several answers share repeats the values of both sides, and counts once.
    """
    tokens = frame.tokens
    if tokens is None:
        return None
    for side, values_N, others_N, further_N in (
        ("rollout", tokens.r, tokens.t, tokens.d),
        ("trainer", tokens.t, tokens.r, -tokens.d),
    ):
        apart = further_N > CLAMP
        pairs = np.unique(np.stack([values_N[apart], others_N[apart]]), axis=1)
        values, counts = np.unique(pairs[0], return_counts=True)
        if counts.sum() >= number("few") and counts.max() > number("most") * counts.sum():
            value = float(values[counts.argmax()])
            share = float(np.mean(apart & (values_N == value)))
            evidence: dict[str, object] = {"value": value, "value_share": share}
            return Finding(f"unfilled_{side}", Confidence.KNOWN, frame.start, evidence=evidence)
    return None


def _misaligned(frame: Frame, whole: Frame) -> Finding | None:
    """Name sequences whose sides agree after a shift, if these are most of them or hold most of K3."""
    tokens = frame.tokens
    if tokens is None or not len(tokens) or not frame.gap.k3 > far(whole):
        return None
    sequences = int(tokens.sequence.max()) + 1
    still = _apart_by(tokens, 0, sequences)
    least, shift = still.copy(), np.zeros(sequences, np.intp)
    for by in _shifts():
        away = _apart_by(tokens, by, sequences)
        shift[away < least] = by
        least = np.fmin(least, away)
    moved = (shift != 0) & (least < number("aligned") * still)
    k3 = np.bincount(tokens.sequence, tokens.k3, sequences)
    share = float(moved.sum()) / max(int(np.count_nonzero(np.isfinite(still))), 1)
    if not (share > number("most") or k3[moved].sum() > number("place_share") * k3.sum()):
        return None
    by = max(_shifts(), key=lambda one: int(np.count_nonzero(moved & (shift == one))))
    before, after = (_beside(tokens, each, moved & (shift == by)) for each in (0, by))
    evidence: dict[str, object] = {
        "moved": share,
        "correlation": correlation(*before[1:]),
        "correlation_after_shift": correlation(*after[1:]),
        "shift": abs(by),
    }
    return Finding("misaligned_tokens", Confidence.INFERRED, shifted(whole), evidence=evidence)


def _shifts() -> tuple[int, ...]:
    most = int(number("shifts"))
    return tuple(sign * by for by in range(1, most + 1) for sign in (1, -1))


def _beside(tokens: Tokens, by: int, keep_S: Bools | None = None) -> tuple[Codes, Floats, Floats]:
    """Return the sequence, r, and t of `by` tokens later of each token that has such a one.

    `keep_S`: sequences that count, or None for all.
    """
    size = len(tokens)
    ours, theirs = slice(max(-by, 0), size - max(by, 0)), slice(max(by, 0), size - max(-by, 0))
    same = tokens.sequence[ours] == tokens.sequence[theirs]
    if keep_S is not None:
        same &= keep_S[tokens.sequence[ours]]
    return tokens.sequence[ours][same], tokens.r[ours][same], tokens.t[theirs][same]


def _apart_by(tokens: Tokens, by: int, sequences: int) -> Floats:
    """Return the mean difference of r and the t of `by` tokens later [sequences], NaN for few tokens."""
    sequence, r, t = _beside(tokens, by)
    n = np.bincount(sequence, minlength=sequences)
    total = np.bincount(sequence, np.abs(t - r), sequences)
    away: Floats = np.divide(total, n, out=np.full(sequences, np.nan), where=n >= number("shifts"))
    return away


def _neighbours(tokens: Tokens) -> float:
    """Return the best correlation of r with t after a shift of all sequences."""
    found = [correlation(*_beside(tokens, by)[1:]) for by in _shifts()]
    return max((c for c in found if c > -1), default=-1.0)


def _at_once(frame: Frame) -> bool:
    """Return whether K3 rose a hundredfold within three steps. No policy update does this to the policy's own
    tokens."""
    k3 = frame.series.k3[np.isfinite(frame.series.k3)]
    span = int(number("at_once_steps"))
    rises = k3[span:] / np.maximum(k3[:-span], number("least_k3"))
    return len(rises) > 0 and float(np.max(rises)) > number("at_once_ratio")
