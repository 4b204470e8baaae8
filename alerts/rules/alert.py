"""State of one alert, its transition function, and the resulting messages. Pure.

An alert has a level: 0 (quiet), 1 (info), 2 (warning) or 3 (critical). It rises once the level was exceeded for `needs`
steps in a row, and falls once it was not reached for `keeps` steps in a row:

    normal ── higher ──▶ pending ── for `needs` steps ──▶ firing ── lower ──▶ recovering ── for `keeps` steps ──▶ normal
                            └─ not higher ─▶ normal          ▲ └──────── as high again ─────────┘

Unmeasured steps change nothing. Missing data neither raises nor resolves an alert.

A message is the difference between an alert and the last message about it, sent once. A restart, a missed tick, an
expired silence and a changed threshold therefore need no special handling.

| before | now | message |
|---|---|---|
| quiet | fires | ``firing``, a new episode |
| fires | fires at a higher level | ``firing``, the same episode |
| fires | fires at a lower level, or another cause leads for `STANDS` steps | ``changed`` |
| fires | a user acknowledges it | ``acknowledged`` |
| fires | quiet, by evidence | ``resolved`` |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from fnmatch import fnmatchcase
from typing import ClassVar, Final, Literal

Severity = Literal["info", "warning", "critical"]
LEVELS: Final[tuple[str, ...]] = ("", "info", "warning", "critical")
INFO, WARNING, CRITICAL = 1, 2, 3
STANDS: Final = 3  # steps for which a cause leads before it is told
HISTORY: Final = "history: it happened too long ago for a message"


@dataclass(frozen=True, slots=True)
class Seen:
    """Result of evaluating a step, or the present run. Unknown is None.

    Attributes:
        level: severity level, or None if it was not measured.
        words: description, as a fragment of a sentence.
        value: measured value, in `unit`.
        unit: unit of `value`.
        since_step: first step concerned.
        cause: leading cause.
        layer: layer at fault.
        fix: remedy.
    """

    __pydantic_config__: ClassVar = {"ser_json_inf_nan": "constants"}  # a value that is not finite is kept

    level: int | None
    words: str
    value: float | None = None
    unit: str | None = None
    since_step: int | None = None
    cause: str | None = None
    layer: str | None = None
    fix: str | None = None


@dataclass(frozen=True, slots=True)
class Told:
    """Messages sent about an alert.

    Attributes:
        episode: episode of the last message, or None.
        level: level of the last message, or 0 if that message reported the end of the episode.
        peak: highest level of the episode, which selects the channels.
        cause: leading cause of the last message.
        count: number of messages so far, of all episodes.
        acknowledged: true if users were informed of the acknowledgement.
        since_step: first step of the episode, or None if unknown.
    """

    episode: str | None = None
    level: int = 0
    peak: int = 0
    cause: str | None = None
    count: int = 0
    acknowledged: bool = False
    since_step: int | None = None


@dataclass(frozen=True, slots=True)
class Alert:
    """State of one rule in one run.

    Attributes:
        rule: name of the rule.
        fingerprint: digest of the conditions under which the rule fires.
        needs: consecutive steps required to rise.
        keeps: consecutive steps required to fall.
        level: present level, as of `step`.
        toward: candidate level, or None if the last look confirmed the present one.
        streak: number of consecutive steps that support `toward`.
        since_step: first step of the episode, or None outside an episode or without a known step.
        since_at: time of that step.
        changed_at: time of the last change of `level`.
        told: messages sent so far.
        step: newest evaluated step, or None.
        seen: result of the last look, or None.
        cause: leading cause of the last looks, with the number of steps that it has led.
        muted: reason for sending no message, or None.
    """

    rule: str
    fingerprint: str = ""
    needs: int = 1
    keeps: int = 1
    level: int = 0
    toward: int | None = None
    streak: int = 0
    since_step: int | None = None
    since_at: datetime | None = None
    changed_at: datetime | None = None
    told: Told = field(default_factory=Told)
    step: int | None = None
    seen: Seen | None = None
    cause: tuple[str, int] | None = None
    muted: str | None = None

    @property
    def phase(self) -> str:
        """Phase of the alert: normal, pending, firing or recovering."""
        if not self.level:
            return "pending" if self.toward else "normal"
        return "recovering" if self.toward is not None and self.toward < self.level else "firing"

    @property
    def severity(self) -> str:
        """Severity of the level, or of the candidate level while the alert is quiet."""
        return LEVELS[self.level or self.toward or WARNING]

    def look(self, seen: Seen, *, step: int | None, at: datetime, steps: int = 1) -> Alert:
        """Return the alert after one more look.

        Args:
            seen: result of the look.
            step: evaluated step, or None.
            at: time of `step`.
            steps: number of steps that the result covers.
        """
        if seen.level is None:
            return replace(self, seen=seen, step=step)
        level, toward, streak = _moved(self, seen.level, steps)
        since: tuple[int | None, datetime | None] = (self.since_step, self.since_at)
        if not (level or toward):
            since = (None, None)
        elif not (self.level or self.toward):  # it begins
            since = (step if seen.since_step is None else seen.since_step, at)
        return replace(
            self,
            level=level,
            toward=toward,
            streak=streak,
            since_step=since[0],
            since_at=since[1],
            changed_at=at if level != self.level else self.changed_at,
            seen=seen,
            step=step,
            cause=_lasting(self.cause, seen.cause, steps) if level or toward else None,
        )


def _moved(alert: Alert, seen: int, steps: int) -> tuple[int, int | None, int]:
    """Return level, candidate and streak. The candidate is the level of the streak closest to the present one."""
    if seen == alert.level:
        return seen, None, 0
    rises = seen > alert.level
    toward, streak = seen, steps
    if alert.toward is not None and (alert.toward > alert.level) == rises:
        toward, streak = (min if rises else max)(alert.toward, seen), alert.streak + steps
    done = streak >= (alert.needs if rises else alert.keeps)
    return (toward, None, 0) if done else (alert.level, toward, streak)


def _lasting(before: tuple[str, int] | None, cause: str | None, steps: int) -> tuple[str, int] | None:
    if cause is None:
        return before
    return (cause, before[1] + steps) if before is not None and before[0] == cause else (cause, min(steps, 1))


def ended(alert: Alert) -> Alert:
    """Return the quiet alert of a removed threshold, without any known facts."""
    words = f"the threshold {alert.rule} was removed; what it was about may still hold"
    seen = None if alert.seen is None else replace(alert.seen, level=0, words=words)
    return replace(alert, level=0, toward=None, seen=seen)


# --- Messages ---


@dataclass(frozen=True, slots=True)
class Silence:
    """Patterns of run and rule whose matching alerts send no messages until `expires_at`."""

    id: str
    run: str
    rule: str
    author: str
    reason: str
    created_at: datetime
    expires_at: datetime

    def mutes(self, run: str, rule: str, now: datetime) -> bool:
        """Return whether the silence is active and matches this alert."""
        in_force = self.created_at <= now < self.expires_at
        return in_force and fnmatchcase(run, self.run) and fnmatchcase(rule, self.rule)


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """Acknowledgement of an episode, for as long as the episode lasts."""

    episode: str
    author: str
    reason: str


@dataclass(frozen=True, slots=True)
class Context:
    """Facts beyond the alerts that determine the messages.

    Attributes:
        run: name of the run.
        now: time of the evaluation.
        silences: active silences.
        acknowledgements: acknowledgements by episode.
        notify_from: start of notification, with earlier events omitted as history, or None to send all.
        returned_to: first step of each attempt that returned to a checkpoint.
    """

    run: str
    now: datetime
    silences: Sequence[Silence] = ()
    acknowledgements: Mapping[str, Acknowledgement] = field(default_factory=dict)
    notify_from: datetime | None = None
    returned_to: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Message:
    """One message about the present `alert`. `word`: a `Notification.state`. `key`: unique within the run."""

    alert: Alert
    word: str
    episode: str
    key: str
    step: int | None
    at: datetime
    acknowledgement: Acknowledgement | None = None


def messages(
    alerts: Iterable[Alert], context: Context, *, step: int | None, at: datetime
) -> tuple[list[Alert], list[Message]]:
    """Return the updated alerts and the messages, the worst first.

    Args:
        alerts: alerts of one run.
        context: see `Context`.
        step: newest evaluated step.
        at: time of `step`.
    """
    told = [_told(alert, context, step, at) for alert in alerts]
    sent = [message for _, message in told if message is not None]
    return [alert for alert, _ in told], sorted(sent, key=lambda message: -message.alert.told.peak)


def episode_of(run: str, alert: Alert, returned_to: Sequence[int] = ()) -> str:
    """Return the name of an episode, which is stable when the same steps are evaluated again.

    An episode that begins at a retrained step has another name than one of the earlier attempt.
    """
    since = alert.since_step
    again = 0 if since is None else sum(step <= since for step in returned_to)
    where = f"{alert.since_at:%Y%m%dT%H%M%S}" if since is None else str(since)
    return "/".join([run, alert.rule, where, *([f"again-{again}"] if again else [])])


def _told(alert: Alert, context: Context, step: int | None, at: datetime) -> tuple[Alert, Message | None]:
    alert = replace(alert, muted=_muted(alert, context, at) if alert.level else None)
    before = alert.told
    taken = context.acknowledgements.get(before.episode or "")
    word = None if alert.muted else _due(alert, taken)
    if word is None:
        return alert, None
    begins = not before.level
    episode = episode_of(context.run, alert, context.returned_to) if begins else before.episode or ""
    told = Told(
        episode=episode,
        level=alert.level,
        peak=alert.level if begins else max(alert.level, before.peak),
        cause=_cause(alert),
        count=before.count + 1,  # a threshold that looks at steps again may find an episode again
        acknowledged=word == "acknowledged" or (not begins and before.acknowledged),
        since_step=alert.since_step if begins else before.since_step,
    )
    alert, by = replace(alert, told=told), taken if word == "acknowledged" else None
    return alert, Message(alert, word, episode, f"{episode}/{told.count}/{word}", step, at, by)


def _muted(alert: Alert, context: Context, at: datetime) -> str | None:
    for silence in context.silences:
        if silence.mutes(context.run, alert.rule, context.now):
            return f"silenced by {silence.author}: {silence.reason}"
    old = context.notify_from is not None and at < context.notify_from and not alert.told.level
    return HISTORY if old else None


def _due(alert: Alert, taken: Acknowledgement | None) -> str | None:
    """Return the message that users have not received about an alert, or None."""
    told = alert.told
    if alert.level > told.level:
        return "firing"
    if not alert.level:
        return "resolved" if told.level else None
    if taken is not None and not told.acknowledged:
        return "acknowledged"
    return "changed" if alert.level < told.level or _cause(alert) != told.cause else None


def _cause(alert: Alert) -> str | None:
    """Return the cause to report: the last one that led for long enough, or else the first one known."""
    told = alert.told
    if alert.cause is None:
        return told.cause if told.level else None
    cause, steps = alert.cause
    return cause if steps >= STANDS or not told.level or told.cause is None else told.cause
