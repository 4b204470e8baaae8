"""Metrics of a pair: how far two policies' log-probabilities of the same tokens are apart.

Adding one: append a declaration here, and its value to `tests/monitor/test_step_metrics.py`; everything else derives from it.
``d = policy − behaviour`` and ``ρ = exp(clamp(d, ±20))``; means are over valid tokens of the whole step unless said otherwise.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from logprobe.collectors.statistics import BROKEN, Bounds
from logprobe.monitor.metrics.definition import Floats, PairMetric, Worse
from logprobe.monitor.metrics.sums import CLAMP, PairSums, divide, exp_clamped

GSPO_BOUNDS: Final = Bounds(1 - 3e-4, 1 + 4e-4)  # the clip range of GSPO's geometric ratio (PipelineRL's default)
ENGINE_PAIRS: Final = ("backend", "total")  # those whose behaviour policy is the rollout engine
NONFINITE: Final = tuple(name for name in BROKEN if name.startswith("n_nonfinite"))
IMPOSSIBLE: Final = tuple(name for name in BROKEN if name not in NONFINITE)


def _means(
    key: str,
    column: str,
    *,
    label: str,
    words: str,
    formula: str,
    worse: Worse,
    unit: str = "",
    source: str = "",
    scale: float = 1.0,
    shift: float = 0.0,
) -> tuple[PairMetric, PairMetric]:
    """Declare ``scale · mean(column) + shift`` twice: over all tokens, and over sequences' own means."""
    over_tokens = PairMetric(
        key=key,
        label=label,
        words=words,
        formula=formula,
        unit=unit,
        worse=worse,
        grain="token",
        source=source,
        value=lambda pair: scale * pair.token_mean(column) + shift,
    )
    over_sequences = replace(
        over_tokens,
        key=f"{key.removesuffix('_mean')}_seq_mean",
        label=f"{label}, sequence mean",
        words=f"{words} Mean over sequences of their own means: a long sequence weighs no more than a short one.",
        formula=f"mean over sequences of {formula}",
        grain="sequence",
        value=lambda pair: scale * pair.sequence_mean(column) + shift,
    )
    return over_tokens, over_sequences


def _ratio_std(pair: PairSums) -> Floats:
    return np.sqrt(_ratio_variance(pair))


def _ratio_variance(pair: PairSums) -> Floats:
    mean_m1 = pair.token_mean("sum_ratio_m1")
    return np.maximum(pair.token_mean("sum_ratio_m1_sq") - mean_m1**2, 0.0)


def _chi2_token(pair: PairSums) -> Floats:
    return pair.token_mean("sum_ratio_m1_sq") + 2 * pair.token_mean("sum_ratio_m1")


def _chi2_token_seq_mean(pair: PairSums) -> Floats:
    return pair.sequence_mean("sum_ratio_m1_sq") + 2 * pair.sequence_mean("sum_ratio_m1")


def _chi2_centered(pair: PairSums) -> Floats:
    return _ratio_variance(pair) / (1 + pair.token_mean("sum_ratio_m1")) ** 2


def _ess(pair: PairSums) -> Floats:
    return 1 / (1 + _chi2_centered(pair))


def _ess_seq(pair: PairSums) -> Floats:
    weights = exp_clamped(pair.mean_d_V)
    return divide(pair.sequences.sum(weights) ** 2, pair.sequences.count() * pair.sequences.sum(weights**2))


def _chi2_seq(pair: PairSums) -> Floats:
    return pair.sequences.mean(np.expm1(2 * np.clip(pair.mean_d_V, -CLAMP, CLAMP)))


def _chi2_seq_product(pair: PairSums) -> Floats:
    return pair.sequences.mean(np.expm1(2 * np.clip(pair.column("sum_d"), -CLAMP, CLAMP)))


def _calibration_z(pair: PairSums) -> Floats:
    """Z of a ratio of sums whose clusters are sequences: residuals of Σ(ρ − 1) about its mean."""
    mean_m1 = pair.token_mean("sum_ratio_m1")
    residuals = pair.column("sum_ratio_m1") - mean_m1[pair.sequences.index] * pair.n_V
    clusters = pair.sequences.count()
    variance = pair.sequences.sum(residuals**2) * divide(clusters, clusters - 1)
    return divide(mean_m1 * pair.n, np.sqrt(variance))


