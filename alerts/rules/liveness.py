"""Test of whether the records of a run arrive as expected. Pure.

| finding | level | when |
|---|---|---|
| a recorded process failed | critical | it ended with an error, and no later step arrived |
| no new step | critical | for six times the median step time, and at least ten minutes |
| ended silently | warning | before the first step; neither records nor heartbeats come, and no collector closed |
| a collector stopped | warning | it sent no heartbeat for five minutes while others did |
| no engine records | warning | three steps of a live run rely on them, and none came for two minutes |

Records waiting in the spool may include missing ones. The findings about silence are then unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from logprobe.alerts.rules.alert import CRITICAL, WARNING, Seen
from logprobe.monitor.liveness import Liveness, State, Writer, judge, span_words

STEP_TIMES: Final = 6.0  # median step times without a new step
SILENCE: Final = timedelta(minutes=10)  # at least; also for how long records may wait in the spool
COLLECTOR_SILENCE: Final = timedelta(minutes=5)
ENGINELESS_STEPS: Final = 3  # trained without an engine's record before its plugin counts as missing
_FEW: Final = 3
_LEFT_BEHIND: Final = timedelta(seconds=30)
_ON_THE_WAY: Final = timedelta(minutes=2)  # both sides flush when they like, and a shared file system shows files late


@dataclass(frozen=True, slots=True)
class Pulse:
    """Heartbeats of a run.

    Attributes:
        last_step: newest step, or None before the first.
        last_step_at: arrival of the newest record of any step.
        last_record_at: arrival of the newest record of a step or a rollout.
        step_seconds: median time between two steps, or None with fewer than two.
        relies_on_engine: number of trained steps without rollout log-probs from the trainer.
        rollouts: true if a record of an engine ever arrived.
        writers: collectors of the run.
        training_since: arrival of the first record of a training step, or None before it.
        spooled_at: time of the newest record waiting in the spool, or None if none has waited long.
    """

    last_step: int | None
    last_step_at: datetime | None
    last_record_at: datetime | None
    step_seconds: float | None
    relies_on_engine: int
    rollouts: bool
    writers: Sequence[Writer]
    training_since: datetime | None = None
    spooled_at: datetime | None = None

    def liveness(self, now: datetime) -> Liveness:
        """Judge whether the run is live."""
        return judge(
            now=now, last_record=self.last_record_at, median_step_seconds=self.step_seconds, writers=self.writers
        )


def look(pulse: Pulse, now: datetime) -> Seen:
    """Check all conditions of the table above and return the worst first. The level is None before the first record."""
    found: list[tuple[int, str]] = []
    unknown: str | None = None
    for level, waits, test in _TESTS:
        if waits is not None and pulse.spooled_at is not None and now - pulse.spooled_at <= waits:
            unknown = f"records wait in the spool, the newest for {span_words(now - pulse.spooled_at)}"
        elif words := test(pulse, now):
            found.append((level, words))
    if found:
        return Seen(found[0][0], "; ".join(words for _, words in found))
    life = pulse.liveness(now)
    if unknown is not None or life.state is State.NO_DATA:
        return Seen(None, unknown or life.reason)
    return Seen(0, life.reason)


def _failed(pulse: Pulse, _: datetime) -> str:
    for writer in pulse.writers:
        if writer.failed and not _went_on_after(writer, pulse):
            return f"{writer.name}: {writer.failed}; the traceback is in that process's own log"
    return ""


def _went_on_after(writer: Writer, pulse: Pulse) -> bool:
    """Return whether the run has steps later than those of the dead process."""
    if pulse.last_step_at is None or writer.last_seen is None:
        return False
    return pulse.last_step_at > writer.last_seen + _LEFT_BEHIND


def _no_new_step(pulse: Pulse, now: datetime) -> str:
    state = pulse.liveness(now).state
    if pulse.last_step_at is None or state in {State.ENDED, State.FAILED}:
        return ""
    limit = max(SILENCE, timedelta(seconds=STEP_TIMES * (pulse.step_seconds or 0.0)))
    silence = now - pulse.last_step_at
    if silence <= limit:
        return ""
    usual = (
        ""
        if pulse.step_seconds is None
        else f", a step usually takes {span_words(timedelta(seconds=pulse.step_seconds))}"
    )
    alive = "no collector sends heartbeats either" if state is State.STALE else "its collectors still send heartbeats"
    return f"no new step since step {pulse.last_step}, for {span_words(silence)}{usual}; {alive}"


def _ended_silently(pulse: Pulse, now: datetime) -> str:
    if pulse.last_step_at is not None:  # that there is no new step says more
        return ""
    life = pulse.liveness(now)
    return life.reason if life.state is State.STALE else ""


def _collector_stopped(pulse: Pulse, now: datetime) -> str:
    if pulse.liveness(now).state in {State.ENDED, State.FAILED}:
        return ""
    open_ones = [w for w in pulse.writers if not w.closed and not w.failed and w.last_seen is not None]
    silent = [w for w in open_ones if now - (w.last_seen or now) > COLLECTOR_SILENCE]
    if not silent or len(silent) == len(open_ones):  # all of them: the run stopped, and another line says so
        return ""
    if all(_has_successor(writer, pulse.writers) for writer in silent):
        return ""
    first = min(silent, key=lambda writer: writer.last_seen or now)
    return f"{_names(silent)} sent no heartbeat for {span_words(now - (first.last_seen or now))}, while others did"


def _has_successor(writer: Writer, writers: Sequence[Writer]) -> bool:
    """Return whether a collector of the same component began later."""
    return any(
        other.component == writer.component
        and other.name != writer.name
        and other.first_seen is not None
        and writer.last_seen is not None
        and other.first_seen >= writer.last_seen
        for other in writers
    )


def _no_engine_records(pulse: Pulse, now: datetime) -> str:
    if pulse.rollouts or pulse.relies_on_engine < ENGINELESS_STEPS:
        return ""
    if pulse.liveness(now).state is State.ENDED:  # nothing can be loaded any more; the verdict says what is missing
        return ""
    if pulse.training_since is None or now - pulse.training_since < _ON_THE_WAY:
        return ""
    return (
        f"the mismatch is not measured: the trainer recorded {pulse.relies_on_engine} steps without the rollout's "
        "log-probs, and no engine ever sent a record; there is none, or the plugin was not loaded there (set "
        "LOGPROBE_HOME and LOGPROBE_RUN for its process; `logprobe doctor` says whether it can load)"
    )


def _names(writers: Sequence[Writer]) -> str:
    first = ", ".join(writer.name for writer in writers[:_FEW])
    return first if len(writers) <= _FEW else f"{first} and {len(writers) - _FEW} more collectors"


# Level, for how long records in the spool make the answer unknown, and the test; the worst first.
_TESTS: Final[tuple[tuple[int, timedelta | None, Callable[[Pulse, datetime], str]], ...]] = (
    (CRITICAL, None, _failed),
    (CRITICAL, SILENCE, _no_new_step),
    (WARNING, SILENCE, _ended_silently),
    (WARNING, COLLECTOR_SILENCE, _collector_stopped),
    (WARNING, SILENCE, _no_engine_records),
)
