"""Judge a frame: place of the mismatch, its cause, and the remedy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final, Literal

import numpy as np

from logprobe.monitor.judging.contrast import Rest, contrasts, grew_at, recorded, where
from logprobe.monitor.judging.counted import counted, unmeasured
from logprobe.monitor.judging.course import (
    Shape,
    abrupt,
    affected,
    affected_sequences,
    affected_tokens,
    labels_lie,
    logs,
    odd_steps,
    rise_of,
    rounded_updates,
    short_rise,
    without_load,
)
from logprobe.monitor.judging.course import shape as shape_of
from logprobe.monitor.judging.declared import declared, noise
from logprobe.monitor.judging.distribution import distribution, varies
from logprobe.monitor.judging.document import LAYERS, Advice, Layer, Urgency, Verdict
from logprobe.monitor.judging.frame import Column, Frame, Strata, strata_of
from logprobe.monitor.judging.judgement import GROWS, Acceptance, Confidence, Finding, Judgement, Level, Place
from logprobe.monitor.judging.level import bits_may_agree, expected, far, identical, level_of, rounded_copy
from logprobe.monitor.judging.measures import SIGNIFICANT, among, difference
from logprobe.monitor.judging.proofs import Facts, facts_of, stands_still
from logprobe.monitor.judging.records import gap_of, windows
from logprobe.monitor.judging.safe_lag import curve, due_to_length, safe_lag
from logprobe.monitor.judging.signatures import ORDER, SIGNATURES, UNKNOWN
from logprobe.monitor.judging.thresholds import number
from logprobe.monitor.judging.tokens import siblings_of

_URGENCIES: Final[tuple[Urgency, ...]] = ("act", "watch", "informational")
_BY_RATIO: Final = ("miscalibrated_logprobs", "other_softmax")  # told by means that noise of one side moves
_NEVER_ARRIVES: Final = frozenset({"missed_weight_sync", "partial_weight_sync"})


def judge(frame: Frame, accepted: Sequence[Acceptance] = ()) -> Judgement:
    """Return the judgement of a run as of the frame's last step.

    Args:
        frame: columns of the run.
        accepted: causes that the operator accepts.
    """
    facts = facts_of(frame)
    if facts.conflict:
        frame = frame.without_lags()
    found = counted(frame, facts)
    frame = _without(frame, found)
    level = level_of(frame)
    if unmeasured(found):
        level = replace(level, k3=None, status="not measured")
        return _concluded(frame, found, level, None, facts=facts, accepted=accepted)
    rounded = rounded_copy(frame)
    equal = identical(frame) or identical(frame.today) or rounded is not None
    if equal and not bits_may_agree(frame):
        return _not_measured(frame, found, level, rounded)
    place = None if frame.gap.n < number("fewest") else where(frame)
    grown = grew_at(frame) if frame.growth.verdict in GROWS else None
    found += _why(frame, found, facts, place)
    found = _once(_excluded(found, frame, facts))
    found = _here(frame, found, place, grown)
    return _concluded(frame, found, level, _told(frame, place, grown), facts=facts, accepted=accepted)


def _without(frame: Frame, found: list[Finding]) -> Frame:
    """Return the frame without the steps of past faults that hid all other evidence."""
    over = [(f.since, f.until) for f in found if f.signature.hides and f.since is not None and f.until is not None]
    keep = np.ones(len(frame.series), np.bool_)
    for since, until in over:
        keep &= (frame.series.step < since) | (frame.series.step > until)
    return frame if keep.all() else frame.within(frame.series.step[keep])


# ------------------------------------------------------------------------------------------------ why


def _why(frame: Frame, counted_found: list[Finding], facts: Facts, place: Place | None) -> list[Finding]:
    """Run the tests whose causes need statistics."""
    if any(finding.hides for finding in counted_found):
        return []
    shape, trainer = _distributions(frame)
    if shape is not None and shape.signature.hides:
        if place is None or shape.cause != "different_model" or place.others > number("reference"):
            return [shape]
        shape = None  # elsewhere both sides may score the same text
    rest = Rest(frame)
    found = contrasts(frame, rest) if shape is None else _beside(frame, shape, place)
    found += [] if trainer is None or shape is not None else [trainer]
    known = {finding.cause for finding in (*found, *counted_found)}
    if shape is None or shape.cause != "miscalibrated_logprobs":
        missed = _sync(frame, rest, scaled=shape is not None, steady=trainer is not None) or _recurring(frame)
        found += _arrived_rounded(frame, facts, None if missed is None or known & _NEVER_ARRIVES else missed)
    if not any(f.named and f.signature.kind == "fault" for f in (*found, *counted_found)):
        found += _now_and_then(frame, rest)
    stale = _lag(frame, rest)
    found += [] if stale is None else [stale]
    blocked = any(f.cause in _NEVER_ARRIVES and f.share is None and f.named for f in (*found, *counted_found))
    if shape is None and trainer is None and not blocked:
        grew = _growth(frame, rest, found, facts)
        found += [] if grew is None else [grew]
    known_noise = any(f.signature.kind == "noise" for f in (*found, *counted_found))
    return found if known_noise else [*found, *noise(frame)]


def _distributions(frame: Frame) -> tuple[Finding | None, Finding | None]:
    """Return a wrong distribution, and a non-deterministic trainer, which moves E[ρ] as well."""
    shape = distribution(frame)
    trainer = varies(frame) if shape is None or shape.cause in _BY_RATIO else None
    return (None if trainer is not None and trainer.named else shape), trainer


def _beside(frame: Frame, shape: Finding, place: Place | None) -> list[Finding]:
    """Return a wrong distribution with its share, and the contrasts in the remaining mismatch.

    Without tokens that share a context, the whole mismatch is contrasted. A temperature leaves no more than noise. If
    more remains in all tokens from the beginning on, something else bends the log-probs.
    """
    left = _without_scale(frame)
    if left is None or not frame.now.k3 > 0:
        return [shape, *contrasts(frame, Rest(frame))]
    rest = Rest(replace(frame, strata=left))
    part = min(max(rest.now.k3 / frame.now.k3, 0.0), 1.0) if rest.now.n else 1.0
    beside = contrasts(rest.frame, rest)
    scaled = [f if f.share is None else replace(f, share=f.share * part) for f in beside]
    remaining = [rows.k3 for rows in (rest.first, rest.now) if rows.n >= number("fewest")] or [rest.all.k3]
    inferred = "beta" in shape.evidence and shape.confidence <= Confidence.INFERRED
    if inferred and not beside and place is None and min(remaining) > far(frame):
        evidence: dict[str, object] = {"looks_like": shape.cause, "remains": min(remaining)}
        return [replace(shape, cause=UNKNOWN, share=None, evidence=evidence)]
    return [replace(shape, share=1 - part), *scaled]


def _sync(frame: Frame, rest: Rest, *, scaled: bool, steady: bool) -> Finding | None:
    """Name weights that did not arrive, by labels without a load, or by a rise that follows the missed updates."""
    versions = set(without_load(frame))
    lies = labels_lie(rest.all, tuple(versions))
    if lies is not None:
        odd, z = lies
        since = int(rest.all.step[odd].min())
        share = rest.take(lambda rows: _of(rows, versions), lambda rows: ~_of(rows, versions))
        told = Confidence.CERTAIN if frame.readings.recurring else Confidence.KNOWN
        return Finding("missed_weight_sync", told, since, share, evidence={"versions": len(versions), "z": z})
    rows = _without_scale(frame) if scaled else rest.all.alike
    if steady or rows is None:
        return None
    sure = Confidence.INFERRED if frame.versions_known else Confidence.POSSIBLE
    at = short_rise(rows) if len(rows.steps) < number("shape_steps") else None
    if at is not None and (scaled or _few(frame, rest, at) is None):
        cause = _by_records(frame)
        if cause == "missed_weight_sync" and not scaled and abrupt(*logs(rows), at) and not _rises_on(rows, at):
            jump = rows.where(rows.step >= at).k3 / max(rows.where(rows.step < at).k3, number("least_k3"))
            return Finding(UNKNOWN, Confidence.INFERRED, at, evidence={"jump": jump})
        return Finding(cause, sure, at)
    return None if scaled else _by_power(frame, rest, rows, sure)


def _rises_on(rows: Strata, at: int) -> bool:
    """Return whether mean |d| still rises after a step, as with each further update that does not arrive."""
    later = rows.where(rows.step >= at)
    middle = later.steps[len(later.steps) // 2]
    return rise_of(later, int(middle)).z > SIGNIFICANT


def _arrived_rounded(frame: Frame, facts: Facts, missed: Finding | None) -> list[Finding]:
    """Name updates below the engine's precision where a rise within the range of the setup looks like missed updates.

    Fingerprints that agree prove that the weights arrive. Without them both causes are possible.
    """
    by_shape = missed is not None and missed.cause == "missed_weight_sync" and missed.confidence <= Confidence.INFERRED
    rose = by_shape or frame.now.k3 > number("grown_ratio") * frame.first.k3
    rounding = rounded_updates(frame) if rose and (missed is None or by_shape) else None
    if rounding is None or not frame.now.k3 <= expected(frame)[1]:
        return [] if missed is None else [missed]
    proven = "fingerprints_agree" in facts.true
    evidence: dict[str, object] = {"dtype": rounding.dtype, "crossing": rounding.crossing}
    evidence |= {"exact_first": rounding.exact[0], "exact_now": rounding.exact[1]}
    rounded = Finding("updates_below_precision", Confidence.POSSIBLE, evidence=evidence)
    if proven:
        return [replace(rounded, confidence=Confidence.INFERRED, growth=1.0)]
    return [rounded] if missed is None else [rounded, replace(missed, confidence=Confidence.POSSIBLE)]


def _now_and_then(frame: Frame, rest: Rest) -> list[Finding]:
    """Return an unknown cause if some steps differ from all others."""
    odd = odd_steps(rest.all.alike, far(frame))
    if odd is None:
        return []
    share = rest.take(lambda rows: np.isin(rows.step, odd), lambda rows: ~np.isin(rows.step, odd))
    evidence = {"steps": len(odd), "every": int(np.median(np.diff(odd)))}
    return [Finding(UNKNOWN, Confidence.INFERRED, int(odd[0]), share, evidence=evidence)]


def _recurring(frame: Frame) -> Finding | None:
    """Name updates that fingerprints show as missed repeatedly."""
    versions = frame.readings.recurring
    if not versions:
        return None
    return Finding("missed_weight_sync", Confidence.CERTAIN, evidence={"versions": len(versions)})


def _by_power(frame: Frame, rest: Rest, rows: Strata, sure: Confidence) -> Finding | None:
    """Name updates that stopped arriving, if K3 of most tokens grows like a power of their number."""
    shape = shape_of(rows)
    if shape is None or shape.step is None or shape.kind != "power" or frame.older:
        return None
    if frame.growth.verdict not in GROWS or abrupt(*logs(rows), shape.step) or _few(frame, rest) is not None:
        return None
    confidence = sure if shape.drift < -number("told") else Confidence.POSSIBLE
    evidence: dict[str, object] = {"drift": shape.drift, "ratio": shape.ratio}
    return Finding("missed_weight_sync", confidence, shape.step, evidence=evidence)


def _few(frame: Frame, rest: Rest, at: int | None = None) -> float | None:
    """Return the share of tokens that a rise since `at`, or since the beginning, affects, or None for most tokens.

    Log-ratios tell the share. Without them, sums tell it by sequence, and within sequences for noise with equal tails.
    """
    whole = frame.series if frame.history is None else frame.history
    first, now = windows(frame.measured) if at is None else (whole.step[whole.step < at], whole.step[whole.step >= at])
    if frame.tokens is not None:
        of_lags = (frame.tokens.alike, frame.tokens.where(frame.tokens.lag > 0))
        share = affected_tokens([tuple(t.where(np.isin(t.step, steps)) for steps in (first, now)) for t in of_lags])
        if share is not None:
            return share if share < number("affected") else None
    if (share := affected_sequences(rest.all.within(now))) < number("affected_sequences"):
        return share
    share = affected(gap_of(whole.within(first)), gap_of(whole.within(now)))
    return share if share < number("place_wide") else None


def _of(rows: Strata, versions: set[int]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    column = rows.groups.get("version")
    return np.zeros(len(rows.step), np.bool_) if column is None else column.isin(versions)


def _by_records(frame: Frame) -> str:
    """Return the cause of a rise of all requests, according to the engine's records of updates."""
    rows, n = frame.strata, max(frame.strata.n, 1)
    flying = rows.where(rows.is_value("in_flight", value=True))
    if recorded(frame, "inflight_stale_kv") and flying.n > number("fewest"):
        return "inflight_stale_kv"
    cached = rows.where(rows.is_value("cached", value=True)).n > number("most") * n
    return "stale_prefix_cache" if cached and recorded(frame, "stale_prefix_cache") else "missed_weight_sync"


