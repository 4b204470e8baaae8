"""Every metric against its plain formula, and what a fault in the data does to it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import fmean, pstdev, variance
from typing import Any

import numpy as np
import pytest

from logprobe.collectors.errors import InputError
from logprobe.collectors.kernel.statistics import Bounds, sequence_statistics
from logprobe.monitor import metrics
from logprobe.monitor.metrics.catalog import evaluate
from logprobe.monitor.metrics.pair_metrics import PAIR_METRICS
from logprobe.monitor.metrics.sums import Groups, StepSums

NAN, INF = float("nan"), float("inf")
EPSILON = Bounds(0.8, 1.2)
Sequences = list[list[tuple[float, float]]]  # (behaviour, policy) of valid tokens


def clamp(x: float) -> float:
    return max(-20.0, min(20.0, x))


def rho(token: tuple[float, float]) -> float:
    return math.exp(clamp(token[1] - token[0]))


def tokens(sequences: Sequences) -> list[tuple[float, float]]:
    return [token for sequence in sequences for token in sequence]


def over_tokens(f: Callable[[float, float], float]) -> Callable[[Sequences], float]:
    return lambda sequences: fmean(f(r, t) for r, t in tokens(sequences))


def over_sequences(f: Callable[[float, float], float]) -> Callable[[Sequences], float]:
    return lambda sequences: fmean(fmean(f(r, t) for r, t in sequence) for sequence in sequences)


def of_means(f: Callable[[float], float], reduce: Callable = fmean) -> Callable[[Sequences], float]:
    """`reduce` over sequences of f(mean d)."""
    return lambda sequences: reduce([f(fmean(t - r for r, t in sequence)) for sequence in sequences])


def ess(weights: list[float]) -> float:
    return sum(weights) ** 2 / (len(weights) * sum(w * w for w in weights))


def pearson(sequences: Sequences) -> float:
    return float(np.corrcoef([[math.exp(r), math.exp(t)] for r, t in tokens(sequences)], rowvar=False)[0, 1])


def calibration_z(sequences: Sequences) -> float:
    """The textbook's ratio estimator: sequences are the clusters."""
    size = len(tokens(sequences))
    mean = fmean(rho(token) - 1 for token in tokens(sequences))
    residuals = [sum(rho(token) - 1 - mean for token in sequence) for sequence in sequences]
    return mean / math.sqrt(len(sequences) * variance(residuals, 0.0) / size**2)


