"""Messages that follow from how alerts stand and from what was sent before. Pure.

A message follows from comparing an alert with the last message about it. So a restart, a missed tick, a silence that
ends and a changed threshold need no handling of their own: the difference is sent, once.

| before | now | message |
|---|---|---|
| quiet | fires | ``firing``, a new episode |
| fires | fires at a higher level | ``firing``, the same episode |
| fires | fires at a lower level, or another cause leads for `STANDS` steps | ``changed`` |
| fires | a user takes care | ``acknowledged`` |
| acknowledged until a time | fires after it | ``still_firing`` |
| fires | quiet, by evidence | ``resolved`` |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Final

from logprobe.alerts.rules.alert import Alert, Told

REMINDER: Final = "still_firing"
STANDS: Final = 3  # steps for which a cause leads before it is told
HISTORY: Final = "history: it happened too long ago for a message"


@dataclass(frozen=True, slots=True)
class Silence:
    """Patterns of run and rule about which nothing is sent until `expires_at`."""

    id: str
    run: str
    rule: str
    author: str
    reason: str
    created_at: datetime
    expires_at: datetime

    def mutes(self, run: str, rule: str, now: datetime) -> bool:
        """Return whether it is in effect and means this alert."""
        in_force = self.created_at <= now < self.expires_at
        return in_force and fnmatchcase(run, self.run) and fnmatchcase(rule, self.rule)


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """Acknowledgement of an episode. `until`: end of a snooze, or None for as long as the episode lasts."""

    episode: str
    author: str
    reason: str
    at: datetime
    until: datetime | None = None

    def in_force(self, now: datetime) -> bool:
        """Return whether it still holds."""
        return self.until is None or now < self.until


@dataclass(frozen=True, slots=True)
class Context:
    """Facts besides the alerts that decide over messages.

    Attributes:
        run: name of the run.
        now: time of the look.
        silences: those that have not expired.
        acknowledgements: by episode.
        notify_from: what happened before is history, or None to send everything.
        returned_to: first step of each attempt with which the run went back to a checkpoint.
    """

    run: str
    now: datetime
    silences: Sequence[Silence] = ()
    acknowledgements: Mapping[str, Acknowledgement] = field(default_factory=dict)
    notify_from: datetime | None = None
    returned_to: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Message:
    """One message about `alert` as it stands. `word`: a `Notification.state`; `key` is unique within the run."""

    alert: Alert
    word: str
    episode: str
    key: str
    step: int | None
    at: datetime
    acknowledgement: Acknowledgement | None = None


def messages(
    alerts: Sequence[Alert], context: Context, *, step: int | None, at: datetime
) -> tuple[list[Alert], list[Message]]:
    """Return the alerts as they are once users were told, and the messages that tell them, the worst first.

    Args:
        alerts: of one run.
        context: see `Context`.
        step: newest step that was looked at.
        at: its time.
    """
    after: list[Alert] = []
    sent: list[Message] = []
    for alert in alerts:
        told, message = _one(alert, context, step, at)
        after.append(told)
        sent += [] if message is None else [message]
    return after, sorted(sent, key=lambda message: -message.alert.told.peak)


def episode_of(run: str, alert: Alert, returned_to: Sequence[int] = ()) -> str:
    """Return the name of an episode: the same whenever the same steps are looked at.

    One that begins at a step that was trained again is another than that of the attempt before.
    """
    state = alert.state
    where = state.since_step if state.since_step is not None else f"{state.since_at:%Y%m%dT%H%M%S}"
    again = 0 if state.since_step is None else sum(step <= state.since_step for step in returned_to)
    return "/".join([run, alert.rule, str(where), *([f"again-{again}"] if again else [])])


def end(alert: Alert) -> Alert:
    """Return the alert of a threshold that was removed: quiet, and nothing more is known."""
    words = f"the threshold {alert.rule} was removed; what it was about may still hold"
    seen = None if alert.seen is None else replace(alert.seen, level=0, words=words)
    return replace(alert, state=replace(alert.state, level=0, toward=None), seen=seen)


def _one(alert: Alert, context: Context, step: int | None, at: datetime) -> tuple[Alert, Message | None]:
    alert = replace(alert, muted=_muted(alert, context, at) if alert.level else None)
    word = None if alert.muted else _due(alert, context)
    if word is None:
        return alert, None
    begins = not alert.told.level
    episode = episode_of(context.run, alert, context.returned_to) if begins else alert.told.episode or ""
    count = alert.told.count + 1  # a threshold that looks at steps again may find an episode again
    told = Told(
        episode=episode,
        level=alert.level,
        peak=alert.level if begins else max(alert.level, alert.told.peak),
        cause=_cause(alert),
        count=count,
        acknowledged=word == "acknowledged" or (not begins and word != REMINDER and alert.told.acknowledged),
        since_step=alert.state.since_step if begins else alert.told.since_step,
    )
    alert = replace(alert, told=told)
    acknowledgement = context.acknowledgements.get(episode) if word == "acknowledged" else None
    return alert, Message(alert, word, episode, f"{episode}/{count}/{word}", step, at, acknowledgement)


def _muted(alert: Alert, context: Context, at: datetime) -> str | None:
    for silence in context.silences:
        if silence.mutes(context.run, alert.rule, context.now):
            return f"silenced by {silence.author}: {silence.reason}"
    old = context.notify_from is not None and at < context.notify_from and not alert.told.level
    return HISTORY if old else None


def _due(alert: Alert, context: Context) -> str | None:
    """Return what users do not know yet about an alert, or None."""
    told = alert.told
    if alert.level > told.level:
        return "firing"
    if not alert.level:
        return "resolved" if told.level else None
    acknowledgement = context.acknowledgements.get(told.episode or "")
    acknowledged = acknowledgement is not None and acknowledgement.in_force(context.now)
    if acknowledged and not told.acknowledged:
        return "acknowledged"
    if told.acknowledged and not acknowledged:
        return REMINDER  # a snooze is over
    return "changed" if alert.level < told.level or _cause(alert) != told.cause else None


def _cause(alert: Alert) -> str | None:
    """Return the cause to tell: the last one that led for long enough, or the first one there is."""
    if alert.cause is None:
        return None if not alert.told.level else alert.told.cause
    cause, steps = alert.cause
    lasting = steps >= STANDS or not alert.told.level or alert.told.cause is None
    return cause if lasting else alert.told.cause