def _without_scale(frame: Frame) -> Strata | None:
    """Return the mismatch that remains after one temperature and each context's normaliser.

    Returns None if no tokens share a context.
    """
    siblings = None if frame.tokens is None else siblings_of(frame.tokens.fresh)
    if siblings is None:
        return None
    temperatures = frame.setup.temperatures
    powers = [siblings.slope, 1.0]
    if len(temperatures) == 1:
        powers += [1 / temperatures[0], temperatures[0]]
    left = siblings.scaled(min((power for power in powers if power > 0), key=siblings.misfit))
    groups = {"cached": Column(left.cached, (False, True)), "replica": Column(left.replica, frame.replicas)}
    groups = {name: column for name, column in groups.items() if column.values}
    return strata_of(left.step, left.lag, left.sequence, left.d, groups)


def _lag(frame: Frame, rest: Rest) -> Finding | None:
    """Name weight lag if older tokens have a larger K3 than those of the trainer's own weights."""
    fewest = number("fewest")
    old, fresh = (rest.now.where(rest.now.lag > 0), rest.now.where(rest.now.lag == 0))
    if old.n < fewest:
        return None
    larger = old.k3 > max(number("lag_ratio") * fresh.k3, number("visible_k3")) if fresh.n >= fewest else False
    if fresh.n >= fewest and not (larger and difference(old.abs_d, fresh.abs_d) > SIGNIFICANT):
        return None
    if fresh.n < fewest and not old.k3 > number("lag_alone"):
        return None
    if frame.tokens is not None and due_to_length(frame.tokens):
        return None
    today, then = _made(rest.now, rest), _made(rest.first, rest)
    grew = _own_grew(rest)
    over = {lag: min(k3, then[lag]) if grew and lag in then else k3 for lag, k3 in today.items()}
    k3 = sum(over[lag] * float(rest.now.tokens[rest.now.lag == lag].sum()) for lag in over)
    before = sum(then[lag] * float(rest.first.tokens[rest.first.lag == lag].sum()) for lag in then)
    share = min(k3 / rest.total, 1.0)
    now, first = frame.now.k3, frame.first.k3
    grown = now - first if now > number("grown_ratio") * first or frame.growth.verdict in GROWS else math.nan
    each, each_first = k3 / max(rest.now.n, 1), before / max(rest.first.n, 1)
    growth = min(max((each - each_first) / grown, 0.0), 1.0) if grown > 0 else None
    lags = [(0.0, fresh.k3)] if fresh.n >= fewest else []
    lags += [(lag, rest.now.where(rest.now.lag == lag).k3) for lag in today]
    evidence: dict[str, object] = {"by_lag": ", ".join(f"{lag:g}: {value:.2g}" for lag, value in lags)}
    if (safe := safe_lag(frame)) is not None:
        limit = safe["uncorrected"]
        bound = None if limit is None or limit["largest_seen"] else limit["lag"]  # nothing is beyond the largest one
        evidence |= {"ess_by_lag": curve(safe), "safe_lag": safe["words"], "bound": bound}
    return Finding("staleness", Confidence.KNOWN, frame.growth.since_step, share, growth, each, evidence=evidence)


