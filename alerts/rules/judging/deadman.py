"""What should have come and did not: the dead-man's conditions, as pure functions of a run's heartbeats and the clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from logprobe.alerts.liveness import State, Writer, judge, span_words
from logprobe.alerts.rules.judging.observation import Observation
from logprobe.alerts.rules.rule import DeadMan, Event


@dataclass(frozen=True, slots=True)
class Pulse:
    """heartbeats of a run.

    Attributes:
        last_step: newest step; None: none yet.
        last_step_at: when the newest record of any step came.
        last_record_at: when the newest record of a step or a rollout came.
        step_seconds: usual time between two steps; None with fewer than two.
        relies_on_engine: trained steps for which the trainer did not pass the rollout's log-probs.
        rollouts: whether an engine's record ever came.
        writers: the run's collectors.
        training_since: when the first record of a training step came; None: none yet.
        doubled: sequences, of trainer and engine, that are in the store once more than they should be.
        doubled_since: the first step of these; None: none, or only the engine's.
    """

    last_step: int | None
    last_step_at: datetime | None
    last_record_at: datetime | None
    step_seconds: float | None
    relies_on_engine: int
    rollouts: bool
    writers: Sequence[Writer]
    training_since: datetime | None = None
    doubled: int = 0
    doubled_since: int | None = None


def observe(when: DeadMan, pulse: Pulse, now: datetime) -> Observation:
    """What a dead-man's condition makes of the heartbeats."""
    return _EVENTS[when.event](when, pulse, now)


def _state(pulse: Pulse, now: datetime) -> tuple[State, str]:
    liveness = judge(
        now=now, last_record=pulse.last_record_at, median_step_seconds=pulse.step_seconds, writers=pulse.writers
    )
    return liveness.state, liveness.reason


def _no_new_step(when: DeadMan, pulse: Pulse, now: datetime) -> Observation:
    state, reason = _state(pulse, now)
    if pulse.last_step_at is None:
        return Observation("missing", "no step has arrived yet")
    if state in {State.ENDED, State.FAILED}:
        return Observation("good", reason)
    limit = max(when.floor, timedelta(seconds=when.times * (pulse.step_seconds or 0.0)))
    silence = now - pulse.last_step_at
    seconds = max(silence.total_seconds(), 0.0)
    if silence <= limit:
        return Observation("good", f"step {pulse.last_step} came {span_words(silence)} ago", seconds, "seconds")
    usual = (
        ""
        if pulse.step_seconds is None
        else f", a step usually takes {span_words(timedelta(seconds=pulse.step_seconds))}"
    )
    alive = "no collector sends heartbeats either" if state is State.STALE else "its collectors still send heartbeats"
    words = f"no new step since step {pulse.last_step}, for {span_words(silence)}{usual}; {alive}"
    return Observation("bad", words, seconds, "seconds")


def _ended_silently(_: DeadMan, pulse: Pulse, now: datetime) -> Observation:
    state, reason = _state(pulse, now)
    if state is State.NO_DATA:
        return Observation("missing", reason)
    return Observation("bad" if state is State.STALE else "good", reason)


def _host_failed(_: DeadMan, pulse: Pulse, now: datetime) -> Observation:
    for writer in pulse.writers:
        if writer.failed and not _went_on_after(writer, pulse):
            return Observation("bad", f"{writer.name}: {writer.failed}")
    state, reason = _state(pulse, now)
    return Observation("missing" if state is State.NO_DATA else "good", reason)


def _went_on_after(writer: Writer, pulse: Pulse) -> bool:
    """Whether the run was resumed, or did without: steps came later than what the dead process left behind."""
    if pulse.last_step_at is None or writer.last_seen is None:
        return False
    return pulse.last_step_at > writer.last_seen + _LEFT_BEHIND


def _collector_stopped(when: DeadMan, pulse: Pulse, now: datetime) -> Observation:
    state, reason = _state(pulse, now)
    if state in {State.ENDED, State.FAILED}:
        return Observation("good", reason)
    open_ones = [w for w in pulse.writers if not w.closed and not w.failed and w.last_seen is not None]
    silent = [w for w in open_ones if now - (w.last_seen or now) > when.floor]
    going_on = len(silent) < len(open_ones)
    if not going_on or not silent:  # all of them: the run stopped, and another rule says so
        return Observation("good", "every open collector sends heartbeats")
    if replaced := _replaced(silent, pulse.writers):
        return Observation("good", f"{', '.join(replaced)} was replaced by another collector of its kind")
    first = min(silent, key=lambda writer: writer.last_seen or now)
    words = f"{_names(silent)} sent no heartbeat for {span_words(now - (first.last_seen or now))}, while others did"
    return Observation("bad", words, float(len(silent)), "collectors")


def _replaced(silent: Sequence[Writer], writers: Sequence[Writer]) -> list[str]:
    """Names of the silent ones, when every one of them has a successor: same component, begun later."""

    def has_successor(writer: Writer) -> bool:
        return any(
            other.component == writer.component and other.name != writer.name and _later(other, writer)
            for other in writers
        )

    return [writer.name for writer in silent] if all(map(has_successor, silent)) else []


def _later(other: Writer, writer: Writer) -> bool:
    return other.first_seen is not None and writer.last_seen is not None and other.first_seen >= writer.last_seen


def _plugin_missing(when: DeadMan, pulse: Pulse, now: datetime) -> Observation:
    if pulse.rollouts or pulse.relies_on_engine < when.steps:
        return Observation("good", "no engine is expected")
    if pulse.training_since is None or now - pulse.training_since < _ON_THE_WAY:
        return Observation("good", "the engine's first records may still arrive")
    words = (
        f"the mismatch is not measured: the trainer recorded {pulse.relies_on_engine} steps without the rollout's log-probs, and no engine "
        "ever sent a record; there is none, or the plugin was not loaded there"
    )
    return Observation("bad", words, float(pulse.relies_on_engine), "steps")


def _names(writers: Sequence[Writer]) -> str:
    first = ", ".join(writer.name for writer in writers[:_FEW])
    return first if len(writers) <= _FEW else f"{first} and {len(writers) - _FEW} more collectors"


_FEW: Final = 3
_LEFT_BEHIND: Final = timedelta(seconds=30)
_ON_THE_WAY: Final = timedelta(minutes=2)  # both sides flush when they like, and a shared file system shows files late
_EVENTS: Final[Mapping[Event, Callable[[DeadMan, Pulse, datetime], Observation]]] = {
    "no_new_step": _no_new_step,
    "ended_silently": _ended_silently,
    "host_failed": _host_failed,
    "collector_stopped": _collector_stopped,
    "plugin_missing": _plugin_missing,
}
