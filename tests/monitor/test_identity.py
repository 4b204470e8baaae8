"""Identical, different, not measured: and never "identical" because one array was passed twice."""

from __future__ import annotations

import doctest

import pytest
from recorded_home import feed
from segments import RUN, sampled, trained

from logprobe.monitor.analysis import identity
from logprobe.monitor.analysis.identity import Identity, StepFacts, facts_of, judge
from logprobe.monitor.store.store import Store

R = [-1.0, -2.0, -3.0, -4.0]


def verdict(store: Store, **kinds: list[dict]) -> Identity:
    feed(store, **kinds)
    return judge(facts_of(store.read("slice_identity", runs=[RUN], first=[None], last=[None])))


def test_two_steps_that_were_joined_are_identical(store: Store) -> None:
    same = [trained(f"s{step}", step, received=False, trainer_logprobs=R) for step in (3, 4)]
    found = verdict(store, rollout=[sampled("s3"), sampled("s4")], training=same)
    assert (found.verdict, found.since_step) == ("identical", 3)


def test_received_log_probs_count_when_the_engine_was_seen_too(store: Store) -> None:
    same = [trained(f"s{step}", step, trainer_logprobs=R) for step in (3, 4)]
    alone = verdict(store, training=same)
    assert alone.verdict == "not measured"
    assert "passed twice" in alone.reason
    assert verdict(store, rollout=[sampled("s3"), sampled("s4")]).verdict == "identical"


def test_one_unseen_sequence_is_enough_not_to_know(store: Store) -> None:
    same = [trained(name, step, trainer_logprobs=R) for step in (0, 1) for name in (f"a{step}", f"b{step}")]
    found = verdict(store, rollout=[sampled("a0"), sampled("a1"), sampled("b0")], training=same)
    assert found.verdict == "not measured"
    assert "1 of 2 sequences" in found.reason


def test_one_step_is_not_enough(store: Store) -> None:
    found = verdict(store, rollout=[sampled("a")], training=[trained("a", received=False, trainer_logprobs=R)])
    assert found.verdict == "not measured"
    assert "2 steps" in found.reason


@pytest.mark.parametrize("received", [True, False])
def test_any_token_that_differs_is_different(store: Store, received: bool) -> None:
    rows = [trained(f"s{step}", step, received=received, trainer_logprobs=[*R[:3], R[3] + 2**-20]) for step in (5, 6)]
    found = verdict(store, rollout=[sampled("s5"), sampled("s6")], training=rows)
    assert (found.verdict, found.since_step) == ("different", 5)
    assert "1 of 4 tokens" in found.reason


def test_missing_and_broken_log_probs_are_not_measured(store: Store) -> None:
    missing = verdict(store, training=[trained("a", received=False), trained("b", 1, received=False)])
    assert missing.verdict == "not measured"
    assert "no token with both log-probs" in missing.reason


def test_a_broken_token_never_passes_for_identical() -> None:
    facts = [StepFacts(step, n_expected=10, n=9, zero=9, sequences=1, independent=1) for step in (0, 1)]
    found = judge(facts)
    assert found.verdict == "not measured"
    assert "1 of 10 tokens of step 1 are broken" in found.reason


def test_nothing_is_not_measured(store: Store) -> None:
    assert verdict(store).verdict == "not measured"


def test_a_verdict_is_about_the_newest_steps() -> None:
    same = [StepFacts(step, 10, 10, 10, 1, 1) for step in range(3)]
    other = [StepFacts(step, 10, 10, 3, 1, 1) for step in range(3, 5)]
    assert judge([*same, *other]).since_step == 3
    again = [StepFacts(step, 10, 10, 10, 1, 1) for step in (5, 6)]
    assert judge([*same, *other, *again]) == judge(again)
    assert judge([*same, *other, again[0]]).verdict == "not measured"


def test_the_examples_hold() -> None:
    assert doctest.testmod(identity) == (0, 2)
