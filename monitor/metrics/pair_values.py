"""Metrics of a pair from its sums. Each function maps the sums of all groups to an array [G], NaN for
null."""

from __future__ import annotations

from typing import Final

import numpy as np

from logprobe.collectors.kernel.statistics import Bounds
from logprobe.monitor.metrics.sums import CLAMP, Floats, PairSums, divide, exp_clamped

ROUNDING: Final = 1e-14  # relative: what is left of a variance when all values are equal


def ratio_std(pair: PairSums) -> Floats:
    """Return the standard deviation of ρ over tokens."""
    return np.sqrt(ratio_variance(pair))


def ratio_variance(pair: PairSums) -> Floats:
    """Return the variance of ρ over tokens. Rounding noise of equal values is 0."""
    second_moment, mean_m1 = pair.token_mean("sum_ratio_m1_sq"), pair.token_mean("sum_ratio_m1")
    variance = second_moment - mean_m1**2
    return np.where(variance < ROUNDING * second_moment, 0.0, variance)


def chi2_token(pair: PairSums) -> Floats:
    """Return mean(ρ²) − 1 over tokens, from sums of ρ − 1."""
    return pair.token_mean("sum_ratio_m1_sq") + 2 * pair.token_mean("sum_ratio_m1")


def chi2_token_seq_mean(pair: PairSums) -> Floats:
    """Return mean(ρ²) − 1 as the mean over sequences."""
    return pair.sequence_mean("sum_ratio_m1_sq") + 2 * pair.sequence_mean("sum_ratio_m1")


def chi2_centered(pair: PairSums) -> Floats:
    """Return the variance of ρ divided by its squared mean."""
    return ratio_variance(pair) / (1 + pair.token_mean("sum_ratio_m1")) ** 2


def ess(pair: PairSums) -> Floats:
    """Return the effective sample size of the tokens, in (0, 1]."""
    return 1 / (1 + chi2_centered(pair))


def ess_seq(pair: PairSums) -> Floats:
    """Return the effective sample size of the sequences' geometric mean ratios."""
    weights = exp_clamped(pair.mean_log_ratio)
    total, squares = pair.sequences.sum(weights), pair.sequences.sum(weights**2)
    return divide(total**2, pair.sequences.count() * squares)


def chi2_seq(pair: PairSums) -> Floats:
    """Return χ² of the sequences' geometric mean ratios."""
    return pair.sequences.mean(np.expm1(2 * np.clip(pair.mean_log_ratio, -CLAMP, CLAMP)))


def chi2_seq_product(pair: PairSums) -> Floats:
    """Return χ² of the products of the sequences' ratios."""
    return pair.sequences.mean(np.expm1(2 * np.clip(pair.column("sum_d"), -CLAMP, CLAMP)))


def calibration_z(pair: PairSums) -> Floats:
    """Return z of a ratio of sums with sequences as clusters. Residuals of Σ(ρ − 1) about its mean come from sums of
    products.
    """
    mean_m1, total, n = pair.token_mean("sum_ratio_m1"), pair.column("sum_ratio_m1"), pair.lengths
    squares = pair.sequences.sum(total * total)
    products, lengths = pair.sequences.sum(total * n), pair.sequences.sum(n * n)
    residuals = squares - 2 * mean_m1 * products + mean_m1**2 * lengths
    clusters = pair.sequences.count()
    variance = np.where(residuals < ROUNDING * squares, 0.0, residuals) * divide(clusters, clusters - 1)
    return divide(mean_m1 * pair.n, np.sqrt(variance))


def prob_pearson(pair: PairSums) -> Floats:
    """Return the correlation of the two probabilities, NaN if one of them is constant."""
    mean = pair.token_mean
    policy, behaviour = mean("sum_policy_prob"), mean("sum_behaviour_prob")
    covariance = mean("sum_policy_behaviour_prob") - policy * behaviour
    policy_variance = mean("sum_policy_prob2") - policy**2
    behaviour_variance = mean("sum_behaviour_prob2") - behaviour**2
    varied = (policy_variance > ROUNDING * policy**2) & (behaviour_variance > ROUNDING * behaviour**2)
    deviation = np.sqrt(np.where(varied, policy_variance * behaviour_variance, 1.0))
    return np.where(varied, np.clip(covariance / deviation, -1.0, 1.0), np.nan)


def extreme_d(pair: PairSums, column: str) -> Floats:
    """Return `min_d` or `max_d`, NaN without a valid token."""
    return np.where(pair.n > 0, pair.tokens[column], np.nan)


def abs_diff_max(pair: PairSums) -> Floats:
    """Return the largest |d|."""
    return np.maximum(extreme_d(pair, "max_d"), -extreme_d(pair, "min_d"))


def ppl(pair: PairSums, column: str) -> Floats:
    """Return the mean over sequences of the perplexity of one side."""
    return pair.sequences.mean(exp_clamped(-pair.per_token(column)))


def clamped_indicator(pair: PairSums) -> Floats:
    """Return the mean over sequences of the fraction of ρ outside the bounds."""
    return pair.sequences.mean(pair.per_token("n_above") + pair.per_token("n_below"))


def gspo_indicator(pair: PairSums, bounds: Bounds) -> Floats:
    """Return the fraction of sequences whose geometric ratio is outside `bounds`."""
    ratio = exp_clamped(pair.mean_log_ratio)
    return pair.sequences.mean((ratio < bounds.lower) | (ratio > bounds.upper))


def pg_clip_fraction(pair: PairSums) -> Floats:
    """Return the fraction of the tokens with an advantage that PPO's minimum clips."""
    return divide(pair.tokens["n_pg_clipped"], pair.tokens["n_advantage"])


def kl_entropy_ratio(pair: PairSums) -> Floats:
    """Return K3 divided by the trainer's entropy."""
    return divide(pair.token_mean("sum_k3"), pair.step.entropy)


def coverage(pair: PairSums) -> Floats:
    """Return the measured fraction of tokens under the mask. Pairs other than `backend` are null without log-probs from
    the trainer.
    """
    measured = pair.measured | (pair is pair.step.pair("backend"))
    return np.where(measured, divide(pair.n, pair.step.expected), np.nan)
