"""The sufficient statistics against the plain formulas, token by token."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from logprobe.collectors.errors import ConfigurationError, InputError
from logprobe.collectors.kernel import arithmetic as kernel
from logprobe.collectors.kernel.statistics import (
    BROKEN,
    COLUMN_SPECS,
    COLUMNS,
    Bounds,
    sequence_statistics,
)

BOUNDS = Bounds(0.5, 2.0)
NAN, INF = float("nan"), float("inf")


def plain(behaviour: list[float], policy: list[float], bounds: Bounds = BOUNDS) -> dict[str, float]:
    """One sequence of unbroken tokens, by math's scalar functions and exact sums."""
    pairs = list(zip(behaviour, policy, strict=True))
    d = [t - r for r, t in pairs]
    rho = [math.exp(max(-20.0, min(20.0, x))) for x in d]
    both = list(zip(d, rho, strict=True))
    return {
        "n": len(d),
        "n_expected": len(d),
        "sum_d": math.fsum(d),
        "sum_d2": math.fsum(x * x for x in d),
        "sum_abs_d": math.fsum(map(abs, d)),
        "sum_ratio_m1": math.fsum(w - 1 for w in rho),
        "sum_ratio_m1_sq": math.fsum((w - 1) ** 2 for w in rho),
        "sum_k3": math.fsum(w - 1 - x for x, w in both),
        "sum_reverse_kl": math.fsum(w * x - w + 1 for x, w in both),
        "sum_abs_prob_diff": math.fsum(abs(math.exp(t) - math.exp(r)) for r, t in pairs),
        "sum_exp_abs_d": math.fsum(math.exp(min(abs(x), 20.0)) for x in d),
        "min_d": min(d),
        "max_d": max(d),
        "sum_policy": math.fsum(policy),
        "sum_behaviour": math.fsum(behaviour),
        "sum_policy2": math.fsum(t * t for t in policy),
        "sum_behaviour2": math.fsum(r * r for r in behaviour),
        "sum_policy_behaviour": math.fsum(r * t for r, t in pairs),
        "sum_policy_prob": math.fsum(map(math.exp, policy)),
        "sum_behaviour_prob": math.fsum(map(math.exp, behaviour)),
        "sum_policy_prob2": math.fsum(math.exp(2 * t) for t in policy),
        "sum_behaviour_prob2": math.fsum(math.exp(2 * r) for r in behaviour),
        "sum_policy_behaviour_prob": math.fsum(math.exp(t + r) for r, t in pairs),
        "n_positive_d": sum(x > 0 for x in d),
        "n_negative_d": sum(x < 0 for x in d),
        "n_zero_d": sum(x == 0 for x in d),
        "n_above": sum(w > bounds.upper for w in rho),
        "n_below": sum(w < bounds.lower for w in rho),
        "n_clamped": sum(abs(x) > 20 for x in d),
        "n_advantage": 0,
        "n_pg_clipped": 0,
        "n_zero_policy": sum(t == 0 and r < -1 for r, t in pairs),
        **dict.fromkeys(BROKEN, 0),
    }


def one(
    behaviour: list[float], policy: list[float], mask: list[int] | None = None, **options: object
) -> dict[str, float]:
    """Statistics of a single sequence."""
    columns = sequence_statistics(behaviour, policy, mask, [0, len(behaviour)], **options)
    return {name: column[0].item() for name, column in columns.items()}


