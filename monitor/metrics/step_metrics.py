"""Metrics of a step without a pair: the trainer's reports, join statistics and weight lag.

A publish delay is the time from a step to the arrival of its weights at the engines, see ``sql/step_publications.sql``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from logprobe.monitor.metrics.definition import Floats, StepMetric
from logprobe.monitor.metrics.sums import Groups, Lag, StepSums, divide


def _published(function: Callable[[Groups, Floats], Floats], name: str) -> Callable[[StepSums], Floats]:
    """Return the aggregate over replicas of known duration, null without one."""

    def value(step: StepSums) -> Floats:
        if step.publications is None:
            return np.full(step.groups.size, np.nan)
        seconds: Floats = getattr(step.publications, name)
        measured = ~np.isnan(seconds)
        return function(step.publications.groups.where(measured), seconds[measured])

    return value


def _publication_metrics(name: str, key: str, label: str, words: str, formula: str) -> tuple[StepMetric, ...]:
    def declare(suffix: str, function: Callable[[Groups, Floats], Floats]) -> StepMetric:
        return StepMetric(
            key=f"{key}_seconds_{suffix}",
            label=f"{label}, {suffix}",
            words=words,
            formula=f"{suffix} over versions and replicas of ({formula})",
            unit="seconds",
            worse="higher",
            grain="count",
            needs=("weights",),
            value=_published(function, name),
        )

    return declare("mean", Groups.mean), declare("max", Groups.max)


def _replicas(step: StepSums) -> Floats:
    """Return the number of replicas with a known publish delay, null without any recorded weights."""
    if step.publications is None:
        return np.full(step.groups.size, np.nan)
    groups, delay = step.publications.groups, step.publications.delay
    return np.where(groups.count() > 0, groups.sum(~np.isnan(delay)), np.nan)


PUBLISH_METRICS: Final[tuple[StepMetric, ...]] = (
    *_publication_metrics(
        "delay",
        "publish_delay",
        "Publish delay",
        "Time until an engine had the weights that the step produced. It starts at the earliest recorded event: the "
        "update requested, or its transfer started. Replicas that do not report are left out: see publish_replicas.",
        "applied_at − earliest of requested_at, started_at",
    ),
    *_publication_metrics(
        "resume_delay",
        "publish_resume",
        "Publish to resume",
        "Like publish_delay, until the engine resumed generating.",
        "resumed_at − earliest of requested_at, started_at",
    ),
    *_publication_metrics(
        "pause",
        "update_pause",
        "Pause for an update",
        "How long an engine paused generation for the update. Null, not 0, if it did not pause.",
        "resumed_at − requested_at of the engine",
    ),
    StepMetric(
        key="publish_replicas",
        label="Replicas updated",
        words="How many replicas have the step's weights, by known publish delay; if fewer than exist, a replica "
        "hangs, or does not report.",
        formula="count of (version, replica) with a publish delay",
        unit="replicas",
        worse="lower",
        grain="count",
        needs=("weights",),
        value=_replicas,
    ),
)


def _with_lag(function: Callable[[Lag], Floats]) -> Callable[[StepSums], Floats]:
    """Return the values, null without any known weight version."""
    return lambda step: np.full(step.groups.size, np.nan) if step.lag is None else function(step.lag)


def _where_countable(function: Callable[[Lag, str], Floats], lag: Lag, unit: str) -> Floats:
    """Return the values, null if a known version is not countable. The countable versions alone would look too new."""
    uncounted = lag.known & (lag.tokens > 0) & np.isnan(getattr(lag, unit))
    return np.where(lag.groups.sum(uncounted) > 0, np.nan, function(lag, unit))


def _measured_lags(lag: Lag, unit: str) -> tuple[Groups, Floats, Floats]:
    """Return the groups, lags and tokens of the rows whose lag is known."""
    values: Floats = getattr(lag, unit)
    countable = ~np.isnan(values) & (lag.tokens > 0)
    return lag.groups.where(countable), values[countable], lag.tokens[countable]


def _lag_mean(lag: Lag, unit: str) -> Floats:
    groups, values, tokens = _measured_lags(lag, unit)
    return divide(groups.sum(values * tokens), groups.sum(tokens))


def _lag_max(lag: Lag, unit: str) -> Floats:
    groups, values, _ = _measured_lags(lag, unit)
    return groups.max(values)


def _lag_min(lag: Lag, unit: str) -> Floats:
    groups, values, _ = _measured_lags(lag, unit)
    return groups.min(values)


def _lag_newest(lag: Lag, unit: str) -> Floats:
    values: Floats = getattr(lag, unit)
    countable = ~np.isnan(values) & (lag.tokens > 0)
    newest = np.full(_sequences(lag), np.inf)
    np.minimum.at(newest, lag.sequence[countable], values[countable])
    return _mean_over(lag, newest, np.isfinite(newest))


def _sequences(lag: Lag) -> int:
    return int(lag.sequence.max(initial=-1)) + 1


def _mean_over(lag: Lag, values: Floats, keep: NDArray[np.bool_]) -> Floats:
    """Return the mean of a value over the kept sequences, not rows."""
    _, first = np.unique(lag.sequence, return_index=True)
    alike = np.ones(len(first)) if lag.alike is None else lag.alike[first]
    groups = Groups(lag.groups.index[first], lag.groups.size).where(keep)
    return divide(groups.sum(values[keep] * alike[keep]), groups.sum(alike[keep]))


def _mixed_frac(lag: Lag) -> Floats:
    versions = np.bincount(lag.sequence, weights=lag.known & (lag.tokens > 0), minlength=_sequences(lag))
    return _mean_over(lag, (versions > 1).astype(np.float64), versions > 0)


def _unknown_frac(lag: Lag) -> Floats:
    return divide(lag.groups.sum(np.where(lag.known, 0.0, lag.tokens)), lag.groups.sum(lag.tokens))


def _lag_metrics(unit: str, infix: str, measure: str) -> tuple[StepMetric, ...]:
    def declare(suffix: str, words: str, formula: str, value: Callable[[Lag, str], Floats]) -> StepMetric:
        return StepMetric(
            key=f"weight_lag{infix}_{suffix}",
            label=f"Weight lag, {suffix}" + (f" ({unit})" if infix else ""),
            words=words,
            formula=formula,
            unit=unit,
            worse="higher",
            source="" if infix else "vLLM V0→V1 article, figure 5",
            needs=("weight_version", "spans"),
            value=_with_lag(lambda lag: _where_countable(value, lag, unit)),
        )

    lag = f"lag = {measure} of the trainer's weights − of the weights that sampled the token"
    mean = declare("mean", "Age of the weights that sampled the step's tokens.", f"token mean; {lag}", _lag_mean)
    largest = declare("max", "The oldest weights that sampled any token of the step.", f"max; {lag}", _lag_max)
    smallest = declare("min", "The newest weights that sampled any token of the step.", f"min; {lag}", _lag_min)
    newest = declare(
        "newest",
        "Age of the newest weights that sampled part of a sequence; the gap to the mean comes from in-flight updates.",
        f"mean over sequences of the smallest lag in it; {lag}",
        _lag_newest,
    )
    return mean, largest, smallest, newest


STEP_METRICS: Final[tuple[StepMetric, ...]] = (
    StepMetric(
        key="entropy",
        label="Entropy",
        words="Mean entropy of the trainer's distribution, as the trainer reports it.",
        formula="mean(H)",
        unit="nats",
        worse="lower",
        source="PipelineRL",
        needs=("entropy",),
        value=lambda step: step.entropy,
    ),
    StepMetric(
        key="entropy_sampled",
        label="Entropy (sampled)",
        words="Entropy of the rollout policy, estimated from its own log-probs: for trainers that do not report "
        "entropy.",
        formula="mean(−r)",
        unit="nats",
        worse="lower",
        needs=("rollout_logprobs",),
        value=lambda step: -step.pair("backend").token_mean("sum_behaviour"),
    ),
    StepMetric(
        key="reward",
        label="Reward",
        words="Mean reward of the step's sequences, as the trainer reports it.",
        formula="mean over sequences",
        worse="lower",
        grain="sequence",
        source="PipelineRL",
        needs=("rewards",),
        value=lambda step: step.reported(step.known_mean(step.reward), "reward"),
    ),
    StepMetric(
        key="advantage_abs_mean",
        label="|Advantage|",
        words="Mean size of the advantages; near 0 the step has no learning signal.",
        formula="mean(|A|)",
        worse="neither",
        source="PipelineRL",
        needs=("advantages",),
        value=lambda step: step.known_ratio(step.advantage_abs_sum, step.n_expected),
    ),
    StepMetric(
        key="is_weight_mean",
        label="Mean weight",
        words="Mean importance weight of the correction that the trainer applied; dropped tokens count as 0.",
        formula="Σ w / tokens under the mask before the correction",
        worse="away from 1",
        source="ms-swift",
        needs=("correction",),
        value=lambda step: step.stated("is_weight_mean"),
    ),
    StepMetric(
        key="clipped_frac",
        label="Corrected tokens",
        words="Tokens that the trainer's correction truncated, clipped or dropped.",
        formula="fraction of the tokens under the mask before the correction",
        unit="fraction",
        worse="higher",
        source="ms-swift",
        needs=("correction",),
        value=lambda step: step.stated("clipped_frac"),
    ),
    StepMetric(
        key="response_length",
        label="Response length",
        words="Mean number of tokens under the mask.",
        formula="mean over sequences",
        unit="tokens",
        worse="neither",
        grain="sequence",
        source="PipelineRL",
        value=lambda step: divide(step.expected, step.groups.count()),
    ),
    StepMetric(
        key="token_mismatch_frac",
        label="Token mismatch",
        words="Sequences whose token ids differ between engine and trainer: post-processing or re-tokenization.",
        formula="fraction of sequences",
        unit="fraction",
        worse="higher",
        grain="sequence",
        source="slime article",
        needs=("rollout records",),
        value=lambda step: 1.0 - step.known_mean(step.token_match),
    ),
    StepMetric(
        key="length_mismatch_frac",
        label="Length mismatch",
        words="Sequences whose number of tokens differs between engine and trainer.",
        formula="fraction of sequences",
        unit="fraction",
        worse="higher",
        grain="sequence",
        source="slime article",
        needs=("rollout records",),
        value=lambda step: 1.0 - step.known_mean(step.length_match),
    ),
    StepMetric(
        key="routing_agreement",
        label="Routing agreement",
        words="Mixture of experts: how often engine and trainer routed a token to the same set of experts, in any "
        "order.",
        formula="pairs (token, layer) with the same set / pairs with a route on both sides",
        unit="fraction",
        worse="lower",
        source="slime article",
        needs=("routes", "rollout records"),
        value=lambda step: step.known_ratio(step.routed("routes_equal"), step.routed("routes_compared")),
    ),
    StepMetric(
        key="routing_coverage",
        label="Routing coverage",
        words="How many of the step's routes could be compared: among sequences with routes on both sides, the pairs "
        "that have both.",
        formula="pairs (token, layer) with a route on both sides / pairs under the mask",
        unit="fraction",
        worse="lower",
        needs=("routes", "rollout records"),
        value=lambda step: step.known_ratio(step.routed("routes_compared"), step.routed("routes_expected")),
    ),
    StepMetric(
        key="routing_mismatch_frac",
        label="Routing mismatch",
        words="Sequences whose two sides report different numbers of layers: their routes cannot be compared and are "
        "left out of the agreement.",
        formula="fraction of the sequences with routes on both sides",
        unit="fraction",
        worse="higher",
        grain="sequence",
        needs=("routes", "rollout records"),
        value=lambda step: 1.0 - step.known_mean(step.routed("routes_match")),
    ),
    *_lag_metrics("versions", "", "version"),
    *_lag_metrics("steps", "_steps", "optimizer step"),
    *_lag_metrics("seconds", "_seconds", "time of publication"),
    StepMetric(
        key="mixed_version_frac",
        label="Mixed versions",
        words="Sequences that were sampled by more than one weight version (in-flight updates).",
        formula="fraction of the sequences with a known version",
        unit="fraction",
        worse="neither",
        grain="sequence",
        needs=("spans",),
        value=_with_lag(_mixed_frac),
    ),
    StepMetric(
        key="unknown_version_frac",
        label="Unknown versions",
        words="Tokens whose weight version is unknown. Their lag is null, not 0.",
        formula="fraction of tokens",
        unit="fraction",
        worse="higher",
        needs=("spans",),
        value=_with_lag(_unknown_frac),
    ),
    StepMetric(
        key="version_conflict_frac",
        label="Version conflicts",
        words="Tokens whose weight version the engine's record and the trainer's statement disagree about. Their "
        "version counts as unknown.",
        formula="tokens with different versions / tokens whose version both sides say",
        unit="fraction",
        worse="higher",
        needs=("rollout_versions", "spans"),
        value=lambda step: step.known_ratio(
            step.version_count("versions_differing"), step.version_count("versions_compared")
        ),
    ),
    *PUBLISH_METRICS,
)
