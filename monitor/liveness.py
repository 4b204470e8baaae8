"""Liveness of a run, judged once for the command line, the app and the alerts. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final


class State(StrEnum):
    """State of a run according to its records."""

    LIVE = "live"
    IDLE = "idle"
    STALE = "stale"
    ENDED = "ended"
    FAILED = "failed"
    NO_DATA = "no_data"

    @property
    def over(self) -> bool:
        """Return whether no further records are expected."""
        return self in {State.ENDED, State.FAILED}


@dataclass(frozen=True, slots=True)
class Writer:
    """Known facts about one collector of the run."""

    name: str
    last_seen: datetime | None  # newest record or heartbeat
    closed: bool  # said goodbye
    failed: str | None = None  # its process died of an error: which
    component: str | None = None  # what its process is: "trainer", "vllm", …
    first_seen: datetime | None = None
    trains: bool = False  # recorded training steps; an engine does not


@dataclass(frozen=True, slots=True)
class Liveness:
    """A state of liveness and its reason in words."""

    state: State
    reason: str


# A run is as late as it is slow: steps of ten minutes are not stale after two.
_LATE_STEPS: Final = 3.0
_LOST_STEPS: Final = 20.0
_LATE_FLOOR: Final = timedelta(seconds=30)
_LOST_FLOOR: Final = timedelta(minutes=10)


def judge(
    *,
    now: datetime,
    last_record: datetime | None,
    median_step_seconds: float | None = None,
    writers: Sequence[Writer] = (),
    spooled_at: datetime | None = None,
    dated_ahead: float = 0.0,
) -> Liveness:
    """Judge a run.

    Args:
        now: time of the reader's clock, in UTC.
        last_record: time of the newest step, training or rollout record, or None before the first.
        median_step_seconds: median time between steps of this run, or None with fewer than two known steps.
        writers: collectors of the run. A heartbeat shows that its collector is alive but is not data.
        spooled_at: time of the newest unread record in the spool, or None if none has waited long.
        dated_ahead: lead of the newest step's clock over the reader's, in seconds, which the reason mentions.

    Returns:
        ``failed`` if every writer closed, one of them after an error of its process. ``ended`` if every writer closed
        without an error. Writers that were replaced do not count. Engines do not count if trainers are known, since
        engines outlive a run or are killed at its end. ``live`` while data arrives, or waits in the spool, at the usual
        rate of the run. ``idle`` if data is slightly late, or is late while a collector still sends heartbeats.
        ``stale`` after a long time without data and heartbeats. ``no_data`` before the first record.
    """
    liveness = _judged(now, last_record, median_step_seconds, writers, spooled_at)
    if words := dated_words(dated_ahead):
        return replace(liveness, reason=f"{liveness.reason}; {words}")
    return liveness


def _judged(
    now: datetime,
    last_record: datetime | None,
    median_step_seconds: float | None,
    writers: Sequence[Writer],
    spooled_at: datetime | None,
) -> Liveness:
    if last_record is None:
        return Liveness(State.NO_DATA, _no_data(writers))
    late, lost = _late_after(median_step_seconds), lost_after(median_step_seconds)
    if spooled_at is not None and now - spooled_at <= late:
        return Liveness(State.LIVE, f"newer records wait in the spool, the newest written {ago(now, spooled_at)}")
    present = [writer for writer in _deciding(writers) if not _replaced(writer, last_record - lost)]
    if present and all(writer.closed for writer in present):
        return _over(present, now, last_record, late)
    data_age = now - last_record
    if data_age <= late:
        return Liveness(State.LIVE, f"last record {ago(now, last_record)}")
    words = f"no record for {span_words(data_age)}{_usual(median_step_seconds)}"
    sign = _newest_sign(writers)
    if sign is not None and now - sign <= late:
        return Liveness(State.IDLE, f"{words}, but a collector sent a heartbeat {ago(now, sign)}")
    silent = f"{words}, and no collector closed: the process may have been killed or may hang"
    return Liveness(State.IDLE, words) if data_age <= lost else Liveness(State.STALE, silent)


def _over(writers: Sequence[Writer], now: datetime, last_record: datetime, late: timedelta) -> Liveness:
    """Return the state of a run whose collectors have all closed, either ended or failed."""
    failed = next((writer for writer in writers if writer.failed and not _resumed(writer, writers, late)), None)
    if failed is not None:
        return Liveness(State.FAILED, f"{failed.failed}; last record {ago(now, last_record)}")
    who = "its collector" if len(writers) == 1 else f"all {len(writers)} collectors"
    return Liveness(State.ENDED, f"{who} closed; last record {ago(now, last_record)}")


def _late_after(median_step_seconds: float | None) -> timedelta:
    return max(_LATE_FLOOR, _LATE_STEPS * timedelta(seconds=median_step_seconds or 0.0))


def lost_after(median_step_seconds: float | None) -> timedelta:
    """Return the silence after which the processes of a run with this step time count as lost."""
    return max(_LOST_FLOOR, _LOST_STEPS * timedelta(seconds=median_step_seconds or 0.0))


def _deciding(writers: Sequence[Writer]) -> Sequence[Writer]:
    """Return the writers that decide the end of the run."""
    return [writer for writer in writers if writer.trains] or writers


def _replaced(writer: Writer, horizon: datetime) -> bool:
    """Return whether another collector has replaced this one. A collector killed in mid-run never closes. It counts as
    replaced if the run continued without it for long.
    """
    return not writer.closed and writer.last_seen is not None and writer.last_seen < horizon


def _resumed(failed: Writer, writers: Sequence[Writer], late: timedelta) -> bool:
    """Return whether the run continued after the error, with or without another collector."""
    seen = failed.last_seen
    return seen is not None and any(w.last_seen is not None and w.last_seen > seen + late for w in writers)


def _newest_sign(writers: Sequence[Writer]) -> datetime | None:
    return max((w.last_seen for w in writers if w.last_seen is not None and not w.closed), default=None)


def _no_data(writers: Sequence[Writer]) -> str:
    if writers:
        return f"{_count(len(writers), 'collector')} announced, no training, rollout or step record yet"
    return "nothing was recorded"


def _usual(median_step_seconds: float | None) -> str:
    return (
        ""
        if median_step_seconds is None
        else f" (a step usually takes {span_words(timedelta(seconds=median_step_seconds))})"
    )


def dated_words(ahead: float) -> str:
    """Return a description of a clock that is `seconds` ahead, or behind if negative, or "" for a correct clock."""
    if not ahead:
        return ""
    span = span_words(timedelta(seconds=abs(ahead)))
    return f"its records are dated {span} {'after' if ahead > 0 else 'before'} they came: check its trainer's clock"


def ago(now: datetime, then: datetime) -> str:
    """Return the age as text. A clock of another machine may be ahead."""
    return "just now" if now <= then else f"{span_words(now - then)} ago"


def span_words(duration: timedelta) -> str:
    """Return a span of time as text such as ``12 min``."""
    seconds = duration.total_seconds()
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"  # noqa: PLR2004 - one decimal below ten


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
