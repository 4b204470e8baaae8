"""What a run lacks, and what is wrong with it, in words. Rows are those of the stored query `cli_gaps`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

# Column of `cli_gaps`, what is missing, what that makes unknown, remedy. Fractions are of sequences.
_TRAINING_GAPS: Final = (
    (
        "without_rollout_logprobs",
        "neither received nor recorded rollout log-probs",
        "all `backend` and `total` metrics",
        "pass rollout_logprobs=, or record the engine under the same sample ids",
    ),
    (
        "unaligned",
        "tokens that differ from the engine's",
        "all `backend` and `total` metrics",
        "look for re-tokenization",
    ),
    (
        "without_trainer_version",
        "no trainer weight version",
        "the weight lag",
        "pass weight_version= to Recorder.training",
    ),
    (
        "without_current_logprobs",
        "no current log-probs",
        "all `update` and `total` metrics",
        "pass current_logprobs= to Recorder.training",
    ),
    ("without_entropy", "no entropy", "entropy (entropy_sampled stands in)", "pass entropy= to Recorder.training"),
    ("without_reward", "no reward", "reward", "pass rewards= to Recorder.training"),
    ("without_raw_tokens", "no raw tokens, statistics only", "anything per token", "see `logprobe status` for why"),
)


def gaps_of(row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What cannot have been measured, because nobody sent it, and what to do about it."""
    if not row["trained"]:
        yield "no trainer side: no metric can be computed", "call Recorder.training in the trainer"
        return
    for column, missing, unknown, remedy in _TRAINING_GAPS:
        if row[column]:
            yield f"{_share(row[column], row['trained'])} with {missing}; unknown: {unknown}", remedy
    yield from _rollout_gaps(row)


def _rollout_gaps(row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    unknown = "weight lag, token and length mismatch, cached prefixes"
    if not row["sampled"]:
        yield f"no rollout side; unknown: {unknown}", "set up the vLLM plugin"
        return
    if row["without_rollout_record"]:
        share = _share(row["without_rollout_record"], row["trained"])
        yield f"{share} without a rollout record; unknown: {unknown}", "use the engine's sample ids in the trainer"
    if row["without_rollout_version"]:
        share = _share(row["without_rollout_version"], row["sampled"], "rollouts")
        yield (
            f"{share} without weight version; unknown: the weight lag",
            "call logprobe.collectors.weights.mark(version)",
        )


def faults_of(row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What was sent and is wrong, and what to do about it."""
    broken = broken_tokens(row)
    if broken:
        yield (
            f"{broken} of {row['tokens']:,} tokens under the mask; left out of the means",
            "see nonfinite_tokens and impossible_tokens of `logprobe metrics` for when, the view tokens for which",
        )
    if row["repeated"]:
        yield (
            f"{row['repeated']:,} sequences repeat a sample id of the same step and count again",
            "record a batch on one of the ranks that share it, and use another run name after going back to a checkpoint",
        )


def broken_tokens(row: Mapping[str, Any]) -> str:
    """How many tokens of which kind are broken; empty when none is."""
    kinds = {"non-finite": row["nonfinite_tokens"], "impossible": row["impossible_tokens"]}
    return " and ".join(f"{count:,} {kind}" for kind, count in kinds.items() if count)


def measured(row: Mapping[str, Any]) -> str:
    """How many tokens went into the numbers of the pair `backend`, and why not the others."""
    rest = row["tokens"] - row["measured_tokens"] - row["nonfinite_tokens"] - row["impossible_tokens"]
    reasons = [broken_tokens(row), f"{rest:,} without both log-probs" if rest else ""]
    why = " and ".join(filter(None, reasons))
    return f"{row['measured_tokens']:,} of {row['tokens']:,} tokens under the mask" + (f"; {why}" if why else "")


def raw_sampled(row: Mapping[str, Any]) -> str:
    """What a recorder's `raw_fraction` left out, which is no loss; empty where it left out nothing."""
    if not row["raw_sampled"]:
        return ""
    share = _share(row["raw_sampled"], row["trained"])
    return f"raw tokens are sampled, not lost: {share} with statistics only, as raw_fraction asked for"


def _share(part: int, whole: int, noun: str = "sequences") -> str:
    return f"all {noun}" if part == whole else f"{part:,} of {whole:,} {noun}"