def _made(window: Strata, rest: Rest) -> dict[float, float]:
    """Return the K3 that each lag adds to the numerics of a window."""
    own, first = window.where(window.own), rest.first.where(rest.first.own)
    base = own.k3 if own.n >= number("fewest") else first.k3 if first.n >= number("fewest") else 0.0
    lags = np.unique(window.lag[window.lag > 0]).tolist()
    return {lag: max(0.0, window.where(window.lag == lag).k3 - base) for lag in lags}


def _own_grew(rest: Rest) -> bool:
    """Return whether K3 grew among tokens of equal lag."""
    fewest, now, first = number("fewest"), rest.now, rest.first
    ratios = [
        now.where(now.lag == lag).k3 / max(first.where(first.lag == lag).k3, number("least_k3"))
        for lag in np.unique(now.lag[np.isfinite(now.lag)]).tolist()
        if min(now.where(now.lag == lag).n, first.where(first.lag == lag).n) >= fewest
    ]
    return max(ratios) > number("grown_ratio") if ratios else not np.isfinite(now.lag).any()


def _growth(frame: Frame, rest: Rest, found: list[Finding], facts: Facts) -> Finding | None:
    """Name a drifting policy if no finding explains the growth.

    The finding is inferred only if weight updates are known to arrive. Loads or fingerprints prove that, or a drift
    that fits better than missed updates.
    """
    shape, trend = shape_of(rest.all), frame.growth.verdict
    level = shape is None or shape.kind == "level" or shape.ratio < number("growth_ratio")
    if trend not in GROWS and (level or _with_setup(frame, shape)):
        return None
    part, little = _growth_part(frame, rest, found)
    ended = trend not in GROWS and not frame.now.k3 > number("grown_ratio") * frame.first.k3
    if little or ended:
        return None
    since = frame.growth.since_step if frame.growth.since_step is not None else None if shape is None else shape.step
    own = shape_of(rest.all.alike)
    drifts = own is not None and own.kind != "level" and own.drift >= number("told")
    missed = own is not None and own.kind == "power" and own.drift <= -number("told")  # as updates that do not arrive
    jumps = _jumps(shape, rest)
    evidence: dict[str, object] = {"drift": own.drift if own is not None and drifts else None}
    evidence["unproven"] = None if facts.arrive or drifts else "fingerprints of weights, or loads in the engine, tell"
    proven = drifts or (facts.arrive and not missed)
    confidence = Confidence.INFERRED if proven and not jumps else Confidence.POSSIBLE
    now = frame.now.k3
    share = min(part * max(now - frame.first.k3, 0.0) / now, 1.0) if now > 0 else part
    if (few := _few(frame, rest)) is not None:
        if trend not in GROWS:
            return None  # a policy that grows certain leaves K3 to fewer tokens: the growth test has to find growth
        evidence = {"concerned": few}
        return Finding(UNKNOWN, Confidence.INFERRED, since, share, part, evidence=evidence)
    if shape is not None and jumps and trend == "critical":
        evidence = {"jump": shape.ratio}
        return Finding(UNKNOWN, Confidence.INFERRED, shape.step, share, part, evidence=evidence)
    return Finding("late_growth", confidence, since, share, part, evidence=evidence)


