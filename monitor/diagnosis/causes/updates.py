"""Old weights that stay in a part of the engine: in the cache, in requests in flight, in a replica."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from logprobe.monitor.diagnosis.causes import fingerprints
from logprobe.monitor.diagnosis.causes.cause import CERTAIN, INFERRED, KNOWN, LIKELY, POSSIBLE, RECORDED, Sign
from logprobe.monitor.diagnosis.evidence.change_points import Change, beginning, change
from logprobe.monitor.diagnosis.evidence.evidence import ROUNDING, SLIGHT, Evidence, Slice, Slices
from logprobe.monitor.diagnosis.evidence.measures import SIGNIFICANT, Floats, Mean, clustered, difference
from logprobe.monitor.diagnosis.evidence.strata import Contrast, Strata, contrast
from logprobe.monitor.diagnosis.evidence.tokens import Bools, Tokens
from logprobe.monitor.diagnosis.result import Finding

_FEWEST: Final = 200  # tokens of a slice to compare with
_WORSE: Final = 1.5  # times: batches of different shape differ by less
_RISEN: Final = 1.3  # times, where nearly all requests are cached and none is left to compare with
_MORE: Final = 0.25  # of K3, within the same steps: a material share; how much is said by the share
_BLURRED: Final = 1.2  # times, without raw tokens: the stale part of a request is then mixed with the rest
_WORSE_ALIKE: Final = 1.25  # times the K3 of tokens as likely
_BINS: Final = 10  # of r
_KEPT: Final = 0.5  # share of updates
_SINCE: Final = 1.1  # times: the step is known, and needs no search
_STEPS_BEFORE: Final = 40  # at least, so that few steps since are not compared with as few


def stale_prefix_cache(evidence: Evidence) -> Sign | None:
    """Requests with cached prompt tokens are worse than those without, or nothing but the cache is left to blame."""
    alike = evidence.slices.where(lambda row: not row.in_flight).alike
    cached, other = alike.where(lambda row: row.cached is True), alike.where(lambda row: row.cached is False)
    kept = evidence.weights.kept_cache
    if cached.n < _FEWEST or not cached.k3 > ROUNDING:
        return None
    numbers = {
        "cached": cached.abs_d.value,
        "not_cached": other.abs_d.value,
        "tokens_not_cached": other.n,
        "updates_without_clearing": kept,
    }
    if other.n >= _FEWEST:
        sign = _cached_against_others(evidence, cached, other, numbers)
        return _kept_since(evidence, numbers) if sign is None else sign
    if not kept > _KEPT:
        return None
    risen = rise(uninterrupted(evidence), _RISEN)
    return _nothing_but_the_cache(evidence, numbers) if risen is None else _cached_and_risen(evidence, risen, numbers)


def _kept_since(evidence: Evidence, numbers: dict[str, float]) -> Sign | None:
    """Updates cleared the cache, and since some step they do not: tokens from then on against those of as many steps
    before.

    Requests without cached tokens are then mostly of the time before, and no comparison; nor is the run's beginning,
    whose policy was less sure of itself.
    """
    since, tokens = evidence.weights.kept_since, uninterrupted(evidence).tokens
    if since is None or tokens is None:
        return None
    fresh = tokens.fresh
    last = int(fresh.step.max()) if len(fresh) else since
    first = since - max(last - since, _STEPS_BEFORE)
    before = fresh.where((fresh.step > first) & (fresh.step <= since)).abs_d
    after = fresh.where(fresh.step > since).abs_d
    z = difference(after, before)
    if after.n < _FEWEST or before.n < _FEWEST or z < SIGNIFICANT or after.value < _SINCE * before.value:
        return None
    return Sign(
        INFERRED + RECORDED,  # the engine's records say when the cache was no longer cleared
        not_in_flight(evidence),
        {**numbers, "before": before.value, "after": after.value, "z": z, "step": since},
        f"Until step {since} weight updates cleared the prefix cache, since then they leave it as it is, and tokens of "
        "the trainer's own weight version "
        f"differ {after.value / max(before.value, 1e-12):.2g} times as much: the cached keys and values are of older "
        "weights.",
        since_step=since,
    )


def _cached_and_risen(evidence: Evidence, risen: Change, numbers: dict[str, float]) -> Sign:
    since = beginning(evidence, risen)
    return Sign(
        INFERRED + RECORDED,  # the engine's records exclude a cache that was cleared
        not_in_flight(evidence),
        {**numbers, **risen_numbers(risen)},
        f"Nearly all requests reuse cached prompt tokens, {numbers['updates_without_clearing']:.0%} of the weight "
        "updates left the cache as it was, and "
        f"tokens of the trainer's own weight version differ since step {since}: the cached keys and values are of "
        "older weights.",
        since_step=since,
    )


def _nothing_but_the_cache(evidence: Evidence, numbers: dict[str, float]) -> Sign | None:
    """A window that begins after the fault did: the gap is there all along, and rounding cannot make it in float32."""
    tokens, full = evidence.tokens, "float32" in evidence.setup.engine("dtype")
    if tokens is None or evidence.blurred or not full or len(tokens.fresh) < _FEWEST or tokens.fresh.k3.mean() < SLIGHT:
        return None
    return Sign(
        LIKELY,
        not_in_flight(evidence),
        {**numbers, "k3_fresh": float(tokens.fresh.k3.mean())},
        "Nearly all requests reuse cached prompt tokens, weight updates left the cache as it was, and tokens of the "
        "trainer's own weight version differ "
        "although the engine computes in float32: the cached keys and values may be of older weights (inferred by "
        "elimination).",
        since_step=evidence.start,
    )


def _cached_against_others(evidence: Evidence, cached: Slices, other: Slices, numbers: dict[str, float]) -> Sign | None:
    if (today := _today(evidence, _cached_now)) is not None and not evidence.scaled:
        kept = evidence.weights.kept_cache
        return Sign(
            CERTAIN if kept > _KEPT else INFERRED,
            1 - 1 / (1 + today.value),
            {**numbers, "k3_ratio_today": 1 + today.value, "z": today.z},
            f"Today K3 of requests with cached prompt tokens is {1 + today.value:.3g} times that of those without "
            f"({today.z:.0f} standard errors) at the "
            "same weight version: the prefix cache holds keys and values of older weights.",
            since_step=_began(evidence, _cached_now),
        )
    means = (
        (_of(evidence, lambda t: t.cached == 1), _of(evidence, lambda t: t.cached == 0)) if evidence.scaled else None
    )
    worse, better = means or (cached.abs_d, other.abs_d)
    z = difference(worse, better)
    if z < SIGNIFICANT or worse.value < _WORSE * better.value:
        return None
    kept = evidence.weights.kept_cache
    risen = change(evidence)
    return Sign(
        CERTAIN if kept > _KEPT else INFERRED,
        1 - min(better.value / worse.value, 1.0),
        {**numbers, "z": z},
        f"Requests with cached prompt tokens differ {worse.value / max(better.value, 1e-12):.3g} times as much as "
        f"those without ({z:.0f} "
        "standard errors) at the same weight version: the prefix cache holds keys and values of older weights.",
        since_step=None if risen is None else beginning(evidence, risen),
    )


Split = Callable[[Strata], tuple[Strata, Strata]]


def _cached_now(strata: Strata) -> tuple[Strata, Strata]:
    ours = strata.where(strata.in_flight != 1).alike
    return ours.where(ours.cached == 1), ours.where(ours.cached == 0)


def _in_flight_now(strata: Strata) -> tuple[Strata, Strata]:
    return strata.where(strata.in_flight == 1), strata.where(strata.in_flight == 0)


def _today(evidence: Evidence, split: Split) -> Contrast | None:
    """What some requests have above others today or since the gap began to grow, where it is much and certain.

    A fault that began late is a small part of a long run; one that began long ago is clearer over all steps since then.
    """
    excess = max(
        (contrast(*split(strata)) for strata in (evidence.now, evidence.lately)), key=lambda candidate: candidate.z
    )
    return excess if excess.z > SIGNIFICANT and excess.value > _MORE and evidence.now.k3 > ROUNDING else None


def _began(evidence: Evidence, split: Split) -> int | None:
    """Where the gap rose, if both were alike at the beginning; else the run's first step."""
    before = contrast(*split(evidence.first))
    if before.z > SIGNIFICANT and before.value > (_WORSE - 1) / 2:
        return int(evidence.first.step[0])
    risen = change(evidence)
    return evidence.growth.since_step if risen is None else beginning(evidence, risen)


