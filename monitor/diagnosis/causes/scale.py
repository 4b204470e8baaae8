"""Is one side's distribution the other's at another temperature? By pairs that share a context, by likely tokens, or by
moments.

Under a common temperature the log-ratio d = t − r does not depend on r to first order: E[ρ | context] = 1 whatever was
sampled. Where one side leaves a temperature out, d is a multiple of r less its mean in the context: its slope on r is
(T − 1) or (1/T − 1), times the part of r's variance that lies within contexts. Noise bends that slope too, but only by
its own variance: noise on t by nothing, noise on r by −Var(d)/Var(r) at most.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from logprobe.monitor.diagnosis.causes.alignment import unrelated
from logprobe.monitor.diagnosis.evidence.change_points import change
from logprobe.monitor.diagnosis.evidence.evidence import SLIGHT, Evidence, Gap, gap_of, windows
from logprobe.monitor.diagnosis.evidence.measures import SIGNIFICANT, correlation, logit, slope
from logprobe.monitor.diagnosis.evidence.once import once, once_for_all
from logprobe.monitor.diagnosis.evidence.tokens import Siblings, Tokens, siblings_of

_ONE_SIDED: Final = 0.99  # share of log-ratios with one sign; noise and staleness have half
_NO_SCALE: Final = 0.01  # temperatures that close are one
_WIDER: Final = 0.05  # from 1: a slope that noise larger than the scale may bend is not believed nearer
_HELPS: Final = 0.8  # of what is left between siblings without a scale; training alone leaves 0.99 of it
_HELPS_SURELY: Final = 0.97  # likewise, where the scale is significant and more than noise can bend it
_REACHES: Final = 0.5  # of a pooled departure from 1, below which half of the contexts are not scaled at all
_EXPLAINS: Final = 0.5  # of the variance of d
_MOMENTS: Final = 0.2  # likewise over all contexts together, whose normalisers differ
_RELATED: Final = 0.5  # correlation of r and t; below they are not of the same tokens
_SHARPER: Final = 0.95  # share of likely tokens that one side makes still likelier; noise and staleness have about half
_LIKELY_TOKEN: Final = 0.6  # probability from which one other token has nearly all the rest
_FEWEST_LIKELY: Final = 50  # of those
_LOWEST: Final = 0.02  # quantile of their ratios of logits, which keeps single odd tokens out
_TINY: Final = 1e-5  # log-ratios and log-probs below are float32 rounding
_TINIER: Final = _TINY / 10  # likewise, of the side that is nearer to 0
_CONCERNED: Final = 0.1  # of the tokens: a renormalisation moves nearly all
_FEWEST: Final = 200  # tokens of a slope
_BENDS: Final = 1.5  # times Var(d)/Var(r): noise on r bends the slope by 1 of it
_APART: Final = 4.0  # times the median difference between siblings, which is 2.7 standard deviations of noise
LEANING: Final = SLIGHT / 10  # K3: log-ratios that all have one sign are no noise, even where K3 is below healthy
_TOGETHER: Final = 4.0  # tokens of a sequence that say as much as one: contexts follow from one another
_WITHIN: Final = (0.4, 1.1)  # of r's variance that lies within contexts, and what it may be estimated as


@dataclass(frozen=True, slots=True)
class Scale:
    """One side's log-probs are those of the other at another temperature.

    Attributes:
        beta: t's distribution is r's to this power, normalised.
        misfit: what is left between them, relative; NaN where no two tokens of one context were seen.
        sampled: which side was sampled from.
        since: first step of it; None: it was there from the first step on.
    """

    beta: float
    misfit: float
    sampled: str
    since: int | None = None

    @property
    def temperature(self) -> float:
        """That the side which was not sampled from lacks."""
        return 1 / self.beta if self.sampled == "trainer" else self.beta


@once
def scale_of(evidence: Evidence) -> Scale | None:
    """The scale between both sides over the window, or today; None where there is none."""
    scale, tokens = _apparent(evidence), evidence.tokens
    bent = scale is not None and tokens is not None and _bent(siblings_of(tokens))
    return None if bent else scale


def _apparent(evidence: Evidence) -> Scale | None:
    """One that fits better than none, perhaps because some contexts alone are scaled."""
    tokens, gap = evidence.tokens, evidence.gap
    if gap.n < _FEWEST or not gap.k3 > SLIGHT or gap.correlation < _RELATED or one_sign(evidence):
        return None
    today = gap_today(evidence)
    by_moments = _by_moments(gap) or _by_moments(today)
    if tokens is None or len(tokens) < _FEWEST:
        return by_moments or _declared(evidence, gap) or _declared(evidence, today) or _shifted(evidence, today)
    since = _scaled_since(evidence, tokens)
    fit = scale_between(tokens) if since is None else None
    if fit is None:  # a fault that began late is a small part of the window
        tokens = tokens.since(_steps_of_today(evidence)[0] if since is None else since)
        fit = scale_between(tokens) if len(tokens) >= _FEWEST else None
    if fit is None:
        return _by_moments(today) or _declared(evidence, today) or _shifted(evidence, today)
    beta, misfit = fit
    return Scale(beta, misfit, "trainer" if _rollout_is_off(tokens) else "rollout", since)


def _scaled_since(evidence: Evidence, tokens: Tokens) -> int | None:
    """The step at which a scale began that the steps before do not have; None: there is none, or it was always there.

    Pooled over both, a temperature would come out between none and the true one.
    """
    risen = change(evidence)
    if risen is None or risen.until is not None:
        return None
    before, after = tokens.before(risen.step), tokens.since(risen.step)
    if min(len(before), len(after)) < _FEWEST or scale_between(after) is None:
        return None
    return risen.step if scale_between(before) is None else None


@once_for_all
def scale_between(tokens: Tokens) -> tuple[float, float] | None:
    """β and misfit of t as a power of r, from tokens alone; None: there is no scale, or there are too few tokens."""
    if len(tokens) < _FEWEST or correlation(tokens.r, tokens.t) < _RELATED:
        return None
    siblings = siblings_of(tokens)
    if siblings is None:
        return _bounded_scale(tokens) or _regressed_scale(tokens)
    return exact_scale(siblings) or _sure_scale(siblings_of(tokens.fresh))


def exact_scale(siblings: Siblings) -> tuple[float, float] | None:
    """Tokens of one context: Δt = β·Δr. A fault that is no scale leaves as much at β as at 1."""
    beta = siblings.slope
    misfit, unscaled = siblings.misfit(beta), siblings.misfit(1.0)
    if not beta > 0 or abs(beta - 1) < max(_NO_SCALE, SIGNIFICANT * misfit / math.sqrt(len(siblings.r))):
        return None
    return (beta, misfit) if misfit < _HELPS * unscaled else None


def _bent(siblings: Siblings | None) -> bool:
    """Whether only contexts with unlikely tokens, or only those without, look scaled: a clamp or another bend, as a
    temperature reaches all."""
    if siblings is None:
        return False
    parents, context = np.unique(siblings.tokens.parent, return_inverse=True)
    lowest = np.full(len(parents), np.inf)
    np.minimum.at(lowest, context, siblings.tokens.r)
    unlikely = lowest[context] < np.median(lowest)
    halves = [siblings.where(keep) for keep in (unlikely, ~unlikely)]
    if min(len(half.r) for half in halves) < _FEWEST:
        return False
    departures, pooled = [abs(half.slope - 1) for half in halves], abs(siblings.slope - 1)
    errors = [half.misfit(half.slope) / math.sqrt(len(half.r) / 2) for half in halves]
    plain = departures.index(min(departures))
    return pooled > _WIDER and departures[plain] + SIGNIFICANT * errors[plain] < _REACHES * pooled


def _sure_scale(siblings: Siblings | None) -> tuple[float, float] | None:
    """A scale under noise that is larger: β of tokens of the trainer's own weights is certain, and further from 1 than
    noise bends it."""
    if siblings is None:
        return None
    beta = siblings.slope
    misfit, unscaled = siblings.misfit(beta), siblings.misfit(1.0)
    error = misfit / math.sqrt(len(siblings.r) / 2)  # of two siblings, one is free
    if not beta > 0 or abs(beta - 1) < max(_WIDER, SIGNIFICANT * error, misfit**2):
        return None
    return (beta, misfit) if misfit < _HELPS_SURELY * unscaled else None


def _bounded_scale(tokens: Tokens) -> tuple[float, float] | None:
    """Without siblings: one side gives every likely token a higher probability.

    With p a token's softer probability and q ∝ p^β, β > 1: Σ_j p_j^β ≤ p^β + (1 − p)^β, with equality where one other
    token has all the rest, hence logit q ≥ β·logit p. Among likely tokens the smallest ratio of logits comes near β;
    the 2nd percentile keeps single odd tokens out.
    """
    for soft_N, sharp_N, inverse in ((tokens.r, tokens.t, False), (tokens.t, tokens.r, True)):
        likely = (np.exp(soft_N) > _LIKELY_TOKEN) & (soft_N < -_TINY) & (sharp_N < -_TINIER)
        soft, sharp = soft_N[likely], sharp_N[likely]
        if len(soft) >= _FEWEST_LIKELY and np.mean(sharp > soft) >= _SHARPER:
            beta = float(np.quantile(logit(sharp) / logit(soft), _LOWEST))
            return (1 / beta if inverse else beta, math.nan) if beta > 1 + _NO_SCALE else None
    return None


def _regressed_scale(tokens: Tokens) -> tuple[float, float] | None:
    """Without siblings or likely tokens (a flat policy): d is mostly a multiple of r, which noise and staleness are
    not."""
    for x, y, inverse in ((tokens.r, tokens.t, False), (tokens.t, tokens.r, True)):
        explained = correlation(x, y - x) ** 2
        beta = slope(x, y)
        if explained > _EXPLAINS and beta > 1 + _WIDER:
            return (1 / beta if inverse else beta, math.sqrt(1 - explained))
    return None


@dataclass(frozen=True, slots=True)
class _Moments:
    """Regression of d on r from sums. `bend`: slope; `spread`: Var(d)/Var(r); `z`: standard errors of the slope from
    0."""

    bend: float
    spread: float
    z: float

    @property
    def explained(self) -> float:
        """Share of the variance of d."""
        return self.bend**2 / self.spread if self.spread > 0 else 0.0


def _moments(gap: Gap) -> _Moments | None:
    bend = gap.correlation * gap.scale - 1
    spread = 1 + gap.scale**2 - 2 * (bend + 1)
    if gap.n < _FEWEST or not spread > 0:
        return None
    return _Moments(bend, spread, bend / math.sqrt(spread * _TOGETHER / gap.n))


def _by_moments(gap: Gap) -> Scale | None:
    """From statistics alone: d is mostly a multiple of r, or more of one than noise on r makes."""
    moments = _moments(gap)
    if moments is None or not abs(moments.z) > SIGNIFICANT or gap.correlation < _RELATED:
        return None
    if abs(gap.scale - 1) > _WIDER and moments.explained > _MOMENTS:
        return _scale(gap, gap.scale)
    bent = abs(moments.bend) > max(_WIDER, _BENDS * moments.spread)
    return _scale(gap, 1 + moments.bend) if bent else None


def _declared(evidence: Evidence, gap: Gap) -> Scale | None:
    """The engine says that it samples at a temperature, and d depends on r as it does where one side leaves that
    out."""
    temperatures, moments = evidence.setup.temperatures, _moments(gap)
    if moments is None or len(temperatures) != 1 or evidence.setup.trainer_temperature is not None:
        return None
    temperature = temperatures[0]
    if abs(temperature - 1) < _WIDER or abs(moments.z) < SIGNIFICANT:
        return None
    # The trainer leaves it out: slope T − 1 within a context. The engine reports without it: 1/T − 1.
    for expected, sampled in ((temperature - 1, "rollout"), (1 / temperature - 1, "trainer")):
        low, high = (part * expected for part in _WITHIN)
        if min(low, high) < moments.bend < max(low, high):
            return Scale(1 + moments.bend, math.nan, sampled)
    return None


def _shifted(evidence: Evidence, today: Gap) -> Scale | None:
    """A scale that was not there at the beginning: the slope changed, by more than noise did."""
    first = gap_of(evidence.series.between(*_ends(windows(evidence.series.step)[0])))
    before, now = _moments(first), _moments(today)
    if before is None or now is None or not evidence.versions_known:
        return None
    shift, error = (
        now.bend - before.bend,
        math.hypot(now.bend / now.z, before.bend / before.z) if now.z and before.z else math.inf,
    )
    fresh = not evidence.slices.where(lambda row: (row.lag or 0) > 0).n
    if not fresh or abs(shift) < max(_WIDER, SIGNIFICANT * error, _BENDS * abs(now.spread - before.spread)):
        return None
    return _scale(today, 1 + shift)


def _scale(gap: Gap, beta: float) -> Scale:
    return Scale(beta, math.nan, "trainer" if gap.ratio.z > SIGNIFICANT else "rollout")


def _rollout_is_off(tokens: Tokens) -> bool:
    """Whether t rather than r was sampled from: by the one of E[ρ] and E[1/ρ] that is not 1, or is further from it."""
    off, inverse = tokens.ratio, tokens.inverse_ratio
    if (off.z > SIGNIFICANT) == (inverse.z > SIGNIFICANT):
        return off.value > inverse.value
    return off.z > SIGNIFICANT


def one_sign(evidence: Evidence) -> int:
    """−1 when (nearly) all log-ratios beyond rounding are negative and the calibration says so, too; +1 likewise; else
    0."""
    gap, tokens = evidence.gap, evidence.tokens
    if gap.n < _FEWEST or gap.k3 < LEANING or abs(gap.ratio.z) < SIGNIFICANT or unrelated(evidence):
        return 0
    up, down = gap.up, gap.down
    if tokens is not None and len(tokens):
        return one_sided(tokens)
    return _sign(up, down)


@once
def one_sided(tokens: Tokens) -> int:
    """−1 when (nearly) all log-ratios beyond rounding are negative and they are no scale; +1 likewise; else 0."""
    siblings = siblings_of(tokens)
    if siblings is not None and exact_scale(siblings) is not None:
        return 0
    beyond = tokens.d[np.abs(tokens.d) > max(_TINY, _APART * _noise(siblings))]
    if len(beyond) < max(_CONCERNED * len(tokens), 1):
        return 0
    return _sign(float(np.mean(beyond > 0)), float(np.mean(beyond < 0)))


def _sign(up: float, down: float) -> int:
    return -1 if down >= _ONE_SIDED * (up + down) else 1 if up >= _ONE_SIDED * (up + down) else 0


def _noise(siblings: Siblings | None) -> float:
    """Size of what is not common to all tokens of a context: noise in either side; 0 where it is unknown."""
    return 0.0 if siblings is None else float(np.median(np.abs(siblings.t - siblings.r)))


def gap_today(evidence: Evidence) -> Gap:
    """The gap of the end of the window."""
    return gap_of(evidence.series.between(*_steps_of_today(evidence)))


def _steps_of_today(evidence: Evidence) -> tuple[int, int]:
    return _ends(windows(evidence.series.step)[1])


def _ends(steps: np.ndarray[tuple[int], np.dtype[np.int64]]) -> tuple[int, int]:
    return int(steps[0]), int(steps[-1])