def sample(size: int, seed: int = 0, spread: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    behaviour = -rng.exponential(1.0, size)
    return behaviour, np.minimum(behaviour + rng.normal(0.0, spread, size), 0.0)


@pytest.mark.parametrize("longest", [kernel.LONGEST_PIECE, 64])
def test_every_column_is_the_plain_formula(longest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "LONGEST_PIECE", longest)  # of which a longer sequence has several
    behaviour, policy = sample(500)
    policy[[7, 11]] = behaviour[[7, 11]]
    behaviour[3], policy[3] = -150.0, -0.25
    behaviour[4], policy[4] = -0.25, -150.0
    expected = plain(behaviour.tolist(), policy.tolist())
    actual = one(behaviour.tolist(), policy.tolist())
    assert set(expected) == set(COLUMNS)
    for name, value in expected.items():
        assert actual[name] == pytest.approx(value, rel=1e-12), name


def test_column_types_are_those_that_are_declared() -> None:
    columns = sequence_statistics([-1.0], [-1.5], None, [0, 1])
    assert tuple(columns) == COLUMNS
    assert {c.name: columns[c.name].dtype for c in COLUMN_SPECS} == {c.name: c.dtype for c in COLUMN_SPECS}


@pytest.mark.parametrize(
    ("behaviour", "policy", "kind"),
    [
        (NAN, -1.0, "n_nonfinite_behaviour"),
        (-INF, -1.0, "n_nonfinite_behaviour"),
        (INF, INF, "n_nonfinite_behaviour"),
        (-1.0, NAN, "n_nonfinite_policy"),
        (-1.0, -INF, "n_nonfinite_policy"),
        (-9999.0, -1.0, "n_sentinel_behaviour"),
        (-9984.0, -9984.0, "n_sentinel_behaviour"),  # −9999 on both sides in bfloat16
        (-1e30, -1.0, "n_sentinel_behaviour"),
        (1.0, -1.0, "n_sentinel_behaviour"),
        (-1.0, -9999.0, "n_sentinel_policy"),
        (-1.0, 1.0, "n_sentinel_policy"),
        (2e-6, -1.0, "n_positive_behaviour"),
        (3.0, -1.0, "n_positive_behaviour"),
        (-1.0, 0.25, "n_positive_policy"),
        (0.0, -8.0, "n_zero_behaviour"),
        (-0.0, -1.5, "n_zero_behaviour"),
        (NAN, NAN, "n_nonfinite_behaviour"),
        (1.0, -9999.0, "n_sentinel_behaviour"),
    ],
)
def test_a_broken_token_is_counted_once_and_left_out(behaviour: float, policy: float, kind: str) -> None:
    clean = one([-1.0, -2.0], [-1.1, -1.8])
    faulty = one([-1.0, behaviour, -2.0], [-1.1, policy, -1.8])
    assert faulty[kind] == 1
    assert sum(faulty[name] for name in BROKEN) == 1
    assert faulty["n_expected"] == 3
    assert {k: v for k, v in faulty.items() if k not in (kind, "n_expected")} == {
        k: v for k, v in clean.items() if k not in (kind, "n_expected")
    }


@pytest.mark.parametrize(("behaviour", "policy"), [(0.0, 0.0), (0.0, -0.9), (5e-7, -0.1), (-3.0, 0.0), (-9983.0, -1.0)])
def test_what_a_log_probability_can_be_is_no_broken_token(behaviour: float, policy: float) -> None:
    assert one([behaviour], [policy])["n"] == 1


@pytest.mark.parametrize(("n", "measured"), [(3, 3), (4, 0)])
def test_a_trainer_that_was_never_filled_in_is_known_by_as_many_zeros(n: int, measured: int) -> None:
    found = one([-3.0] * n, [0.0] * n)
    assert (found["n"], found["n_sentinel_policy"]) == (measured, n - measured)


@pytest.mark.parametrize("junk", [NAN, INF, -INF, 5.0, -9999.0, 0.0])
def test_what_stands_under_the_mask_changes_nothing(junk: float) -> None:
    clean = one([-1.0, -2.0], [-1.1, -1.8])
    assert one([junk, -1.0, junk, -2.0, -1.0], [-8.0, -1.1, junk, -1.8, junk], [0, 1, 0, 1, 0]) == clean


def test_empty_masked_and_broken_sequences_have_no_tokens() -> None:
    columns = sequence_statistics(
        [-1.0, -1.0, NAN, -1.0], [-2.0, -2.0, -2.0, -2.0], [1, 0, 1, 1], [0, 0, 1, 2, 3, 3, 4, 4]
    )
    assert columns["n"].tolist() == [0, 1, 0, 0, 0, 1, 0]
    assert columns["n_expected"].tolist() == [0, 1, 0, 1, 0, 1, 0]
    assert columns["sum_d"].tolist() == [0, -1.0, 0, 0, 0, -1.0, 0]
    assert columns["min_d"][[0, 2, 3, 4, 6]].tolist() == [INF] * 5
    assert columns["max_d"][[0, 2, 3, 4, 6]].tolist() == [-INF] * 5
    assert {len(column) for column in sequence_statistics([], [], None, [0]).values()} == {0}


@pytest.mark.parametrize("chunk", [1, 64, 1000, 1 << 20])
def test_what_is_computed_together_changes_no_bit(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(6)
    lengths = rng.choice([0, 1, 7, 63, 64, 65, 1500], 40)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    behaviour, policy = sample(int(offsets[-1]), seed=7)
    behaviour[::50], policy[::70], policy[::90] = 0.0, 0.0, NAN  # clean, suspicious and broken tokens in every chunk
    advantages = rng.normal(size=len(policy))
    expected = sequence_statistics(behaviour, policy, None, offsets, advantages_N=advantages)
    monkeypatch.setattr(kernel, "CHUNK", chunk)
    actual = sequence_statistics(behaviour, policy, None, offsets, advantages_N=advantages)
    assert {name: column.tobytes() for name, column in actual.items()} == {
        name: column.tobytes() for name, column in expected.items()
    }


@pytest.mark.parametrize("scale", [1e-3, 1e-4, 1.4e-5, 1e-6, 1e-8, 1e-11])
def test_k3_keeps_its_digits_near_identity(scale: float) -> None:
    behaviour = sample(400, seed=5)[0] - 1.0
    d = np.random.default_rng(6).normal(0.0, scale, 400)
    policy = behaviour + d
    with mpmath.workdps(50):
        exact_d = [mpmath.mpf(t) - mpmath.mpf(r) for r, t in zip(behaviour.tolist(), policy.tolist(), strict=True)]
        k3 = mpmath.fsum(mpmath.expm1(x) - x for x in exact_d)
        reverse = mpmath.fsum(mpmath.exp(x) * x - mpmath.expm1(x) for x in exact_d)
        chi2 = mpmath.fsum(mpmath.expm1(x) ** 2 for x in exact_d)
    actual = one(behaviour.tolist(), policy.tolist())
    # t − r of neighbouring floats is exact, so every digit of d is there; the usual exp(d) − d − 1 has lost them all at 1e-8.
    assert actual["sum_k3"] == pytest.approx(float(k3), rel=1e-11)
    assert actual["sum_reverse_kl"] == pytest.approx(float(reverse), rel=1e-11)
    assert actual["sum_ratio_m1_sq"] == pytest.approx(float(chi2), rel=1e-12)


def test_advantages_decide_what_ppo_clips() -> None:
    policy = np.log([1.3, 1.3, 0.7, 0.7, 1.0, 1.3, 1.3]) - 1.0
    advantages = [1.0, -1.0, -1.0, 1.0, 1.0, NAN, 0.0]
    actual = one([-1.0] * 7, policy.tolist(), bounds=Bounds(0.8, 1.2), advantages_N=advantages)
    assert (actual["n_advantage"], actual["n_pg_clipped"]) == (6, 2)
    assert (actual["n_above"], actual["n_below"]) == (4, 2)
    # with their broken or masked tokens they are left out
    left = one([NAN, -1.0, -1.0], [-1.0, -1.0, -1.0], [1, 0, 1], advantages_N=[1.0, 1.0, 1.0])
    assert left["n_advantage"] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([-1.0], [-1.0, -2.0], None, [0, 1]), "one length"),
        (([-1.0, -1.0], [-1.0, -2.0], [1], [0, 2]), "one length"),
        (([[-1.0]], [[-1.0]], None, [0, 1]), "flat"),
        (([-1.0, -1.0], [-1.0, -2.0], None, [0, 1]), "run from 0"),
        (([-1.0, -1.0], [-1.0, -2.0], None, [1, 2]), "run from 0"),
        (([-1.0, -1.0], [-1.0, -2.0], None, []), "run from 0"),
        (([-1.0, -1.0], [-1.0, -2.0], None, [0, 2, 1, 2]), "decrease"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(arguments: tuple, message: str) -> None:
    with pytest.raises(InputError, match=message):
        sequence_statistics(*arguments)


@pytest.mark.parametrize(("lower", "upper"), [(-0.1, 2.0), (2.0, 0.5), (NAN, 2.0), (0.5, NAN)])
def test_impossible_bounds_are_refused(lower: float, upper: float) -> None:
    with pytest.raises(ConfigurationError):
        Bounds(lower, upper)
