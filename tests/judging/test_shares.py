"""Shares of K3 that are shown together are all of it at most, and noise explains no more than its setup has."""

from __future__ import annotations

from dataclasses import replace

import pytest
from judging.worlds import World

from logprobe.monitor.judging.judge import _beyond, _shared, judge
from logprobe.monitor.judging.judgement import Confidence, Finding
from logprobe.monitor.judging.level import level_of
from logprobe.monitor.judging.signatures import UNKNOWN

NOISE = Finding("low_precision", Confidence.KNOWN)
FRAME = World(steps=40).frame()
LEVEL = level_of(FRAME)


def named(cause: str, share: float | None) -> Finding:
    return Finding(cause, Confidence.KNOWN, share=share)


def possible(cause: str, share: float) -> Finding:
    return Finding(cause, Confidence.POSSIBLE, share=share)


@pytest.mark.parametrize(
    ("found", "shares", "rest"),
    [
        ([named(UNKNOWN, 0.75), named("staleness", 0.75), NOISE], [0.5, 0.5, 0.0], 0.0),
        ([named(UNKNOWN, 0.75), named("staleness", 0.25), NOISE], [0.75, 0.25, 0.0], 0.0),
        ([named(UNKNOWN, 0.75), named("other_softmax", None)], [0.75, None], None),
        ([named(UNKNOWN, 0.75), possible("late_growth", 0.25)], [0.75, 0.25], 0.25),
        ([named(UNKNOWN, 0.75), possible("late_growth", 0.3)], [0.75, None], 0.25),
        ([possible("late_growth", 0.75), possible("missed_weight_sync", 0.75)], [0.75, None], 1.0),
    ],
)
def test_shares_add_up_to_1_at_most(found: list[Finding], shares: list[float | None], rest: float | None) -> None:
    shared, unexplained = _shared(found, FRAME, LEVEL)
    assert [finding.share for finding in shared] == pytest.approx(shares)
    assert unexplained == rest


@pytest.mark.parametrize(("beyond", "share"), [("as expected", 1.0), ("far above", 0.25)])
def test_noise_explains_no_more_than_the_range_of_its_setup(beyond: str, share: float) -> None:
    now = FRAME.now.k3
    level = replace(LEVEL, k3=now, high=now / 4, status=beyond)
    (noise,), unexplained = _shared([NOISE], FRAME, level)
    assert (noise.share, unexplained) == pytest.approx((share, 1 - share))


def test_equal_bits_of_all_tokens_since_a_step_are_told_once() -> None:
    late = World(steps=60, faults=({"kind": "identical", "since": 30},)).frame()
    assert ["part" in f.evidence for f in judge(late).findings if "identical" in f.evidence] == [False]


def test_what_is_above_the_range_is_what_no_other_finding_explains() -> None:
    level = replace(LEVEL, k3=FRAME.now.k3, high=FRAME.now.k3 / 10, status="far above")
    (above,) = _beyond([named("miscalibrated_logprobs", 0.2)], FRAME, level, ())
    assert above.share == pytest.approx(0.8)
