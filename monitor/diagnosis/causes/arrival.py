"""New weights that do not reach the engine, or only in part; and what tells them from policies that drift apart."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from logprobe.monitor.diagnosis.causes import fingerprints
from logprobe.monitor.diagnosis.causes.cause import CERTAIN, INFERRED, KNOWN, LIKELY, POSSIBLE, Sign
from logprobe.monitor.diagnosis.causes.skipping import missed_now_and_then
from logprobe.monitor.diagnosis.causes.updates import not_in_flight, rise, risen_numbers, risen_since, uninterrupted
from logprobe.monitor.diagnosis.evidence.change_points import TOLD, Change, agreed_before, beginning, pace, stays_level
from logprobe.monitor.diagnosis.evidence.evidence import Evidence, number_of
from logprobe.monitor.diagnosis.evidence.skipped import skipped
from logprobe.monitor.diagnosis.evidence.strata import Strata, rise_of
from logprobe.monitor.diagnosis.result import GROWS, Finding

_RISEN: Final = 3.0  # times: an update that is missed is no matter of degree
_BLURRED: Final = 1.2  # where a rise is certain, or stands out less
_FEWEST: Final = 200  # tokens of requests that a fault should concern, and may not
_SPARED: Final = 0.5  # of the rise of all requests
_ERRORS: Final = 2.0  # standard errors, within which a group may have risen with the others
_STUCK: Final = 8  # updates of the trainer that reach no token
_HABIT: Final = 2.0  # times as many as ever before in this run: several updates on one batch are no fault


def missed_weight_sync(evidence: Evidence) -> Sign | None:
    """The engine's weights are not those of its label; its version stands still; or tokens of the trainer's weights
    differ from a step on, or in some steps."""
    sometimes = missed_now_and_then(evidence)
    if sometimes is not None and sometimes.confidence >= KNOWN:
        return sometimes
    sign = _left_behind(evidence) or sometimes
    return fingerprints.not_synced(evidence, _whole(evidence) if sign is None else sign.effect) or sign


def _whole(evidence: Evidence) -> float:
    return not_in_flight(evidence) if evidence.gap.visible else 0.0


def without_missed(evidence: Evidence, finding: Finding) -> Evidence:
    """Without the steps or versions of updates that were missed now and then; one that lasts leaves nothing to tell
    apart."""
    missed = skipped(evidence) if "told_by" in finding.evidence else None
    strata = None if missed is None or evidence.strata is None else evidence.strata.where(~missed.rows(evidence.strata))
    return evidence.left("missed_weight_sync", strata=strata)


def _left_behind(evidence: Evidence) -> Sign | None:
    """The engine's version stands still; or tokens said to be of the trainer's weights differ from a step on, all
    alike."""
    stuck = _version_stands_still(evidence)
    if stuck is not None:
        return stuck
    not_loaded = _labels_without_load(evidence)
    # What a scale leaves without repeated contexts is not exact: a rise stands out less there, and says less.
    grows = evidence.growth.verdict in GROWS and not evidence.scaled  # else it is the scale that grew
    least = _BLURRED if evidence.blurred or grows else _RISEN
    risen = rise(uninterrupted(evidence), least)
    if risen is None or (risen.until is not None and risen.ratio < _RISEN):  # what ended explains no growth of today
        return None
    if evidence.blurred:
        return _blurred(risen)
    told = bool(not_loaded) or (evidence.scaled and not evidence.older)
    if not told and (evidence.older or (not agreed_before(evidence, risen) and stays_level(evidence))):
        return None  # among tokens of older weights an update that moves the policy further looks so, too
    lead = None if told else pace(evidence)
    if (lead is not None and lead > -TOLD) or _spared(evidence, risen):
        return None
    return _never_arrived(evidence, risen, not_loaded)


def _never_arrived(evidence: Evidence, risen: Change, not_loaded: int) -> Sign | None:
    confidence = _confidence(evidence, risen, not_loaded)
    if confidence < LIKELY and (risen.until is not None or evidence.growth.verdict == "healthy"):
        return None  # of unknown versions, and the run's own past says that nothing lasts
    until = "" if risen.until is None else f" until {risen.until}"
    return Sign(
        confidence,
        not_in_flight(evidence),
        {
            **risen_numbers(risen),
            "until": risen.until,
            "labels_without_load": not_loaded,
            "unknown_version_share": evidence.unknown_versions,
        },
        f"Since step {beginning(evidence, risen)}{until} the engine's log-probs leave the trainer's ({risen.ratio:.3g} "
        "times the mean |d| of the other steps, "
        f"{risen.z:.0f} standard errors), {_told(evidence, risen)}: new weights do not reach it.",
        since_step=beginning(evidence, risen),
    )


def _confidence(evidence: Evidence, risen: Change, not_loaded: int) -> float:
    if not_loaded:
        return KNOWN
    if evidence.versions_known:
        return INFERRED
    return LIKELY if agreed_before(evidence, risen) else POSSIBLE


def _blurred(risen: Change) -> Sign:
    return Sign(
        POSSIBLE,
        1.0,
        risen_numbers(risen),
        f"Since step {risen.step} the mean |d| that the other finding leaves is {risen.ratio:.3g} times as large "
        f"({risen.z:.0f} standard errors): new "
        "weights may not reach the engine (inferred; look again once the other fault is fixed).",
        since_step=risen.step,
    )


def _told(evidence: Evidence, risen: Change) -> str:
    if evidence.versions_known:
        return "although the engine says that it has the trainer's weights"
    if agreed_before(evidence, risen):
        return (
            "while before both agreed to rounding, so that weights did arrive (inferred; the version of the tokens is "
            "not known)"
        )
    return "but the version of the tokens is not known: it may also be a lag that grew"


def _spared(evidence: Evidence, risen: Change) -> bool:
    """Whether some requests did not take part in the rise: those without a cached prompt, without an update in flight,
    of another replica.

    Weights that never arrived concern every request of an engine, so this refutes them.
    """
    strata = evidence.strata
    if strata is None:
        return False
    ours = strata.within(evidence.series.step).alike
    whole = rise_of(ours, risen.step)
    if not whole.n or not whole.value > 0:
        return False
    groups = (rise_of(group, risen.step) for group in _groups(ours))
    return any(g.n >= _FEWEST and g.value + _ERRORS * g.error < _SPARED * whole.value for g in groups)


def _groups(strata: Strata) -> list[Strata]:
    """Requests that one fault or another leaves alone."""
    names = sorted({str(name) for name in strata.replica if name is not None})
    replicas = [strata.where(np.array([str(n) == name for n in strata.replica])) for name in names if len(names) > 1]
    uncached = [strata.where(strata.cached == 0)] if (strata.cached == 1).any() else []
    quiet = [strata.where(strata.in_flight == 0)] if (strata.in_flight == 1).any() else []
    return [*uncached, *quiet, *replicas]


def _version_stands_still(evidence: Evidence) -> Sign | None:
    """With every update of the trainer the newest token is one version older, for longer than ever before in the
    run."""
    strata = evidence.strata
    if strata is None or not evidence.versions_known:
        return None
    of_known_lag = strata.where(np.isfinite(strata.lag)).within(evidence.series.step)
    steps, index = np.unique(of_known_lag.step, return_inverse=True)
    newest = np.full(len(steps), np.inf)
    np.minimum.at(newest, index, of_known_lag.lag)
    stretches = _rising(newest)
    if not stretches or stretches[-1][1] != len(newest) - 1:
        return None
    begin, end = stretches[-1]
    before = max((newest[last] - newest[first] for first, last in stretches[:-1]), default=0.0)
    missed = float(newest[end] - newest[begin])
    if missed < max(_STUCK, _HABIT * before) or _engine_moved(evidence, missed):
        return None
    since = int(steps[begin])
    recorded = bool(evidence.weights.updates)
    return Sign(
        CERTAIN if recorded else INFERRED,
        1.0,
        {"stuck_updates": missed, "step": since, "lag_now": float(newest[end])},
        f"Since step {since} the trainer made {missed:.0f} updates and the engine's version stayed what it was: no "
        "update reaches it. That is no staleness "
        "that a correction is for."
        + ("" if recorded else " (The engine's own updates are not recorded: batches that wait would look the same.)"),
        since_step=since,
    )


def _rising(values: NDArray[np.float64]) -> list[tuple[int, int]]:
    """First and last place of each stretch of values that rise at every place."""
    edges = np.flatnonzero(np.diff(values) <= 0)
    begins, ends = np.r_[0, edges + 1], np.r_[edges, len(values) - 1]
    return [(int(first), int(last)) for first, last in zip(begins, ends, strict=True) if last >= first >= 0]


def _engine_moved(evidence: Evidence, missed: float) -> bool:
    """Whether engines were seen to load newer weights than those of the tokens: then it is batches that wait."""
    engines = [number_of(record.version) for record in evidence.weights.updates]
    everybody = [number_of(record.version) for record in evidence.weights.records]
    numbers = [number for number in engines if number is not None]
    newest = max((number for number in everybody if number is not None), default=None)
    if newest is None or not numbers:
        return len({record.version for record in evidence.weights.updates}) > missed
    return max(numbers) > newest - missed


def _labels_without_load(evidence: Evidence) -> int:
    """Updates of which engines got the label but not, as far as was seen, the weights; 0 where loads are never seen."""
    updates = evidence.weights.updates
    return sum(not record.loaded for record in updates) if any(record.loaded for record in updates) else 0


def version_conflict(evidence: Evidence) -> Sign | None:
    """Engine and trainer state different weight versions of the same tokens."""
    conflicts = evidence.joins.conflicts
    if conflicts is None or not conflicts.differing:
        return None
    share = conflicts.differing / conflicts.compared
    sides = [
        f"the engine's is {word} in {count:,}"
        for word, count in (("older", conflicts.engine_older), ("newer", conflicts.engine_newer))
        if count
    ]
    return Sign(
        CERTAIN,  # counted
        share,
        {
            "tokens_compared": conflicts.compared,
            "tokens_differing": conflicts.differing,
            "engine_older": conflicts.engine_older,
            "engine_newer": conflicts.engine_newer,
        },
        f"Of {conflicts.compared:,} tokens whose weight version both engine and trainer state, {conflicts.differing:,} "
        f"({share:.0%}) have two different ones"
        f"{': ' + ', '.join(sides) if sides else ''}. One of the two is wrong, so their lag is unknown.",
        since_step=conflicts.first_step,
    )


def partial_weight_sync(evidence: Evidence) -> Sign | None:
    """Some tensors of the engine are not the trainer's; or some updates carried fewer tensors than others."""
    return fingerprints.partly_synced(evidence, _whole(evidence)) or _fewer_tensors(evidence)


def _fewer_tensors(evidence: Evidence) -> Sign | None:
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
        f"{fewer} weight updates carried fewer tensors than others, {sums} versions have different checksums at "
        "trainer and engine: a part of the "
        "weights stays old.",
        since_step=risen_since(evidence),
    )


def _different_checksums(evidence: Evidence) -> int:
    by_version: dict[str, set[str]] = {}
    for record in evidence.weights.records:
        if record.version is not None and record.checksum:
            by_version.setdefault(record.version, set()).add(record.checksum)
    return sum(len(sums) > 1 for sums in by_version.values())