def _with_setup(frame: Frame, shape: Shape | None) -> bool:
    """Return whether K3 left its level as another engine setup began, whose level it then has."""
    at = None if shape is None else shape.step
    return at is not None and any(abs(at - step) <= number("abrupt_steps") for step, _ in frame.setups[1:])


def _growth_part(frame: Frame, rest: Rest, found: list[Finding]) -> tuple[float, bool]:
    """Return the part of the growth that no finding explains, and whether it is too small to name."""
    grown = frame.now.k3 - frame.first.k3
    rest_grown = max(0.0, rest.now.k3 - rest.first.k3) if rest.now.n and rest.first.n else 0.0
    explained = sum(finding.growth or 0.0 for finding in found)
    part = 0.0 if grown <= 0 else min(max(rest_grown / grown - explained, 0.0), 1.0)
    first = rest.first.where(rest.first.own)
    base = first.k3 if first.n >= number("fewest") else rest.first.k3
    faults = any(f.signature.kind == "fault" and f.named for f in found)
    little = (faults and rest_grown < max(base, number("visible_k3"))) or (
        explained >= number("material") and part < number("growth_left")
    )
    return part, little


def _jumps(shape: Shape | None, rest: Rest) -> bool:
    """Return whether K3 rose within a few steps, unlike a drift."""
    if shape is None or shape.step is None:
        return False
    return abrupt(*logs(rest.all), shape.step)