K3: Callable[[float, float], float] = lambda r, t: rho((r, t)) - 1 - (t - r)
REVERSE: Callable[[float, float], float] = lambda r, t: rho((r, t)) * (t - r) - rho((r, t)) + 1
MEANS: dict[str, Callable[[float, float], float]] = {
    "kl": lambda r, t: r - t,
    "k2_kl": lambda r, t: (t - r) ** 2 / 2,
    "k3_kl": K3,
    "reverse_kl": REVERSE,
    "logprob_abs_diff_mean": lambda r, t: abs(t - r),
    "prob_abs_diff_mean": lambda r, t: abs(math.exp(t) - math.exp(r)),
    "mult_prob_error": lambda r, t: math.exp(min(abs(t - r), 20)),
    "ratio_mean": lambda r, t: rho((r, t)),
    "chi2_token": lambda r, t: rho((r, t)) ** 2 - 1,
}
PLAIN: dict[str, Callable[[Sequences], float]] = {
    **{key: over_tokens(f) for key, f in MEANS.items()},
    **{f"{key.removesuffix('_mean')}_seq_mean": over_sequences(f) for key, f in MEANS.items()},
    "logprob_abs_diff_max": lambda s: max(abs(t - r) for r, t in tokens(s)),
    "prob_pearson": pearson,
    "ratio_min": lambda s: min(map(rho, tokens(s))),
    "ratio_max": lambda s: max(map(rho, tokens(s))),
    "ratio_std": lambda s: pstdev(map(rho, tokens(s))),
    "ratio_deviation_1e4": lambda s: 1e4 * (fmean(map(rho, tokens(s))) - 1),
    "calibration_z": calibration_z,
    "chi2_seq": of_means(lambda d: math.exp(2 * clamp(d)) - 1),
    "chi2_seq_product": lambda s: fmean(math.exp(2 * clamp(sum(t - r for r, t in x))) - 1 for x in s),
    "chi2_centered": lambda s: 1 / ess(list(map(rho, tokens(s)))) - 1,
    "ess": lambda s: ess(list(map(rho, tokens(s)))),
    "ess_seq": of_means(lambda d: math.exp(clamp(d)), ess),
    "training_ppl": lambda s: fmean(math.exp(-fmean(t for _, t in x)) for x in s),
    "training_log_ppl": lambda s: fmean(-fmean(t for _, t in x) for x in s),
    "rollout_ppl": lambda s: fmean(math.exp(-fmean(r for r, _ in x)) for x in s),
    "rollout_log_ppl": lambda s: fmean(-fmean(r for r, _ in x) for x in s),
    "log_ppl_diff": of_means(lambda d: -d),
    "log_ppl_abs_diff": of_means(abs),
    "log_ppl_diff_max": of_means(lambda d: -d, max),
    "log_ppl_diff_min": of_means(lambda d: -d, min),
    "ppl_ratio": of_means(lambda d: math.exp(clamp(-d))),
    "clip_fraction_high": over_tokens(lambda r, t: rho((r, t)) > EPSILON.upper),
    "clip_fraction_low": over_tokens(lambda r, t: rho((r, t)) < EPSILON.lower),
    "clamp_log_ratio_new_old_indicator": over_sequences(lambda r, t: not EPSILON.lower <= rho((r, t)) <= EPSILON.upper),
    "clamp_log_ratio_new_old_indicator_gspo": of_means(lambda d: not 1 - 3e-4 <= math.exp(d) <= 1 + 4e-4),
    "kl_new_old": over_sequences(K3),
    "identical_frac": over_tokens(lambda r, t: r == t),
    "coverage": lambda s: 1.0,
    "nonfinite_tokens": lambda s: 0.0,
    "impossible_tokens": lambda s: 0.0,
    "clamped_tokens": lambda s: float(sum(abs(t - r) > 20 for r, t in tokens(s))),
}
# These need more than the two log-probabilities; tested below.
OTHER_INPUTS = {"pg_clip_fraction", "kl_entropy_ratio"}


@dataclass
class Batch:
    """Arguments of `metrics.compute`, as lists of sequences."""

    rollout: list[Any]
    trainer: list[Any]
    mask: list[Any]
    options: dict[str, Any] = field(default_factory=dict)

    def compute(self) -> dict[str, float | None]:
        return metrics.compute(self.rollout, self.trainer, self.mask, **self.options)


def example(seed: int = 1, spread: float = 0.1) -> Batch:
    """Sequences of several lengths; the token [1][2] is one on which both sides agree."""
    rng = np.random.default_rng(seed)
    rollout = [(-rng.exponential(1.0, n) - 0.01).tolist() for n in (5, 9, 1, 14, 30)]
    trainer = [[min(r + rng.normal(0.02, spread), -1e-4) for r in sequence] for sequence in rollout]
    trainer[1][2] = rollout[1][2]
    return Batch(rollout, trainer, [[1] * len(sequence) for sequence in rollout])


def same(value: float | None, expected: float | None) -> bool:
    if value is None or expected is None:
        return value is expected
    return value == pytest.approx(expected, rel=1e-9, abs=1e-12)


def pairs_of(first: list[list[float]], second: list[list[float]]) -> Sequences:
    return [list(zip(a, b, strict=True)) for a, b in zip(first, second, strict=True)]


def test_every_pair_metric_has_a_plain_formula_here() -> None:
    declared, here = {metric.key for metric in PAIR_METRICS}, set(PLAIN) | OTHER_INPUTS
    assert not declared - here, f"add to PLAIN (or OTHER_INPUTS, with a test of its own): {sorted(declared - here)}"
    assert not here - declared, f"no longer in PAIR_METRICS, remove from PLAIN: {sorted(here - declared)}"


