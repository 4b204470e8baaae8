"""Test "counted": counts that need no statistics, since any value above 0 is evidence."""

from __future__ import annotations

import numpy as np

from logprobe.collectors.kernel.arithmetic import is_sentinel
from logprobe.monitor.judging.discarding import late_answers
from logprobe.monitor.judging.frame import Bools, Frame, Steps
from logprobe.monitor.judging.judgement import Confidence, Finding
from logprobe.monitor.judging.measures import Floats
from logprobe.monitor.judging.proofs import Facts
from logprobe.monitor.judging.records import windows
from logprobe.monitor.judging.signatures import UNKNOWN
from logprobe.monitor.judging.thresholds import number
from logprobe.monitor.judging.tokens import Codes, Tokens


def counted(frame: Frame, facts: Facts) -> list[Finding]:
    """Name counted causes: broken, missing and differing tokens, and contradictory records."""
    unfilled = _unfilled(frame.today, frame, facts) or _unfilled(frame, frame, facts)
    if unfilled is not None and unfilled.until is None:
        return [unfilled]
    found = [] if unfilled is None else [unfilled]
    padding = _padding(frame)
    if padding is not None and padding.until is None:
        return [*found, padding]
    found += [] if padding is None else [padding]
    ends = placeholder_ends(frame)
    n = max(frame.series.total("n_compared"), 1.0)
    absent = _absent(frame)
    kinds = {name: np.nan_to_num(frame.series[name]) for name in ("nonfinite_rollout", "nonfinite_trainer", "sentinel")}
    kinds["positive"] = np.zeros(len(frame.series))
    for cause, count in (
        ("unnormalized_logits", np.nan_to_num(frame.series["positive_rollout"])),
        ("unnormalized_trainer", _positive_trainer(frame)),
    ):
        share = float(count.sum()) / n
        if share > number("positive_share"):
            found.append(_certain(cause, frame, count, positive_share=share))
        else:
            kinds["positive"] = kinds["positive"] + count
    totals = {name: float(count.sum()) for name, count in kinds.items()}
    totals["nonfinite_rollout"] = max(totals["nonfinite_rollout"] - absent, 0.0)
    broken = sum(totals.values())
    if ends:
        of_ends = ends / max(int(frame.recorded.last.sum()), 1) if frame.recorded is not None else 1.0
        evidence: dict[str, object] = {"sequences": ends, "share": of_ends}
        found.append(Finding("synthetic_eos", Confidence.INFERRED, evidence=evidence))
    if max(frame.joins.other_ids, frame.joins.unaligned):
        odd = max(frame.joins.other_ids, frame.joins.unaligned)
        count = np.fmax(frame.series["other_ids"], frame.series["unaligned"])
        share = odd / max(frame.joins.sequences, odd)
        found.append(_certain("retokenization", frame, count, sequences=odd, share=share))
    elif not ends and frame.joins.missing != frame.joins.sequences:
        missing = max(frame.joins.missing_tokens, absent)
        share = missing / max(frame.joins.tokens, missing, 1)
        count = (
            frame.series["missing_tokens"] if missing > absent else None
        )  # a sample says in no step that it had none
        found += [_certain("missing_logprobs", frame, count, tokens=missing, share=share)] if missing else []
    if broken > 0 and not ends:
        count = np.sum(list(kinds.values()), axis=0)
        found.append(
            _certain("nonfinite_logprobs", frame, count, tokens=broken, share=broken / max(n, broken), **totals)
        )
    if facts.conflict:
        found.append(_conflict(frame, facts))
    dropped = [] if frame.sampled is None else late_answers(frame.sampled)
    notes = [*_notes(frame), *_equal_answers(frame), *_filled_in(frame)]
    return [*found, *_weights(frame), *notes, *_routes(frame), *dropped]


def _positive_trainer(frame: Frame) -> Floats:
    """Count trainer log-probs above 0 by step [G], if no other kind of token is broken."""
    series = frame.series
    others = ("nonfinite_rollout", "nonfinite_trainer", "sentinel", "positive_rollout", "zero_rollout")
    counted_as = np.sum([np.nan_to_num(series[name]) for name in others], axis=0)
    broken: Floats = np.nan_to_num(series["n_compared"]) - np.nan_to_num(series["n"]) - counted_as
    return broken