def not_in_flight(evidence: Evidence) -> float:
    """Share of the whole gap that requests make which no update found in flight: what the others reuse is their own
    cache, too."""
    rest = evidence.slices.where(lambda row: not row.in_flight)
    whole = evidence.gap.k3 * evidence.gap.n
    return min(rest.k3 * rest.n / whole, 1.0) if rest.n and whole > 0 else 1.0


def uninterrupted(evidence: Evidence) -> Evidence:
    """Without what was in flight at an update, where enough is left: weights or caches that are old concern all other
    requests, too."""
    tokens = evidence.tokens
    left = None if tokens is None else tokens.where(~_switched(tokens))
    return replace(evidence, tokens=left) if left is not None and len(left.fresh) >= _FEWEST else evidence


def _of(evidence: Evidence, which: Callable[[Tokens], Bools]) -> Mean:
    tokens = evidence.tokens
    if tokens is None:
        return Mean(math.nan, math.nan, 0)
    return tokens.alike.where(which(tokens.alike)).abs_d


def cached_or_not(strata: Strata, _finding: Finding) -> tuple[Bools, Bools]:
    """Requests with cached prompt tokens, and without, none of them in flight at an update."""
    quiet = strata.in_flight != 1
    return (strata.cached == 1) & quiet, (strata.cached == 0) & quiet