# ------------------------------------------------------------------------------------------------ records and places


def _excluded(found: list[Finding], frame: Frame, facts: Facts) -> list[Finding]:
    """Turn findings that the record excludes into "unknown". Drop excluded noise."""
    kept: list[Finding] = []
    for finding in found:
        fact = facts.excluding(finding.signature.excluded_by) if finding.confidence < Confidence.CERTAIN else None
        if fact is None or _counted_against(finding, fact):
            kept.append(finding)
        elif fact == "version_stands_still" and (still := stands_still(frame)) is not None:
            whose = "all engines" if still.replica is None else f"replica {still.replica}"
            evidence = {"stands_still": still.version, "still_at": whose}
            kept.append(replace(finding, cause="missed_weight_sync", since=still.since, evidence=evidence))
        elif finding.signature.kind != "noise" and not _attenuated(finding, frame):
            evidence = {**finding.evidence, "looks_like": finding.cause, "excluded_by": fact}
            kept.append(replace(finding, cause=UNKNOWN, evidence=evidence, place=None))
    return kept


def _attenuated(finding: Finding, frame: Frame) -> bool:
    """Return whether noise alone flattens log-probs like a temperature, which the record excludes."""
    return finding.cause == "temperature_mismatch" and frame.now.k3 <= expected(frame)[1]


def _once(found: list[Finding]) -> list[Finding]:
    """Keep the surest finding of each cause. An unknown share is taken from the other finding."""
    surest: dict[object, Finding] = {}
    for at, finding in enumerate(found):
        key = at if finding.cause == UNKNOWN else finding.cause
        other = surest.get(key, finding)
        best, less = (finding, other) if finding.confidence > other.confidence else (other, finding)
        known = best.share is not None
        surest[key] = best if known else replace(best, share=less.share)
    return list(surest.values())


def _counted_against(finding: Finding, fact: str) -> bool:
    """Return whether a finding is stronger than the fact that excludes it.

    A recorded load may have brought old weights. It excludes missed updates only if K3 follows a power law, which
    updates too small to detect also produce. A stated mode of log-probs is refuted if their temperature is missing.
    """
    known = finding.confidence >= Confidence.KNOWN
    return (fact == "processed_logprobs" and known) or (
        fact == "loads_recorded" and (known or "drift" not in finding.evidence)
    )


def _told(frame: Frame, place: Place | None, grown: Place | None) -> Place | None:
    """Return the place to report. Within the range of a setup, some tokens are always noisier than others."""
    if place is None or _beyond_range(frame, place):
        return place or grown
    narrow = place.tokens <= number("place_tokens") and place.k3 >= number("place_within") * place.others
    return place if narrow else grown