def _certain(cause: str, frame: Frame, count: Floats | None = None, **evidence: float) -> Finding:
    """Return a counted cause, with the first and last step if it was counted by step [G]."""
    if count is None:
        return Finding(cause, Confidence.CERTAIN, frame.start, evidence=evidence)
    since, until = _span(frame, frame.series.step[count > 0])
    return Finding(cause, Confidence.CERTAIN, since, until=until, evidence=evidence)


def _span(frame: Frame, counted_in: Steps) -> tuple[int | None, int | None]:
    """Return the first of some steps, and the last one if the fault has ended.

    It has ended if today's steps have none but as many earlier steps had several.
    """
    if not len(counted_in):
        return frame.start, None
    since, last = int(counted_in[0]), int(counted_in[-1])
    today = windows(frame.measured)[1]
    of_those = int(np.count_nonzero((frame.series.step >= since) & (frame.series.step <= last)))
    wanted = len(counted_in) / max(of_those, 1) * len(today)
    return since, last if wanted >= number("over") and last < today[0] else None


def _conflict(frame: Frame, facts: Facts) -> Finding:
    conflicts = frame.joins.conflicts
    evidence: dict[str, object] = {}
    if facts.newer > number("version_conflict"):
        evidence["newer_than_trainer"] = facts.newer
    if facts.unpublished > number("version_conflict"):
        evidence["unpublished"] = facts.unpublished
    if conflicts is not None and conflicts.differing:
        evidence |= {"tokens_compared": conflicts.compared, "tokens_differing": conflicts.differing}
        evidence |= {"engine_older": conflicts.engine_older, "engine_newer": conflicts.engine_newer}
    since = None if conflicts is None else conflicts.first_step
    return Finding("version_conflict", Confidence.CERTAIN, since=since, evidence=evidence)


def _absent(frame: Frame) -> int:
    """Return the number of sampled tokens without a rollout log-prob."""
    seen = frame.recorded
    if seen is None:
        return 0
    return int((np.isnan(seen.r) & ~seen.broken & np.isfinite(seen.t)).sum())


def _unfilled(frame: Frame, whole: Frame, facts: Facts) -> Finding | None:
    """Name a side that has exact zeros where the other has improbable tokens.

    A probability of 1 is rounded to a log-prob of 0 on either side. A nucleus or a grammar of one token also gives 0 on
    one side. Unless a grammar forced the token, the other side then has a high probability, too. Weights that are far
    apart round to 0 there as well, but put about as many tokens just below 0. An array that was never filled does not.
    """
    for side in ("rollout", "trainer"):
        share, unlikely = _zeros(frame, side)
        if share <= number("zero_share") or unlikely <= number("zero_unlikely"):
            continue
        certain = side == "trainer" or share >= number("zero_nearly_all")
        certain |= {"nothing_truncated", "nothing_masked"} <= facts.true
        if not certain and not _never_drawn(frame, unlikely):
            continue  # a nucleus or a grammar of one token may say the same
        if placeholder_ends(frame):
            continue
        told = Confidence.CERTAIN if certain else Confidence.INFERRED
        evidence = {"zeros": share, "unlikely_zeros": unlikely, "other": _other_side(frame, side)}
        since, until = _span(whole, _zeros_in(whole, side))
        return Finding(f"unfilled_{side}", told, since, until=until, evidence=evidence)
    return None


