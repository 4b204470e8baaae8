"""Whether a judgement is what a situation allows."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
from judging.second.world import Drawn, Run
from judging.test_cases import adds_up

from logprobe.monitor.judging.judge import judge
from logprobe.monitor.judging.judgement import Confidence, Judgement

KEYS = {"verdict", "layer", "advice", "cause", "confidence", "where", "since", "never", "true", "k3", "quiet"}
QUIET = {
    "verdict": ["healthy", "calibrating"],
    "layer": ["none"],
    "advice": ["not_needed"],
    "cause": [None],
    "where": None,
}
LIKELY = 0.5  # share of the fault's tokens that a named place holds at least, and of its tokens that are the fault's


def drawn_of(run: dict[str, Any]) -> Drawn:
    """Draw a run that is written down."""
    tuples = {f.name for f in fields(Run) if "tuple" in str(f.type)}
    return Drawn(Run(**{k: tuple(v) if k in tuples and v is not None else v for k, v in run.items()}))


def looks(case: dict[str, Any]) -> list[tuple[str, Judgement, dict[str, Any]]]:
    """Judge a situation at its end, and where it was quiet before, at that step: what differs from what is allowed."""
    drawn, expect = drawn_of(case["run"]), case["expect"]
    assert not set(expect) - KEYS, "an expectation that is not checked"
    judged = judge(drawn.frame())
    found = [("end", judged, differences(judged, expect, drawn))]
    if expect.get("quiet"):
        early = drawn.before(expect["quiet"])
        before = judge(early.frame())
        found.append(("before", before, differences(before, QUIET, early)))
    return found


def differences(judged: Judgement, expect: dict[str, Any], drawn: Drawn) -> dict[str, Any]:
    """Return what is not allowed, by key."""
    asking = [f for f in judged.findings if f.urgency != "informational"]
    first = asking[0] if asking else None
    cause = None if first is None else first.cause if first.named else "unknown"  # possible: nothing is named
    wrong: dict[str, Any] = {}
    for key in ("verdict", "layer", "advice"):
        if key in expect and getattr(judged, key) not in expect[key]:
            wrong[key] = getattr(judged, key)
    if cause not in expect["cause"]:
        wrong["cause"] = cause
    if "confidence" in expect and (first is None or first.confidence < Confidence[expect["confidence"].upper()]):
        wrong["confidence"] = None if first is None else first.confidence.name
    allowed = {*expect["cause"], *expect.get("true", ()), "unknown"}
    sure = {f.cause for f in asking if f.named and f.confidence >= Confidence.KNOWN} - allowed
    if sure:
        wrong["sure"] = sorted(sure)
    never = {f.cause for f in judged.findings if f.named} & set(expect.get("never", ()))
    if never:
        wrong["never"] = sorted(never)
    place = None if judged.where is None else {name: list(values) for name, values in judged.where.columns.items()}
    if "where" in expect and not _is_place(place, expect["where"], drawn):
        wrong["where"] = place
    if "since" in expect and not (
        judged.since is not None and expect["since"][0] <= judged.since <= expect["since"][1]
    ):
        wrong["since"] = judged.since
    if "k3" in expect and judged.level.k3 != expect["k3"]:
        wrong["k3"] = judged.level.k3
    if not adds_up(judged):
        wrong["shares"] = judged.unexplained
    return wrong


def _is_place(place: dict[str, Any] | None, wanted: str | None, drawn: Drawn) -> bool:
    if place is None or wanted is None:
        return place is None and wanted in (None, "fault?")
    if wanted == "growth":
        assert drawn.run.growth is not None
        hit = drawn.named(drawn.run.growth["at"])
    else:
        hit = drawn.where[0]
    since = drawn.step[hit.any(1)].min()
    named = drawn.named(place) & (drawn.step >= since)[:, None]
    both = float(np.sum(hit & named))
    if wanted == "around":  # no recorded table has the columns of the fault together
        return both >= LIKELY * hit.sum() and set(place) <= set(drawn.run.faults[0]["at"])
    return both >= LIKELY * hit.sum() and both >= LIKELY * named.sum()


def described(judged: Judgement) -> str:
    """A judgement in a line."""
    found = [
        (
            f.cause,
            f.confidence.name.lower(),
            f.urgency,
            None
            if f.share is None
            else round(float(np.ravel(f.share)[0]), 2)
            if not hasattr(f.share, "now")
            else f.share.now,
        )
        for f in judged.findings
    ]
    place = None if judged.where is None else dict(judged.where.columns)
    return f"{judged.verdict} {judged.layer} {judged.advice} since {judged.since} where {place} {found} K3 {judged.level.k3} {judged.level.status}"