@pytest.mark.parametrize("spread", [0.01, 0.5, 4.0])
def test_a_pair_metric_is_its_plain_formula(spread: float) -> None:
    batch = example(spread=spread)
    sides = {"rollout": batch.rollout, "trainer": batch.trainer}
    sides |= {name: example(seed, spread).trainer for seed, name in enumerate(OPTIONS, 2)}
    given = {f"{name}_logprobs": sides[name] for name in OPTIONS}
    bounds = dict.fromkeys(("backend", "update", "total"), EPSILON)
    values = metrics.compute(batch.rollout, batch.trainer, bounds=bounds, **given)
    for metric in (metric for metric in PAIR_METRICS if metric.key in PLAIN):
        for pair in metric.pairs:
            expected = PLAIN[metric.key](pairs_of(*(sides[side] for side in SIDES[pair])))
            assert values[f"{pair}.{metric.key}"] == pytest.approx(expected, rel=1e-9, abs=1e-12), (pair, metric.key)


def test_ppo_clipping_needs_advantages() -> None:
    old, current = [[-1.0, -1.0], [-1.0, -1.0]], [[-0.5, -0.5], [-2.0, -1.1]]
    values = metrics.compute(None, old, current_logprobs=current, advantages=[1.0, 1.0])
    assert values["update.pg_clip_fraction"] == 0.5
    values = metrics.compute(None, old, current_logprobs=current, advantages=[[1.0, -1.0], [-1.0, NAN]])
    assert values["update.pg_clip_fraction"] == pytest.approx(2 / 3)
    assert metrics.compute(None, old, current_logprobs=current)["update.pg_clip_fraction"] is None
    packed = {"current_logprobs": np.concatenate(current), "cu_seqlens": [0, 2, 4], "advantages": [1.0, 1.0]}
    assert metrics.compute(None, np.concatenate(old), **packed)["update.pg_clip_fraction"] == 0.5


def test_what_the_trainer_reports() -> None:
    batch = example()
    entropy = [[0.5] * len(sequence) for sequence in batch.rollout]
    entropy[0][0], entropy[1][0] = NAN, 1.5
    batch.mask[3] = [0] * 14
    size = sum(map(sum, batch.mask))
    values = metrics.compute(
        batch.rollout,
        batch.trainer,
        batch.mask,
        entropy=entropy,
        rewards=[1.0, 0.0, NAN, 1.0, None],
        advantages=[-2.0, 2.0, 2.0, 7.0, -2.0],
    )
    assert values["entropy"] == pytest.approx((0.5 * (size - 2) + 1.5) / (size - 1))
    assert values["reward"] == pytest.approx(2 / 3)
    assert values["advantage_abs_mean"] == 2.0
    assert values["response_length"] == size / 5
    assert values["backend.kl_entropy_ratio"] == pytest.approx(values["backend.k3_kl"] / values["entropy"])
    rest = [r for s, sequence in enumerate(batch.rollout) if s != 3 for r in sequence]
    assert values["entropy_sampled"] == pytest.approx(-fmean(rest))


def test_what_nobody_reports_is_null() -> None:
    values = example().compute()
    silent = {"entropy", "reward", "advantage_abs_mean", "token_mismatch_frac", "mixed_version_frac"}
    silent |= {key for key in metrics.KEYS if key.startswith(("update.", "total.", "reference.", "weight_lag"))}
    assert {key: values[key] for key in silent} == dict.fromkeys(silent)
    assert values["backend.kl_entropy_ratio"] is None


def test_identical_sides_are_a_perfect_match_and_say_so() -> None:
    batch = example()
    values = Batch(batch.rollout, batch.rollout, batch.mask).compute()
    assert values["backend.identical_frac"] == 1.0
    assert (values["backend.k3_kl"], values["backend.ess"], values["backend.chi2_centered"]) == (0.0, 1.0, 0.0)
    assert values["backend.calibration_z"] is None  # 0 / 0: no spread to measure a deviation in