def _padding(frame: Frame) -> Finding | None:
    """Name padding under the mask: ends or starts of sequences that repeat one token id and one value.

    The value is 0 on both sides, or one further from 0 on one of them. A policy that is certain of the tokens at the
    end rounds to zeros there, too, but has others just below 0; one that repeats a token has one value just below 0.
    """
    seen = frame.recorded
    if seen is None or not len(seen) or seen.nameless:
        return None
    nearly = np.maximum(seen.r, seen.t)
    rounded = int(((nearly < 0) & (nearly > -number("nearly_zero"))).sum())
    zero = (seen.r == 0) & (seen.t == 0)
    kinds = [("on both sides", seen.r, zero, at) for at in ("ends", "starts")]
    for sides, values in (("in the rollout", seen.r), ("in the trainer", seen.t)):
        kinds.append((sides, values, (np.abs(values) > number("nearly_zero")) & np.isfinite(values), "ends"))
    for sides, values, same, at in kinds:
        tail = _tails(seen, same, values, at_start=at == "starts")
        share = float(tail.mean())
        if not share > number("zero_share") or (
            sides == "on both sides" and rounded > number("zero_rounded") * tail.sum()
        ):
            continue
        common = number("placeholders_at_end") * tail.sum()
        (token_id, of_id), (value, of_value) = _commonest(seen.token_id[tail]), _commonest(values[tail])
        if min(of_id, of_value) < common:
            continue
        since, until = _span(frame, np.unique(seen.step[tail]))
        evidence: dict[str, object] = {
            "padding": share,
            "token_id": int(token_id),
            "value": value,
            "sides": sides,
            "at": at,
        }
        evidence["k3"] = frame.gap.k3 / (1 - share) if sides == "on both sides" and share < 1 else None
        return Finding("padding_under_mask", Confidence.INFERRED, since, until=until, evidence=evidence)
    return None


def _tails(seen: Tokens, same: Bools, values: Floats, *, at_start: bool) -> Bools:
    """Return the tokens at the ends (or starts) of sequences, several in each, with the id and value of the outermost
    one [N].
    """
    size = int(seen.sequence.max()) + 1
    length = np.bincount(seen.sequence, minlength=size)
    inwards = seen.place if at_start else length[seen.sequence] - 1 - seen.place
    first = np.zeros(size, np.intp)
    first[seen.sequence[inwards == 0]] = np.flatnonzero(inwards == 0)
    outer = first[seen.sequence]
    other = ~same | (seen.token_id != seen.token_id[outer]) | (values != values[outer])
    until = length.copy()
    np.minimum.at(until, seen.sequence[other], inwards[other])
    tail: Bools = inwards < until[seen.sequence]
    several = np.bincount(seen.sequence[tail], minlength=size) > 1
    return tail & several[seen.sequence]


def _commonest(values: Floats | Codes) -> tuple[float, int]:
    found, counts = np.unique(values, return_counts=True)
    return float(found[counts.argmax()]), int(counts.max())


def _never_drawn(frame: Frame, unlikely: float) -> bool:
    """Return whether most zeros are of tokens that a nucleus of one token rules out, and no grammar is recorded."""
    kept = frame.recorded is not None and len(frame.recorded) > 0
    return kept and not frame.setup.structured and unlikely > number("most")


def _other_side(frame: Frame, side: str) -> float | None:
    """Return the other side's mean log-prob at the zeros of this one, or None if no tokens are kept."""
    seen = frame.recorded
    if seen is None or not len(seen):
        return None
    ours, theirs = (seen.r, seen.t) if side == "rollout" else (seen.t, seen.r)
    alone: Bools = (ours == 0) & (theirs != 0) & np.isfinite(theirs)
    return float(theirs[alone].mean()) if alone.any() else None


def _zeros(frame: Frame, side: str) -> tuple[float, float]:
    """Return the share of tokens that are exactly 0 on one side alone, and the share of these unlikely on the other."""
    seen = frame.recorded
    if seen is not None and len(seen):
        ours, theirs = (seen.r, seen.t) if side == "rollout" else (seen.t, seen.r)
        alone: Bools = (ours == 0) & (theirs != 0) & np.isfinite(theirs)
        unlikely = theirs < -number("zero_other_side")
        zeros = int((alone & unlikely).sum())
        nearly = int((unlikely & (ours < 0) & (ours > -number("nearly_zero"))).sum())
        if nearly > number("zero_rounded") * zeros:
            return 0.0, 0.0
        return float(alone.mean()), zeros / max(int(alone.sum()), 1)
    n = frame.series.total("n_compared")
    alone_n = frame.series.total(f"zero_{side}")  # the series counts a zero where the other side is below −1
    return (alone_n / n, 1.0) if n else (0.0, 0.0)


