"""Two sides that speak of different tokens."""

from __future__ import annotations

import math

import numpy as np

from logprobe.monitor.diagnosis.causes.cause import CERTAIN, INFERRED, Sign
from logprobe.monitor.diagnosis.evidence.change_points import bend
from logprobe.monitor.diagnosis.evidence.evidence import Evidence, gap_of, windows
from logprobe.monitor.diagnosis.evidence.measures import correlation
from logprobe.monitor.diagnosis.evidence.siblings import siblings_of
from logprobe.monitor.diagnosis.evidence.tokens import Tokens

_UNRELATED = 0.5  # r and t of the same tokens correlate above 0.8 in every fault but staleness of many versions
_RELATED = 0.8  # in every recorded run at its beginning, misaligned ones left out
_OWN = 0.2  # of two very different policies a token's log-probs still correlate by so much more than those of its neighbours
_NEAR = tuple(by for by in range(-8, 9) if by)
_SHIFTED = 0.9
_COMMON = 0.2  # what is left between tokens of one context under a grammar is rounding
_FEWEST = 200
_LOGITS = 0.01  # share of positive values with which r is no log-prob at all


def misaligned_tokens(evidence: Evidence) -> Sign | None:
    """The two log-probs of a token have little to do with each other."""
    gap = evidence.gap
    if gap.n < _FEWEST or not unrelated(evidence):
        return None
    shifts = {} if evidence.tokens is None else {by: _shifted(evidence.tokens, by) for by in _NEAR}
    best = max(shifts, key=lambda by: shifts[by], default=0)
    offset = best if shifts and shifts[best] > _SHIFTED else None
    told = f"; shifted by {offset} they correlate {shifts[best]:.2f}" if offset is not None else ""
    return Sign(
        INFERRED,
        1.0,
        {"correlation": gap.correlation, "offset": offset, "correlation_shifted": shifts.get(best, math.nan)},
        f"r and t of the same token correlate only {gap.correlation:.2f}{told}: one side is indexed at another position than the other "
        "(inferred from the numbers).",
        since_step=evidence.start,
    )


def unrelated(evidence: Evidence) -> bool:
    """Whether r and t have so little in common that they are not of the same tokens.

    A narrow grammar also spoils the correlation; but there, tokens of one context differ by the same on both sides. So do policies
    many updates apart; but there, a token has more in common with itself than with those beside it.
    """
    if (
        not evidence.gap.correlation < _UNRELATED
        or evidence.series.total("positive_rollout") > _LOGITS * evidence.gap.n
    ):
        return False
    tokens = evidence.tokens
    if _parted(evidence):
        return False
    if tokens is None:
        return True
    beside = max(_shifted(tokens, by) for by in _NEAR)
    if evidence.gap.correlation > beside + _OWN:
        return False
    if beside > _SHIFTED:
        return True
    siblings = siblings_of(tokens)
    return siblings is None or siblings.misfit(1.0) > _COMMON


def _parted(evidence: Evidence) -> bool:
    """Whether r and t had much in common at the beginning and lost it gradually: positions do not slip by degrees."""
    first = gap_of(evidence.series.within(windows(evidence.series.step)[0]))
    found = bend(evidence.series) if first.n >= _FEWEST and first.correlation > _RELATED else None
    return found is not None and not found.abrupt


def _shifted(tokens: Tokens, by: int) -> float:
    """Correlation of r with t of the token `by` places later in the same sequence; −1 where there is none."""
    first, second = (slice(None, -by), slice(by, None)) if by > 0 else (slice(-by, None), slice(None, by))
    same = tokens.sequence[first] == tokens.sequence[second]
    found = correlation(tokens.r[first][same], tokens.t[second][same])
    return found if math.isfinite(found) else -1.0


def retokenization(evidence: Evidence) -> Sign | None:
    """Counted: sequences whose token ids differ from those the engine sampled."""
    joins = evidence.joins
    different = max(joins.other_ids, joins.unaligned)
    if not different:
        return None
    share = different / max(joins.seen_by_engine, different)
    return Sign(
        CERTAIN,
        1.0,
        {"sequences": different, "share": share, "other_lengths": joins.other_lengths},
        f"{different} sequences ({share:.1%} of those the engine recorded) reach the trainer with other token ids than were sampled.",
        since_step=_since(evidence),
    )


def _since(evidence: Evidence) -> int | None:
    lost = np.flatnonzero(evidence.series["n_compared"] < evidence.series["n_expected"])
    return int(evidence.series.step[lost[0]]) if len(lost) else None
