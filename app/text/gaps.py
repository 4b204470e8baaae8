"""Words about missing and faulty records of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from logprobe.monitor import queries

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
    (
        "without_entropy",
        "no entropy",
        "entropy (entropy_sampled is shown instead)",
        "pass entropy= to Recorder.training",
    ),
    ("without_reward", "no reward", "reward", "pass rewards= to Recorder.training"),
    ("without_raw_tokens", "no raw tokens, statistics only", "all per-token views", "see `logprobe show` for why"),
)

# Where an adapter calls the Recorder, people set options of their framework. Framework → column → what to do there.
_BY_FRAMEWORK: Final[Mapping[str, Mapping[str, str]]] = {
    "trl": {
        "trained": "call trl.watch(trainer) before trainer.train()",
        "sampled": "install logprobe in the environment that runs vLLM and set LOGPROBE_HOME before TRL starts; with "
        "use_vllm=False there is no engine",
        "without_rollout_logprobs": "train with use_vllm=True; for RLOO set LOGPROBE_RECORD=inject as well "
        "(docs/frameworks.md)",
        "without_current_logprobs": "nothing where each batch is trained on once (num_iterations=1): the old log-probs "
        "are the current ones",
        "without_entropy": "use a loss that is not fused (use_liger_kernel=False)",
        "without_reward": "look for a `missing_key` in `logprobe show`",
        "without_trainer_version": "look for the adapter's problems in `logprobe show`",
        "without_rollout_record": "set LOGPROBE_HOME before TRL starts, so that the plugin in its engine records",
        "without_rollout_version": "look for the adapter's problems in `logprobe show`",
    },
    "ms-swift": {
        "without_rollout_logprobs": "train with --use_vllm true and --log_rollout_offpolicy_metrics true",
        "without_current_logprobs": "nothing where each batch is trained on once (--num_iterations 1): the old "
        "log-probs are the current ones",
        "without_entropy": "add --log_entropy true",
    },
}  # fmt: skip


def _remedy(row: Mapping[str, Any], column: str, remedy: str) -> str:
    """Return the remedy in the words of the run's framework."""
    return _BY_FRAMEWORK.get(row.get("framework") or "", {}).get(column, remedy)


STRAY_REMEDY: Final = "pass the engine's LOGPROBE_REPLICA as replica=, or leave it out to mark all engines of the run"


def stray_mark(row: queries.CliStrayMarks) -> str:
    """Describe weight marks that name no engine."""
    there = ", ".join(row["engines"]) or "engines without a name"
    return f"{row['marks']} weight marks for replica {row['replica']!r} match no engine; the run has {there}"


VERSION_REMEDY: Final = (
    "compare `spans` and `rollout_versions` in the view sequences; mark every update where it is applied (weights.mark)"
)


def version_conflict(row: queries.VersionConflicts) -> str:
    """Describe versions on which engine and trainer disagree."""
    steps = f"steps {row['first_step']} to {row['last_step']}"
    return (
        f"engine and trainer state different weight versions of {row['differing']:,} of {row['compared']:,} tokens "
        f"({steps}); "
        "their version is unknown"
    )


SILENT_SECONDS: Final = 35  # three of the recorder's heartbeats, and a little


def sudden_end(row: queries.CliEnds) -> str:
    """Describe the end of a collector that did not close."""
    if row["sequences"] is None:
        return _ended_collector(row)
    if not row["sequences"]:
        return f"{row['writer']} ended without closing; nothing was lost"
    tokens = "an unknown number of" if row["tokens"] is None else f"{row['tokens']:,}"
    return f"{row['writer']} ended without closing; at most {row['sequences']:,} sequences, {tokens} tokens lost"


def _ended_collector(row: queries.CliEnds) -> str:
    rank = "" if row["rank"] is None else f" of rank {row['rank']}"
    step = "" if row["last_step"] is None else f" after step {row['last_step']}"
    lately = "" if row["flush_seconds"] is None else f" in the last {row['flush_seconds']:g} s"
    absent = f"; {row['absent_steps']:,} later steps have no sequences of this rank" if row["absent_steps"] else ""
    return (
        f"{row['component']}{rank} ({row['writer']}) ended without closing{step}; what it recorded{lately} may be "
        f"lost{absent}"
    )


