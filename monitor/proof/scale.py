"""Estimate of a temperature ratio between two distributions from scored tokens alone."""

from __future__ import annotations

from typing import Final

import numpy as np

from logprobe.monitor.judging.distribution import by_siblings
from logprobe.monitor.judging.measures import correlation, logit, slope
from logprobe.monitor.judging.tokens import Tokens, siblings_of

_NO_SCALE: Final = 0.01  # temperatures that close are one
_WIDER: Final = 0.05  # from 1: a slope that noise larger than the scale may bend is not believed nearer
_EXPLAINS: Final = 0.5  # of the variance of d
_RELATED: Final = 0.5  # correlation of r and t; below they are not of the same tokens
_SHARPER: Final = 0.95  # share of likely tokens that one side makes still likelier; noise and staleness have about half
_LIKELY_TOKEN: Final = 0.6  # probability from which one other token has nearly all the rest
_FEWEST_LIKELY: Final = 50  # of those
_LOWEST: Final = 0.02  # quantile of their ratios of logits, which keeps single odd tokens out
_TINY: Final = 1e-5  # log-ratios and log-probs below are float32 rounding
_TINIER: Final = _TINY / 10  # likewise, of the side that is nearer to 0
_FEWEST: Final = 200  # tokens of a slope


def scale_between(tokens: Tokens) -> float | None:
    """Return β of t as a power of r, or None without a scale or with too few tokens."""
    if len(tokens) < _FEWEST or correlation(tokens.r, tokens.t) < _RELATED:
        return None
    siblings = siblings_of(tokens)
    return by_siblings(siblings) if siblings is not None else _bounded_scale(tokens) or _regressed_scale(tokens)


def _bounded_scale(tokens: Tokens) -> float | None:
    """Estimate the scale without siblings, if one side gives every likely token a higher probability.

    Let p be a token's softer probability and q ∝ p^β with β > 1. Then Σ_j p_j^β ≤ p^β + (1 − p)^β, with equality if a
    single other token has the rest. Hence logit q ≥ β·logit p. Among likely tokens the smallest ratio of logits
    approximates β. The 2nd percentile excludes outliers.
    """
    for soft_N, sharp_N, inverse in ((tokens.r, tokens.t, False), (tokens.t, tokens.r, True)):
        likely = (np.exp(soft_N) > _LIKELY_TOKEN) & (soft_N < -_TINY) & (sharp_N < -_TINIER)
        soft, sharp = soft_N[likely], sharp_N[likely]
        if len(soft) >= _FEWEST_LIKELY and np.mean(sharp > soft) >= _SHARPER:
            beta = float(np.quantile(logit(sharp) / logit(soft), _LOWEST))
            return (1 / beta if inverse else beta) if beta > 1 + _NO_SCALE else None
    return None


def _regressed_scale(tokens: Tokens) -> float | None:
    """Estimate the scale without siblings or likely tokens (a flat policy), where d is mostly a multiple of r."""
    for x, y, inverse in ((tokens.r, tokens.t, False), (tokens.t, tokens.r, True)):
        explained = correlation(x, y - x) ** 2
        beta = slope(x, y)
        if explained > _EXPLAINS and beta > 1 + _WIDER:
            return 1 / beta if inverse else beta
    return None