def test_many_groups_at_once_are_each_what_they_are_alone() -> None:
    batches = [example(seed) for seed in range(6)]
    flat = [np.concatenate([np.concatenate(getattr(b, side)) for b in batches]) for side in ("rollout", "trainer")]
    lengths = [len(sequence) for b in batches for sequence in b.rollout]
    index = np.repeat(np.arange(6), 5)
    order = np.random.default_rng(0).permutation(len(index))
    columns = sequence_statistics(*flat, None, np.cumsum([0, *lengths]))
    groups = Groups(index[order], 7)  # the last one stays empty
    unknown = np.full(len(index), NAN)
    step = StepSums(groups, np.array(lengths, float)[order], *[unknown] * 6)
    step.add_pair("backend", {name: column[order] for name, column in columns.items()}, groups)
    together = evaluate(step)
    for g, batch in enumerate(batches):
        for key, value in batch.compute().items():
            if key.startswith("backend."):
                assert same(None if np.isnan(together[key][g]) else together[key][g], value), key
    assert all(np.isnan(together[key][6]) for key in metrics.KEYS if key.startswith("backend."))


# --- The honesty matrix ---

SIDES = {
    "backend": ("rollout", "trainer"),
    "update": ("trainer", "current"),
    "total": ("rollout", "current"),
    "reference": ("trainer", "reference"),
    "teacher": ("trainer", "teacher"),
}
OPTIONS = ("current", "reference", "teacher")
NAMES = ("rollout", "trainer", *OPTIONS)
Change = Callable[[Batch], None]
Values = dict[str, float | None]


def three_sides() -> Batch:
    """All five log-probs, and advantages; the token [1][2] is one on which all agree."""
    batch, rng = example(), np.random.default_rng(3)
    for name, shift, spread in (("current", -0.01, 0.15), ("reference", -0.02, 0.2), ("teacher", 0.1, 0.5)):
        side = [[min(t + rng.normal(shift, spread), -1e-4) for t in sequence] for sequence in batch.trainer]
        side[1][2] = batch.trainer[1][2]
        batch.options[f"{name}_logprobs"] = side
    batch.options["advantages"] = [x.tolist() for x in np.split(rng.normal(size=59), [5, 14, 15, 29])]
    return batch


def side_of(batch: Batch, side: str) -> list[Any]:
    found: list[Any] = batch.options[f"{side}_logprobs"] if side in OPTIONS else getattr(batch, side)
    return found


def without_token(batch: Batch) -> None:
    batch.mask[1][2] = 0


def without_sequence(batch: Batch) -> None:
    batch.mask[1] = [0] * 9


# What one side or all of them have in place of the token, whether that is all sides, and the counter that flags it.
BROKEN = {
    "NaN": (NAN, False, "nonfinite_tokens"),
    "−inf": (-INF, False, "nonfinite_tokens"),
    "+inf": (INF, False, "nonfinite_tokens"),
    "both NaN": (NAN, True, "nonfinite_tokens"),
    "−9999": (-9999.0, False, "impossible_tokens"),
    "both −9999": (-9999.0, True, "impossible_tokens"),
    "+1": (1.0, False, "impossible_tokens"),
    "both +1": (1.0, True, "impossible_tokens"),
    "0.3": (0.3, False, "impossible_tokens"),
}
COUNTS = ("coverage", "nonfinite_tokens", "impossible_tokens")


def values_after(change: Change) -> Values:
    batch = three_sides()
    change(batch)
    return batch.compute()


HEALTHY = values_after(lambda _: None)
REMAINING = {change: values_after(change) for change in (without_token, without_sequence)}


def measured(pair: str) -> list[str]:
    """Everything that a pair says of its valid tokens, and what else is made of them."""
    keys = [key for key in metrics.KEYS if key.startswith(f"{pair}.") and key.removeprefix(f"{pair}.") not in COUNTS]
    return [*keys, "entropy_sampled"] if pair == "backend" else keys


