"""Judge a frame: first where, then why, then what to do."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from logprobe.monitor.diagnosis.evidence.evidence import windows
from logprobe.monitor.diagnosis.evidence.measures import SIGNIFICANT, difference
from logprobe.monitor.diagnosis.evidence.tokens import siblings_of
from logprobe.monitor.judging.contrast import Rest, contrasts, spared, where
from logprobe.monitor.judging.counted import counted, unmeasured
from logprobe.monitor.judging.course import (
    Shape,
    abrupt,
    agreed_until,
    labels_lie,
    logs,
    shape_of,
    short_rise,
    without_load,
)
from logprobe.monitor.judging.declared import noise
from logprobe.monitor.judging.distribution import distribution, varies
from logprobe.monitor.judging.frame import Frame, Strata, strata_of
from logprobe.monitor.judging.judgement import (
    Advice,
    Confidence,
    Finding,
    Judgement,
    Level,
    Place,
    State,
    Urgency,
)
from logprobe.monitor.judging.level import GROWS, bits_may_agree, expected, identical, level_of
from logprobe.monitor.judging.proofs import Facts, facts_of
from logprobe.monitor.judging.signatures import ORDER, SIGNATURES, UNKNOWN, Layer
from logprobe.monitor.judging.thresholds import number

_URGENCIES: Final[tuple[Urgency, ...]] = ("act", "watch", "informational")
_LAYERS: Final[tuple[Layer, ...]] = ("semantic", "inference_path", "objective")
_NEVER_ARRIVES: Final = ("missed_weight_sync", "partial_weight_sync")


def judge(frame: Frame) -> Judgement:
    """Return the judgement of a run as of the frame's last step."""
    facts = facts_of(frame)
    if facts.conflict:
        frame = frame.without_lags()
    found = counted(frame, facts)
    level = level_of(frame)
    if unmeasured(found):
        return _concluded(frame, [*found], replace(level, k3=None, status="not measured"), None, facts)
    equal = identical(frame) or identical(frame.today)
    if equal and not bits_may_agree(frame):
        return _not_measured(frame, found, level)
    place = None if frame.gap.n < number("fewest") else where(frame)
    found += _why(frame, found, facts)
    found = _excluded(found, facts)
    found = _here(frame, found, place)
    return _concluded(frame, found, level, place, facts)


# ------------------------------------------------------------------------------------------------ why


def _why(frame: Frame, counted_found: list[Finding], facts: Facts) -> list[Finding]:
    """Run the tests whose causes need numbers."""
    if any(finding.signature.hides for finding in counted_found):
        return []
    found: list[Finding] = []
    shape = distribution(frame)
    if shape is not None:
        found.append(shape)
        if shape.signature.hides:
            return found
    rest = Rest(frame)
    found += contrasts(frame, rest)
    fresh = rest.now.where(rest.now.own)
    k3 = fresh.k3 if fresh.n >= number("fewest") else frame.gap.k3
    trainer = None if shape is not None else varies(frame, k3)
    if trainer is not None:
        found.append(trainer)
    scaled = shape is not None
    known = {finding.cause for finding in (*found, *counted_found)}
    if shape is None or shape.cause != "miscalibrated_logprobs":
        missed = _sync(frame, rest, scaled=scaled, steady=trainer is not None)
        found += (
            [missed] if missed is not None and missed.cause not in known and "partial_weight_sync" not in known else []
        )
    stale = _lag(frame, rest)
    if stale is not None:
        found.append(stale)
    blocked = any(f.cause in _NEVER_ARRIVES and f.share is None and f.named for f in (*found, *counted_found))
    if not scaled and trainer is None and not blocked:
        grew = _growth(frame, rest, found, facts)
        if grew is not None:
            found.append(grew)
    return [*found, *noise(frame, k3, scaled=scaled)]


def _sync(frame: Frame, rest: Rest, *, scaled: bool, steady: bool) -> Finding | None:
    """Name weights that did not arrive: by labels without a load, or by a rise that follows the updates missed."""
    versions = set(without_load(frame))
    lies = labels_lie(rest.all, tuple(versions))
    if lies is not None:
        odd, z = lies
        since = int(rest.all.step[odd].min())
        share, most = rest.take(lambda rows: _of(rows, versions), lambda rows: ~_of(rows, versions))
        evidence = {"versions": len(versions), "z": z}
        return Finding("missed_weight_sync", Confidence.KNOWN, since, share, most, evidence=evidence)
    rows = _without_scale(frame) if scaled else rest.all.alike
    if steady or rows is None:
        return None
    sure = Confidence.INFERRED if frame.versions_known else Confidence.POSSIBLE
    steps, log_k3 = logs(rows)
    at = agreed_until(steps, log_k3)
    if at is None and len(log_k3) < number("shape_steps"):
        at = short_rise(rows)
    if at is not None:
        return None if spared(frame, at) else Finding(_by_records(frame), sure, at)
    return None if scaled else _by_power(frame, shape_of(steps, log_k3), sure)


