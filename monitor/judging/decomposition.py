"""Decomposition of the growth of K3 into composition, rate, lag and tail.

Between two windows, over cells of lag × probability × position × entropy with weights w and mean K3 k,

    ΔK = Σ_l ΔW_l·K̄_l  +  Σ_l W̄_l Σ_c Δw_c|l·k̄_c  +  Σ_l W̄_l Σ_c w̄_c|l·Δk_c
         lag              composition                  rate and tail

exactly, where a bar is the mean of both windows (Kitagawa, JASA 50 (1955); Oaxaca, Blinder 1973). A cell in only one
window differs in weight, not in rate. The rate's part is cut at the size that one in a thousand tokens exceeded at
first. The excess belongs to the tail.

Dimensions: ``_N`` tokens, ``_G`` steps, ``_L`` lags, ``_C`` cells within a lag.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from logprobe.monitor.judging.document import ExplainedDocument
from logprobe.monitor.judging.frame import Frame
from logprobe.monitor.judging.measures import Floats
from logprobe.monitor.judging.thresholds import number
from logprobe.monitor.judging.tokens import Tokens

_WORDS: Final = {
    "composition": "other tokens (less likely ones, other places, other entropy)",
    "rate": "more mismatch for the same kind of token",
    "lag": "older weights",
    "tail": "few tokens that are far off",
}
_LAGS: Final = (0.5, 1.5, 3.5, 7.5)  # ends of classes of lag
_PROBABILITIES: Final = (0.01, 0.1, 0.3, 0.6, 0.9, 0.99)  # ends of classes of the engine's probability
_PLACES: Final = (0.25, 0.5, 0.75)  # of a sequence
_ENTROPIES: Final = (0.25, 0.5, 0.75)  # quantiles, as the scale of entropy differs from model to model
_FEWEST: Final = 500  # tokens of a window
_TAIL: Final = 0.999  # quantile of K3 at the beginning, beyond which a token is of the tail
_NAMED: Final = 0.05  # of the growth: a smaller part is not worth a word

Codes = NDArray[np.int64]


def why_it_grew(frame: Frame) -> ExplainedDocument | None:
    """Return the growth of K3 since the run's beginning in parts, or None if it did not grow or too few tokens are
    kept."""
    first, now = frame.first, frame.now
    if frame.tokens is None or not now.k3 > number("grown_ratio") * first.k3:
        return None
    return between(frame.tokens, first.steps, now.steps)


def between(tokens: Tokens, first_G: Codes, now_G: Codes) -> ExplainedDocument | None:
    """Return the growth of K3 from some steps to others in parts, or None if it did not grow or for too few tokens."""
    before, after = np.isin(tokens.step, first_G), np.isin(tokens.step, now_G)
    if min(before.sum(), after.sum()) < _FEWEST or (before & after).any():
        return None
    k3 = [float(tokens.k3[window].mean()) for window in (before, after)]
    if not k3[1] > number("grown_ratio") * k3[0]:
        return None
    limit = float(np.quantile(tokens.k3[before], _TAIL))
    lag_N, cell_N = _cells(tokens)
    at_N, sizes = lag_N * (int(cell_N.max()) + 1) + cell_N, (int(lag_N.max()) + 1, int(cell_N.max()) + 1)
    parts = _split(*(_sums(tokens.k3[window], at_N[window], limit, sizes) for window in (before, after)))
    shares = {name: round(part / (k3[1] - k3[0]), 4) for name, part in parts.items()}
    most = sorted(shares, key=lambda name: -shares[name])
    said = ", ".join(f"{shares[name]:.0%} {_WORDS[name]}" for name in most if shares[name] >= _NAMED)
    words = f"K3 grew from {k3[0]:.2g} to {k3[1]:.2g}: {said}"
    return {"k3": [float(f"{value:.5g}") for value in k3], "parts": shares, "words": words}


def _cells(tokens: Tokens) -> tuple[Codes, Codes]:
    """Return the class of lag [N], with unknown lags as a separate class, and the cell of all other dimensions [N]."""
    lag = np.where(np.isnan(tokens.lag), len(_LAGS) + 1, np.searchsorted(_LAGS, np.nan_to_num(tokens.lag)))
    probability = np.searchsorted(_PROBABILITIES, np.exp(tokens.r), side="right")
    longest = np.zeros(int(tokens.sequence.max()) + 1)
    longest[tokens.sequence] = tokens.place + 1  # of several the last one stays, and places ascend
    place = np.searchsorted(_PLACES, tokens.place / longest[tokens.sequence], side="right")
    measured = np.isfinite(tokens.entropy)
    ends = np.quantile(tokens.entropy[measured], _ENTROPIES) if measured.any() else np.zeros(0)
    entropy = np.where(
        measured, np.searchsorted(ends, np.nan_to_num(tokens.entropy), side="right"), len(_ENTROPIES) + 1
    )
    cells = (probability * (len(_PLACES) + 1) + place) * (len(_ENTROPIES) + 2) + entropy
    return lag.astype(np.int64), np.unique(cells, return_inverse=True)[1].astype(np.int64)


def _sums(k3_N: Floats, cell_N: Codes, limit: float, sizes: tuple[int, int]) -> Floats:
    """Return the sums of tokens, of K3 up to the limit, and of the excess, by cell [3, L, C]."""
    values = (np.ones(len(k3_N)), np.minimum(k3_N, limit), np.maximum(k3_N - limit, 0.0))
    return np.stack([np.bincount(cell_N, value_N, sizes[0] * sizes[1]).reshape(sizes) for value_N in values])


def _split(before: Floats, after: Floats) -> dict[str, float]:
    """Return the parts of the growth of K3."""
    n0, n1 = before[0], after[0]
    body0, body1 = _rates(before[1], n0, after[1], n1)
    tail0, tail1 = _rates(before[2], n0, after[2], n1)
    share0, share1 = (n.sum(axis=-1) / n.sum() for n in (n0, n1))  # [L]
    within0, within1 = _within(n0, n1)
    k0, k1 = body0 + tail0, body1 + tail1
    of_lag0, of_lag1 = (within0 * k0).sum(axis=-1), (within1 * k1).sum(axis=-1)
    both, middle = (share0 + share1) / 2, (within0 + within1) / 2

    def over_lags(values_LC: Floats) -> float:
        return float(both @ values_LC.sum(axis=-1))

    return {
        "composition": over_lags((within1 - within0) * (k0 + k1) / 2),
        "rate": over_lags(middle * (body1 - body0)),
        "lag": float((share1 - share0) @ (of_lag0 + of_lag1) / 2),
        "tail": over_lags(middle * (tail1 - tail0)),
    }


def _rates(sums0: Floats, n0: Floats, sums1: Floats, n1: Floats) -> tuple[Floats, Floats]:
    """Return the means by cell. If a window lacks a cell, use the mean of the other."""
    with np.errstate(divide="ignore", invalid="ignore"):
        mean0, mean1 = sums0 / n0, sums1 / n1
    mean0, mean1 = np.where(n0 > 0, mean0, mean1), np.where(n1 > 0, mean1, mean0)
    return np.nan_to_num(mean0), np.nan_to_num(mean1)


def _within(n0: Floats, n1: Floats) -> tuple[Floats, Floats]:
    """Return the weights of the cells of a lag. If a window lacks the lag, use the weights of the other."""
    of_lag0, of_lag1 = n0.sum(axis=-1, keepdims=True), n1.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        within0, within1 = n0 / of_lag0, n1 / of_lag1
    within0, within1 = np.where(of_lag0 > 0, within0, within1), np.where(of_lag1 > 0, within1, within0)
    return np.nan_to_num(within0), np.nan_to_num(within1)
