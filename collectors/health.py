"""Problems of a recorder, which are counted, rate-limited, and never raised into the host.

Host threads share `Health` and only count in it. The recorder's thread logs and writes the `health` records. The guard
below is the only place in logprobe that may catch every exception inside a host.
"""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self, TypedDict

from logprobe.collectors.errors import LogprobeError
from logprobe.collectors.plain_text import harmless

LOGGER: Final = logging.getLogger("logprobe")


def _named(record: logging.LogRecord) -> bool:
    """Add the logger's name to the message, since most hosts print warnings without it."""
    record.msg = f"logprobe: {record.msg}"
    return True


LOGGER.addFilter(_named)
REPEAT_SECONDS: Final = 10.0  # the same problem is recorded at most this often
LONGEST_SILENCE: Final = 600.0  # it is logged after 10 s, 20 s, 40 s … and at least this often
_LEVELS: Final = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_MOST_KINDS: Final = 256  # distinct problems remembered; a host that invents names must not grow us

_Kind = tuple[str, str, str | None]  # event, severity, component: occurrences of one kind become one record


class Counts(TypedDict):
    """Losses by reason (calls, sequences, tokens), occurrences by event, and the last error's message or None."""

    dropped: dict[str, dict[str, int]]
    problems: dict[str, int]
    last_error: str | None


class RecorderHealth(Counts, total=False):
    """Value of `Recorder.health`, with only `Counts` for a recorder that cannot record.

    `accepted`: calls accepted from the host, and the sequences in them. `written`: segments, rows, bytes, sequences
    and tokens in the spool, and the number of the last segment. `reduced`: sequences and tokens kept as statistics
    only. `queue`: calls waiting between the host and the worker thread, their bytes, and limit_bytes. `disk`: "ok" or
    an error. `cost`: calls, caller_seconds of the host's threads, and thread_seconds.
    """

    component: str
    run: str
    writer: str
    accepted: dict[str, int]
    written: dict[str, int]
    reduced: dict[str, int]
    queue: dict[str, int]
    disk: str
    cost: dict[str, float]


@dataclass(slots=True)
class Problem:
    """Occurrences of one event of one severity since the last report, with the fields of a `health` record."""

    event: str
    severity: str
    message: str
    component: str | None = None
    count: int = 0
    sequences: int = 0
    tokens: int = 0
    step: int | None = None
    details: str | None = None
    time_us: int = 0

    def row(self, component: str, details: object = None) -> dict[str, Any]:
        """Return the `health` record. `component` applies if the problem names none."""
        return {
            "time": self.time_us or time.time_ns() // 1000,
            "component": self.component or component,
            "event": self.event,
            "severity": self.severity,
            "message": self.message,
            "count": max(self.count, 1),
            "sequences": _storable(self.sequences) or 0,
            "tokens": _storable(self.tokens) or 0,
            "step": _storable(self.step),
            "details": self.details if details is None else json.dumps(details, default=str),
        }


def _storable(number: object) -> int | None:
    """Return a host's number if a record can hold it, else None. An invalid number must not discard the record."""
    whole = number if isinstance(number, int) else None
    return whole if whole is not None and -(1 << 63) <= whole < 1 << 63 else None


@dataclass(slots=True)
class _Seen:
    """Kind of problem, with its unreported counts and the earliest time (monotonic seconds) of the next report."""

    waiting: Problem | None = None
    report_at: float = -math.inf
    log_at: float = -math.inf
    pause: float = 0.0


