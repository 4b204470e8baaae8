"""Two sides that speak of different tokens."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from logprobe.monitor.diagnosis.causes.cause import CERTAIN, INFERRED, LIKELY, Sign
from logprobe.monitor.diagnosis.evidence.change_points import bend
from logprobe.monitor.diagnosis.evidence.evidence import Evidence, gap_of, windows
from logprobe.monitor.diagnosis.evidence.measures import correlation
from logprobe.monitor.diagnosis.evidence.strata import Strata
from logprobe.monitor.diagnosis.evidence.tokens import Tokens, siblings_of, spread_of
from logprobe.monitor.diagnosis.levels import BEYOND

_UNRELATED = 0.5  # r and t of the same tokens correlate above 0.8 in every fault but staleness of many versions
_RELATED = 0.8  # in every recorded run at its beginning, misaligned ones left out
_OWN = 0.2  # of two very different policies a token's log-probs still correlate by so much more than those of its neighbours
_NEAR = tuple(by for by in range(-8, 9) if by)  # places: BOS, EOS and the header of a turn are at most so long
_SHIFTED = 0.9  # correlation with a neighbour, from which that is the token itself: less is of policies far apart
_COMMON = 0.2  # what is left between tokens of one context under a grammar is rounding
_FEWEST = 200  # tokens: a correlation of nothing is then below 0.25 (3.5 standard errors)
_LOGITS = 0.01  # share of positive values with which r is no log-prob at all
_BESIDE = 0.2  # by how much more the tokens of a slipped side correlate with a neighbour than with their own
_FEW = 40  # tokens from which two models that have nothing to do with each other are told apart
_FAR = 0.25  # mean |d|: no precision makes it (8-bit experts: 0.07), and single odd tokens do not move it
_BOTH = 0.05  # share of log-ratios of either sign, which no truncation or grammar leaves
_NO_MASK = 0.02  # added to the confidence then: the model is named before what masks tokens
_AT_ONCE = 100.0  # times: what no update of a policy does to K3 of its own tokens within three steps


def misaligned_tokens(evidence: Evidence) -> Sign | None:
    """The log-prob of a token has little to do with its own on the other side, and much with a neighbour's: over the
    window, or since K3 jumped."""
    return _misaligned(evidence) or (None if (later := _since_jump(evidence)) is None else _misaligned(later))


def _since_jump(evidence: Evidence) -> Evidence | None:
    """The window from the step on at which K3 jumped; None: it did not, or there are no raw tokens."""
    jump = None if evidence.tokens is None else bend(evidence.series)
    if jump is None or not jump.abrupt or evidence.tokens is None:
        return None
    later = evidence.series.between(jump.step, int(evidence.series.step[-1]))
    return replace(evidence, series=later, tokens=evidence.tokens.where(evidence.tokens.step >= jump.step))


def _misaligned(evidence: Evidence) -> Sign | None:
    gap, tokens = evidence.gap, evidence.tokens
    if gap.n < _FEWEST or tokens is None or not unrelated(evidence):
        return None
    shifts = {by: _shifted(tokens, by) for by in _NEAR}
    best = max(shifts, key=lambda by: shifts[by])
    if shifts[best] < gap.correlation + _BESIDE:
        return None
    offset = best if shifts[best] > _SHIFTED else None
    told = f"; shifted by {best} they correlate {shifts[best]:.2f}"
    return Sign(
        INFERRED,
        1.0,
        {"correlation": gap.correlation, "offset": offset, "correlation_shifted": shifts[best]},
        f"r and t of the same token correlate only {gap.correlation:.2f}{told}: one side is indexed at another "
        "position than the other "
        "(inferred from the numbers).",
        since_step=evidence.start,
    )


def different_model(evidence: Evidence) -> Sign | None:
    """K3 beyond every setup that is reported, at the beginning or from one step to the next; or log-probs without
    anything in common."""
    since = _beyond_since(evidence)
    apart = evidence.gap.n >= _FEWEST and unrelated(evidence)
    if evidence.hidden or evidence.scaled or (since is None and not apart) or _trainer_varies(evidence):
        return None
    gap = evidence.gap
    far = (
        f" More than {BEYOND:g} is reported of no precision, quantisation or kind of model."
        if since is not None
        else ""
    )
    return Sign(
        INFERRED if apart else LIKELY + _NO_MASK if min(gap.up, gap.down) > _BOTH else LIKELY,
        1.0,
        {
            "k3_kl": gap.k3,
            "correlation": gap.correlation,
            "rollout_log_ppl": _surprise(evidence, "r"),
            "training_log_ppl": _surprise(evidence, "t"),
        },
        f"K3 is {gap.k3:.2g}, and r and t correlate {gap.correlation:.2f}: perplexity of the same tokens is "
        f"{math.exp(_surprise(evidence, 'r')):.3g} at the engine and "
        f"{math.exp(min(_surprise(evidence, 't'), 99.0)):.3g} at the trainer.{far} The two do not score the same text "
        "with the same weights"
        f"{', or not at the same places' if apart else ''} (inferred from the numbers).",
        since_step=evidence.start if since is None else since,
    )


def _trainer_varies(evidence: Evidence) -> bool:
    """Whether the trainer alone gives one token other log-probs each time, which no model does by itself."""
    spread = None if evidence.tokens is None else spread_of(evidence.tokens)
    return spread is not None and spread.alone


def _beyond_since(evidence: Evidence) -> int | None:
    """First step of a K3 that no setup has, among tokens not known to be old; None: there is none, or it was reached
    step by step."""
    first, now = (window.where(~(window.lag > 0)) for window in (evidence.first, evidence.now))
    if not _beyond(now):
        return None
    if _beyond(first):
        return int(evidence.whole.step[0])
    jump = bend(evidence.series)
    return jump.step if jump is not None and jump.abrupt and jump.ratio > _AT_ONCE else None


def _beyond(strata: Strata) -> bool:
    return strata.n >= _FEW and strata.k3 > BEYOND and strata.abs_d.value > _FAR


def _surprise(evidence: Evidence, side: str) -> float:
    """Mean of −log-prob over all tokens that were compared."""
    return -evidence.series.total(side) / max(evidence.gap.n, 1)


def unrelated(evidence: Evidence) -> bool:
    """Whether r and t have so little in common that they are not of the same tokens.

    A narrow grammar also spoils the correlation; but there, tokens of one context differ by the same on both sides. So
    do policies many updates apart; but there, a token has more in common with itself than with those beside it.
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
    rise = bend(evidence.series) if first.n >= _FEWEST and first.correlation > _RELATED else None
    return rise is not None and not rise.abrupt


def _shifted(tokens: Tokens, by: int) -> float:
    """Correlation of r with t of the token `by` places later in the same sequence; −1 where there is none."""
    first, second = (slice(None, -by), slice(by, None)) if by > 0 else (slice(-by, None), slice(None, by))
    same = tokens.sequence[first] == tokens.sequence[second]
    coefficient = correlation(tokens.r[first][same], tokens.t[second][same])
    return coefficient if math.isfinite(coefficient) else -1.0


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
        f"{different} sequences ({share:.1%} of those the engine recorded) reach the trainer with other token ids than "
        "were sampled.",
        since_step=_since(evidence),
    )


def _since(evidence: Evidence) -> int | None:
    lost = np.flatnonzero(evidence.series["n_compared"] < evidence.series["n_expected"])
    return int(evidence.series.step[lost[0]]) if len(lost) else None