def _beyond_range(frame: Frame, place: Place) -> bool:
    return place.k3 > number("above") * expected(frame)[1]


def _here(frame: Frame, found: list[Finding], place: Place | None, grown: Place | None) -> list[Finding]:
    """Add the place to an unexplained mismatch, as in "unknown: here, since then".

    A place whose column belongs to a named cause is added to that cause. A place within the range of the setup is only
    reported, unless all of the growth is in it.
    """
    if place is None or (grown is not None and not _beyond_range(frame, place)):
        place = grown
    if place is None:
        return found
    causes = {f.signature.column: f for f in found if f.signature.column}
    own = next((causes[column] for column in place.columns if column in causes), None)
    if own is not None:
        return [replace(f, place=place) if f is own else f for f in found]
    if place is not grown and not _beyond_range(frame, place):
        return found
    named = [f for f in found if f.named and f.layer == "semantic" and f.hides]
    if named:
        return [replace(f, place=place) if f is named[0] else f for f in found]
    spread = [f if not _contradicted(f) else replace(f, confidence=Confidence.POSSIBLE, place=place) for f in found]
    here = Finding(UNKNOWN, Confidence.INFERRED, place.since, place.share, k3=place.k3 * place.tokens, place=place)
    return [here, *spread]


def _contradicted(finding: Finding) -> bool:
    """Return whether a place in another column contradicts a cause, which would affect all tokens or those of its
    column."""
    return finding.signature.kind in ("fault", "growth") and finding.confidence <= Confidence.INFERRED


# ------------------------------------------------------------------------------------------------ conclusion


def _pairs(frame: Frame) -> list[Finding]:
    """Judge the level of the other pairs: trainer to reference policy, and to itself after its updates of a step."""
    high: list[Finding] = []
    for name, pair in frame.pairs.items():
        now = float(np.median(pair.k3[among(pair.step, windows(pair.step)[1])]))
        limit = number("update") if name == "update" else number("reference")
        if now > limit:
            over = pair.step[pair.k3 > limit]
            from_start = int(over[0]) == frame.start
            evidence: dict[str, object] = {"pair": name, "k3": now, "limit": limit, "from_start": from_start}
            high.append(Finding(UNKNOWN, Confidence.INFERRED, int(over[0]), evidence=evidence))
    return high


def _not_measured(frame: Frame, found: list[Finding], level: Level, rounded: str | None) -> Judgement:
    """Return a judgement without a measured level.

    Equal bits may mean that one array was recorded twice. `rounded`: dtype of 16 bits to which one side is a rounded
    copy of the other, or None.
    """
    whole = identical(frame) or rounded is not None
    since = frame.start if whole else frame.today.start
    stated = declared(frame)
    found = [f for f in found if "part" not in f.evidence]  # all of today's tokens are equal, not some
    found += [] if stated is None else [stated]
    found.append(Finding(UNKNOWN, Confidence.CERTAIN, since, evidence={"identical": rounded or "bit by bit"}))
    weighed = sorted((_weighed(f, frame, level, ()) for f in found), key=_order)
    acting = any(f.named and f.urgency == "act" for f in weighed)
    return Judgement(
        verdict="critical" if acting else "no_data",
        layer="unknown",
        since=since,
        where=None,
        findings=tuple(weighed),
        advice="do_not_enable",
        reason=UNKNOWN,
        level=replace(level, k3=None, status="not measured"),
    )


def _concluded(
    frame: Frame,
    found: list[Finding],
    level: Level,
    place: Place | None,
    *,
    facts: Facts,
    accepted: Sequence[Acceptance],
) -> Judgement:
    """Weigh the findings and return the judgement."""
    found, unexplained = _shared([*found, *_beyond(found, frame, level, accepted)], frame, level)
    found = sorted((_weighed(f, frame, level, accepted) for f in (*found, *_pairs(frame))), key=_order)
    deciding = [f for f in found if f.named and f.urgency != "informational"]
    layer = _layer(frame, found, deciding, level)
    advice, reason = _advice(frame, found, deciding, layer, facts)
    verdict = _verdict(frame, found, layer, level)
    since = next((f.since for f in deciding if f.since is not None), None)
    if since is None and (frame.growth.verdict in GROWS or deciding):
        since = frame.growth.since_step
    safe = safe_lag(frame)
    if safe is not None and safe["uncorrected"] is not None and any(f.vetoes for f in found):
        safe = None  # a fault's K3 is no effect of lag
    return Judgement(
        verdict=verdict,
        layer=layer,
        since=since,
        where=place,
        findings=tuple(found),
        advice=advice,
        reason=reason,
        level=level,
        unexplained=unexplained,
        lag=safe,
    )


