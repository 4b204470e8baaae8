"""How much of today's gap, and of its growth, each finding explains; with "unexplained" the shares add up to 1.

The gap is peeled in the order in which causes are ruled out, step by step of today and of the run's beginning: what a
wrong distribution makes, then what the tokens concerned by an engine fault have more than others of the same weight
lag, then what lag adds to the gap at lag 0, then noise up to what it was at the beginning, then what grew. Intervals:
bootstrap over steps.

Dimensions: ``_R`` strata (see `Strata`), ``_B`` resamples, the first of which is the data as they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from logprobe.monitor.diagnosis.causes import BY_NAME
from logprobe.monitor.diagnosis.evidence.evidence import Evidence
from logprobe.monitor.diagnosis.evidence.measures import Floats
from logprobe.monitor.diagnosis.evidence.skipped import skipped
from logprobe.monitor.diagnosis.evidence.strata import Strata, of_one_lag
from logprobe.monitor.diagnosis.result import GROWS, Finding

_RESAMPLES: Final = 200  # the ends of an interval of 95 % are then the 5th of either side
_ENDS: Final = (0.025, 0.975)  # quantiles: an interval of 95 %
_LEAST_WEIGHT: Final = 1e-6  # of a finding without any, so that shares can be divided by their sum
_FEWEST: Final = 200  # tokens to compare with
_FEWEST_STEPS: Final = 4  # below, resampling them says nothing
_GREW: Final = 1.5  # times: K3 below is the run's own noise

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Share:
    """Of today's gap with its 95 % interval, and of the growth since the beginning; K3 explained today and then; None:
    not known."""

    now: float | None = None
    interval: tuple[float, float] | None = None
    growth: float | None = None
    k3: float | None = None
    k3_first: float | None = None


@dataclass
class _Window:
    """The strata of one window, resampled by step, and what is left of their K3 [R, B]."""

    strata: Strata
    tokens: Floats
    left: Floats
    parts: dict[str, Floats] = field(default_factory=dict)

    @property
    def whole(self) -> Floats:
        """Tokens of the window [B]."""
        tokens: Floats = np.maximum(self.tokens.sum(axis=0), 1.0)
        return tokens

    def rate(self, rows_R: Bools) -> Floats:
        """Mean K3 left in some strata [B]; NaN without a token."""
        n = self.tokens[rows_R].sum(axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            rates: Floats = self.left[rows_R].sum(axis=0) / n
        return rates

    def peel(self, cause: str, rows_R: Bools, reference_B: Floats | float) -> None:
        """Takes out what strata have above a reference, and gives it to the cause; NaN: there is nothing to compare
        with."""
        sums = self.left[rows_R].sum(axis=0)
        over = np.nan_to_num(np.clip(sums - reference_B * self.tokens[rows_R].sum(axis=0), 0.0, sums))
        with np.errstate(divide="ignore", invalid="ignore"):
            self.left[rows_R] *= np.nan_to_num(1 - over / sums, nan=1.0)
        self.parts[cause] = self.parts.get(cause, 0.0) + over / self.whole

    @property
    def rest(self) -> Floats:
        """K3 per token that nothing has explained yet [B]."""
        remaining: Floats = self.left.sum(axis=0) / self.whole
        return remaining


def shares_of(
    evidence: Evidence, findings: Sequence[Finding], semantic: Mapping[str, float]
) -> tuple[dict[str, Share], float | None]:
    """The share of each finding, and what is left unexplained; None where nothing can be said.

    Args:
        evidence: as it was before anything was explained.
        findings: all of them.
        semantic: fraction of the gap that findings of the semantic layer leave nothing of.
    """
    if not evidence.now.n or not evidence.now.sum_k3.sum() > 0:
        return {}, None
    first, now = _resampled(evidence.first, seed=1), _resampled(evidence.now, seed=2)
    for window in (first, now):
        _peel_semantic(window, findings, semantic)
        _peel_faults(evidence, window, findings)
    _peel_lag(first, now, findings)
    noise = _peel_noise(first, now, findings)
    _peel_growth(first, now, findings)
    grown = _grown(evidence)
    shares = {f.cause: _share(f.cause, first, now, grown) for f in findings if f.cause in now.parts}
    total = now.rest[0] + sum(part[0] for part in now.parts.values())
    left = float(now.rest[0] / total) if total > 0 else None
    return {cause: share for cause, share in shares.items() if noise or not _steady(cause)}, left


def _resampled(strata: Strata, *, seed: int) -> _Window:
    steps, index = np.unique(strata.step, return_inverse=True)
    weights = np.ones((_RESAMPLES + 1, len(steps)))
    if len(steps) >= _FEWEST_STEPS:
        rng = np.random.default_rng(seed)
        weights[1:] = rng.multinomial(len(steps), np.full(len(steps), 1 / len(steps)), size=_RESAMPLES)
    weights_RB = weights.T[index]
    return _Window(strata, strata.tokens[:, None] * weights_RB, strata.sum_k3[:, None] * weights_RB)


def _peel_semantic(window: _Window, findings: Sequence[Finding], semantic: Mapping[str, float]) -> None:
    for finding in findings:
        if finding.cause in semantic and not BY_NAME[finding.cause].left_out:
            rows = _since(window.strata, finding)
            window.peel(finding.cause, rows, (1 - semantic[finding.cause]) * window.rate(rows))


def _peel_faults(evidence: Evidence, window: _Window, findings: Sequence[Finding]) -> None:
    strata = window.strata
    for finding in sorted(
        findings, key=lambda finding: BY_NAME[finding.cause].never_arrives
    ):  # contrasts within a step first
        cause = BY_NAME[finding.cause]
        if "told_by" in finding.evidence:
            _peel_skipped(evidence, window, finding)
        elif cause.never_arrives:
            rows = (
                _since(strata, finding)
                if "stuck_updates" in finding.evidence
                else of_one_lag(strata.lag, strata.tokens) & _since(strata, finding)
            )
            window.peel(finding.cause, rows, _before(evidence, finding))
        elif cause.contrast is not None:
            worse, better = cause.contrast(strata, finding)
            if strata.tokens[better].sum() >= _FEWEST:
                _contrast(window, finding.cause, worse, better)
            else:
                window.peel(finding.cause, worse & _since(strata, finding), _before(evidence, finding))


def _peel_skipped(evidence: Evidence, window: _Window, finding: Finding) -> None:
    missed = skipped(evidence)
    if missed is None:
        return
    rows = missed.rows(window.strata)
    if window.strata.tokens[~rows].sum() >= _FEWEST:
        _contrast(window, finding.cause, rows, ~rows)
    else:  # none arrived any more
        others = evidence.all_steps.where(~missed.rows(evidence.all_steps))
        window.peel(finding.cause, rows, others.k3 if others.n >= _FEWEST else 0.0)


def _contrast(window: _Window, cause: str, worse_R: Bools, better_R: Bools) -> None:
    """What some strata have above others of the same lag, or, where there are none, above all others."""
    for lag in _distinct(window.strata.lag[worse_R]):
        at = _same(window.strata.lag, lag)
        better = better_R & at if window.strata.tokens[better_R & at].sum() >= _FEWEST else better_R
        window.peel(cause, worse_R & at, window.rate(better))


def _distinct(lags: Floats) -> Iterable[float]:
    finite = np.unique(lags[np.isfinite(lags)]).tolist()
    return [*finite, math.nan] if np.isnan(lags).any() else finite


def _same(lags: Floats, lag: float) -> Bools:
    equal: Bools = np.isnan(lags) if math.isnan(lag) else lags == lag
    return equal


def _since(strata: Strata, finding: Finding) -> Bools:
    since, until = finding.since_step, finding.evidence.get("until")
    inside = np.ones(len(strata.step), np.bool_) if since is None else strata.step >= since
    return inside if until is None else inside & (strata.step <= until)


def _before(evidence: Evidence, finding: Finding) -> float:
    """K3 of the steps before a fault; 0 where it was there from the first step on."""
    series = evidence.whole
    earlier = series.step < (finding.since_step if finding.since_step is not None else series.step[0])
    n = float(series["n"][earlier].sum())
    return float(np.nansum(series["k3"][earlier])) / n if n >= _FEWEST else 0.0


def _steady(cause: str) -> bool:
    """Whether what it makes is there from the first step on."""
    return BY_NAME[cause].steady or BY_NAME[cause].kind == "noise"


def _peel_lag(first: _Window, now: _Window, findings: Sequence[Finding]) -> None:
    lagging = next((finding.cause for finding in findings if BY_NAME[finding.cause].kind == "lag"), None)
    if lagging is None:
        return
    base = _at_lag_0(first, now, noise=any(_steady(finding.cause) for finding in findings))
    made = _made_at_first(first, base) if any(map(_raises_every_lag, findings)) else {}
    for window in (first, now):
        own = window.rate(~(window.strata.lag > 0))
        enough = window.strata.tokens[~(window.strata.lag > 0)].sum() >= _FEWEST
        reference = np.where(np.isfinite(own), own, base) if enough else base
        for lag in np.unique(window.strata.lag[window.strata.lag > 0]).tolist():
            rows = window.strata.lag == lag
            grew = window.rate(rows) - made[lag] if window is now and lag in made else reference
            window.peel(lagging, rows, np.maximum(reference, grew))


def _raises_every_lag(finding: Finding) -> bool:
    """Whether it makes K3 larger at one and the same lag: what a lag made at the beginning is then still all that it
    makes."""
    return BY_NAME[finding.cause].kind == "growth" or finding.layer == "semantic"


def _made_at_first(first: _Window, base: Floats) -> dict[float, Floats]:
    """What each lag added at the beginning, by lag: where K3 grows at one lag, the growth is not the lag's."""
    lags = np.unique(first.strata.lag[first.strata.lag > 0]).tolist()
    enough = [lag for lag in lags if first.strata.tokens[first.strata.lag == lag].sum() >= _FEWEST]
    return {lag: np.clip(np.nan_to_num(first.rate(first.strata.lag == lag)) - base, 0.0, None) for lag in enough}


