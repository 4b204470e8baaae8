"""What to do about records that were lost, set aside or kept as statistics only; by the names that collectors and ingest give them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

# Reason of a `SegmentError` → what happened, what to do.
_REASONS: Final[Mapping[str, tuple[str, str]]] = {
    "truncated": (
        "the file is cut short: its writer was killed, its disk was full, or a copy was interrupted",
        "its rows count nowhere; if the file is whole elsewhere, copy it into the spool again under its own name",
    ),
    "checksum": (
        "bytes of the file have changed since it was written",
        "look for a failing disk or file system; if the file is whole elsewhere, copy it into the spool again",
    ),
    "unreadable": (
        "the content is no Arrow file, or cannot be stored",
        "keep the file and report it; the records before and after it are not concerned",
    ),
    "columns": (
        "columns are missing or of another type",
        "look for another program that writes into the spool; a collector of another version keeps its types",
    ),
    "foreign": (
        "the file is not a segment that logprobe wrote, or lies in the wrong folder",
        "nothing is lost; remove it, and keep other files out of the spool",
    ),
    "future_schema": (
        "a newer logprobe wrote it than the one that reads here",
        "upgrade the service, then move the file back to where it was found",
    ),
}
_UNKNOWN_REASON: Final = ("it cannot be trusted", "the message says why")

# Event of a `health` record → what to do.
_EVENTS: Final[Mapping[str, str]] = {
    "queue_full": "give the recorder more memory (queue_bytes=), or record a sample (raw_fraction=)",
    "raw_reduced": "nothing but single tokens is lost; a faster disk, or raw_fraction=, keeps them evenly",
    "disk_refused": "make room on the recorder's disk; it goes on by itself",
    "unwritten": "close the recorder before the process ends, with a longer timeout",
    "statistics_dropped": "make room on the recorder's disk",
    "retained_full": "make room on the recorder's disk",
    "bad_input": "correct the call that the message names",
    "bad_rows": "correct the call that recorded them; the message says what does not fit",
    "bad_scalar": "pass finite numbers to Recorder.step",
    "bfloat16_logprobs": "pass float32 log-probs",
    "logprobs_missing": "sample with logprobs=0, or set LOGPROBE_VLLM_INJECT=1",
    "foreign_columns": "this vLLM is not understood; run `logprobe doctor` beside the engine",
    "self_test": "run `logprobe doctor` beside the engine",
    "mark_failed": "make the home writable for whoever calls weights.mark",
    "marks_unreadable": "make the home readable for the engine",
    "host_failed": "the message has the error that ended the process",
    "closed": "record before Recorder.close",
    "sequences_lost": "report it with the version of vLLM",
}


def about_file(reason: str) -> tuple[str, str]:
    """What happened to a file in quarantine, and what to do about it."""
    return _REASONS.get(reason, _UNKNOWN_REASON)


def about_event(event: str) -> str:
    """What to do about a collector's complaint; "": its message says all there is."""
    return _EVENTS.get(event, "")


def counted(number_of: int, what: str) -> str:
    """A number of things.

    >>> counted(1, "file"), counted(1200, "file")
    ('1 file', '1,200 files')
    """
    return f"{number_of:,} {what}{'' if number_of == 1 else 's'}"


def when(moment: datetime | str | None) -> str:
    """A time in UTC, to the second; a dash for what is unknown."""
    if moment is None:
        return "–"
    known = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    return known.strftime("%Y-%m-%d %H:%M:%S")