def _shared(found: list[Finding], frame: Frame, level: Level) -> tuple[list[Finding], float | None]:
    """Assign noise its share of K3, up to the level of the numerics or the range of the setup. Return the unexplained
    share, too.

    The share is unknown next to a wrong distribution, whose part of K3 is unknown. Shares that overlap are reduced in
    proportion. A possible cause keeps its share only if that is still unexplained.
    """
    total = sum(f.share or 0.0 for f in found if _explains(f))
    if total > 1:
        found = [replace(f, share=(f.share or 0.0) / total) if _explains(f) and f.share else f for f in found]
    if any(f.share is None for f in found if _explains(f)) or not frame.now.k3 > 0:
        return found, None
    left = max(0.0, 1 - total)
    usual = math.inf if level.k3 is None else level.high if level.beyond else level.k3
    named = any(f.signature.kind == "noise" and f.named for f in found)
    noise = min(left, usual / frame.now.k3) if named else 0.0
    rest = left - noise
    shared = []
    for f in found:
        share = noise if f.signature.kind == "noise" and f.named else f.share
        if not f.named and share is not None:
            share = share if share <= rest else None
            rest -= share or 0.0
        shared.append(replace(f, share=share))
    return shared, left - noise


def _explains(finding: Finding) -> bool:
    """Return whether a finding explains a part of K3 beyond noise."""
    return finding.named and finding.signature.kind in ("fault", "growth", "lag") and not finding.signature.masked


def _beyond(found: list[Finding], frame: Frame, level: Level, accepted: Sequence[Acceptance]) -> list[Finding]:
    """Report K3 beyond the reported range of the setup, if no finding explains it."""
    lived_with = {acceptance.cause for acceptance in accepted}
    idle = () if frame.growth.verdict in GROWS else ("growth",)  # no excuse where growth itself finds nothing
    explained = any(
        (f.named and f.signature.kind not in ("noise", "note", *idle) and _material(f)) or f.cause in lived_with
        for f in found
    )
    if level.k3 is None or not level.beyond or explained:
        return []
    since = next((f.since for f in found if f.since is not None), None)
    left = max(0.0, 1 - sum(f.share or 0.0 for f in found if _explains(f)))
    share = min(1 - level.high / frame.now.k3, left) if frame.now.k3 > level.high else None
    evidence = {"above": level.high, "k3": level.k3, "unknown_setup": level.status == "unknown set-up"}
    return [Finding(UNKNOWN, Confidence.INFERRED, since, share, evidence=evidence)]


def _material(finding: Finding) -> bool:
    """Return whether the share of a finding in K3, or in its growth, is large enough to act on."""
    return finding.share is None or max(finding.share, finding.growth or 0.0) >= number("material")


def _order(finding: Finding) -> tuple[int, bool, float, int, int]:
    """Return a sort key: urgency, then share of K3, then the order of the table.

    What is left out of K3 counts as all of it, unless it is few tokens or sequences.
    """
    left_out = finding.evidence.get("share") if finding.signature.masked else None
    few = isinstance(left_out, float) and left_out < number("few_left_out")
    known = left_out if few else finding.share
    share = known if isinstance(known, float) else 1.0
    share = max(share, finding.growth or 0.0)
    return (
        _URGENCIES.index(finding.urgency),
        not finding.named,
        -round(share, 2),
        -int(finding.confidence),
        ORDER.index(finding.cause),
    )


def _weighed(finding: Finding, frame: Frame, level: Level, accepted: Sequence[Acceptance]) -> Finding:
    """Set urgency, veto and acceptance by kind, share and trend."""
    urgency = _urgency(finding, frame, level)
    material = _material(finding)
    fault = finding.signature.kind == "fault"
    told = fault and urgency != "informational" and (material or _began_with_growth(finding, frame))
    at_fault = told or (fault and finding.layer == "semantic")
    finding = replace(finding, urgency=urgency, vetoes=finding.named and at_fault and finding.until is None)
    acceptance = next((a for a in accepted if a.cause == finding.cause), None)
    if acceptance is None:
        return finding
    share = 1.0 if finding.share is None else finding.share
    if share * frame.now.k3 > acceptance.up_to:
        return replace(finding, evidence={**finding.evidence, "accepted_up_to": acceptance.up_to})
    vetoes = finding.vetoes and finding.layer == "semantic"
    return replace(finding, accepted=acceptance, urgency="informational", vetoes=vetoes)


def _began_with_growth(finding: Finding, frame: Frame) -> bool:
    """Return whether a fault began no earlier than growth, which may thus be its effect."""
    grows, since = frame.growth.verdict in GROWS, frame.growth.since_step
    return grows and finding.since is not None and since is not None and finding.since >= since