def _prob_pearson(pair: PairSums) -> Floats:
    mean = pair.token_mean
    policy, behaviour = mean("sum_policy_prob"), mean("sum_behaviour_prob")
    covariance = mean("sum_policy_behaviour_prob") - policy * behaviour
    policy_variance = mean("sum_policy_prob2") - policy**2
    behaviour_variance = mean("sum_behaviour_prob2") - behaviour**2
    noise = 1e-14  # what is left of a variance of probabilities when all are equal
    varied = np.minimum(policy_variance, behaviour_variance) > noise
    deviation = np.sqrt(np.where(varied, policy_variance * behaviour_variance, 1.0))
    return np.where(varied, np.clip(covariance / deviation, -1.0, 1.0), np.nan)


def _extreme_d(pair: PairSums, column: str) -> Floats:
    return np.where(pair.n > 0, pair.tokens[column], np.nan)


def _abs_diff_max(pair: PairSums) -> Floats:
    return np.maximum(_extreme_d(pair, "max_d"), -_extreme_d(pair, "min_d"))


def _ppl(pair: PairSums, column: str) -> Floats:
    return pair.sequences.mean(exp_clamped(-pair.mean_V(column)))


def _clamped_indicator(pair: PairSums) -> Floats:
    return pair.sequences.mean(pair.mean_V("n_above") + pair.mean_V("n_below"))


def _gspo_indicator(pair: PairSums, bounds: Bounds) -> Floats:
    ratio = exp_clamped(pair.mean_d_V)
    return pair.sequences.mean((ratio < bounds.lower) | (ratio > bounds.upper))


def _pg_clip_fraction(pair: PairSums) -> Floats:
    return divide(pair.tokens["n_pg_clipped"], pair.tokens["n_advantage"])


def _kl_entropy_ratio(pair: PairSums) -> Floats:
    return divide(pair.token_mean("sum_k3"), pair.step.entropy)


def _coverage(pair: PairSums) -> Floats:
    """Backend: of all tokens under the mask. Other pairs are optional: null where the trainer sent no such log-probs."""
    measured = pair.measured | (pair is pair.step.pair("backend"))
    return np.where(measured, divide(pair.n, pair.step.expected), np.nan)


