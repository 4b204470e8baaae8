"""Test "counted": a column above 0 needs no statistics."""

from __future__ import annotations

import numpy as np

from logprobe.monitor.judging.frame import Bools, Frame
from logprobe.monitor.judging.judgement import Confidence, Finding
from logprobe.monitor.judging.proofs import Facts
from logprobe.monitor.judging.thresholds import number


def counted(frame: Frame, facts: Facts) -> list[Finding]:
    """Name what was counted: broken, missing and other tokens, records that contradict each other."""
    unfilled = _unfilled(frame, frame, facts) or _unfilled(frame.today, frame, facts)
    if unfilled is not None:
        return [unfilled]
    found = []
    ends = placeholder_ends(frame)
    n = max(frame.total("n_compared"), 1.0)
    absent = _absent(frame)
    broken = frame.total("nonfinite_rollout") - absent + frame.total("nonfinite_trainer") + frame.total("sentinel")
    positive = frame.total("positive_rollout")
    if positive > number("positive_share") * n:
        found.append(_certain("unnormalized_logits", frame, tokens=positive))
    if ends:
        found.append(Finding("synthetic_eos", Confidence.INFERRED, evidence={"sequences": ends}))
    if max(frame.joins.other_ids, frame.joins.unaligned):
        found.append(_certain("retokenization", frame, sequences=max(frame.joins.other_ids, frame.joins.unaligned)))
    elif not ends and max(frame.joins.missing_tokens, absent) and frame.joins.missing != frame.joins.sequences:
        found.append(_certain("missing_logprobs", frame, tokens=max(frame.joins.missing_tokens, absent)))
    if broken > 0 and not ends:
        found.append(_certain("nonfinite_logprobs", frame, tokens=broken))
    if facts.conflict:
        found.append(_conflict(frame, facts))
    return [*found, *_weights(frame)]


def _certain(cause: str, frame: Frame, **evidence: float) -> Finding:
    return Finding(cause, Confidence.CERTAIN, since=frame.start, evidence=evidence)


def _conflict(frame: Frame, facts: Facts) -> Finding:
    conflicts = frame.joins.conflicts
    evidence = {
        "newer_than_trainer": facts.newer,
        "unpublished": facts.unpublished,
        "differing": 0 if conflicts is None else conflicts.differing,
    }
    since = None if conflicts is None else conflicts.first_step
    return Finding("version_conflict", Confidence.CERTAIN, since=since, evidence=evidence)


def _absent(frame: Frame) -> int:
    """Count tokens whose rollout log-prob is missing, in the sample."""
    seen = frame.recorded
    if seen is None:
        return 0
    return int((np.isnan(seen.r) & ~seen.broken & np.isfinite(seen.t)).sum())


def _unfilled(frame: Frame, whole: Frame, facts: Facts) -> Finding | None:
    """Name a side that has exact zeros where the other has improbable tokens.

    A probability of 1 is rounded to a log-prob of 0 on either side, and a nucleus or a grammar of one token gives 0 on
    one side. Neither has zeros where the other side says that the token was unlikely, unless a grammar forced it.
    """
    for side in ("rollout", "trainer"):
        share, unlikely = _zeros(frame, side)
        if share <= number("zero_share") or unlikely <= number("zero_unlikely"):
            continue
        plain = {"nothing_truncated", "nothing_masked"} <= facts.true
        if share < number("zero_nearly_all") and side == "rollout" and not plain:
            continue  # a nucleus or a grammar of one token may say the same
        if placeholder_ends(frame):
            continue
        evidence = {"zeros": share, "unlikely_zeros": unlikely}
        return Finding(f"unfilled_{side}", Confidence.CERTAIN, since=_zeros_since(whole, side), evidence=evidence)
    return None


