"""What is said of discarded requests: numbers by plain formulas, the first values past each limit, and what is not known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from sampled_requests import LIMIT, Requests

from logprobe.monitor.judging.discarding import Sampled, discarding, late_answers
from logprobe.monitor.judging.thresholds import number


def test_means_and_shares_are_those_of_plain_formulas() -> None:
    sampled = Requests("late", rewards=True).sampled()
    wait = np.nanmax(sampled.trained_at - sampled.time)
    there = sampled.time <= sampled.until - 2 * wait
    trained = there & np.isfinite(sampled.trained_at)
    found = discarding(sampled)
    assert found is not None
    assert (found["requests"], found["share"]) == (there.sum(), pytest.approx(1 - trained.sum() / there.sum()))
    for side, values in (
        (found["length"], sampled.tokens),
        (found["entropy"], sampled.entropy),
        (found["reward"], sampled.reward),
    ):
        assert side is not None
        assert (side["sampled"], side["trained"]) == (
            pytest.approx(values[there].mean()),
            pytest.approx(values[trained].mean()),
        )
    assert found["late"] == {"limit": LIMIT, "dropped": 1.0}
    others = [(sampled.prompt == prompt)[trained_].sum() for prompt, trained_ in _without(sampled)]
    own = np.array(others) > 0
    (finding,) = late_answers(sampled)
    shorter = sampled.tokens[there & own].mean() - sampled.tokens[trained & own].mean()
    assert finding.evidence["shorter"] == pytest.approx(shorter)


def test_the_interval_holds_the_true_difference() -> None:
    found = [discarding(Requests("random", size=800, seed=seed).sampled()) for seed in range(60)]
    ends = [each["length"]["difference_interval"] for each in found if each is not None and each["length"] is not None]
    held = [low <= 0 <= high for low, high in ends]
    assert 50 <= sum(held) <= len(held) == 60


def test_rewards_of_discarded_requests_are_unknown_unless_they_are_recorded() -> None:
    found = discarding(Requests("late").sampled())
    assert found is not None
    assert found["reward"] is None
    assert "reward" not in found["words"]


def test_late_answers_as_long_as_others_are_told_and_not_named() -> None:
    sampled = Requests("late_of_any_length").sampled()
    found = discarding(sampled)
    assert found is not None
    assert found["late"] == {"limit": LIMIT, "dropped": 1.0}
    assert late_answers(sampled) == []


@pytest.mark.parametrize(("more", "known"), [(0, True), (1, False)])
def test_trained_sequences_without_a_rollout_record_may_be_the_missing_ones(more: int, known: bool) -> None:
    sampled = Requests("late").sampled()
    gone = int((~np.isfinite(sampled.trained_at) & sampled.settled).sum())
    assert (discarding(replace(sampled, missing=gone // 10 + more)) is not None) == known


@pytest.mark.parametrize(("fewer", "known"), [(0, True), (1, False)])
def test_a_mean_needs_the_fewest_requests(fewer: int, known: bool) -> None:
    sampled = Requests("random").sampled()
    gone = np.flatnonzero(~np.isfinite(sampled.trained_at))[: int(number("discarded")) - fewer]
    at = np.isfinite(sampled.trained_at)
    at[gone] = True
    assert (discarding(_where(sampled, at)) is not None) == known


def test_a_request_counts_once_it_has_waited_twice_as_long_as_any_trained_one() -> None:
    sampled = Requests("random").sampled()
    wait = np.nanmax(sampled.trained_at - sampled.time)
    assert sampled.settled[sampled.time == sampled.time[-500]].item()
    assert not replace(sampled, until=sampled.time[-500] + 2 * wait - 1e-6).settled[-500]
    assert discarding(replace(sampled, until=float(sampled.time[0]))) is None


def test_a_late_request_is_so_by_the_newest_version_that_was_seen() -> None:
    of = {name: np.zeros(4) for name in ("tokens", "entropy", "reward", "trained_at")}
    first, last = np.array([1.0, 5.0, 2.0, np.nan]), np.array([1.0, 5.0, 2.0, np.nan])
    sampled = Sampled(np.arange(4.0), prompt=np.arange(4), first=first, last=last, until=9.0, missing=0, **of)
    np.testing.assert_array_equal(sampled.late, [0, 0, 3, np.nan])


def test_without_groups_late_answers_may_be_those_of_an_evaluation() -> None:
    sampled = Requests("late", answers=1).sampled()
    found = discarding(sampled)
    assert found is not None
    assert found["late"] is None
    assert late_answers(sampled) == []


def _without(sampled: Sampled) -> Iterator[tuple[int, np.ndarray]]:
    """Prompt of each request, and the trained requests without it."""
    trained = np.flatnonzero(np.isfinite(sampled.trained_at))
    for at, prompt in enumerate(sampled.prompt.tolist()):
        yield prompt, trained[trained != at]


def _where(sampled: Sampled, at: np.ndarray) -> Sampled:
    columns = {name: values[at] for name, values in vars(sampled).items() if isinstance(values, np.ndarray)}
    return replace(sampled, **columns)
