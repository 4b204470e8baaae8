"""Safe weight lag, measured on the run's own tokens.

ESS is that of the catalog, (Σρ)² / (n·Σρ²) over tokens, and so is what a preview of a correction shows. Half of the
tokens are enough for a correction (`corrected_ess`). An uncorrected one suffers long before (`uncorrected_ess`).
Nothing is said about a lag that no token has.

Drift: a learning rate η moves the weights of an update by an amount proportional to η, and K3 is of second order in the
distance. With K3(lag) = floor + c·lagᵖ (p = 1: a random walk, p = 2: steady motion) c is proportional to η². K3, and
thus ESS, stays the same if half the learning rate meets 2^(2/p) times the lag. The power is fitted within steps that
hold several lags, since a lag that grows over steps would be mixed up with a drift that changes over steps.

Long answers take long, so their weights are old, and tokens of long answers may differ for reasons of their own. Where
length may explain half of what seems due to lag, limits are unknown. Within bins of length and with its slope in each
held fixed, the rise of mean |d| with lag is that of lag alone. The rest of the rise is due to length.

Dimensions: ``_N`` tokens, ``_L`` lags, ``_B`` resamples.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from logprobe.collectors.kernel.statistics import DEFAULT_BOUNDS
from logprobe.monitor.judging.document import LagDocument, LagLimitDocument
from logprobe.monitor.judging.frame import Frame
from logprobe.monitor.judging.judgement import digits
from logprobe.monitor.judging.measures import Floats
from logprobe.monitor.judging.once import once
from logprobe.monitor.judging.records import WINDOW
from logprobe.monitor.judging.signatures import versions_of
from logprobe.monitor.judging.thresholds import number
from logprobe.monitor.judging.tokens import Tokens
from logprobe.monitor.metrics.sums import exp_clamped

Rows = NDArray[np.intp]
Sums = NDArray[np.float64]  # [B, L, 5]

_MOST_LAGS: Final = 48  # rows of the curve
_GRID: Final = 0.02
_POWERS: Final = np.round(np.arange(0.5, 4, _GRID), 2)
_BALLISTIC: Final = 2.0  # the largest power of a drift whose pace does not change
_STEEPEST: Final = 2.2  # the same with the errors of a fit
_ENDS: Final = (0.025, 0.975)
_SHOWN: Final = 8  # lags in a sentence
_BINS: Final = 20  # of like length
_BIN: Final = 30  # sequences at least, since a bin has two parameters
_ERRORS: Final = 2.0
_ROUNDING: Final = 1e-9  # of a sum of squares


@once
def safe_lag(frame: Frame) -> LagDocument | None:
    """Return ESS by lag, or None if lags are unknown, no token has one above 0, or no raw tokens are kept."""
    if frame.tokens is None or not frame.versions_known:
        return None
    return of_tokens(frame.tokens)


def of_tokens(tokens: Tokens) -> LagDocument | None:
    """Return ESS by lag of a sample of tokens with usable log-ratios. See `safe_lag`."""
    by_length, tokens = due_to_length(tokens), _newest(tokens.where(tokens.lag >= 0))
    lag_L, row_N = _groups(tokens.lag)
    if not lag_L.any():  # no row, or that of lag 0 alone
        return None
    sums_L, sums_BL = _resampled(tokens, row_N, len(lag_L))
    ess, drawn = _falling_ess(sums_L[None])[0], _falling_ess(sums_BL)
    shares = zip(lag_L.tolist(), ess.tolist(), *(sums_L[:, 3:] / sums_L[:, :1]).T.tolist(), strict=True)
    times, per_update = (None, None) if by_length else _drift(tokens)
    without, corrected = (_limit(lag_L, ess, drawn, number(of)) for of in ("uncorrected_ess", "corrected_ess"))
    unknown = by_length and not (without["largest_seen"] and corrected["largest_seen"])
    found: LagDocument = {
        "uncorrected": None if unknown else without,
        "corrected": None if unknown else corrected,
        "by_lag": [
            {"lag": int(lag), "ess": digits(ess), "masked": digits(masked), "k3": digits(k3)}
            for lag, ess, masked, k3 in shares
        ],
        "k3_per_update": per_update,
        "half_learning_rate": times,
        "words": "",
    }
    return {**found, "words": _words(found)}


@once
def due_to_length(tokens: Tokens) -> bool:
    """Return whether length may explain at least half of how mean |d| rises with lag. False if it does not rise."""
    length_S = np.bincount(tokens.sequence)
    tokens = tokens.where(tokens.lag >= 0)
    if len(np.unique(tokens.lag)) < 2:  # noqa: PLR2004 - nothing to compare
        return False
    size, lag, length = np.abs(tokens.d), tokens.lag - tokens.lag.mean(), length_S[tokens.sequence].astype(np.float64)
    bins = min(_BINS, len(np.unique(tokens.sequence)) // _BIN)
    edges = np.unique(np.quantile(length, np.linspace(0, 1, max(bins, 1) + 1)[1:-1]))
    bin_N = np.searchsorted(edges, length, side="left")
    length, alone, rest = (_centred(values, bin_N) for values in (length, lag, size))
    alone, rest = _without(alone, length, bin_N), _without(rest, length, bin_N)
    known = float(alone @ alone) > _ROUNDING * float(lag @ lag)
    raw, by_lag = lag / (lag @ lag), alone / (alone @ alone) if known else np.zeros(len(lag))
    rest -= (by_lag @ rest) * alone
    (rise, error), (due, unsure) = (
        (float(weight @ size), math.sqrt(float((np.bincount(tokens.sequence, weight * rest) ** 2).sum())))
        for weight in (raw, raw - by_lag)
    )
    return rise > _ERRORS * error and due + _ERRORS * unsure >= number("due_to_length") * rise


def _centred(values_N: Floats, bin_N: Rows) -> Floats:
    """Return values less the mean of their bin [N]."""
    centred: Floats = values_N - (np.bincount(bin_N, values_N) / np.maximum(np.bincount(bin_N), 1))[bin_N]
    return centred


def _without(values_N: Floats, by_N: Floats, bin_N: Rows) -> Floats:
    """Return centred values less their slope on others in each bin [N]."""
    spread = np.bincount(bin_N, by_N * by_N)
    slope = np.bincount(bin_N, values_N * by_N) / np.where(spread > 0, spread, 1)
    left: Floats = values_N - slope[bin_N] * by_N
    return left


def curve(found: LagDocument) -> str:
    """Return ESS at some lags as text."""
    rows = found["by_lag"]
    some = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), _SHOWN)).round().astype(np.intp))
    return ", ".join(f"{rows[at]['lag']}: {rows[at]['ess']:.2g}" for at in some.tolist())


def _words(found: LagDocument) -> str:
    """Return the limits and the part of the learning rate as text."""
    first, last = found["by_lag"][0], found["by_lag"][-1]
    without, corrected = number("uncorrected_ess"), number("corrected_ess")
    if found["uncorrected"] is None or found["corrected"] is None:
        said = "unknown, since older answers differ in length, which may be why ESS falls; it"
    else:
        said = (
            f"{_limit_words(found['uncorrected'])} without a correction (ESS of at least {without:g}), "
            f"{_limit_words(found['corrected'])} with one (at least {corrected:g}); ESS"
        )
    said += f" is {first['ess']:.2g} at lag {first['lag']}"
    if first["lag"] == 0 and found["uncorrected"] is not None and found["uncorrected"]["lag"] is None:
        said += ", which no bound on the lag changes"
    elif last is not first:
        said += f" and {last['ess']:.2g} at lag {last['lag']}"
    said += f", where masked importance sampling drops {last['masked']:.1%}"
    if found["half_learning_rate"] is None:
        return said
    value, low, high = found["half_learning_rate"]
    return f"{said}; half the learning rate allows {value:.2g} times the lag (95 % interval {low:.2g} to {high:.2g})"


def _limit_words(limit: LagLimitDocument) -> str:
    if limit["lag"] is None:
        return "none of the lags seen"
    versions, (low, high) = versions_of(limit["lag"]), limit["interval"]
    if limit["largest_seen"]:
        return f"at least {versions}"
    return f"{versions} (95 % interval {low} to {'more than was seen' if high is None else high})"


def _limit(lag_L: Floats, ess_L: Floats, ess_BL: Floats, least: float) -> LagLimitDocument:
    """Return the largest lag with an ESS of at least `least`. The upper end is the last lag before one without it."""
    seen, before = np.append(-1, lag_L), np.append(lag_L - 1, math.inf)
    at, drawn = int((ess_L >= least).sum()), (ess_BL >= least).sum(1)
    low = float(np.quantile(seen[drawn], _ENDS[0], method="lower"))
    high = float(np.quantile(before[drawn], _ENDS[1], method="higher"))
    interval = [int(max(low, 0)), None if math.isinf(high) else int(high)]
    return {"lag": int(seen[at]) if at else None, "interval": interval, "largest_seen": at == len(lag_L)}


def _newest(tokens: Tokens) -> Tokens:
    """Return the tokens of the newest steps of each lag, since drift changes in a run."""
    lags, of_lag = np.unique(tokens.lag, return_inverse=True)
    since = [np.unique(tokens.step[of_lag == at])[-WINDOW:][0] for at in range(len(lags))]
    return tokens.where(tokens.step >= np.array(since)[of_lag.ravel()]) if since else tokens


def _groups(lag_N: Floats) -> tuple[Floats, Rows]:
    """Return the mean lag of each row of the curve, rounded, and the row of each token, −1 in none.

    Lags with too few tokens for a mean share a row with larger ones.
    """
    lags, index, counts = np.unique(lag_N, return_inverse=True, return_counts=True)
    fewest = max(number("fewest"), len(lag_N) / _MOST_LAGS if len(lags) > _MOST_LAGS else 0)
    row, held, at = np.zeros(len(lags), np.intp), 0, 0
    for place, count in enumerate(counts.tolist()):
        row[place], held = at, held + count
        at, held = (at + 1, 0) if held >= fewest else (at, held)
    row[row == at] = -1  # the last ones are too few
    row_N = row[index.ravel()]
    kept = row_N >= 0
    means = np.bincount(row_N[kept], lag_N[kept], at) / np.bincount(row_N[kept], minlength=at)
    return np.floor(means + 0.5), row_N


def _resampled(tokens: Tokens, row_N: Rows, rows: int) -> tuple[Floats, Sums]:
    """Return n, Σρ, Σρ², masked and ΣK3 of each row [L, 5] and of resamples [B, L, 5].

    Whole steps are drawn where a row has enough of them, since tokens of a step share their weights, else sequences.
    """
    rho, bounds = exp_clamped(tokens.d), DEFAULT_BOUNDS["backend"]
    masked = (rho < bounds.lower) | (rho > bounds.upper)
    values = np.stack([np.ones(len(rho)), rho, rho * rho, masked, tokens.k3], 1)
    rng, size = np.random.default_rng(0), int(number("resamples"))
    whole, drawn = np.zeros((rows, 5)), np.zeros((size, rows, 5))
    for row in range(rows):
        at = np.flatnonzero(row_N == row)
        several = len(np.unique(tokens.step[at])) >= number("paired_steps")
        _, cluster = np.unique((tokens.step if several else tokens.sequence)[at], return_inverse=True)
        sums = np.stack([np.bincount(cluster.ravel(), values[at, column]) for column in range(5)], 1)
        whole[row] = sums.sum(0)
        drawn[:, row] = rng.multinomial(len(sums), np.full(len(sums), 1 / len(sums)), size) @ sums
    return whole, drawn


def _falling_ess(sums_BL: Sums) -> Floats:
    """Return ESS of each row [B, L], pooled where a larger lag would have the larger one (isotonic regression)."""
    before = np.concatenate([np.zeros_like(sums_BL[:, :1]), sums_BL.cumsum(1)], 1)[..., :3]
    block = before[:, None, 1:] - before[:, :-1, None]  # [B, first row, last row, sum]
    n, ratio, square = np.moveaxis(block, -1, 0)
    inside = np.triu(np.ones(n.shape[1:], np.bool_))
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = np.where(inside, n * square / ratio**2, math.inf)
    least = np.minimum.accumulate(spread[..., ::-1], -1)[..., ::-1]
    ess: Floats = 1 / np.where(inside, least, -math.inf).max(1)
    return ess


def _drift(tokens: Tokens) -> tuple[list[float] | None, float | None]:
    """Return the factor of half the learning rate with its interval, and K3 of an update; None if unknown."""
    pairs = np.unique(np.stack([tokens.step, tokens.lag.astype(np.int64)]), axis=1)
    steps, counts = np.unique(pairs[0], return_counts=True)
    mixed = tokens.where(np.isin(tokens.step, steps[counts >= number("drift_lags")]))
    lag_L, row_N = _groups(mixed.lag)
    if len(lag_L) < number("drift_lags"):
        return None, None
    whole, drawn = _resampled(mixed, row_N, len(lag_L))
    (power,), (per_update,) = _fitted(lag_L, whole[None])
    low, high = np.quantile(_fitted(lag_L, drawn)[0], _ENDS).tolist()
    low, high = low - _GRID, high + _GRID
    if not (per_update > 0 and low <= _STEEPEST and high <= number("drift_width") * low):
        return None, None
    return [digits(2 ** (2 / min(each, _BALLISTIC))) for each in (power, high, low)], digits(per_update)


def _fitted(lag_L: Floats, sums_BL: Sums) -> tuple[Floats, Floats]:
    """Return p and c of K3 = floor + c·lagᵖ by least squares of relative errors [B]."""
    k3 = sums_BL[..., 4] / sums_BL[..., 0]
    weight = sums_BL[..., 0] / np.maximum(k3, number("least_k3")) ** 2
    weight /= weight.sum(1, keepdims=True)
    rest = k3 - (weight * k3).sum(1, keepdims=True)
    errors, slopes = [], []
    for power in _POWERS:
        x = lag_L**power - (weight * lag_L**power).sum(1, keepdims=True)
        slope = (weight * x * rest).sum(1) / (weight * x * x).sum(1)
        errors.append((weight * (rest - slope[:, None] * x) ** 2).sum(1))
        slopes.append(slope)
    best = np.argmin(errors, 0)
    return _POWERS[best], np.take_along_axis(np.array(slopes), best[None], 0)[0]
