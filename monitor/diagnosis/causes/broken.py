"""Log-probs that are no log-probs: not finite, missing, unnormalised, or of tokens no one sampled."""

from __future__ import annotations

import numpy as np

from logprobe.collectors.kernel.arithmetic import SENTINEL
from logprobe.monitor.diagnosis.causes.cause import CERTAIN, INFERRED, Sign
from logprobe.monitor.diagnosis.evidence.evidence import Evidence
from logprobe.monitor.diagnosis.evidence.tokens import Bools, Tokens
from logprobe.monitor.diagnosis.result import Finding

_POSITIVE_SHARE = 0.01  # of tokens above probability 1; rounding alone never gives 1e-6
_AT_THE_END = 0.9  # of the placeholders; the last token is one of many, so chance gives 1 / length
_FEWEST = 3  # placeholders at the ends of sequences: two may be an accident
_UNSURE = -0.01  # t of a token whose r is exactly 0: float32 rounds to 0 only above −1e-7
_FLOAT32 = 1e-5  # |d| that float32 rounding makes at most


def nonfinite_logprobs(evidence: Evidence) -> Sign | None:
    """Counted: NaN, infinities and the placeholders that stand for them."""
    counts = {name: int(evidence.series.total(name)) for name in ("nonfinite_rollout", "nonfinite_trainer", "sentinel")}
    counts["nonfinite_rollout"] -= _absent(evidence)
    broken = sum(counts.values())
    if broken <= 0 or _ends_are_synthetic(evidence) is not None:
        return None
    side = "the trainer" if counts["nonfinite_trainer"] > broken / 2 else "the engine"
    return Sign(
        CERTAIN,
        1.0,
        {**counts, "share": broken / max(evidence.series.total("n_expected"), 1)},
        f"{broken} tokens have a log-prob that is NaN, infinite or a placeholder (−9999), most of them from {side}; "
        "they are in no mean.",
        since_step=_first(evidence, "nonfinite_rollout", "nonfinite_trainer", "sentinel"),
    )


def _absent(evidence: Evidence) -> int:
    """Rollout log-probs that are missing, in the sample: statistics count them as not finite."""
    seen = evidence.recorded
    return 0 if seen is None else int((np.isnan(seen.r) & ~seen.broken & np.isfinite(seen.t)).sum())


def missing_logprobs(evidence: Evidence) -> Sign | None:
    """Counted: sequences whose r never arrived, while that of others did."""
    joins, absent = evidence.joins, _absent(evidence)
    missing = max(joins.missing_tokens, absent)
    if not missing or joins.missing == joins.sequences or not evidence.gap.n:
        return None
    if _ends_are_synthetic(evidence) is not None or "retokenization" in evidence.explained:
        return None
    share = missing / max(joins.tokens, 1)
    return Sign(
        CERTAIN,
        1.0,
        {"sequences": joins.missing, "ambiguous": joins.ambiguous, "tokens": missing, "share": share},
        f"{share:.1%} of the tokens have no rollout log-prob while others have one, so nothing can be said of them."
        + (
            f" {joins.ambiguous:,} sequences fit several of the engine's records (same name, same tokens)."
            if joins.ambiguous
            else ""
        ),
        since_step=evidence.start,
    )


def unnormalized_logits(evidence: Evidence) -> Sign | None:
    """Positive values, or a logprobs_mode that reports logits."""
    mode = evidence.setup.logprobs_mode
    compared = evidence.series.total("n_compared")
    share = evidence.series.total("positive_rollout") / compared if compared else 0.0
    declared = mode in {"raw_logits", "processed_logits"}
    if not declared and share < _POSITIVE_SHARE:
        return None
    grounds = f"logprobs_mode is {mode}" if declared else "inferred from the numbers: no log-prob can be positive"
    return Sign(
        CERTAIN if declared else INFERRED,
        1.0,
        {"logprobs_mode": mode, "positive_share": share},
        f"The engine reports logits, not log-probs: {share:.0%} of the values are positive ({grounds}).",
        since_step=_first(evidence, "positive_rollout"),
    )


def synthetic_eos(evidence: Evidence) -> Sign | None:
    """Placeholders at the last token of sequences and nowhere else."""
    seen, ends = evidence.recorded, _ends_are_synthetic(evidence)
    if seen is None or ends is None:
        return None
    last, (ids, counts) = int(ends.sum()), np.unique(seen.token_id[ends], return_counts=True)
    share = last / max(int(seen.last.sum()), 1)
    return Sign(
        INFERRED,
        1.0,
        {
            "tokens": last,
            "share_of_sequences": share,
            "token_id": int(ids[counts.argmax()]),
            "same_id": float(counts.max() / last),
        },
        f"{share:.0%} of the sampled sequences end in a token that the engine did not sample: its log-prob is a "
        "placeholder "
        f"(0, −9999 or missing), and that happens at no other place.",
        since_step=int(seen.step[ends].min()),
    )


def _ends_are_synthetic(evidence: Evidence) -> Bools | None:
    """Placeholders at the ends of sequences [N], if that is where nearly all of them are and they share one token
    id."""
    seen = evidence.recorded
    if seen is None:
        return None
    placeholder = _placeholders(seen)
    at_end = placeholder & seen.last
    if at_end.sum() < _FEWEST or at_end.sum() < _AT_THE_END * placeholder.sum() or _renormalised(seen):
        return None
    if (seen.last & (seen.r == 0) & ~placeholder).sum() > at_end.sum():
        return None  # a policy certain of its ends: 0 is what they round to, and of some the trainer's weights have moved away
    _, counts = np.unique(seen.token_id[at_end], return_counts=True)
    return at_end if counts.max() >= _AT_THE_END * at_end.sum() else None


def _renormalised(seen: Tokens) -> bool:
    """Whether all other tokens lean to one side: then a grammar or truncation forces the end, and 0 is its true
    log-prob."""
    others = seen.valid.where(~seen.valid.last)
    far = others.d[np.abs(others.d) > _FLOAT32]
    return len(far) >= len(others) / 2 and float(np.mean(far < 0)) > _AT_THE_END


def _placeholders(seen: Tokens) -> Bools:
    """Where r is exactly 0 although the trainer is far from sure, a sentinel, or missing."""
    zero = (seen.r == 0) & (seen.t < _UNSURE)
    places: Bools = zero | (seen.r <= SENTINEL) | (seen.r == 1.0) | (np.isnan(seen.r) & np.isfinite(seen.t))
    return places


def without_ends(evidence: Evidence, _finding: Finding) -> Evidence:
    """What is left without the last token of each sequence."""
    tokens = evidence.tokens
    return evidence.left("synthetic_eos", tokens=None if tokens is None else tokens.where(~tokens.last))


def _first(evidence: Evidence, *counts: str) -> int | None:
    hit = np.sum([evidence.series[name] for name in counts], axis=0) > 0
    return int(evidence.series.step[hit][0]) if hit.any() else evidence.start