def in_flight_or_not(strata: Strata, _finding: Finding) -> tuple[Bools, Bools]:
    """Requests that an update found in flight, and others."""
    return strata.in_flight == 1, strata.in_flight == 0


def replica_or_others(strata: Strata, finding: Finding) -> tuple[Bools, Bools]:
    """Requests of the replica that was found, and of the others."""
    worst = np.array([name == finding.evidence["replica"] for name in strata.replica], np.bool_)
    return worst, ~worst


def without_cached(evidence: Evidence, _finding: Finding) -> Evidence:
    """Requests that reused nothing."""
    tokens = evidence.tokens
    left = None if tokens is None else tokens.where(tokens.cached != 1)
    strata = None if evidence.strata is None else evidence.strata.where(evidence.strata.cached != 1)
    slices = evidence.slices.where(lambda row: row.cached is not True)
    return evidence.left("stale_prefix_cache", tokens=left, slices=slices, strata=strata)


def inflight_stale_kv(evidence: Evidence) -> Sign | None:
    """After an update, requests that were in flight stay worse than others sampled by the same weights."""
    tokens, kept = evidence.tokens, _kept_in_flight(evidence)
    if tokens is None:
        return _in_flight_by_records(evidence, kept)
    today = tokens.where(tokens.step >= evidence.now.step.min()) if evidence.now.n else tokens
    sign = _after_switch(evidence, tokens, kept)  # a fault that began late is a small part of a long run
    sign = _after_switch(evidence, today, kept) if sign is None and today is not tokens else sign
    return _in_flight_by_records(evidence, kept) if sign is None else sign


def _after_switch(evidence: Evidence, tokens: Tokens, kept: float) -> Sign | None:
    """By tokens that new weights sampled in requests which old weights began."""
    switched = _switched(tokens)
    newest = switched & (tokens.lag == _smallest_lag(tokens))
    worse, better = _same_lag(tokens, newest, ~switched)
    if worse.n < _FEWEST:
        return None
    numbers = {"after_switch": worse.value, "without_switch": better.value, "updates_in_flight_without_clearing": kept}
    z = difference(worse, better)
    if better.n >= _FEWEST and (z < SIGNIFICANT or worse.value < _WORSE * better.value):
        return None
    if better.n < _FEWEST and not (kept > _KEPT and not evidence.scaled and worse.value > math.sqrt(ROUNDING)):
        return None
    share = 1 - min(better.value / worse.value, 1.0) if better.n >= _FEWEST else 1.0
    return Sign(
        CERTAIN if kept > _KEPT and better.n >= _FEWEST else INFERRED,
        share * float(switched.mean()) ** 0.5,
        {**numbers, "z": z, "in_flight_share": float(switched.mean())},
        f"Tokens sampled by new weights in requests that were in flight at the update differ by {worse.value:.2g}, "
        "others of the same "
        f"version by {better.value:.2g}: those requests go on with keys and values of the old weights.",
        since_step=int(tokens.step[newest].min()),
    )