def assert_those_of_the_rest(values: Values, pair: str, rest: Change) -> None:
    for key in measured(pair):
        assert same(values[key], REMAINING[rest][key]), key
    assert values[f"{pair}.pg_clip_fraction" if pair == "update" else f"{pair}.k3_kl"] is not None
    assert values[f"{pair}.coverage"] < 1


def assert_not_healthier(values: Values, pair: str) -> None:
    """Means over tokens: leaving one out moves a sequence's own mean to either side, but these only away from agreement."""
    judged = 0
    moved_either_way = {"prob_pearson", "kl_entropy_ratio"}  # they also depend on where on the line the token lay
    for metric in (metric for metric in PAIR_METRICS if pair in metric.pairs):
        value, reference = values[f"{pair}.{metric.key}"], HEALTHY[f"{pair}.{metric.key}"]
        if metric.grain == "token" and metric.key not in moved_either_way and metric.worse in ("higher", "lower"):
            sign = 1 if metric.worse == "higher" else -1
            assert sign * value >= sign * reference - 1e-12, metric.key
            judged += 1
    assert judged >= (5 if pair in {"reference", "teacher"} else 12)


def assert_no_other_pair_notices(values: Values, side: str) -> None:
    others = tuple(f"{pair}." for pair, sides in SIDES.items() if side not in sides)
    assert others
    assert {key: values[key] for key in metrics.KEYS if key.startswith(others)} == {
        key: HEALTHY[key] for key in metrics.KEYS if key.startswith(others)
    }


@pytest.mark.parametrize("fault", BROKEN)
@pytest.mark.parametrize("side", NAMES)
def test_a_broken_token_is_flagged_every_value_is_that_of_the_rest_and_none_looks_healthier(
    side: str, fault: str
) -> None:
    value, everywhere, flag = BROKEN[fault]
    faulty = three_sides()
    for name in NAMES if everywhere else (side,):
        side_of(faulty, name)[1][2] = value
    values = faulty.compute()
    for pair in (pair for pair, sides in SIDES.items() if side in sides):
        assert_those_of_the_rest(values, pair, without_token)
        assert values[f"{pair}.{flag}"] == 1
        assert_not_healthier(values, pair)
    if not everywhere:
        assert_no_other_pair_notices(values, side)


@pytest.mark.parametrize("side", NAMES)
@pytest.mark.parametrize("how", ["missing", "shorter"])
def test_a_sequence_that_one_side_has_not_or_not_as_long_is_left_out(side: str, how: str) -> None:
    if (how, side) == ("shorter", "trainer"):
        return  # it says how long the others are to be
    faulty = three_sides()
    if how == "missing":
        side_of(faulty, side)[1] = None
    else:
        side_of(faulty, side)[1].pop()
    values = faulty.compute()
    for pair in (pair for pair, sides in SIDES.items() if side in sides):
        assert_those_of_the_rest(values, pair, without_sequence)
    assert_no_other_pair_notices(values, side)
    assert (values["length_mismatch_frac"] > 0) == (how == "shorter" and side == "rollout")


@pytest.mark.parametrize(
    ("pair", "behaviour", "policy"),
    [*((pair, *sides) for pair, sides in SIDES.items()), *((p, *reversed(SIDES[p])) for p in ("reference", "teacher"))],
)
def test_an_exact_zero_where_the_other_side_is_far_from_sure_is_a_placeholder(
    pair: str, behaviour: str, policy: str
) -> None:
    faulty = three_sides()
    side_of(faulty, behaviour)[1][2], side_of(faulty, policy)[1][2] = 0.0, -8.0
    values = faulty.compute()
    assert_those_of_the_rest(values, pair, without_token)
    assert values[f"{pair}.impossible_tokens"] == 1
    assert_not_healthier(values, pair)