def _at_lag_0(first: _Window, now: _Window, *, noise: bool) -> Floats:
    """K3 at lag 0 [B]: of either window, else by the line through K3 of several lags where noise is known to be there,
    else 0."""
    for window in (now, first):
        ours = ~(window.strata.lag > 0)
        if window.strata.tokens[ours].sum() >= _FEWEST:
            return np.nan_to_num(window.rate(ours))
    return _intercept(first, now) if noise else np.zeros(_RESAMPLES + 1)


def _intercept(first: _Window, now: _Window) -> Floats:
    lag = np.concatenate([first.strata.lag, now.strata.lag])[:, None]
    n, k3 = np.concatenate([first.tokens, now.tokens]), np.concatenate([first.left, now.left])
    whole = np.maximum(n.sum(axis=0), 1.0)
    x, y = (n * lag).sum(axis=0) / whole, k3.sum(axis=0) / whole
    spread = (n * (lag - x) ** 2).sum(axis=0)
    slope = np.divide(((lag - x) * k3).sum(axis=0), spread, out=np.full(len(whole), np.inf), where=spread > 0)
    least = np.fmin(first.rest, now.rest)
    return np.clip(np.where(np.isfinite(slope), y - slope * x, 0.0), 0.0, least)


def _peel_noise(first: _Window, now: _Window, findings: Sequence[Finding]) -> bool:
    """Noise is what is left at the beginning, and so much of what is left today; says whether it can be told from
    lag."""
    weights = {finding.cause: max(finding.weight, _LEAST_WEIGHT) for finding in findings if _steady(finding.cause)}
    told = first.rest[0] > 0 or now.rest[0] > 0
    if not weights or not told:
        return False
    common = np.fmin(first.rest, now.rest)
    for window in (first, now):
        level = window.rest if window is first else common
        share = np.divide(level, window.rest, out=np.zeros_like(level), where=window.rest > 0)
        for cause, weight in weights.items():
            window.parts[cause] = level * weight / sum(weights.values())
        window.left *= 1 - share
    return True


