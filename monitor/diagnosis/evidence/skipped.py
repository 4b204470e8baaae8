"""Updates that were missed now and then: steps or weight versions whose tokens differ more than those around them,
again and again. Pure.

What is compared lies a few steps apart, so whatever changes slowly is the same on both sides. There are at least twenty
steps on each, errors are clustered by step, and what ended is not reported: a single spike is never an update that was
missed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from logprobe.monitor.diagnosis.evidence.evidence import LEAST, ROUNDING, Evidence, strata_of
from logprobe.monitor.diagnosis.evidence.measures import SIGNIFICANT, Floats
from logprobe.monitor.diagnosis.evidence.strata import Strata

Bools = NDArray[np.bool_]
Integers = NDArray[np.int64]
ToldBy = Literal["fingerprints", "loads", "rounding", "phase"]
_OF_VERSIONS: Final = ("fingerprints", "loads")

_SIDE: Final = 20  # steps on either side
_AROUND: Final = 3  # steps before and after, that an odd one is compared with
_RATIO: Final = 1.5  # of K3
_OFTEN: Final = 0.85  # of the odd steps are each above those around them: a few large ones are no habit
_PERIODS: Final = range(2, 31)  # steps: longer ones would take a run of more than 600 steps to tell
_BLOCKS: Final = 24  # of a period, the newest ones
_THERE: Final = 0.75  # of the steps
_SEARCHED: Final = 6.5  # standard errors: several hundred phases are looked at, at every diagnosis
_ALONE: Final = 0.4  # of the odd phase's log ratio: as much as the next phase may have; a schedule moves several
_ALIKE: Final = 4.0  # standard errors: from here on the tokens themselves are others
_CLEAR: Final = 100 * ROUNDING  # K3 that is no rounding: between the two it may be either
_EXACT: Final = 0.25  # of the steps, at which both sides compute the same
_ENDED: Final = 4  # times the usual distance without an odd step


@dataclass(frozen=True, slots=True)
class Skipped:
    """Which tokens were sampled after an update that was missed.

    Attributes:
        told_by: what says so: fingerprints of the weights; labels that came without a load; steps that agree to
            rounding between others that do not; or nothing but one step in every few.
        odd: their weight versions, where fingerprints or labels tell; else their steps.
        others: how many there are beside them.
        ratio: of K3 over that of the steps around; geometric mean.
        z: standard errors of its logarithm.
        every: steps from one to the next, where that is regular.
        since: first step concerned.
        excess: share of their K3, and that of the others, that they have above the others.
    """

    told_by: ToldBy
    odd: Integers
    others: int
    ratio: float
    z: float
    every: int | None
    since: int
    excess: float

    def rows(self, strata: Strata) -> Bools:
        """Which strata are concerned."""
        concerned: Bools = np.isin(strata.version if self.told_by in _OF_VERSIONS else strata.step, self.odd)
        return concerned


def skipped(evidence: Evidence) -> Skipped | None:
    """The best evidence that there is; None: there is none."""
    weights, strata = evidence.weights, _of_one_lag(evidence)
    by_label = None if strata is None else (
        _by_versions(strata, "fingerprints", weights.numbered(evidence.readings.recurring))
        or _by_versions(strata, "loads", weights.numbered(weights.without_load))
    )  # fmt: skip
    steps, y = _logs(*_every_step(evidence, strata))
    return by_label or _by_rounding(steps, y) or _by_phase(evidence, steps, y)


def _every_step(evidence: Evidence, strata: Strata | None) -> tuple[Strata, Integers]:
    """The same of every step where all tokens are of one lag, and none has been explained."""
    if strata is None or evidence.strata is None or (strata.n == evidence.strata.n and not evidence.explained):
        strata = strata_of(evidence.series)
    return strata, strata.step


def _of_one_lag(evidence: Evidence) -> Strata | None:
    """Tokens of the commonest weight lag, or of unknown lag where most are."""
    if evidence.strata is None or not evidence.strata.n:
        return None
    within = evidence.strata.within(evidence.series.step)
    of_known_lag = within.where(np.isfinite(within.lag))
    if 2 * of_known_lag.n < within.n:
        return within.where(np.isnan(within.lag))
    lags, index = np.unique(of_known_lag.lag, return_inverse=True)
    return (
        of_known_lag.where(of_known_lag.lag == lags[np.bincount(index, of_known_lag.tokens).argmax()])
        if len(lags)
        else within
    )


def _logs(strata: Strata, keys: Floats | Integers) -> tuple[Integers, Floats]:
    """Keys, ascending, and log K3 of each."""
    measured = np.isfinite(keys) & (strata.tokens > 0)
    places, index = np.unique(keys[measured].astype(np.int64), return_inverse=True)
    k3 = (
        np.bincount(index, strata.sum_k3[measured]) / np.bincount(index, strata.tokens[measured])
        if len(places)
        else places
    )
    return places, np.log(np.maximum(k3, LEAST))


def _by_versions(strata: Strata, told_by: ToldBy, numbers: Iterable[int]) -> Skipped | None:
    versions, y = _logs(strata, strata.version)
    odd = np.isin(versions, np.fromiter(numbers, np.int64))
    if not _enough(odd) or _ended(versions, odd) or _z(_over(y, odd)) < SIGNIFICANT:
        return None
    since = int(strata.step[strata.version == versions[odd][0]].min())
    return _described(told_by, versions, y, odd, since)


def _by_rounding(steps: Integers, y: Floats) -> Skipped | None:
    """Both sides compute the same at most steps, so that their weights are the same; at others they do not."""
    odd, exact = y > math.log(_CLEAR), y < math.log(ROUNDING)
    if not _enough(odd) or exact.sum() < max(_SIDE, _EXACT * len(y)) or _ended(steps, odd) or not _returns(odd, exact):
        return None
    return _described("rounding", steps, y, odd, int(steps[odd][0]))


def _described(told_by: ToldBy, keys: Integers, y: Floats, odd: Bools, since: int) -> Skipped:
    over = _over(y, odd)
    return Skipped(
        told_by=told_by,
        odd=keys[odd],
        others=int((~odd).sum()),
        ratio=_ratio(over),
        z=_z(over),
        every=_regular(keys[odd]),
        since=since,
        excess=_excess(y, odd),
    )


def _returns(odd: Bools, exact: Bools) -> bool:
    """Whether most odd stretches are followed by agreement: what stays apart is another fault."""
    marks = odd[odd | exact]
    return int((marks[:-1] & ~marks[1:]).sum()) >= _SIDE


def _by_phase(evidence: Evidence, steps: Integers, y: Floats) -> Skipped | None:
    """One step in every few, alone among the phases, with tokens like those of the others."""
    if not len(steps) or float(np.median(y)) < math.log(ROUNDING):
        return None
    dense = np.full(int(steps[-1] - steps[0]) + 1, np.nan)
    dense[steps - steps[0]] = y
    for every in _PERIODS:
        phase = _odd_phase(dense, every)
        if phase is not None:
            return _judged(evidence, steps, y, every, int(steps[0]) + phase)
    return None


def _odd_phase(dense: Floats, every: int) -> int | None:
    """Which of the phases of a period lies above the others, by the newest blocks; None: none does, or not it alone."""
    blocks = min(len(dense) // every, max(_BLOCKS, math.ceil(_SIDE / (every - 1))))
    if blocks < _SIDE:
        return None
    begin = len(dense) - blocks * every
    y = dense[begin:].reshape(blocks, every)
    there = np.isfinite(y)
    if there.mean() < _THERE or not (there.any(axis=0).all() and there.any(axis=1).all()):
        return None
    over = (y - np.nanmedian(y, axis=1, keepdims=True)) if every > 2 else y - y[:, ::-1]  # noqa: PLR2004
    means = np.nanmean(over, axis=0)
    best = int(means.argmax())
    others = np.delete(means, best)
    own = over[np.isfinite(over[:, best]), best]
    alone = every == 2 or others.max() - np.median(others) < _ALONE * (means[best] - np.median(others))  # noqa: PLR2004
    return (begin + best) % every if alone and len(own) >= _SIDE and _stands_out(own) else None


def _stands_out(over: Floats) -> bool:
    return _z(over) > _SEARCHED and _ratio(over) > _RATIO and float((over > 0).mean()) >= _OFTEN


def _judged(evidence: Evidence, steps: Integers, y: Floats, every: int, phase: int) -> Skipped | None:
    odd = (steps - phase) % every == 0
    since = _since(steps, odd, _over(y, odd))
    late = steps >= since
    steps, y, odd = steps[late], y[late], odd[late]
    if not _enough(odd) or not _stands_out(_over(y, odd)) or _other_tokens(evidence, steps, odd):
        return None
    return _described("phase", steps, y, odd, since)


def _since(steps: Integers, odd: Bools, over: Floats) -> int:
    """The first odd step after the last two in a row that were not above those around them."""
    half = np.median(over[-_SIDE:]) / 2
    quiet = over < half
    both = np.flatnonzero(quiet[:-1] & quiet[1:])
    first = int(both[-1]) + 2 if len(both) else 0
    return int(steps[odd][min(first, len(over) - 1)])


def _other_tokens(evidence: Evidence, steps: Integers, odd: Bools) -> bool:
    """Whether the odd steps are of other tasks: their tokens are likelier or less likely, or their answers longer or
    shorter."""
    series = evidence.series
    places = np.searchsorted(series.step, steps)
    n = series["n"][places]
    with np.errstate(divide="ignore", invalid="ignore"):
        columns = (series["r"][places] / n, series["t"][places] / n, np.log(n / series["compared"][places]))
    return any(abs(_z(_over(np.asarray(values, np.float64), odd))) > _ALIKE for values in columns)


def _over(y: Floats, odd: Bools) -> Floats:
    """What each odd value is above the mean of the nearest others, before and after [K]."""
    places, others = np.flatnonzero(odd), np.flatnonzero(~odd)
    if not len(places) or not len(others):
        return np.zeros(0)
    at = np.searchsorted(others, places)[:, None] + np.arange(-_AROUND, _AROUND)
    there = (at >= 0) & (at < len(others))
    near = np.where(there, y[others[np.clip(at, 0, len(others) - 1)]], np.nan)
    over: Floats = y[places] - np.nanmean(near, axis=1)
    finite: Floats = over[np.isfinite(over)]
    return finite


def _z(over: Floats) -> float:
    if len(over) < 2:  # noqa: PLR2004 - no spread
        return 0.0
    mean, error = float(over.mean()), float(over.std(ddof=1)) / math.sqrt(len(over))
    return mean / error if error > 0 else math.copysign(math.inf, mean) if mean else 0.0


def _ratio(over: Floats) -> float:
    return float(np.exp(over.mean()))


def _excess(y: Floats, odd: Bools) -> float:
    k3 = np.exp(y)
    return float(np.clip((k3[odd] - k3[~odd].mean()).sum() / k3.sum(), 0.0, 1.0))


def _enough(odd: Bools) -> bool:
    return int(odd.sum()) >= _SIDE and int((~odd).sum()) >= _SIDE


def _ended(steps: Integers, odd: Bools) -> bool:
    usual = float(np.median(np.diff(steps[odd])))
    return int(steps[-1]) - int(steps[odd][-1]) > max(_ENDED * usual, _SIDE)


def _regular(odd: Integers) -> int | None:
    """The distance from one to the next, where it is always the same."""
    distances = np.unique(np.diff(odd))
    return int(distances[0]) if len(distances) == 1 else None
