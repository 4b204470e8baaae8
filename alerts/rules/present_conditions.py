"""Conditions on how a run is doing right now: diagnosis, acknowledgements, heartbeats. One class each. Pure."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import Field, model_validator

from logprobe.alerts.rules.fields import Model, Span
from logprobe.alerts.rules.judging.observation import Observation
from logprobe.monitor.judging.document import FindingDocument
from logprobe.monitor.judging.named import told
from logprobe.monitor.judging.result import Layer, Verdict
from logprobe.monitor.liveness import State, Writer, judge, span_words

Event = Literal["no_new_step", "collector_stopped", "plugin_missing", "ended_silently", "host_failed"]
_EVENTS: Final[Mapping[Event, str]] = {
    "no_new_step": "no new step for {times:g}× the usual time",
    "collector_stopped": "one collector is silent while others are not",
    "plugin_missing": "{steps} steps without engine records that the trainer relies on",
    "ended_silently": "records and heartbeats stop without an end",
    "host_failed": "a recording process dies of an error",
}
_FEW: Final = 3
_LEFT_BEHIND: Final = timedelta(seconds=30)
_ON_THE_WAY: Final = timedelta(minutes=2)  # both sides flush when they like, and a shared file system shows files late


@dataclass(frozen=True, slots=True)
class Pulse:
    """Heartbeats of a run.

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
        spooled_at: when the newest of the records was written that wait in the spool; None: none has waited for long.
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
    spooled_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class RunStatus:
    """What is known of a run apart from its steps.

    Attributes:
        pulse: its heartbeats.
        findings: of the newest diagnosis, as `Finding.document` has them; None: there was none yet.
        diagnosed: newest step that the diagnosis has seen; None: there was none yet.
        control: what the correction's controller remembers of the run; None: nothing.
        verdict: of the newest diagnosis.
        leading: its finding that people read first; None: none alarms.
        since_step: where the trouble began, as it says; None: not known.
    """

    pulse: Pulse
    findings: Sequence[FindingDocument] | None = None
    control: Mapping[str, Any] | None = None
    diagnosed: int | None = None
    verdict: Verdict | None = None
    leading: FindingDocument | None = None
    since_step: int | None = None


class OnPresent(Model):
    """A condition that looks at how things are now."""

    of_metric: ClassVar[bool] = False  # whether a rule with it names a metric
    counts_steps: ClassVar[bool] = False  # for `for` and `keep_firing`

    @abstractmethod
    def words(self, name: str) -> str:
        """When it holds, as a fragment of a sentence."""

    @abstractmethod
    def observe(self, present: RunStatus, now: datetime) -> Observation:
        """What is seen of a run."""


class Diagnosed(OnPresent):
    """The diagnosis names one of `causes`, or any cause of `layers`, with at least this confidence; or its verdict is
    one of `verdicts`.

    `for` and `keep_firing` count the steps for which it stands: since the finding's first step, and not before a
    diagnosis that did not name it.
    """

    counts_steps = True
    kind: Literal["diagnosis"]
    causes: tuple[str, ...] = ()
    layers: tuple[Layer, ...] = ()
    confidence: Annotated[float, Field(ge=0, le=1)] = 0.5
    verdicts: tuple[Verdict, ...] = ()

    @model_validator(mode="after")
    def _has_sense(self) -> Self:
        if self.verdicts and (self.causes or self.layers):
            raise ValueError("`verdicts` goes without `causes` and `layers`")
        if not self.causes and not self.layers and not self.verdicts:
            raise ValueError("give `causes`, `layers`, or both; or `verdicts`")
        return self

    def words(self, name: str) -> str:
        if self.verdicts:
            return f"the verdict is {' or '.join(self.verdicts).replace('_', ' ')}"
        named = " or ".join([*self.causes, *(f"a cause of the layer {layer}" for layer in self.layers)]).replace(
            "_", " "
        )
        return f"the diagnosis names {named}, at least {self.confidence:.0%} sure"

    def observe(self, present: RunStatus, now: datetime) -> Observation:
        return self._verdict(present) if self.verdicts else self._finding(present)

    def _finding(self, present: RunStatus) -> Observation:
        if present.findings is None:
            return Observation("missing", "the run has not been diagnosed yet")
        meant = [
            finding
            for finding in present.findings
            if finding["cause"] in self.causes or finding["layer"] in self.layers
        ]
        sure = [finding for finding in meant if finding["confidence"] >= self.confidence and alarms(finding)]
        if not sure:
            return Observation("good", "the diagnosis found no such cause, or only expected ones")
        worst = max(sure, key=lambda finding: float(finding["confidence"]))
        return _named(worst, worst["since_step"])

    def _verdict(self, present: RunStatus) -> Observation:
        if present.verdict is None:
            return Observation("missing", "the run has not been diagnosed yet")
        if present.verdict not in self.verdicts:
            return Observation("good", f"the verdict is {present.verdict.replace('_', ' ')}")
        if present.leading is None:
            return Observation("bad", "no finding explains it", since_step=present.since_step)
        return _named(present.leading, present.since_step)