def _zeros_in(frame: Frame, side: str) -> Steps:
    """Return the steps in which many tokens are 0 on one side."""
    steps, seen = frame.series.step, frame.recorded
    if seen is not None and len(seen):
        ours, theirs = (seen.r, seen.t) if side == "rollout" else (seen.t, seen.r)
        steps, index = np.unique(seen.step, return_inverse=True)
        share = np.bincount(index, (ours == 0) & (theirs != 0)) / np.bincount(index)
    else:
        share = frame.series[f"zero_{side}"] / np.maximum(frame.series["n_compared"], 1)
    return steps[share > number("zero_share") / 2]


def placeholder_ends(frame: Frame) -> int:
    """Count sequences whose last token has a placeholder. Return 0 if other tokens have placeholders, too."""
    seen = frame.recorded
    if seen is None or not len(seen):
        return 0
    missing = np.isnan(seen.r) & np.isfinite(seen.t)
    zero = ((seen.r == 0) & (seen.t < -number("placeholder_t"))) | is_sentinel(seen.r) | missing
    at_end = zero & seen.last
    count = int(at_end.sum())
    mostly = number("placeholders_at_end")
    others = seen.valid.where(~seen.valid.last)
    moved = others.d[np.abs(others.d) > number("rounding_d")]
    renormalised = 0 < len(moved) >= len(others) / 2 and float(np.mean(moved < 0)) > mostly
    certain_ends = int((seen.last & (seen.r == 0) & ~zero).sum())
    if count < number("few") or count < mostly * zero.sum() or renormalised or certain_ends > count:
        return 0
    commonest = int(np.unique(seen.token_id[at_end], return_counts=True)[1].max())
    return count if commonest >= mostly * count else 0


def _weights(frame: Frame) -> list[Finding]:
    """Name faults of weight updates shown by fingerprints and tensor counts."""
    found = []
    readings, since = frame.readings, frame.growth.since_step
    visible = frame.gap.k3 > number("visible_k3")
    if readings.divergence is not None:
        apart = readings.divergence
        evidence: dict[str, object] = {"replicas": ", ".join(apart.replicas), "version": apart.version}
        evidence |= {"why": apart.why, "replica": apart.wrong[0] if apart.wrong else None}
        found.append(Finding("replica_divergence", Confidence.CERTAIN, readings.divergence.step, evidence=evidence))
    elif readings.mismatch is not None:
        cause = "partial_weight_sync" if readings.mismatch.partial else "missed_weight_sync"
        apart_in = readings.mismatch
        held = "no version of the trainer" if apart_in.held is None else f"version {apart_in.held}"
        evidence = {"version": apart_in.version, "held": held, "names": apart_in.tensors}
        evidence |= {"compared": apart_in.compared, "different": len(apart_in.different)}
        if readings.recurring:
            evidence["versions"] = len(readings.recurring)
        found.append(Finding(cause, Confidence.CERTAIN, readings.mismatch.step, evidence=evidence))
    counts = [record.tensors for record in frame.weights.updates if record.tensors]
    if not found and counts and min(counts) < max(counts) and visible:
        first = next(r.step for r in frame.weights.updates if r.tensors and r.tensors < max(counts))
        evidence = {"tensors": min(counts), "before": max(counts)}
        since = first if first is not None else since
        found.append(Finding("partial_weight_sync", Confidence.KNOWN, since, evidence=evidence))
    sums = _different_checksums(frame) if not found and visible else 0
    if sums:
        found.append(Finding("partial_weight_sync", Confidence.KNOWN, since, evidence={"checksums": sums}))
    return found


def _different_checksums(frame: Frame) -> int:
    """Count the versions whose checksums differ between trainer and engine."""
    by_version: dict[str, set[str]] = {}
    for record in frame.weights.records:
        if record.version is not None and record.checksum:
            by_version.setdefault(record.version, set()).add(record.checksum)
    return sum(len(sums) > 1 for sums in by_version.values())


