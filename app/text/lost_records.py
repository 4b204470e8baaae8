"""Lost records in words, with remedies, for commands and the Data page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from logprobe.collectors.spool.segments import is_temporary, run_dir
from logprobe.monitor import queries

UNNAMED_REMEDY: Final = "set LOGPROBE_RUN where the engine starts, and start it again"
SPOOL_REMEDY: Final = "do not delete <home>/spool: the service empties it; look for a cleanup job or a lost disk"
_KEPT_AS_STATISTICS: Final = frozenset({"raw_reduced", "raw_sampled"})  # raw tokens only; every metric has them
_DROPPED_REMEDY: Final = "see the last column of `logprobe show`: free disk space, or a larger queue_bytes"

# Reason of a `SegmentError` → what happened, what to do.
_REASONS: Final[Mapping[str, tuple[str, str]]] = {
    "truncated": (
        "the file is incomplete: its writer was killed, its disk was full, or a copy was interrupted",
        "its rows are not counted; if there is an intact copy, replace the file in quarantine with it and retry",
    ),
    "checksum": (
        "bytes of the file have changed since it was written",
        "check the disk and file system; if there is an intact copy, replace the file in quarantine and retry",
    ),
    "unreadable": (
        "the content is not an Arrow file, or cannot be stored",
        "keep the file and report it; records before and after it are unaffected",
    ),
    "columns": (
        "columns are missing or of another type",
        "look for another program that writes to the spool; collectors of other versions use the same types",
    ),
    "foreign": (
        "the file is not a logprobe segment, or is in the wrong folder",
        "nothing is lost; drop it, and keep other files out of the spool",
    ),
    "future_schema": (
        "written by a newer version of logprobe",
        "upgrade the service, then retry",
    ),
    "too_large": (
        "the file is larger than any segment that logprobe writes",
        "drop it, and find out who wrote it",
    ),
}
_UNKNOWN_REASON: Final = ("it cannot be trusted", "the message says why")

# Event of a `health` record → what to do.
_EVENTS: Final[Mapping[str, str]] = {
    "queue_full": "give the recorder more memory (queue_bytes=), or record a sample (raw_fraction=)",
    "raw_reduced": "only raw tokens are lost; use a faster disk, or raw_fraction= for an even sample",
    "disk_refused": "free space on the recorder's disk; it then continues by itself",
    "unwritten": "close the recorder before the process ends, with a longer timeout",
    "statistics_dropped": "free space on the recorder's disk",
    "retained_full": "free space on the recorder's disk",
    "bad_input": "fix the call named in the message",
    "late_records": "raise `keep_store_gib` in the settings",
    "bad_rows": "fix the call that recorded them; the message says what does not fit",
    "missing_key": "use a version of the framework that this logprobe knows (`logprobe doctor`)",
    "bad_scalar": "pass finite numbers to Recorder.step",
    "bfloat16_logprobs": "pass float32 log-probs",
    "logprobs_missing": "sample with logprobs=0, or set LOGPROBE_RECORD=inject",
    "foreign_columns": "this vLLM version is not supported; run `logprobe doctor` in the engine's environment",
    "self_test": "run `logprobe doctor` in the engine's environment",
    "host_failed": "the message has the error that ended the process",
    "closed": "record before Recorder.close",
    "out_of_time": "close the recorder before the process ends, with a longer timeout, or record less at the end",
    "closing": "keep the process alive until Recorder.close returns True",
    "not_shipped": "look at the file in the quarantine folder of the node",
    "shipper_not_started": "start it by hand: logprobe ship",
    "sequences_lost": "report it with the version of vLLM",
}


def waiting_segments(home: Path, run: str) -> int:
    """Return the number of segments in the spool of a run."""
    return sum(not is_temporary(path) for path in run_dir(home, run).glob("*/*.arrow"))


def gone(sent: queries.CliSent, waiting: int, quarantined: int) -> tuple[str, str] | None:
    """Describe sequences that collectors wrote but that no folder holds, with the remedy.

    Such sequences are neither stored, nor in the spool, nor in quarantine. Return None if there are none, or if that
    is not yet known.
    """
    if not sent["missing"] or waiting or quarantined:
        return None
    text = (
        f"{sent['missing']:,} of {sent['sent']:,} sequences that collectors wrote are neither stored nor in the spool: "
        "it was removed or lost"
    )
    return text, SPOOL_REMEDY


def dropped(problems: Sequence[queries.CliProblems]) -> Iterator[tuple[str, str]]:
    """Yield losses that collectors counted, and engines without a run name, each with its remedy."""
    for row in problems:
        if row["event"] == "no_run":
            yield f"{row['times']:,} engines were not recorded: LOGPROBE_RUN was not set", UNNAMED_REMEDY
        elif (row["tokens_lost"] or row["sequences_lost"]) and row["event"] not in _KEPT_AS_STATISTICS:
            tokens = f", {row['tokens_lost']:,} tokens" if row["tokens_lost"] else ""  # how many is not always known
            lost = f"{row['sequences_lost'] or 0:,} sequences{tokens}"
            yield f"{row['component']} lost {lost} ({row['event']}): {row['message']}", _DROPPED_REMEDY


def unannounced(problems: Sequence[queries.CliProblems]) -> Iterator[tuple[str, str]]:
    """Yield weights that were overwritten in place without a mark, each with its remedy."""
    for row in problems:
        if row["event"] == "weights_changed_unannounced":
            yield row["message"], "call logprobe.collectors.weights.mark(version) right after the weights were written"


def reused(row: queries.CliNameClashes) -> str:
    """Return the number of sample ids with several rollout records of different tokens, or "" if there are none."""
    if not row["reused"]:
        return ""
    return (
        f"{row['reused']:,} sample ids have several rollout records of different tokens; each is joined by its tokens"
    )


def about_file(reason: str) -> tuple[str, str]:
    """Return the reason why a file is in quarantine, and the remedy."""
    return _REASONS.get(reason, _UNKNOWN_REASON)


def about_event(event: str) -> str:
    """Return the remedy for an event of a collector, or "" if its message has the remedy."""
    return _EVENTS.get(event, "")