class Unacknowledged(OnPresent):
    """The trainer has not confirmed a correction within the steps that the correction's policy gives it."""

    kind: Literal["unacknowledged"]

    def words(self, name: str) -> str:
        return "the trainer does not confirm a correction"

    def observe(self, present: RunStatus, now: datetime) -> Observation:
        if (control := present.control) is None:
            return Observation("missing", "no correction was ever switched on")
        if control.get("phase") == "issued" and control.get("ack_missed"):
            return Observation("bad", f"the correction from step {control.get('from_step')} on is not acknowledged")
        return Observation("good", "no correction is waiting for an acknowledgement")


class Doubled(OnPresent):
    """Sequences are in the store more than once: every total of their steps is too large."""

    kind: Literal["doubled"]

    def words(self, name: str) -> str:
        return "sequences are stored twice"

    def observe(self, present: RunStatus, now: datetime) -> Observation:
        pulse = present.pulse
        if not pulse.doubled:
            return Observation("good", "no sequence is in the store twice")
        since = "" if pulse.doubled_since is None else f", from step {pulse.doubled_since} on"
        words = f"{pulse.doubled:,} sequences are in the store twice and count twice{since}"
        return Observation("bad", words, float(pulse.doubled), "sequences", since_step=pulse.doubled_since)


class DeadMan(OnPresent):
    """What should have come did not.

    `no_new_step`: for longer than `times` the median step time, and than `floor`. `collector_stopped`: one collector
    sent no heartbeat for `floor` while others did. `plugin_missing`: the trainer relies on the engine's records and
    none came. `ended_silently`: neither data nor heartbeats came, and no collector closed. `host_failed`: a process
    that recorded died of an error.
    """

    kind: Literal["dead_man"]
    event: Event
    times: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 6.0
    floor: Span = timedelta(minutes=10)
    steps: Annotated[int, Field(ge=1)] = 3  # trained without an engine's record, before its plugin counts as missing

    def words(self, name: str) -> str:
        return _EVENTS[self.event].format(times=self.times, steps=self.steps)

    def observe(self, present: RunStatus, now: datetime) -> Observation:
        waits = present.pulse.spooled_at
        if (
            waits is not None and now - waits <= self.floor and self.event != "host_failed"
        ):  # what is missing may be there
            return Observation("missing", f"records wait in the spool, the newest for {span_words(now - waits)}")
        return _SEEN[self.event](self, present.pulse, now)


def alarms(finding: FindingDocument) -> bool:
    """Whether anybody has to know: what is as expected, or accepted, is on its page."""
    return finding.get("urgency") != "informational" and finding.get("accepted") is None


def _named(finding: FindingDocument, since: int | None) -> Observation:
    return Observation(
        "bad",
        finding["explanation"],
        since_step=since,
        cause=finding["cause"],
        layer=finding["layer"],
        fix=told(finding),
    )


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
        f"the mismatch is not measured: the trainer recorded {pulse.relies_on_engine} steps without the rollout's "
        "log-probs, and no engine "
        "ever sent a record; there is none, or the plugin was not loaded there"
    )
    return Observation("bad", words, float(pulse.relies_on_engine), "steps")


def _names(writers: Sequence[Writer]) -> str:
    first = ", ".join(writer.name for writer in writers[:_FEW])
    return first if len(writers) <= _FEW else f"{first} and {len(writers) - _FEW} more collectors"


_SEEN: Final[Mapping[Event, Callable[[DeadMan, Pulse, datetime], Observation]]] = {
    "no_new_step": _no_new_step,
    "ended_silently": _ended_silently,
    "host_failed": _host_failed,
    "collector_stopped": _collector_stopped,
    "plugin_missing": _plugin_missing,
}