@pytest.mark.parametrize("shift", [120.0, -120.0])
@pytest.mark.parametrize("pair", SIDES)
def test_a_token_far_off_is_valid_counted_and_looks_bad(pair: str, shift: float) -> None:
    batch = three_sides()
    behaviour, policy = (side_of(batch, side) for side in SIDES[pair])
    behaviour[1][2], policy[1][2] = (-130.0, -10.0) if shift > 0 else (-10.0, -130.0)
    values = batch.compute()
    for key in measured(pair):
        name = key.removeprefix(f"{pair}.")
        if name in PLAIN and (pair != "backend" or not name.startswith("clip_fraction")):  # other bounds than here
            assert values[key] == pytest.approx(PLAIN[name](pairs_of(behaviour, policy)), rel=1e-9), key
    assert (values[f"{pair}.coverage"], values[f"{pair}.clamped_tokens"]) == (1, 1)
    worse = ("k2_kl", "k3_kl", "reverse_kl", "logprob_abs_diff_mean", "mult_prob_error", "chi2_centered", "ratio_std")
    for key in (f"{pair}.{name}" for name in worse if f"{pair}.{name}" in values):
        assert values[key] > HEALTHY[key], key
    if pair not in {"reference", "teacher"}:
        assert values[f"{pair}.ess"] < HEALTHY[f"{pair}.ess"]


@pytest.mark.parametrize("side", NAMES)
def test_what_stands_under_the_mask_changes_nothing(side: str) -> None:
    for junk in (NAN, INF, -INF, -9999.0, 1.0, 0.0, -150.0):
        dirty = three_sides()
        without_token(dirty)
        side_of(dirty, side)[1][2] = junk
        assert dirty.compute() == REMAINING[without_token], junk


@pytest.mark.parametrize("side", [*NAMES, "mask"])
def test_a_step_without_a_valid_token_has_no_values_and_is_no_perfect_match(side: str) -> None:
    batch = three_sides()
    if side == "mask":
        batch.mask = [[0] * len(sequence) for sequence in batch.rollout]
    else:
        side_of(batch, side)[:] = [[NAN] * len(sequence) for sequence in batch.rollout]
    values = batch.compute()
    for pair in (pair for pair, sides in SIDES.items() if side in (*sides, "mask")):
        expected = {**dict.fromkeys(measured(pair)), f"{pair}.clamped_tokens": 0.0}
        assert {key: values[key] for key in measured(pair)} == expected
        assert values[f"{pair}.coverage"] == (None if side == "mask" else 0)
        assert side == "mask" or values[f"{pair}.nonfinite_tokens"] == 59


def test_an_empty_sequence_changes_no_mean() -> None:
    longer = three_sides()
    for side in (longer.rollout, longer.trainer, longer.mask, *longer.options.values()):
        side.insert(2, [])
    assert longer.compute() == {**HEALTHY, "response_length": 59 / 6}


@pytest.mark.parametrize("side", NAMES)
def test_one_side_missing_altogether(side: str) -> None:
    batch = three_sides()
    if side in OPTIONS:
        batch.options[f"{side}_logprobs"] = None
    given = [None if name == side else side_of(batch, name) for name in ("rollout", "trainer")]
    values = metrics.compute(*given, batch.mask, **batch.options)
    for pair, sides in SIDES.items():
        for key in measured(pair):
            assert values[key] == (None if side in sides else HEALTHY[key]), key
        # Engine and trainer are always expected to be compared; a pair with `current` only where somebody measures both sides.
        assert values[f"{pair}.coverage"] == (1 if side not in sides else 0 if pair == "backend" else None)
    assert values["response_length"] == 59 / 5