def _peel_growth(first: _Window, now: _Window, findings: Sequence[Finding]) -> None:
    cause = next((finding.cause for finding in findings if BY_NAME[finding.cause].kind == "growth"), None)
    if cause is None:
        return
    rows = np.ones(len(now.strata.step), np.bool_)
    noise = any(map(_steady, now.parts))
    now.peel(cause, rows, 0.0 if noise else first.rest)
    first.parts[cause] = np.zeros(_RESAMPLES + 1)


def _grown(evidence: Evidence) -> float | None:
    """By how much K3 is above that of the beginning; None where it did not grow."""
    before, after = evidence.first.k3, evidence.now.k3
    grew = after > _GREW * before or (evidence.growth.verdict in GROWS and after > before)
    return after - before if grew else None


def _share(cause: str, first: _Window, now: _Window, grown: float | None) -> Share:
    total = now.rest + sum(now.parts.values())
    with np.errstate(divide="ignore", invalid="ignore"):
        share = now.parts[cause] / total
    finite = share[np.isfinite(share)]
    then = float(first.parts[cause][0]) if cause in first.parts else 0.0
    today = float(now.parts[cause][0])
    several = len(np.unique(now.strata.step)) >= _FEWEST_STEPS
    return Share(
        now=float(share[0]),
        interval=tuple(np.quantile(finite, _ENDS).tolist()) if several and len(finite) else None,
        growth=None if grown is None else min(max((today - then) / grown, 0.0), 1.0),
        k3=today,
        k3_first=then,
    )


def with_share(finding: Finding, share: Share) -> Finding:
    """The finding with its share."""
    return replace(finding, share=share.now, share_interval=share.interval, growth_share=share.growth)