PAIR_METRICS: Final[tuple[PairMetric, ...]] = (
    *_means(
        "kl",
        "sum_d",
        scale=-1.0,
        label="KL (k1)",
        words="Estimate of KL(behaviour‖policy); may be negative. Its sign is an offset between the two.",
        formula="mean(−d)",
        unit="nats",
        worse="away from 0",
        source="ms-swift, verl",
    ),
    *_means(
        "k2_kl",
        "sum_d2",
        scale=0.5,
        label="KL (k2)",
        words="Half the mean squared log-ratio.",
        formula="mean(d²)/2",
        unit="nats",
        worse="higher",
        source="Schulman",
    ),
    *_means(
        "k3_kl",
        "sum_k3",
        label="KL (k3)",
        words="Low-variance, never negative estimate of KL(behaviour‖policy): the usual measure of the mismatch.",
        formula="mean(ρ − 1 − d)",
        unit="nats",
        worse="higher",
        source="ms-swift, verl, slime",
    ),
    *_means(
        "reverse_kl",
        "sum_reverse_kl",
        label="Reverse KL",
        words="Never negative estimate of KL(policy‖behaviour).",
        formula="mean(ρ·d − ρ + 1)",
        unit="nats",
        worse="higher",
    ),
    *_means(
        "logprob_abs_diff_mean",
        "sum_abs_d",
        label="|Δ log-prob|, mean",
        words="Mean distance of the two log-probabilities.",
        formula="mean(|d|)",
        unit="nats",
        worse="higher",
        source="slime, TRL",
    ),
    PairMetric(
        key="logprob_abs_diff_max",
        label="|Δ log-prob|, max",
        words="The token whose two log-probabilities are furthest apart.",
        formula="max(|d|)",
        unit="nats",
        worse="higher",
        grain="token",
        source="slime, TRL",
        value=_abs_diff_max,
    ),
    *_means(
        "prob_abs_diff_mean",
        "sum_abs_prob_diff",
        label="|Δ prob|, mean",
        words="Mean distance of the two probabilities.",
        formula="mean(|e^policy − e^behaviour|)",
        worse="higher",
        source="verl",
    ),
    *_means(
        "mult_prob_error",
        "sum_exp_abs_d",
        label="Multiplicative probability error",
        words="By what factor the two probabilities differ; 1 is agreement.",
        formula="mean(e^|d|)",
        worse="higher",
        source="NeMo-RL",
    ),
    PairMetric(
        key="prob_pearson",
        label="Probability correlation",
        words="Pearson correlation of the two probabilities; null where all are equal.",
        formula="corr(e^policy, e^behaviour)",
        unit="",
        worse="lower",
        grain="token",
        source="verl",
        value=_prob_pearson,
    ),
    *_means(
        "ratio_mean",
        "sum_ratio_m1",
        shift=1.0,
        label="ρ, mean",
        words="Mean importance ratio before any correction. 1 when the reported log-probs are those sampled from.",
        formula="mean(ρ)",
        worse="away from 1",
    ),
    PairMetric(
        key="ratio_min",
        label="ρ, min",
        words="Smallest importance ratio.",
        formula="min(ρ)",
        unit="",
        worse="lower",
        grain="token",
        value=lambda pair: exp_clamped(_extreme_d(pair, "min_d")),
    ),
    PairMetric(
        key="ratio_max",
        label="ρ, max",
        words="Largest importance ratio; at most e^20.",
        formula="max(ρ)",
        unit="",
        worse="higher",
        grain="token",
        value=lambda pair: exp_clamped(_extreme_d(pair, "max_d")),
    ),
    PairMetric(
        key="ratio_std",
        label="ρ, standard deviation",
        words="Standard deviation of the importance ratio over tokens.",
        formula="√(mean(ρ²) − mean(ρ)²)",
        unit="",
        worse="higher",
        grain="token",
        value=_ratio_std,
    ),
    PairMetric(
        key="ratio_deviation_1e4",
        label="ρ deviation ×10⁴",
        words="How far the mean importance ratio is from 1, in units of 10⁻⁴.",
        formula="10⁴·(mean(ρ) − 1)",
        unit="1e-4",
        worse="away from 0",
        grain="token",
        source="vLLM V0→V1 article, figure 4",
        value=lambda pair: 1e4 * pair.token_mean("sum_ratio_m1"),
    ),
    PairMetric(
        key="calibration_z",
        label="Calibration z",
        words=(
            "Deviation of mean(ρ) from 1 in standard errors, clustered by sequence. Far beyond ±3, the reported log-probs "
            "belong to another distribution than the one sampled from, however small the gap."
        ),
        formula="(mean(ρ) − 1) / SE",
        unit="standard errors",
        worse="away from 0",
        grain="sequence",
        value=_calibration_z,
    ),
    PairMetric(
        key="chi2_token",
        label="χ² (token)",
        words="Second moment of the importance ratio, minus 1; may be negative when ρ is biased.",
        formula="mean(ρ²) − 1",
        unit="",
        worse="away from 0",
        grain="token",
        source="ms-swift, verl",
        value=_chi2_token,
    ),
    PairMetric(
        key="chi2_token_seq_mean",
        label="χ² (token), sequence mean",
        words="χ² (token) as the mean over sequences of their own values.",
        formula="mean over sequences of mean(ρ²) − 1",
        unit="",
        worse="away from 0",
        grain="sequence",
        value=_chi2_token_seq_mean,
    ),
    PairMetric(
        key="chi2_seq",
        label="χ² (sequence, geometric)",
        words="χ² of the sequences' geometric mean ratios.",
        formula="mean over sequences of exp(2·clamp(mean d, ±20)) − 1",
        unit="",
        worse="away from 0",
        grain="sequence",
        source="ms-swift",
        value=_chi2_seq,
    ),
    PairMetric(
        key="chi2_seq_product",
        label="χ² (sequence, product)",
        words="χ² of the sequences' full importance weights: dominated by the longest and worst sequences.",
        formula="mean over sequences of exp(2·clamp(Σd, ±20)) − 1",
        unit="",
        worse="away from 0",
        grain="sequence",
        source="verl, slime",
        value=_chi2_seq_product,
    ),
    PairMetric(
        key="chi2_centered",
        label="χ² (centred)",
        words="Variance of ρ relative to its squared mean: 1/ESS − 1, blind to a constant offset.",
        formula="mean(ρ²)/mean(ρ)² − 1",
        unit="",
        worse="higher",
        grain="token",
        value=_chi2_centered,
    ),
    PairMetric(
        key="ess",
        label="Effective sample size",
        words="Share of the tokens that importance weighting leaves in effect; 1 when all ρ are equal.",
        formula="(Σρ)²/(n·Σρ²)",
        unit="fraction",
        worse="lower",
        grain="token",
        source="ms-swift, PipelineRL (before any weight is clamped)",
        value=_ess,
    ),
    PairMetric(
        key="ess_seq",
        label="Effective sample size (sequence)",
        words="Effective sample size of the sequences' geometric mean ratios.",
        formula="(Σw)²/(S·Σw²), w = exp(clamp(mean d, ±20))",
        unit="fraction",
        worse="lower",
        grain="sequence",
        source="ms-swift, PipelineRL",
        value=_ess_seq,
    ),
    PairMetric(
        key="training_ppl",
        label="Perplexity, trainer",
        words="Perplexity of the sampled tokens under the trainer; empty sequences are skipped.",
        formula="mean over sequences of exp(clamp(−mean policy, ±20))",
        unit="",
        worse="neither",
        grain="sequence",
        source="ms-swift",
        pairs=ENGINE_PAIRS,
        value=partial(_ppl, column="sum_policy"),
    ),
    PairMetric(
        key="training_log_ppl",
        label="Log-perplexity, trainer",
        words="Mean negative log-probability under the trainer.",
        formula="mean over sequences of −mean policy",
        unit="nats",
        worse="neither",
        grain="sequence",
        source="ms-swift",
        pairs=ENGINE_PAIRS,
        value=lambda pair: -pair.sequence_mean("sum_policy"),
    ),
    PairMetric(
        key="rollout_ppl",
        label="Perplexity, rollout",
        words="Perplexity of the sampled tokens under the engine that sampled them; empty sequences are skipped.",
        formula="mean over sequences of exp(clamp(−mean behaviour, ±20))",
        unit="",
        worse="neither",
        grain="sequence",
        source="ms-swift",
        pairs=ENGINE_PAIRS,
        value=partial(_ppl, column="sum_behaviour"),
    ),
    PairMetric(
        key="rollout_log_ppl",
        label="Log-perplexity, rollout",
        words="Mean negative log-probability under the engine that sampled.",
        formula="mean over sequences of −mean behaviour",
        unit="nats",
        worse="neither",
        grain="sequence",
        source="ms-swift",
        pairs=ENGINE_PAIRS,
        value=lambda pair: -pair.sequence_mean("sum_behaviour"),
    ),
    PairMetric(
        key="log_ppl_diff",
        label="Log-perplexity difference",
        words="Positive: the policy is less sure of the tokens than the behaviour policy that sampled them.",
        formula="mean over sequences of (mean behaviour − mean policy)",
        unit="nats",
        worse="away from 0",
        grain="sequence",
        source="ms-swift",
        value=lambda pair: pair.sequences.mean(-pair.mean_d_V),
    ),
    PairMetric(
        key="log_ppl_abs_diff",
        label="|Log-perplexity difference|",
        words="Mean distance of the sequences' log-perplexities.",
        formula="mean over sequences of |mean behaviour − mean policy|",
        unit="nats",
        worse="higher",
        grain="sequence",
        source="ms-swift",
        value=lambda pair: pair.sequences.mean(np.abs(pair.mean_d_V)),
    ),
    PairMetric(
        key="log_ppl_diff_max",
        label="Log-perplexity difference, max",
        words="The sequence of which the policy is least sure, relative to the behaviour policy.",
        formula="max over sequences of (mean behaviour − mean policy)",
        unit="nats",
        worse="higher",
        grain="sequence",
        source="ms-swift",
        value=lambda pair: pair.sequences.max(-pair.mean_d_V),
    ),
    PairMetric(
        key="log_ppl_diff_min",
        label="Log-perplexity difference, min",
        words="The sequence of which the policy is surest, relative to the behaviour policy.",
        formula="min over sequences of (mean behaviour − mean policy)",
        unit="nats",
        worse="lower",
        grain="sequence",
        source="ms-swift",
        value=lambda pair: pair.sequences.min(-pair.mean_d_V),
    ),
    PairMetric(
        key="ppl_ratio",
        label="Perplexity ratio",
        words="Perplexity under the policy over perplexity under the behaviour policy.",
        formula="mean over sequences of exp(clamp(mean behaviour − mean policy, ±20))",
        unit="",
        worse="away from 1",
        grain="sequence",
        source="ms-swift",
        value=lambda pair: pair.sequences.mean(exp_clamped(-pair.mean_d_V)),
    ),
    PairMetric(
        key="clip_fraction_high",
        label="Clip fraction, high",
        words="Tokens whose ρ is above the upper bound (backend: 2.0; update and total: 1.2).",
        formula="fraction of ρ > upper",
        unit="fraction",
        worse="higher",
        grain="token",
        source="slime",
        value=lambda pair: pair.token_mean("n_above"),
    ),
    PairMetric(
        key="clip_fraction_low",
        label="Clip fraction, low",
        words="Tokens whose ρ is below the lower bound (backend: 0.5; update and total: 0.8).",
        formula="fraction of ρ < lower",
        unit="fraction",
        worse="higher",
        grain="token",
        source="slime",
        value=lambda pair: pair.token_mean("n_below"),
    ),
    PairMetric(
        key="clamp_log_ratio_new_old_indicator",
        label="Clamp indicator (PPO)",
        words="Fraction of a sequence's tokens that PPO's ε = 0.2 would clamp, averaged over sequences.",
        formula="mean over sequences of the fraction of clamp(ρ, 0.8, 1.2) ≠ ρ",
        unit="fraction",
        worse="higher",
        grain="sequence",
        source="PipelineRL",
        pairs=("total",),
        value=_clamped_indicator,
    ),
    PairMetric(
        key="clamp_log_ratio_new_old_indicator_gspo",
        label="Clamp indicator (GSPO)",
        words="Fraction of sequences whose geometric ratio GSPO's ε = 3e-4 / 4e-4 would clamp.",
        formula="fraction of sequences with exp(mean d) outside [1 − 3e-4, 1 + 4e-4]",
        unit="fraction",
        worse="higher",
        grain="sequence",
        source="PipelineRL",
        pairs=("total",),
        value=partial(_gspo_indicator, bounds=GSPO_BOUNDS),
    ),
    PairMetric(
        key="kl_new_old",
        label="KL new–old",
        words="PipelineRL's name for the sequence mean of k3 between current policy and rollout.",
        formula="mean over sequences of mean(ρ − 1 − d)",
        unit="nats",
        worse="higher",
        grain="sequence",
        source="PipelineRL",
        pairs=("total",),
        value=lambda pair: pair.sequence_mean("sum_k3"),
    ),
    PairMetric(
        key="pg_clip_fraction",
        label="PPO clip fraction",
        words="Tokens for which PPO's minimum takes the clipped branch, the sign of the advantage included (ε = 0.2).",
        formula="fraction of (ρ > 1.2 and A > 0) or (ρ < 0.8 and A < 0)",
        unit="fraction",
        worse="higher",
        grain="token",
        source="verl",
        needs=("advantages",),
        pairs=("update",),
        value=_pg_clip_fraction,
    ),
    PairMetric(
        key="kl_entropy_ratio",
        label="KL (k3) / entropy",
        words="The mismatch relative to how much the policy still explores.",
        formula="k3_kl / entropy",
        unit="",
        worse="higher",
        grain="token",
        source="prime-rl",
        needs=("entropy",),
        value=_kl_entropy_ratio,
    ),
    PairMetric(
        key="identical_frac",
        label="Bit-identical tokens",
        words="Tokens whose two log-probabilities are the same number.",
        formula="fraction of d == 0",
        unit="fraction",
        worse="neither",
        grain="token",
        value=lambda pair: pair.token_mean("n_zero_d"),
    ),
    PairMetric(
        key="coverage",
        label="Coverage",
        words="Share of the tokens under the mask that went into the numbers. Below 1, every other number is incomplete.",
        formula="n / tokens under the mask",
        unit="fraction",
        worse="lower",
        grain="count",
        value=_coverage,
    ),
    PairMetric(
        key="nonfinite_tokens",
        label="Non-finite tokens",
        words="Tokens under the mask with a NaN or infinite log-probability; left out of every mean.",
        formula="count",
        unit="tokens",
        worse="higher",
        grain="count",
        value=lambda pair: pair.counted(*NONFINITE),
    ),
    PairMetric(
        key="impossible_tokens",
        label="Impossible tokens",
        words=(
            "Tokens under the mask whose log-probability cannot be one: above 0, a placeholder (−9999, +1), or exactly 0 "
            "where the other side is below −1; left out of every mean."
        ),
        formula="count",
        unit="tokens",
        worse="higher",
        grain="count",
        value=lambda pair: pair.counted(*IMPOSSIBLE),
    ),
    PairMetric(
        key="clamped_tokens",
        label="Clamped tokens",
        words="Tokens with |d| > 20, clamped inside the exponential only.",
        formula="count of |d| > 20",
        unit="tokens",
        worse="higher",
        grain="count",
        value=lambda pair: pair.counted("n_clamped"),
    ),
)