def _by_power(frame: Frame, shape: Shape | None, sure: Confidence) -> Finding | None:
    """Name updates that stopped arriving where K3 grows like a power of their number."""
    if shape is None or shape.step is None or shape.kind != "power" or frame.older:
        return None
    if frame.growth.verdict not in GROWS or spared(frame, shape.step):
        return None
    confidence = sure if shape.drift < -number("told") else Confidence.POSSIBLE
    evidence = {"drift": shape.drift, "ratio": shape.ratio}
    return Finding("missed_weight_sync", confidence, shape.step, evidence=evidence)


def _of(rows: Strata, versions: set[int]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    column = rows.groups.get("version")
    if column is None:
        return np.zeros(len(rows.step), np.bool_)
    return np.array([value in versions for value in column.tolist()], np.bool_)


def _by_records(frame: Frame) -> str:
    """Return the cause of a rise of all requests that the engine's records name: a kept cache or kept requests."""
    rows, n = frame.strata, max(frame.strata.n, 1)
    keep = [record.pause_mode == "keep" and not record.cache_cleared for record in frame.weights.updates]
    flying = rows.where(rows.is_value("in_flight", value=True))
    if keep and sum(keep) > len(keep) / 2 and flying.n > number("fewest"):
        return "inflight_stale_kv"
    cached = rows.where(rows.is_value("cached", value=True)).n > n / 2
    return "stale_prefix_cache" if cached and frame.weights.kept_cache > number("most") else "missed_weight_sync"


def _without_scale(frame: Frame) -> Strata | None:
    """Return the mismatch that one temperature and each context's normaliser leave, where tokens share a context."""
    siblings = None if frame.tokens is None else siblings_of(frame.tokens.fresh)
    if siblings is None:
        return None
    temperatures = frame.setup.temperatures
    powers = [siblings.slope, 1.0]
    if len(temperatures) == 1:
        powers += [1 / temperatures[0], temperatures[0]]
    left = siblings.scaled(min((power for power in powers if power > 0), key=siblings.misfit))
    unknown = np.full(len(left), math.nan)
    return strata_of(left.step, unknown, left.sequence, left.d, {})


def _lag(frame: Frame, rest: Rest) -> Finding | None:
    """Name weight lag where older tokens have a larger K3 than those of the trainer's own weights."""
    fewest = number("fewest")
    old, fresh = (rest.now.where(rest.now.lag > 0), rest.now.where(rest.now.lag == 0))
    if old.n < fewest:
        return None
    larger = old.k3 > max(number("lag_ratio") * fresh.k3, number("visible_k3")) if fresh.n >= fewest else False
    if fresh.n >= fewest and not (larger and difference(old.abs_d, fresh.abs_d) > SIGNIFICANT):
        return None
    if fresh.n < fewest and not old.k3 > number("lag_alone"):
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
    evidence = {"k3_by_lag": {str(int(lag)): value for lag, value in today.items()}}
    return Finding(
        "staleness", Confidence.KNOWN, frame.growth.since_step, share, share, growth, each, evidence=evidence
    )


def _made(window: Strata, rest: Rest) -> dict[float, float]:
    """Return K3 that each lag adds to the numerics of a window."""
    own, first = window.where(window.own), rest.first.where(rest.first.own)
    base = own.k3 if own.n >= number("fewest") else first.k3 if first.n >= number("fewest") else 0.0
    lags = np.unique(window.lag[window.lag > 0]).tolist()
    return {lag: max(0.0, window.where(window.lag == lag).k3 - base) for lag in lags}


def _own_grew(rest: Rest) -> bool:
    """Whether K3 at one and the same lag grew."""
    fewest, now, first = number("fewest"), rest.now, rest.first
    ratios = [
        now.where(now.lag == lag).k3 / max(first.where(first.lag == lag).k3, number("least_k3"))
        for lag in np.unique(now.lag[np.isfinite(now.lag)]).tolist()
        if min(now.where(now.lag == lag).n, first.where(first.lag == lag).n) >= fewest
    ]
    return max(ratios) > number("grown_ratio") if ratios else not np.isfinite(now.lag).any()


def _growth(frame: Frame, rest: Rest, found: list[Finding], facts: Facts) -> Finding | None:
    """Name a policy that drifts among tokens that no finding explains.

    It is inferred only where weight updates are known to arrive: by loads or fingerprints, or because a drift fits
    better than updates that stopped.
    """
    steps, log_k3 = logs(rest.all)
    shape = shape_of(steps, log_k3)
    trend = frame.growth.verdict
    if trend not in GROWS and (shape is None or shape.kind == "level" or shape.ratio < number("growth_ratio")):
        return None
    part, little = _growth_part(frame, rest, found)
    if little:
        return None
    since = frame.growth.since_step if frame.growth.since_step is not None else None if shape is None else shape.step
    own = shape_of(*logs(rest.all.alike))
    drifts = own is not None and own.kind != "level" and own.drift >= number("told")
    evidence: dict[str, object] = {
        "drift": None if own is None else own.drift,
        "weights_arrive": facts.arrive,
        "jump": _jumps(shape, rest),
    }
    sure = (facts.arrive or drifts) and not _jumps(shape, rest)
    confidence = Confidence.INFERRED if sure else Confidence.POSSIBLE
    return Finding("late_growth", confidence, since, part, part, part, evidence=evidence)


def _growth_part(frame: Frame, rest: Rest, found: list[Finding]) -> tuple[float, bool]:
    """Return the part of the growth that no finding explains, and whether it is too little to name."""
    grown = frame.now.k3 - frame.first.k3
    rest_grown = max(0.0, rest.now.k3 - rest.first.k3) if rest.now.n and rest.first.n else 0.0
    explained = sum(finding.growth or 0.0 for finding in found)
    part = 0.0 if grown <= 0 else min(max(rest_grown / grown - explained, 0.0), 1.0)
    first = rest.first.where(rest.first.own)
    base = first.k3 if first.n >= number("fewest") else rest.first.k3
    faults = any(f.signature.kind == "fault" and f.layer == "inference_path" and f.named for f in found)
    little = (faults and rest_grown < max(base, number("visible_k3"))) or (
        explained >= number("material") and part < number("growth_left")
    )
    return part, little


def _jumps(shape: Shape | None, rest: Rest) -> bool:
    """Whether K3 rose within a few steps, which a drift does not."""
    if shape is None or shape.step is None:
        return False
    return abrupt(*logs(rest.all), shape.step)


# ------------------------------------------------------------------------------------------------ records and places


def _excluded(found: list[Finding], facts: Facts) -> list[Finding]:
    """Turn findings that the record excludes into "unknown"; noise that it excludes is dropped."""
    kept: list[Finding] = []
    for finding in found:
        fact = facts.excluding(finding.signature.excluded_by) if finding.confidence < Confidence.CERTAIN else None
        if fact is None or _counted_against(finding, fact):
            kept.append(finding)
        elif finding.signature.kind != "noise":
            evidence = {**finding.evidence, "looks_like": finding.cause, "excluded_by": fact}
            kept.append(replace(finding, cause=UNKNOWN, evidence=evidence, place=None))
    return kept


def _counted_against(finding: Finding, fact: str) -> bool:
    """Whether a finding rests on the very records that the fact is read from."""
    return fact == "loads_recorded" and finding.confidence >= Confidence.KNOWN


def _here(frame: Frame, found: list[Finding], place: Place | None) -> list[Finding]:
    """Say where an unexplained mismatch is: "unknown: here, since then".

    A place whose column is that of a named cause is that cause's. A place whose K3 is within the range of the setup is
    reported and changes nothing.
    """
    if place is None:
        return found
    causes = {f.signature.columns[0]: f for f in found if f.signature.test == "contrast" and f.cause != UNKNOWN}
    own = next((causes[column] for column in place.columns if column in causes), None)
    if own is not None:
        return [replace(f, place=place) if f is own else f for f in found]
    _, high, _ = expected(frame)
    if not place.k3 > number("above") * high:
        return found
    named = [f for f in found if f.named and f.layer == "semantic" and f.signature.hides]
    if named:
        return [replace(f, place=place) if f is named[0] else f for f in found]
    spread = [f if not _contradicted(f) else replace(f, confidence=Confidence.POSSIBLE, place=place) for f in found]
    here = Finding(
        UNKNOWN, Confidence.INFERRED, place.since, place.share, place.share, k3=place.k3 * place.tokens, place=place
    )
    return [here, *spread]


def _contradicted(finding: Finding) -> bool:
    """Whether a place of another column speaks against a cause: it would concern all tokens, or those of its column."""
    return finding.signature.kind in ("fault", "growth") and finding.confidence <= Confidence.INFERRED


# ------------------------------------------------------------------------------------------------ conclusion


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Levels of the other pairs: findings, and names of what was judged."""

    high: tuple[Finding, ...]
    judged: tuple[str, ...]


def _pairs(frame: Frame) -> _Pairs:
    """Judge the level of each other pair: to the reference, and of the ratio at the first pass."""
    high: list[Finding] = []
    judged = []
    for name, pair in frame.pairs.items():
        measured = np.isfinite(pair.k3)
        if not measured.any():
            continue
        steps = pair.step[measured]
        now = float(np.median(pair.k3[measured][np.isin(steps, windows(steps)[1])]))
        first = float(np.median(pair.k3[measured][np.isin(steps, windows(steps)[0])]))
        limit = number("first_pass") if pair.first_pass else number("reference")
        judged.append(f"level of the pair {name}")
        if now > limit:
            over = steps[pair.k3[measured] > limit]
            evidence = {"pair": name, "k3": now, "limit": limit, "first": first}
            high.append(Finding(UNKNOWN, Confidence.INFERRED, int(over[0]), evidence=evidence))
    return _Pairs(tuple(high), tuple(judged))


def _not_measured(frame: Frame, found: list[Finding], level: Level) -> Judgement:
    """Say that equal bits are no measurement: one array may have been recorded twice."""
    whole = identical(frame)
    since = frame.start if whole else frame.today.start
    weighed = sorted((_weighed(f, frame, level) for f in found), key=_order)
    return Judgement(
        state="not measured",
        layer="unknown",
        since=since,
        as_of=frame.last,
        where=None,
        findings=tuple(weighed),
        advice="do_not_enable",
        reason=UNKNOWN,
        level=replace(level, k3=None, status="not measured"),
        not_judged=("level: both sides have equal bits, so one array may have been recorded twice", "growth", "causes"),
    )


def _concluded(frame: Frame, found: list[Finding], level: Level, place: Place | None, facts: Facts) -> Judgement:
    """Weigh the findings and conclude."""
    pairs = _pairs(frame)
    found = [*found, *_beyond(found, level)]
    found = sorted((_weighed(f, frame, level) for f in (*found, *pairs.high)), key=_order)
    deciding = [f for f in found if f.named and f.urgency != "informational"]
    layer = _layer(frame, found, deciding, level)
    advice, reason = _advice(frame, found, deciding, layer, facts)
    state = _state(frame, found, layer, level)
    since = next((f.since for f in deciding if f.since is not None), None)
    if since is None and (frame.growth.verdict in GROWS or deciding):
        since = frame.growth.since_step
    judged, not_judged = _judged(frame, level, pairs)
    return Judgement(
        state=state,
        layer=layer,
        since=since,
        as_of=frame.last,
        where=place,
        findings=tuple(found),
        advice=advice,
        reason=reason,
        level=level,
        judged=judged,
        not_judged=not_judged,
    )


def _beyond(found: list[Finding], level: Level) -> list[Finding]:
    """Say that K3 is beyond what the setup is reported to have, if no finding explains it."""
    explained = any(f.named and f.signature.kind != "noise" and _material(f) for f in found)
    if level.k3 is None or level.status not in ("above", "far above") or explained:
        return []
    since = next((f.since for f in found if f.since is not None), None)
    return [Finding(UNKNOWN, Confidence.INFERRED, since, evidence={"above": level.high, "k3": level.k3})]


def _material(finding: Finding) -> bool:
    """Whether a finding makes enough of K3, or of its growth, to be acted on."""
    if finding.share is None:
        return True
    return max(finding.share, finding.most or 0.0, finding.growth or 0.0) >= number("material")


def _order(finding: Finding) -> tuple[int, bool, float, int, int]:
    """Sort by urgency, then by share of K3, then as the table does."""
    share = 1.0 if finding.share is None else max(finding.share, finding.growth or 0.0)
    return (
        _URGENCIES.index(finding.urgency),
        not finding.named,
        -round(share, 2),
        -int(finding.confidence),
        ORDER.index(finding.cause),
    )


def _weighed(finding: Finding, frame: Frame, level: Level) -> Finding:
    """Set urgency and veto by kind, share and trend."""
    urgency = _urgency(finding, frame, level)
    material = _material(finding)
    fault = finding.signature.kind == "fault"
    at_fault = fault and (finding.layer == "semantic" or (urgency != "informational" and material))
    return replace(finding, urgency=urgency, vetoes=finding.named and at_fault)


def _urgency(finding: Finding, frame: Frame, level: Level) -> Urgency:
    kind, trend = SIGNATURES[finding.cause].kind, frame.growth.verdict
    by_trend: Urgency = "act" if trend in GROWS else "watch" if trend == "calibrating" else "informational"
    if kind == "noise":
        return "informational"  # it explains K3 up to the range of its setup, and nothing beyond
    if not finding.named:
        return "watch"
    if kind == "growth":
        return by_trend
    if kind == "lag":
        return _urgency_of_lag(finding, level, by_trend)
    if "above" in finding.evidence and level.status != "far above":
        return "watch"
    return "act" if finding.layer == "semantic" or _material(finding) else "watch"


def _urgency_of_lag(finding: Finding, level: Level, by_trend: Urgency) -> Urgency:
    own = level.k3 if level.k3 is not None else level.high
    if finding.k3 > max(number("lag_high"), 2 * own):
        return "act"
    return by_trend if (finding.growth or 0.0) >= number("material") else "informational"


def _layer(frame: Frame, found: list[Finding], deciding: list[Finding], level: Level) -> Layer | Literal["none"]:
    """Return the layer of the strongest findings; "unknown" if a mismatch is unexplained."""
    strong = [f for f in deciding if f.vetoes] or [f for f in deciding if f.urgency == "act"] or deciding
    named: list[Layer] = [layer for layer in _LAYERS if any(f.layer == layer for f in strong)]
    if strong and strong[0].cause == UNKNOWN:
        return "unknown"
    if named:
        return named[0]
    explained = any(f.named and f.layer not in ("objective", "unknown") for f in found)
    off = abs(frame.gap.ratio.z) > SIGNIFICANT and abs(frame.gap.ratio.value) > frame.gap.k3 > number("slight")
    watched = any(f.urgency != "informational" for f in found)
    high = level.status == "not measured" or (level.status in ("above", "far above") and not explained)
    few = frame.gap.n < number("fewest")
    return "unknown" if watched or few or high or off or frame.growth.verdict in GROWS else "none"


def _advice(
    frame: Frame, found: list[Finding], deciding: list[Finding], layer: str, facts: Facts
) -> tuple[Advice, str]:
    """Advise a correction only for growth or lag, beside no fault, with proof that weights arrive."""
    if any(f.vetoes for f in found):
        return "do_not_enable", "veto"
    objective = [f for f in deciding if f.layer == "objective" and f.urgency == "act"]
    unproven = any(f.cause in (*_NEVER_ARRIVES, UNKNOWN) for f in found if f.urgency != "informational")
    if objective and unproven and not facts.arrive:
        return "do_not_enable", "weights unproven"
    if objective:
        return "enable", "growth" if objective[0].cause == "late_growth" else "lag"
    if layer == "unknown" or frame.growth.verdict in GROWS:
        growing = any(f.cause == "late_growth" for f in found)
        return "do_not_enable", "weights unproven" if growing and not facts.arrive else UNKNOWN
    return "not_needed", "nothing"


def _state(frame: Frame, found: Iterable[Finding], layer: str, level: Level) -> State:
    """Return the overall state: never healthy while a finding, the level or the trend says otherwise."""
    found = list(found)
    trend = frame.growth.verdict
    acting = any(f.named and f.urgency == "act" and f.layer != "objective" for f in found)
    if trend == "critical" or level.status == "far above" or acting:
        return "critical"
    if trend == "growing":
        return "growing"
    if not frame.gap.n or level.status == "not measured":
        return "not measured"
    if any(f.named and f.urgency != "informational" for f in found) or level.status == "above":
        return "watch"
    if layer == "unknown":
        return "unknown"
    return "healthy" if trend == "healthy" else "calibrating"


def _judged(frame: Frame, level: Level, pairs: _Pairs) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what was judged and what was not, with the reason."""
    judged, not_judged = [], []
    if level.status == "not measured":
        not_judged.append("level: too few tokens of one weight version")
    elif level.status == "unknown set-up":
        not_judged.append("level: no setup was recorded")
    else:
        judged.append("level of K3")
    if frame.growth.verdict in ("healthy", *GROWS):
        judged.append("growth of K3")
    else:
        not_judged.append("growth: fewer steps than a baseline needs")
    columns = sorted({column for table in (frame.strata, *frame.places) for column in table.groups})
    if columns:
        judged.append("places: " + ", ".join(columns))
    else:
        not_judged.append("places: no group column was recorded")
    if frame.tokens is None:
        not_judged.append("tokens: none are kept")
    names = {"update", "reference"} - set(frame.pairs)
    not_judged += [f"pair {name}: not recorded" for name in sorted(names)]
    return (*judged, *pairs.judged), tuple(not_judged)
