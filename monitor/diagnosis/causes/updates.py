"""New weights that do not arrive, or only in part: in the cache, in requests in flight, in a replica, in the engine."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from logprobe.monitor.diagnosis.causes.cause import CERTAIN, INFERRED, KNOWN, LIKELY, POSSIBLE, Sign
from logprobe.monitor.diagnosis.course import Change, agreed_before, beginning, change
from logprobe.monitor.diagnosis.evidence import ROUNDING, SLIGHT, Evidence, Slice, Slices
from logprobe.monitor.diagnosis.measures import SIGNIFICANT, Mean, clustered, difference
from logprobe.monitor.diagnosis.tokens import Bools, Tokens

_FEWEST: Final = 200  # tokens of a slice to compare with
_WORSE: Final = 1.5  # times: batches of different shape differ by less
_BLURRED: Final = 1.2
_RISEN: Final = 3.0  # times: an update that is missed is no matter of degree
_KEPT: Final = 0.5  # share of updates


def stale_prefix_cache(evidence: Evidence) -> Sign | None:
    """Requests with cached prompt tokens are worse than those without, or nothing but the cache is left to blame."""
    fresh = evidence.slices.where(lambda row: not row.in_flight and not (row.lag or 0) > 0)
    cached, other = fresh.where(lambda row: row.cached is True), fresh.where(lambda row: row.cached is False)
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
        return _cached_against_others(evidence, cached, other, numbers)
    if not kept > _KEPT:
        return None
    risen = _rise(_uninterrupted(evidence), _WORSE - 0.2)
    return _nothing_but_the_cache(evidence, numbers) if risen is None else _cached_and_risen(evidence, risen, numbers)


def _cached_and_risen(evidence: Evidence, risen: Change, numbers: dict[str, float]) -> Sign:
    since = beginning(evidence, risen)
    return Sign(
        INFERRED + 0.04,  # the engine's records exclude a cache that was cleared
        _not_in_flight(evidence),
        {**numbers, **_risen(risen)},
        f"Nearly all requests reuse cached prompt tokens, {numbers['updates_without_clearing']:.0%} of the weight updates left the cache as it was, and "
        f"tokens of the trainer's own weight version differ since step {since}: the cached keys and values are of older weights.",
        since_step=since,
    )


def _nothing_but_the_cache(evidence: Evidence, numbers: dict[str, float]) -> Sign | None:
    """A window that begins after the fault did: the gap is there all along, and rounding cannot make it in float32."""
    tokens, full = evidence.tokens, "float32" in evidence.setup.engine("dtype")
    if tokens is None or evidence.blurred or not full or len(tokens.fresh) < _FEWEST or tokens.fresh.k3.mean() < SLIGHT:
        return None
    return Sign(
        LIKELY,
        _not_in_flight(evidence),
        {**numbers, "k3_fresh": float(tokens.fresh.k3.mean())},
        "Nearly all requests reuse cached prompt tokens, weight updates left the cache as it was, and tokens of the trainer's own weight version differ "
        "although the engine computes in float32: the cached keys and values may be of older weights (inferred by elimination).",
        since_step=evidence.start,
    )


def _cached_against_others(evidence: Evidence, cached: Slices, other: Slices, numbers: dict[str, float]) -> Sign | None:
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
        f"Requests with cached prompt tokens differ {worse.value / max(better.value, 1e-12):.3g} times as much as those without ({z:.0f} "
        "standard errors) at the same weight version: the prefix cache holds keys and values of older weights.",
        since_step=None if risen is None else beginning(evidence, risen),
    )


def _not_in_flight(evidence: Evidence) -> float:
    """Share of the whole gap that requests make which no update found in flight: what the others reuse is their own cache, too."""
    rest = evidence.slices.where(lambda row: not row.in_flight)
    whole = evidence.gap.k3 * evidence.gap.n
    return min(rest.k3 * rest.n / whole, 1.0) if rest.n and whole > 0 else 1.0


def _uninterrupted(evidence: Evidence) -> Evidence:
    """Without what was in flight at an update, where enough is left: weights or caches that are old concern all other requests, too."""
    tokens = evidence.tokens
    left = None if tokens is None else tokens.where(~_switched(tokens))
    return replace(evidence, tokens=left) if left is not None and len(left.fresh) >= _FEWEST else evidence


def _of(evidence: Evidence, which: Callable[[Tokens], Bools]) -> Mean:
    tokens = evidence.tokens
    if tokens is None:
        return Mean(math.nan, math.nan, 0)
    fresh = tokens.where(which(tokens) & ~(tokens.lag > 0))
    return fresh.abs_d


def without_cached(evidence: Evidence) -> Evidence:
    """Requests that reused nothing."""
    tokens = evidence.tokens
    left = None if tokens is None else tokens.where(tokens.cached != 1)
    return evidence.left(
        "stale_prefix_cache", tokens=left, slices=evidence.slices.where(lambda row: row.cached is not True)
    )


def inflight_stale_kv(evidence: Evidence) -> Sign | None:
    """After an update, requests that were in flight stay worse than others sampled by the same weights."""
    tokens, kept = evidence.tokens, _kept_in_flight(evidence)
    if tokens is None:
        return None
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
        f"Tokens sampled by new weights in requests that were in flight at the update differ by {worse.value:.2g}, others of the same "
        f"version by {better.value:.2g}: those requests go on with keys and values of the old weights.",
        since_step=int(tokens.step[newest].min()),
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


def without_in_flight(evidence: Evidence) -> Evidence:
    """Sequences that one weight version sampled from beginning to end."""
    tokens = evidence.tokens
    left = None if tokens is None else tokens.where(~_switched(tokens))
    return evidence.left(
        "inflight_stale_kv", tokens=left, slices=evidence.slices.where(lambda row: row.in_flight is not True)
    )


def replica_divergence(evidence: Evidence) -> Sign | None:
    """One replica is worse than the others at the same lag."""
    if evidence.scaled:
        return None
    fresh = evidence.slices.where(lambda row: not (row.lag or 0) > 0)
    names = sorted({row.replica for row in fresh.rows if row.replica is not None})
    if len(names) < 2:  # noqa: PLR2004 - one cannot diverge
        return None
    worst = max(names, key=lambda name: fresh.where(_replica(name)).abs_d.value)
    worse, better = fresh.where(_replica(worst)).abs_d, fresh.where(lambda row: row.replica != worst).abs_d
    z = difference(worse, better)
    if min(worse.n, better.n) < _FEWEST or z < SIGNIFICANT or worse.value < _WORSE * better.value:
        return None
    return Sign(
        KNOWN,
        1 - min(better.value / worse.value, 1.0),
        {"replica": worst, "replicas": len(names), "its_gap": worse.value, "others": better.value, "z": z},
        f"Replica {worst} differs from the trainer by {worse.value:.2g}, the others by {better.value:.2g} ({z:.0f} standard errors), at the "
        "same declared weight version.",
        since_step=_since(evidence),
    )


def _replica(name: str) -> Callable[[Slice], bool]:
    return lambda row: row.replica == name


def _since(evidence: Evidence) -> int | None:
    risen = change(evidence)
    return None if risen is None else beginning(evidence, risen)


def without_replica(evidence: Evidence) -> Evidence:
    """The other replicas."""
    tokens = evidence.tokens
    sign = replica_divergence(evidence)
    name = sign.evidence["replica"] if sign else None
    slices = evidence.slices.where(lambda row: row.replica != name)
    if tokens is None or not len(tokens):
        return evidence.left("replica_divergence", slices=slices)
    codes = np.unique(tokens.replica)
    worst = max(
        codes.tolist(),
        key=lambda code: clustered(np.abs(tokens.of_replica(code).d), tokens.of_replica(code).sequence).value,
    )
    return evidence.left("replica_divergence", tokens=tokens.where(tokens.replica != worst), slices=slices)


def missed_weight_sync(evidence: Evidence) -> Sign | None:
    """Tokens said to be of the trainer's weights differ from a step on; or an update was seen not to be loaded."""
    not_loaded = _labels_without_load(evidence)
    # What a scale leaves without repeated contexts is not exact: a rise stands out less there, and says less.
    risen = _rise(_uninterrupted(evidence), _BLURRED if evidence.blurred else _RISEN)
    if risen is None:
        return None
    if evidence.blurred:
        return _blurred(risen)
    unknown = evidence.unknown_versions
    until = "" if risen.until is None else f" until {risen.until}"
    return Sign(
        KNOWN
        if not_loaded
        else INFERRED
        if evidence.versions_known
        else LIKELY
        if agreed_before(evidence, risen)
        else POSSIBLE,
        _not_in_flight(evidence),
        {**_risen(risen), "until": risen.until, "labels_without_load": not_loaded, "unknown_version_share": unknown},
        f"Since step {beginning(evidence, risen)}{until} the engine's log-probs leave the trainer's ({risen.ratio:.3g} times the gap of the other steps, "
        f"{risen.z:.0f} standard errors), {_told(evidence, risen)}: new weights do not reach it.",
        since_step=beginning(evidence, risen),
    )