def _notes(frame: Frame) -> list[Finding]:
    """Name ambiguous weight labels: one label for two versions, or no label for a change."""
    found = []
    reuse, changes = frame.readings.reuse, frame.readings.unannounced
    if reuse is not None:
        engine = "The engine" if reuse.replica is None else f"Replica {reuse.replica}"
        who = "The trainer" if reuse.source == "trainer" else engine
        evidence: dict[str, object] = {"who": who, "version": reuse.version, "fingerprints": reuse.different}
        evidence |= {"versions": reuse.versions, "adapter": reuse.adapter}
        found.append(Finding("version_reused", Confidence.CERTAIN, reuse.step, evidence=evidence))
    if changes:
        known = frame.strata.where(np.isfinite(frame.strata.lag)).n
        unknown = 1 - known / frame.strata.n if frame.strata.n else 1.0
        evidence = {"changes": changes, "unknown_version_share": unknown}
        found.append(Finding("unannounced_weights", Confidence.KNOWN, evidence=evidence))
    return found


def _equal_answers(frame: Frame) -> list[Finding]:
    """Name answers to one prompt that are copies of each other.

    A temperature below 1 makes likely what raw log-probs call unlikely; what was drawn by chance is then unknown.
    """
    setup, copies = frame.setup, frame.series["copies"]
    temperatures = setup.sampling("temperature")
    greedy = bool(temperatures) and not any(temperatures)
    if frame.tokens is not None and frame.tokens.nameless:
        return []
    if not greedy and setup.raw is not False and any(value < 1 for value in temperatures):
        return []
    for series in (frame.today.series, frame.series):
        count, share = series.total("copies"), series.total("copies") / max(series.total("grouped"), 1.0)
        if count >= number("few") and share > number("copied_share"):
            since, until = _span(frame, frame.series.step[copies > 0])
            evidence: dict[str, object] = {"copies": share, "temperature": 0.0 if greedy else None}
            confidence = Confidence.CERTAIN if temperatures else Confidence.INFERRED
            return [Finding("equal_answers", confidence, since, until=until, evidence=evidence)]
    return []


def _filled_in(frame: Frame) -> list[Finding]:
    """Report runs of tokens with equal bits between tokens that differ: one side has the other's values there.

    Values on a coarse grid agree here and there, not in runs.
    """
    seen = frame.tokens
    if seen is None or len(seen) < number("fewest") or frame.setup.bits_may_agree:
        return []
    same: Bools = (seen.r == seen.t) & (seen.r < -number("placeholder_t"))
    share = float(same.mean())
    if not number("zero_share") < share < number("identical_share"):
        return []
    follows = seen.sequence[1:] == seen.sequence[:-1]
    before, after = same[:-1][follows], same[1:][follows]
    if not before.any() or before.all():
        return []
    if after[before].mean() < number("filled_runs") or after[~before].mean() > 1 - number("filled_runs"):
        return []
    since, until = _span(frame, np.unique(seen.step[same]))
    evidence: dict[str, object] = {"identical": "bit by bit", "part": share, "others": float(seen.k3[~same].mean())}
    return [Finding(UNKNOWN, Confidence.INFERRED, since, until=until, evidence=evidence)]


def _routes(frame: Frame) -> list[Finding]:
    """Name expert routes that were replayed on other tokens, or returned but not used."""
    replay = frame.replay
    if replay.fault is None and not replay.off:
        return []
    evidence: dict[str, object] = {"agreement": replay.agreement, "pairs_compared": replay.compared}
    if replay.fault is None:
        return [Finding("replay_off", Confidence.KNOWN, evidence=evidence)]
    evidence |= {"where": replay.fault.kind, "at": replay.fault.where, "shift": replay.fault.shift}
    return [Finding("replay_broken", Confidence.CERTAIN, frame.start, evidence=evidence)]


def unmeasured(findings: list[Finding]) -> bool:
    """Return whether these findings make K3 meaningless."""
    return any(f.cause.startswith(("unfilled_", "padding_")) and f.hides for f in findings)