def _in_flight_by_records(evidence: Evidence, kept: float) -> Sign | None:
    """Without raw tokens the age of a request's first tokens is unknown from stale keys and values: only records make
    it likely."""
    worse = evidence.slices.where(lambda row: row.in_flight is True).abs_d
    better = evidence.slices.where(lambda row: row.in_flight is False).abs_d
    z = difference(worse, better)
    if not kept > _KEPT or min(worse.n, better.n) < _FEWEST or not worse.value > better.value:
        return None
    lately = _today(evidence, _in_flight_now)
    if lately is None and (z < SIGNIFICANT or worse.value < _BLURRED * better.value):
        return None
    return Sign(
        LIKELY,
        1 - min(better.value / worse.value, 1.0),
        {"in_flight": worse.value, "others": better.value, "z": z, "updates_in_flight_without_clearing": kept},
        f"{kept:.0%} of the weight updates kept requests in flight with what they had computed, and those differ by "
        f"{worse.value:.2g}, others by "
        f"{better.value:.2g}: a part of it are keys and values of old weights (how much is unknown without raw "
        "tokens).",
        since_step=risen_since(evidence),
    )


def _kept_in_flight(evidence: Evidence) -> float:
    """Share of updates that froze requests and did not clear what they had computed."""
    kept = [record.pause_mode == "keep" and not record.cache_cleared for record in evidence.weights.updates]
    return sum(kept) / len(kept) if kept else 0.0


def _switched(tokens: Tokens) -> Bools:
    """Tokens of sequences that more than one weight version sampled [N]."""
    count = int(tokens.sequence.max()) + 1 if len(tokens) else 0
    low, high = np.full(count, np.iinfo(np.intp).max), np.full(count, -1)
    np.minimum.at(low, tokens.sequence, tokens.version)
    np.maximum.at(high, tokens.sequence, tokens.version)
    several: Bools = ((low >= 0) & (high > low))[tokens.sequence]
    return several


def _smallest_lag(tokens: Tokens) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The lag of the newest token of each token's sequence [N]; unknown lags count as never newest."""
    count = int(tokens.sequence.max()) + 1 if len(tokens) else 0
    low = np.full(count, np.inf)
    np.fmin.at(low, tokens.sequence, tokens.lag)
    return low[tokens.sequence]


def _same_lag(tokens: Tokens, some: Bools, others: Bools) -> tuple[Mean, Mean]:
    """Mean |d| of both at the lag that both have most tokens of."""
    lags = np.unique(tokens.lag[some & np.isfinite(tokens.lag)])
    if not len(lags):
        return Mean(math.nan, math.nan, 0), Mean(math.nan, math.nan, 0)
    at = max(
        lags.tolist(),
        key=lambda lag: (min((some & (tokens.lag == lag)).sum(), (others & (tokens.lag == lag)).sum()), -lag),
    )
    a, b = (tokens.where(which & (tokens.lag == at)) for which in (some, others))
    return a.abs_d, b.abs_d


def without_in_flight(evidence: Evidence, _finding: Finding) -> Evidence:
    """Sequences that one weight version sampled from beginning to end."""
    tokens = evidence.tokens
    left = None if tokens is None else tokens.where(~_switched(tokens))
    strata = None if evidence.strata is None else evidence.strata.where(evidence.strata.in_flight != 1)
    slices = evidence.slices.where(lambda row: row.in_flight is not True)
    return evidence.left("inflight_stale_kv", tokens=left, slices=slices, strata=strata)


def replica_divergence(evidence: Evidence) -> Sign | None:
    """One replica has other weights than the others, or is worse at the same lag."""
    sign = _worse_replica(evidence)
    if sign is not None and _by_other_tasks(evidence):
        sign = replace(
            sign,
            confidence=POSSIBLE,
            explanation=f"{sign.explanation} But its tokens are likelier or less likely than those of the others, and "
            "among tokens alike it does not differ: it "
            "may be given other tasks. Fingerprints of the weights tell which.",
        )
    return fingerprints.diverged(evidence, 0.0 if sign is None else sign.effect) or sign


def _worse_replica(evidence: Evidence) -> Sign | None:
    if evidence.scaled:
        return None
    alike = evidence.slices.alike
    names = sorted({row.replica for row in alike.rows if row.replica is not None})
    if len(names) < 2:  # noqa: PLR2004 - one cannot diverge
        return None
    late = {name: today for name in names if (today := _today(evidence, _replica_now(name))) is not None}
    if late:
        return _gone_astray(evidence, max(late, key=lambda name: late[name].value), late, len(names))
    worst = max(names, key=lambda name: alike.where(_replica(name)).abs_d.value)
    worse, better = alike.where(_replica(worst)).abs_d, alike.where(lambda row: row.replica != worst).abs_d
    z = difference(worse, better)
    if min(worse.n, better.n) < _FEWEST or z < SIGNIFICANT or worse.value < _WORSE * better.value:
        return None
    if worse.value < math.sqrt(ROUNDING):
        return None
    return Sign(
        KNOWN,
        1 - min(better.value / worse.value, 1.0),
        {"replica": worst, "replicas": len(names), "its_gap": worse.value, "others": better.value, "z": z},
        f"Replica {worst} differs from the trainer by {worse.value:.2g}, the others by {better.value:.2g} ({z:.0f} "
        "standard errors), at the "
        "same declared weight version.",
        since_step=risen_since(evidence),
    )