def end_remedy(row: queries.CliEnds) -> str:
    """Return the remedy for a row of `cli_ends`, or "" if there is none."""
    if row["sequences"] is None:
        return "read the end of that process's log, and `dmesg` for the out-of-memory killer"
    return (
        "let engines shut down cleanly: for `vllm serve`, SIGTERM and --shutdown-timeout 5" if row["sequences"] else ""
    )


def name_clashes(row: queries.CliNameClashes) -> Iterator[tuple[str, str]]:
    """Return a row of the stored query `cli_name_clashes` in words, with the remedy."""
    prefix = "give each process its own prefix, the same for engine and trainer: LOGPROBE_RECORD=prefix=NAME"
    if row["trained"]:
        yield f"{row['trained']:,} sample ids name several sequences of one step", prefix
    if row["engines"]:
        yield f"{row['engines']:,} sample ids were used by several engines with the same request numbering", prefix
    if row["twice"]:
        yield f"{row['twice']:,} rollout records repeat another one", "load the plugin once per engine"


def gaps_of(row: queries.CliGaps) -> Iterator[tuple[str, str]]:
    """Yield unmeasured quantities whose inputs were not sent, each with the remedy."""
    if not row["trained"]:
        yield (
            "no trainer side: no metric can be computed",
            _remedy(row, "trained", "call Recorder.training in the trainer"),
        )
        return
    counts: Mapping[str, Any] = row
    for column, missing, unknown, remedy in _TRAINING_GAPS:
        if counts[column]:
            yield (
                f"{_share(counts[column], row['trained'])} with {missing}; unknown: {unknown}",
                _remedy(row, column, remedy),
            )
    yield from _rollout_gaps(row)


_NAMES: Final = (
    "pass the engine's request ids as sample_ids, or name requests at the engine (logprobe_sample); give each start of "
    "an engine its own prefix: LOGPROBE_RECORD=prefix=NAME"
)


def joined_by_tokens(row: queries.CliGaps) -> str:
    """Return the number of sequences joined by their tokens, or "" if none was."""
    if not row["joined_by_tokens"]:
        return ""
    return (
        f"{_share(row['joined_by_tokens'], row['trained'])} joined by their tokens: sample ids of engine and trainer "
        "do not meet"
    )


def _rollout_gaps(row: queries.CliGaps) -> Iterator[tuple[str, str]]:
    stated = row["with_stated_versions"] > 0  # by the trainer
    unknown = (
        "token and length mismatch, cached prefixes"
        if stated
        else "weight lag, token and length mismatch, cached prefixes"
    )
    if not row["sampled"]:
        yield f"no rollout side; unknown: {unknown}", _remedy(row, "sampled", "set up the vLLM plugin")
        return
    if row["ambiguous"]:
        share = _share(row["ambiguous"], row["trained"])
        yield f"{share} not joined: their tokens fit several rollout records, or one record fits several", _NAMES
    if row["without_rollout_record"]:
        share = _share(row["without_rollout_record"], row["trained"])
        remedy = _remedy(row, "without_rollout_record", "use the engine's sample ids in the trainer")
        yield f"{share} without a rollout record; unknown: {unknown}", remedy
    if row["without_rollout_version"] and not stated:
        share = _share(row["without_rollout_version"], row["sampled"], "rollouts")
        yield (
            f"{share} without weight version; unknown: the weight lag",
            _remedy(
                row,
                "without_rollout_version",
                "call logprobe.collectors.weights.mark(version), or pass rollout_versions= to Recorder.training",
            ),
        )


def faults_of(row: queries.CliGaps) -> Iterator[tuple[str, str]]:
    """Yield faults of the recorded data, each with its remedy."""
    broken = broken_tokens(row)
    if broken:
        yield (
            f"{broken} of {row['tokens']:,} tokens under the mask; left out of the means",
            (
                "see nonfinite_tokens and impossible_tokens in `logprobe show --metrics` for the steps, the view tokens for the "
                "tokens"
            ),
        )
    if _blank(row):
        part = f"{row['blank_tokens']:,} of {row['measured_tokens']:,} measured tokens"
        yield (
            f"{part} are in sequences whose log-probs are all exactly 0 on both sides: it only looks like agreement",
            "pass the log-probs that engine and trainer computed, not arrays of zeros",
        )
    if row["repeated"]:
        yield (
            f"{row['repeated']:,} sequences repeat a sample id of the same step and are counted again",
            (
                "record a batch on only one of the ranks that share it, and use a new run name after returning to a "
                "checkpoint"
            ),
        )