# --- Inputs ---


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (([[-1.0], [-1.0]], [[-1.0]], None), {}, "pass the same number on all sides"),
        (([[-1.0, -2.0]], [[-1.0, -2.0]], [[1]]), {}, "mask"),
        ((None, None, None), {}, "no log-probs given"),
        (([[[-1.0]]], [[[-1.0]]], None), {}, "1-D"),
        ((np.zeros((1, 1, 1)), np.zeros((1, 1, 1)), None), {}, "shape"),
        (([[-1.0]], [[-1.0]], None), {"entropy": [[1.0, 2.0]]}, "entropy"),
        (([[-1.0]], [[-1.0]], None), {"rewards": [1.0, 2.0]}, "rewards"),
        (([-1.0, -2.0], [-1.0, -2.0], None), {"cu_seqlens": [0, 3]}, "cu_seqlens"),
        ((["a"], ["b"], None), {}, "numbers"),
        (([[-1.0, -2.0]], [[-1.0, -2.0]], [[1.0, NAN]]), {}, "mask contains NaN; use 0 or 1"),
        ((np.full((2, 3), -1.0),) * 2, {"cu_seqlens": [0, 3, 6]}, "cu_seqlens does not apply to shape"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(arguments: tuple, options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        metrics.compute(*arguments, **options)


def test_an_empty_list_is_no_sequence() -> None:
    values = metrics.compute([], [], [])
    assert values == metrics.compute(np.zeros((0, 4)), np.zeros((0, 4)), np.zeros((0, 4)))
    assert values["response_length"] is None


def test_bounds_of_one_pair_leave_those_of_the_others() -> None:
    batch = example()
    sides = {"current_logprobs": batch.trainer}
    usual, narrow = (
        metrics.compute(batch.rollout, batch.trainer, batch.mask, **sides, bounds=bounds)
        for bounds in ({}, {"backend": metrics.Bounds(1, 1)})
    )
    assert usual["backend.clip_fraction_high"] == 0 < narrow["backend.clip_fraction_high"]
    assert usual["total.clip_fraction_high"] == narrow["total.clip_fraction_high"]
    with pytest.raises(InputError, match="no pair 'backnd'"):
        metrics.compute(batch.rollout, batch.trainer, bounds={"backnd": metrics.Bounds(0, 1)})


# --- Parts of a batch ---


def test_statistics_of_parts_give_the_metrics_of_the_batch() -> None:
    batch = example()
    current = [[value - 0.01 for value in side] for side in batch.trainer]

    def part(sequences: slice) -> dict:
        sides = (side[sequences] for side in (batch.rollout, batch.trainer, batch.mask))
        return metrics.statistics(*sides, current_logprobs=current[sequences])

    values = metrics.from_statistics(metrics.merge(part(slice(2)), part(slice(2, 2)), part(slice(2, None))))
    whole = metrics.compute(batch.rollout, batch.trainer, batch.mask, current_logprobs=current)
    assert values == {key: None if key == "length_mismatch_frac" else value for key, value in whole.items()}


def test_parts_remember_what_could_not_be_compared() -> None:
    odd = ([[-1.0, -2.0], [-1.0]], [[-1.1, -2.0], [-1.0, -3.0, -1.0]], [[1, 1], [1, 1, 1]])
    even = ([[-1.0]], [[-1.0]], [[1]])
    current = [[-1.0]]
    merged = metrics.merge(metrics.statistics(*odd), metrics.statistics(*even, current_logprobs=current), {})
    values = metrics.from_statistics(merged)
    assert values["backend.coverage"] == 3 / 6
    assert values["total.coverage"] == 1 / 6  # the first part has no log-probs of now
    assert values["backend.nonfinite_tokens"] == 0
    assert values["response_length"] == 2
    nothing = metrics.compute([[-1.0], [-1.0]], [[-1.0, -1.0], [-1.0, -2.0]], [[0, 0], [1, 1]])
    assert nothing["backend.nonfinite_tokens"] is None  # of tokens that nobody could look at, none is known to be sound
    assert metrics.from_statistics({})["backend.k3_kl"] is None


def test_merging_takes_statistics_by_pair() -> None:
    columns = metrics.statistics([[-1.0]], [[-1.0]])["backend"]
    for other in (columns, [columns]):
        with pytest.raises(InputError, match="takes what `statistics` returned"):
            metrics.merge(other, other)