def _by_other_tasks(evidence: Evidence) -> bool:
    """Whether the tokens of the replica that differs most are others, and differ no more than others as likely; without
    raw tokens no one can say."""
    tokens = evidence.tokens
    if tokens is None or not len(tokens.alike):
        return False
    alike = tokens.alike
    worst = alike.replica == _worst_code(alike)
    own, others = alike.where(worst), alike.where(~worst)
    likely = [clustered(part.r, part.sequence) for part in (own, others)]
    if min(len(own), len(others)) < _FEWEST or abs(difference(*likely)) < SIGNIFICANT:
        return False
    edges = np.quantile(alike.r, np.linspace(0, 1, _BINS + 1)[1:-1]).astype(np.float64)
    counts, sums = zip(*(_binned(part, edges) for part in (own, others)), strict=True)
    both = (counts[0] > 0) & (counts[1] > 0)
    as_others = counts[0][both] * sums[1][both] / counts[1][both]
    return bool(sums[0][both].sum() < _WORSE_ALIKE * as_others.sum())


def _binned(tokens: Tokens, edges: Floats) -> tuple[Floats, Floats]:
    """Of each bin of r: tokens, and their K3."""
    bins = np.searchsorted(edges, tokens.r)
    counts, sums = np.bincount(bins, minlength=_BINS), np.bincount(bins, tokens.k3, _BINS)
    return counts.astype(np.float64), sums.astype(np.float64)


def _worst_code(tokens: Tokens) -> int:
    codes: list[int] = np.unique(tokens.replica).tolist()
    return max(
        codes,
        key=lambda code: clustered(np.abs(tokens.of_replica(code).d), tokens.of_replica(code).sequence).value,
    )


def _replica_now(name: str) -> Split:
    def split(strata: Strata) -> tuple[Strata, Strata]:
        ours = strata.alike
        return ours.where(ours.replica == name), ours.where((ours.replica != name) & (ours.replica != None))  # noqa: E711 - elementwise

    return split


def _gone_astray(evidence: Evidence, name: str, late: dict[str, Contrast], replicas: int) -> Sign:
    today = late[name]
    return Sign(
        KNOWN,
        1 - 1 / (1 + today.value),
        {"replica": name, "replicas": replicas, "k3_ratio_today": 1 + today.value, "z": today.z},
        f"Today K3 of replica {name} is {1 + today.value:.3g} times that of the others ({today.z:.0f} standard "
        "errors), at the same declared weight "
        "version.",
        since_step=_began(evidence, _replica_now(name)),
    )


def _replica(name: str) -> Callable[[Slice], bool]:
    return lambda row: row.replica == name


def risen_since(evidence: Evidence) -> int | None:
    """First step of a rise of the gap; None: there is none."""
    risen = change(evidence)
    return None if risen is None else beginning(evidence, risen)


def without_replica(evidence: Evidence, finding: Finding) -> Evidence:
    """The other replicas."""
    tokens, name = evidence.tokens, finding.evidence["replica"]
    slices = evidence.slices.where(lambda row: row.replica != name)
    strata = None if evidence.strata is None else evidence.strata.where(evidence.strata.replica != name)
    if tokens is None or not len(tokens):
        return evidence.left("replica_divergence", slices=slices, strata=strata)
    worst = _worst_code(tokens)
    return evidence.left(
        "replica_divergence", tokens=tokens.where(tokens.replica != worst), slices=slices, strata=strata
    )


def rise(evidence: Evidence, ratio: float) -> Change | None:
    """A rise to at least so many times what was there before, beyond rounding."""
    risen = change(evidence)
    if risen is None or risen.ratio < ratio or risen.after.value < math.sqrt(ROUNDING):
        return None
    return risen


def risen_numbers(risen: Change) -> dict[str, float]:
    """Of a rise, for a finding's evidence."""
    return {"before": risen.before.value, "after": risen.after.value, "z": risen.z, "step": risen.step}
