"""Decomposition of the growth of K3 into composition, rate, lag and tail.

Between two windows, over cells of lag × probability × position × entropy with weights w and mean K3 k,

    ΔK = Σ_l ΔW_l·K̄_l  +  Σ_l W̄_l Σ_c Δw_c|l·k̄_c  +  Σ_l W̄_l Σ_c w̄_c|l·Δk_c
         lag              composition                  rate and tail

exactly, where a bar is the mean of both windows (Kitagawa, JASA 50 (1955); Oaxaca, Blinder 1973). A cell in only one
window differs in weight, not in rate. The rate's part is cut at the size that one in a thousand tokens exceeded at
first. The excess belongs to the tail. Intervals are 95 %, bootstrapped over steps, or over sequences if fewer than
eight steps of a window were sampled.

Dimensions: ``_N`` tokens, ``_G`` clusters, ``_L`` lags, ``_C`` cells within a lag, ``_B`` resamples, the first of which
is the original data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from logprobe.monitor.judging.document import ExplainedDocument, PartDocument
from logprobe.monitor.judging.measures import Floats
from logprobe.monitor.judging.tokens import Tokens

PARTS: Final = ("composition", "rate", "lag", "tail")
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
_FEWEST_STEPS: Final = 8  # that are drawn again; of fewer steps sequences are
_RESAMPLES: Final = 200  # the ends of an interval of 95 % are then the 5th of either side
_TAIL: Final = 0.999  # quantile of K3 at the beginning, beyond which a token is of the tail
_ENDS: Final = (0.025, 0.975)  # quantiles: an interval of 95 %
_GREW: Final = 1.5  # times: less is no growth to explain
_NAMED: Final = 0.05  # of the growth: a smaller part is not worth a word

Codes = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Part:
    """Contribution of one part to K3, with its 95 % interval, and its share of the growth."""

    k3: float
    interval: tuple[float, float]
    share: float
    share_interval: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Decomposition:
    """Growth of K3 between two windows of steps, in parts that add up to it.

    Attributes:
        first: first and last step of the earlier window.
        now: first and last step of the later window.
        k3: K3 of the sampled tokens of both windows.
        parts: parts by the names of `PARTS`.
    """

    first: tuple[int, int]
    now: tuple[int, int]
    k3: tuple[float, float]
    parts: Mapping[str, Part]

    @property
    def grew(self) -> bool:
        """Return whether K3 rose enough for a decomposition."""
        return self.k3[1] > _GREW * self.k3[0]

    @property
    def words(self) -> str:
        """Description in a sentence, or "" if K3 did not grow."""
        if not self.grew:
            return ""
        most = sorted(self.parts, key=lambda name: -self.parts[name].k3)
        said = [f"{self.parts[name].share:.0%} {_WORDS[name]}" for name in most if self.parts[name].share >= _NAMED]
        return f"K3 grew from {self.k3[0]:.2g} to {self.k3[1]:.2g}: {', '.join(said)}"

    def document(self) -> ExplainedDocument:
        """Return the JSON-ready form."""
        return {
            "first": list(self.first),
            "now": list(self.now),
            "k3": [float(f"{value:.5g}") for value in self.k3],
            "parts": {name: _document(part) for name, part in self.parts.items()},
            "words": self.words,
        }


def _document(part: Part) -> PartDocument:
    return {
        "k3": part.k3,
        "interval": list(part.interval),
        "share": round(part.share, 4),
        "share_interval": [round(end, 4) for end in part.share_interval],
    }


def between(tokens: Tokens, first_G: Codes, now_G: Codes) -> Decomposition | None:
    """Return the growth of K3 from some steps to others. Pure."""
    before, after = np.isin(tokens.step, first_G), np.isin(tokens.step, now_G)
    if min(before.sum(), after.sum()) < _FEWEST or (before & after).any():
        return None
    limit = float(np.quantile(tokens.k3[before], _TAIL))
    lag_N, cell_N = _cells(tokens)
    at_N, sizes = lag_N * (int(cell_N.max()) + 1) + cell_N, (int(lag_N.max()) + 1, int(cell_N.max()) + 1)
    windows = [
        _sums(tokens.where(kept), at_N[kept], limit, sizes, seed=seed) for seed, kept in enumerate((before, after))
    ]
    parts_B, k3_B = _split(*windows)
    growth_B = k3_B[1] - k3_B[0]
    parts = {name: _part(values_B, growth_B) for name, values_B in parts_B.items()}
    ends = [(int(steps.min()), int(steps.max())) for steps in (first_G, now_G)]
    return Decomposition(ends[0], ends[1], (float(k3_B[0][0]), float(k3_B[1][0])), parts)


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


def _sums(tokens: Tokens, cell_N: Codes, limit: float, sizes: tuple[int, int], *, seed: int) -> Floats:
    """Return the sums of tokens, of K3 up to the limit, and of the excess, by resample and cell [3, B, L, C]."""
    steps = np.unique(tokens.step)
    _, cluster_N = np.unique(tokens.step if len(steps) >= _FEWEST_STEPS else tokens.sequence, return_inverse=True)
    count, cells = int(cluster_N.max()) + 1, sizes[0] * sizes[1]
    at_N = cluster_N * cells + cell_N
    k3_N = tokens.k3
    values = (np.ones(len(k3_N)), np.minimum(k3_N, limit), np.maximum(k3_N - limit, 0.0))
    sums_G = np.stack([np.bincount(at_N, value_N, count * cells).reshape(count, cells) for value_N in values])
    weights_B = np.ones((_RESAMPLES + 1, count))
    weights_B[1:] = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=_RESAMPLES)
    resampled: Floats = np.einsum("bg,vgc->vbc", weights_B, sums_G, optimize=True)
    return resampled.reshape(3, _RESAMPLES + 1, *sizes)


def _split(before: Floats, after: Floats) -> tuple[dict[str, Floats], list[Floats]]:
    """Return each part [B], and K3 of both windows [B]."""
    n0, n1 = before[0], after[0]
    body0, body1 = _rates(before[1], n0, after[1], n1)
    tail0, tail1 = _rates(before[2], n0, after[2], n1)
    share0, share1 = (n.sum(axis=-1) / n.sum(axis=(-1, -2))[:, None] for n in (n0, n1))  # [B, L]
    within0, within1 = _within(n0, n1)
    k0, k1 = body0 + tail0, body1 + tail1
    of_lag0, of_lag1 = (within0 * k0).sum(axis=-1), (within1 * k1).sum(axis=-1)
    both, middle = (share0 + share1) / 2, (within0 + within1) / 2

    def over_lags(values_BLC: Floats) -> Floats:
        total: Floats = (both * values_BLC.sum(axis=-1)).sum(axis=-1)
        return total

    parts = {
        "composition": over_lags((within1 - within0) * (k0 + k1) / 2),
        "rate": over_lags(middle * (body1 - body0)),
        "lag": ((share1 - share0) * (of_lag0 + of_lag1) / 2).sum(axis=-1),
        "tail": over_lags(middle * (tail1 - tail0)),
    }
    return parts, [(share0 * of_lag0).sum(axis=-1), (share1 * of_lag1).sum(axis=-1)]


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


def _part(values_B: Floats, growth_B: Floats) -> Part:
    shares = values_B / np.where(growth_B == 0, np.nan, growth_B)
    finite = shares[np.isfinite(shares)]
    ends, of_share = (
        np.quantile(values_B, _ENDS).tolist(),
        np.quantile(finite, _ENDS).tolist() if len(finite) else [0.0, 0.0],
    )
    return Part(float(values_B[0]), (ends[0], ends[1]), float(np.nan_to_num(shares[0])), (of_share[0], of_share[1]))