def _blurred(risen: Change) -> Sign:
    return Sign(
        POSSIBLE,
        1.0,
        _risen(risen),
        f"Since step {risen.step} what the other finding leaves of the gap is {risen.ratio:.3g} times as large ({risen.z:.0f} standard errors): new "
        "weights may not reach the engine (inferred; look again once the other fault is mended).",
        since_step=risen.step,
    )


def _told(evidence: Evidence, risen: Change) -> str:
    if evidence.versions_known:
        return "although the engine says that it has the trainer's weights"
    if agreed_before(evidence, risen):
        return "while before both agreed to rounding, so that weights did arrive (inferred; the version of the tokens is not known)"
    return "but the version of the tokens is not known: it may also be a lag that grew"


def _labels_without_load(evidence: Evidence) -> int:
    """Updates of which engines got the label but not, as far as was seen, the weights; 0 where loads are never seen."""
    updates = evidence.weights.updates
    return sum(not record.loaded for record in updates) if any(record.loaded for record in updates) else 0


def partial_weight_sync(evidence: Evidence) -> Sign | None:
    """Some updates carried fewer tensors than others, or both sides have different checksums of a version."""
    counts = [record.tensors for record in evidence.weights.updates if record.tensors]
    fewer = sum(count < max(counts) for count in counts) if counts else 0
    sums = _different_checksums(evidence)
    if not (fewer or sums) or not evidence.gap.visible:
        return None
    return Sign(
        KNOWN,
        1.0,
        {"updates_with_fewer_tensors": fewer, "different_checksums": sums, "tensors": max(counts, default=None)},
        f"{fewer} weight updates carried fewer tensors than others, {sums} versions have different checksums at trainer and engine: a part of the "
        "weights stays old.",
        since_step=_since(evidence),
    )


def _different_checksums(evidence: Evidence) -> int:
    by_version: dict[str, set[str]] = {}
    for record in evidence.weights.records:
        if record.version is not None and record.checksum:
            by_version.setdefault(record.version, set()).add(record.checksum)
    return sum(len(sums) > 1 for sums in by_version.values())


def _rise(evidence: Evidence, ratio: float = _RISEN) -> Change | None:
    """A rise to at least so many times what was there before, beyond rounding."""
    risen = change(evidence)
    if risen is None or risen.ratio < ratio or risen.after.value < math.sqrt(ROUNDING):
        return None
    return risen


def _risen(risen: Change) -> dict[str, float]:
    return {"before": risen.before.value, "after": risen.after.value, "z": risen.z, "step": risen.step}