ATTEMPTS_REMEDY: Final = (
    "use a new run name after returning to a checkpoint, or say where training goes on: Recorder.begins(step)"
)


def attempts(row: queries.CliAttempts) -> str | None:
    """Describe steps with records of several attempts, from a row of `cli_attempts`. Return None if older attempts do
    not count.
    """
    if not row["steps"]:
        return None
    steps = _these_steps(row["steps"], row["first_step"], row["last_step"])
    return (
        f"{steps} trained again without a declared beginning; {row['older']:,} sequences of the earlier attempt are in "
        "their metrics, too"
    )


def attempts_aside(row: queries.CliAttempts) -> str | None:
    """Describe steps of which only the newest attempt counts, from a row of `cli_attempts`."""
    if not row["aside_steps"]:
        return None
    steps = _these_steps(row["aside_steps"], row["aside_first"], row["aside_last"])
    return (
        f"{steps} trained again, and the newest attempt counts; {row['aside']:,} sequences of older ones are set aside"
    )


def _these_steps(steps: int, first: int, last: int) -> str:
    return f"step {first} was" if steps == 1 else f"{steps:,} steps ({first} to {last}) were"


def sent(row: queries.CliSent) -> str | None:
    """Compare the reported with the stored records, from a row of `cli_sent`. Return None without a report."""
    if not row["collectors"]:
        return None
    by = "1 collector" if row["collectors"] == 1 else f"{row['collectors']:,} collectors"
    records = f"{row['sent']:,} sequence records of engine and trainer together, as reported by {by}"
    faults = [
        f"{row['missing']:,} of them are not stored: quarantined, lost, or still in the spool"
        if row["missing"]
        else "",
        f"{row['surplus']:,} more than that are stored" if row["surplus"] else "",
    ]
    return f"{records}; {' and '.join(filter(None, faults)) or 'all stored, each once'}"


def _blank(row: queries.CliGaps) -> bool:
    """Return true if most measured tokens are zeros. A short answer of a sharp policy can have this property."""
    return bool(2 * row["blank_tokens"] > row["measured_tokens"])


def broken_tokens(row: queries.CliGaps) -> str:
    """Return the broken tokens by kind, or "" if there are none."""
    kinds = {"non-finite": row["nonfinite_tokens"], "impossible": row["impossible_tokens"]}
    return " and ".join(f"{count:,} {kind}" for kind, count in kinds.items() if count)


def measured(row: queries.CliGaps) -> str:
    """Return the number of tokens in the pair `backend`, and the reasons why others are missing."""
    rest = row["tokens"] - row["measured_tokens"] - row["nonfinite_tokens"] - row["impossible_tokens"]
    reasons = [broken_tokens(row), f"{rest:,} without both log-probs" if rest else ""]
    if _blank(row):
        reasons.append(f"{row['blank_tokens']:,} in sequences of exact zeros on both sides")
    why = " and ".join(filter(None, reasons))
    if row["repeated"]:
        why += f"{why and '; '}{row['repeated']:,} sequences repeat a sample id of the same step"
    return f"{row['measured_tokens']:,} of {row['tokens']:,} tokens under the mask" + (f"; {why}" if why else "")


def raw_sampled(row: queries.CliGaps) -> str:
    """Return the number of sequences reduced by `raw_fraction`, or "" if there are none. They are not lost."""
    if not row["raw_sampled"]:
        return ""
    share = _share(row["raw_sampled"], row["trained"])
    return f"raw tokens are sampled, not lost: {share} with statistics only, as configured by raw_fraction"


def _share(part: int, whole: int, noun: str = "sequences") -> str:
    return f"all {noun}" if part == whole else f"{part:,} of {whole:,} {noun}"