class Health:
    """Counts of one recorder. Counting takes one short lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[_Kind, _Seen] = {}
        self._problems: dict[str, int] = {}
        self._dropped: dict[str, dict[str, int]] = {}
        self.last_error: str | None = None
        self.caller_seconds = 0.0
        self.calls = 0

    def _kind(self, event: str, severity: str, component: str | None) -> _Kind:
        """Return the key under which an occurrence is counted. Severities of one event are counted separately."""
        kind = (event, severity, component)
        if kind in self._seen or len(self._seen) < _MOST_KINDS:
            return kind
        return "other", severity if severity in _LEVELS else "warning", None

    def report(
        self,
        event: str,
        message: str,
        *,
        severity: str = "warning",
        component: str | None = None,
        sequences: int = 0,
        tokens: int = 0,
        step: int | None = None,
        details: object = None,
        times: int = 1,
    ) -> None:
        """Count one occurrence, or `times`. The recorder's thread logs and writes it, rate-limited."""
        with self._lock:
            kind = self._kind(event, severity, component)
            self._problems[kind[0]] = self._problems.get(kind[0], 0) + times
            seen = self._seen.setdefault(kind, _Seen())
            problem = seen.waiting
            if problem is None:
                problem = Problem(event, severity, message, component, step=step, time_us=time.time_ns() // 1000)
                problem.details = None if details is None else json.dumps(details, default=str)
                seen.waiting = problem
            problem.count += times
            problem.sequences += sequences
            problem.tokens += tokens
            if severity != "info":
                self.last_error = message

    def drop(
        self,
        reason: str,
        message: str,
        *,
        severity: str = "warning",
        calls: int = 0,
        sequences: int = 0,
        tokens: int = 0,
        step: int | None = None,
        details: object = None,
    ) -> None:
        """Count lost data and report it under the same name."""
        with self._lock:
            loss = self._dropped.setdefault(reason, {"calls": 0, "sequences": 0, "tokens": 0})
            loss["calls"] += calls
            loss["sequences"] += sequences
            loss["tokens"] += tokens
        self.report(
            reason,
            message,
            severity=severity,
            sequences=sequences,
            tokens=tokens,
            step=step,
            details=details,
            times=max(calls, 1),
        )

    def due(self, *, everything: bool = False) -> list[Problem]:
        """Return the problems to report now: first occurrences immediately, repetitions after `REPEAT_SECONDS`."""
        now = time.monotonic()
        ready: list[Problem] = []
        with self._lock:
            for seen in self._seen.values():
                if seen.waiting is not None and (everything or now >= seen.report_at):
                    ready.append(seen.waiting)
                    seen.waiting, seen.report_at = None, now + REPEAT_SECONDS
        return ready

    def log(self, problem: Problem) -> None:
        """Write a problem to the host's log, unless it was logged recently. Only the recorder's thread calls this."""
        now = time.monotonic()
        seen = self._seen.get(self._kind(problem.event, problem.severity, problem.component), _Seen())
        if problem.severity == "info" or now < seen.log_at:
            return
        pause = seen.pause or REPEAT_SECONDS
        seen.log_at, seen.pause = now + pause, min(2 * pause, LONGEST_SILENCE)
        times = f" ({problem.count} times)" if problem.count > 1 else ""
        LOGGER.log(_LEVELS.get(problem.severity, logging.WARNING), "%s%s", harmless(problem.message), times)

    def counts(self) -> Counts:
        """Return a snapshot for `Recorder.health`."""
        with self._lock:
            return {
                "dropped": {reason: loss.copy() for reason, loss in self._dropped.items()},
                "problems": dict(self._problems),
                "last_error": self.last_error,
            }


class Guard:
    """Context that counts and suppresses every `Exception`. With `cost`, it adds its duration to the host's cost.

    `failed`: true after an exception.
    """

    __slots__ = ("_call", "_cost", "_health", "_started", "_step", "failed")

    def __init__(self, health: Health, call: str, step: object = None, *, cost: bool = True) -> None:
        self._health = health
        self._cost = cost
        self._started = time.perf_counter()
        self._call = call
        self._step = step
        self.failed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        health = self._health
        if self._cost:
            health.caller_seconds += time.perf_counter() - self._started
            health.calls += 1
        return error is not None and self._count(error)

    def _count(self, error: BaseException) -> bool:
        if not isinstance(error, Exception):  # KeyboardInterrupt, SystemExit belong to the host
            return False
        self.failed = True
        wrong_input = isinstance(error, LogprobeError | ValueError | TypeError)
        text = str(error) if isinstance(error, LogprobeError) else f"{type(error).__name__}: {error}"
        step = self._step if isinstance(self._step, int) else None
        reason = "bad_input" if wrong_input else "internal_error"
        self._health.drop(reason, f"Recorder.{self._call}: {text}", calls=1, step=step)
        return True