def _zeros(frame: Frame, side: str) -> tuple[float, float]:
    """Return the share of tokens that are exactly 0 on one side alone, and of these the share unlikely at the other."""
    seen = frame.recorded
    if seen is not None and len(seen):
        ours, theirs = (seen.r, seen.t) if side == "rollout" else (seen.t, seen.r)
        alone: Bools = (ours == 0) & (theirs != 0) & np.isfinite(theirs)
        unlikely = alone & (theirs < -number("zero_other_side"))
        return float(alone.mean()), float(unlikely.sum()) / max(int(alone.sum()), 1)
    n = frame.total("n_compared")
    alone_n = frame.total(f"zero_{side}")  # the series counts a zero where the other side is below −1
    return (alone_n / n, 1.0) if n else (0.0, 0.0)


def _zeros_since(frame: Frame, side: str) -> int | None:
    """Return the first step of which many tokens are 0 on one side."""
    column, many = f"zero_{side}", number("zero_share") / 2
    steps, seen = frame.series.step, frame.recorded
    if seen is not None and len(seen):
        ours, theirs = (seen.r, seen.t) if side == "rollout" else (seen.t, seen.r)
        steps, index = np.unique(seen.step, return_inverse=True)
        share = np.bincount(index, (ours == 0) & (theirs != 0)) / np.bincount(index)
    elif column in frame.series.columns:
        share = frame.series[column] / np.maximum(frame.series["n_compared"], 1)
    else:
        return frame.start
    high = np.flatnonzero(share > many)
    return int(steps[high[0]]) if len(high) else frame.start


def placeholder_ends(frame: Frame) -> int:
    """Count sequences whose last token has a placeholder; 0 if placeholders are elsewhere, too."""
    seen = frame.recorded
    if seen is None or not len(seen):
        return 0
    missing = np.isnan(seen.r) & np.isfinite(seen.t)
    zero = ((seen.r == 0) & (seen.t < -number("placeholder_t"))) | (seen.r <= -9998) | (seen.r == 1.0) | missing  # noqa: PLR2004
    at_end = zero & seen.last
    count = int(at_end.sum())
    mostly = number("placeholders_at_end")
    others = seen.valid.where(~seen.valid.last)
    moved = others.d[np.abs(others.d) > number("rounding_d")]
    renormalised = len(moved) >= len(others) / 2 and float(np.mean(moved < 0)) > mostly
    certain_ends = int((seen.last & (seen.r == 0) & ~zero).sum())
    if count < number("few") or count < mostly * zero.sum() or renormalised or certain_ends > count:
        return 0
    commonest = int(np.unique(seen.token_id[at_end], return_counts=True)[1].max())
    return count if commonest >= mostly * count else 0


def _weights(frame: Frame) -> list[Finding]:
    """Name what fingerprints and counts of tensors say of weight updates."""
    found = []
    readings, since = frame.readings, frame.growth.since_step
    if readings.divergence is not None:
        evidence: dict[str, object] = {"replicas": ", ".join(readings.divergence.replicas)}
        found.append(Finding("replica_divergence", Confidence.CERTAIN, readings.divergence.step, evidence=evidence))
    elif readings.mismatch is not None:
        cause = "partial_weight_sync" if readings.mismatch.partial else "missed_weight_sync"
        evidence = {"version": readings.mismatch.version, "held": readings.mismatch.held}
        found.append(Finding(cause, Confidence.CERTAIN, readings.mismatch.step, evidence=evidence))
    counts = [record.tensors for record in frame.weights.updates if record.tensors]
    if not found and counts and min(counts) < max(counts) and frame.gap.visible:
        first = next(r.step for r in frame.weights.updates if r.tensors and r.tensors < max(counts))
        evidence = {"tensors": min(counts), "before": max(counts)}
        since = first if first is not None else since
        found.append(Finding("partial_weight_sync", Confidence.KNOWN, since, evidence=evidence))
    return found


def unmeasured(findings: list[Finding]) -> bool:
    """Whether K3 of these findings is not a measurement."""
    return any(f.cause.startswith("unfilled_") for f in findings)