def _urgency(finding: Finding, frame: Frame, level: Level) -> Urgency:
    kind, trend = SIGNATURES[finding.cause].kind, frame.growth.verdict
    by_trend: Urgency = "act" if trend in GROWS else "watch" if trend == "calibrating" else "informational"
    if kind == "noise":
        return "informational"  # it explains K3 up to the range of its setup, and nothing beyond
    if kind == "note" or not finding.named or finding.until is not None or "identical" in finding.evidence:
        return "watch"
    if kind == "growth":
        return by_trend
    if kind == "lag":
        return _urgency_of_lag(finding, level, by_trend)
    if "above" in finding.evidence and level.status != "far above":
        return "watch"
    return "act" if finding.layer == "semantic" or _material(finding) else "watch"


def _urgency_of_lag(finding: Finding, level: Level, by_trend: Urgency) -> Urgency:
    own = level.high if level.k3 is None else max(2 * level.k3, level.high)
    if finding.k3 > max(number("lag_high"), own):
        return "act"
    return by_trend if (finding.growth or 0.0) >= number("material") else "informational"


def _layer(frame: Frame, found: list[Finding], deciding: list[Finding], level: Level) -> Layer | Literal["none"]:
    """Return the layer of the strongest findings, or "unknown" if a mismatch is unexplained."""
    strong = [f for f in deciding if f.vetoes] or [f for f in deciding if f.urgency == "act"] or deciding
    named: list[Layer] = [layer for layer in LAYERS if any(f.layer == layer for f in strong)]
    if strong and strong[0].cause == UNKNOWN:
        return "unknown"
    if named:
        return named[0]
    explained = any((f.named and f.layer not in ("objective", "unknown")) or f.accepted is not None for f in found)
    off = abs(frame.gap.ratio.z) > SIGNIFICANT and abs(frame.gap.ratio.value) > frame.gap.k3 > number("slight")
    watched = any(f.urgency != "informational" for f in found)
    high = level.status == "not measured" or (level.beyond and not explained)
    few = frame.gap.n < number("fewest")
    grows = frame.growth.verdict in GROWS and not _lived_with(found)
    return "unknown" if watched or few or high or off or grows else "none"


def _lived_with(found: Iterable[Finding]) -> bool:
    """Return whether most of the growth is accepted."""
    return sum(f.growth or 0.0 for f in found if f.accepted is not None) >= 1 - number("material")


def _advice(
    frame: Frame, found: list[Finding], deciding: list[Finding], layer: str, facts: Facts
) -> tuple[Advice, str]:
    """Advise a correction only for growth or lag, without any fault and with proof that weights arrive."""
    if any(f.vetoes for f in found):
        return "do_not_enable", "veto"
    objective = [f for f in deciding if f.layer == "objective" and f.urgency == "act"]
    unproven = any(f.cause in {*_NEVER_ARRIVES, UNKNOWN} for f in found if f.urgency != "informational")
    if objective and unproven and not facts.arrive:
        return "do_not_enable", "weights unproven"
    if objective:
        return "enable", "growth" if objective[0].cause == "late_growth" else "lag"
    if layer == "unknown" or (frame.growth.verdict in GROWS and not _lived_with(found)):
        growing = any(f.cause == "late_growth" for f in found)
        return "do_not_enable", "weights unproven" if growing and not facts.arrive else UNKNOWN
    return "not_needed", "nothing"


def _verdict(frame: Frame, found: Iterable[Finding], layer: str, level: Level) -> Verdict:
    """Return the overall state. It is healthy only if no finding, level or trend contradicts that."""
    found = list(found)
    trend = "healthy" if frame.growth.verdict in GROWS and _lived_with(found) else frame.growth.verdict
    acting = any(f.named and f.urgency == "act" and f.layer != "objective" for f in found)
    accepted = any(f.accepted is not None for f in found)
    if trend == "critical" or (level.status == "far above" and not accepted) or acting:
        return "critical"
    if trend == "growing":
        return "growing"
    asking = [f for f in found if f.named and f.urgency != "informational"]
    if trend == "calibrating" and frame.gap.n and all(map(_may_pass, asking)):
        return "healthy" if level.settled and layer == "none" else "calibrating"
    if not frame.gap.n or level.status == "not measured":
        return "unknown" if frame.gap.n else "no_data"
    if asking or (level.status == "above" and not accepted):
        return "watch"
    return "unknown" if layer == "unknown" else "healthy"


def _may_pass(finding: Finding) -> bool:
    """Return whether more steps decide about a finding: a level, or a rise that may end."""
    return "above" in finding.evidence or (finding.urgency == "watch" and finding.signature.kind in ("growth", "lag"))
