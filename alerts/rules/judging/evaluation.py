"""One run's alerts, step after step: which rules fire, and what has to be told. Pure; `ledger` keeps what is returned.

What is told follows from comparing how an alert stands with the last notification about it. So a restart, a missed
tick, a silence that ends or a changed rule need no handling of their own: the difference is told, once.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from logprobe.alerts.rules.judging.mutes import Acknowledgement, AlertStatus, Silence, muted_by
from logprobe.alerts.rules.judging.observation import Memory, Observation, StepFacts
from logprobe.alerts.rules.judging.states import Phase, Reason, State, advance
from logprobe.alerts.rules.rule import PresentCondition, Rule

MOST_SLICES: Final = 64  # per rule: a tag with a value per sequence must not make a rule per sequence
_OTHERS: Final = " (others)"  # of a dimension: its slices beyond these; those that are judged have "=" in their names
REMINDER: Final = "still_firing"
# What Python raises for numbers that do not fit a formula, or for a memory that an older version left behind.
_EVALUATION_ERRORS: Final = (ArithmeticError, LookupError, TypeError, ValueError)
_WORSE: Final = 2.0  # told again, in place, when the value has moved by this factor


@dataclass(frozen=True, slots=True)
class Notified:
    """What people know of an alert.

    Attributes:
        episode: that they were told of last; None: of none.
        open: whether they believe that it still fires.
        value: as given in the last message.
        count: messages so far.
        acknowledged: whether they were told that it is acknowledged.
        since_step: where the episode began; None: no step is known.
    """

    episode: str | None = None
    open: bool = False
    value: float | None = None
    count: int = 0
    acknowledged: bool = False
    since_step: int | None = None


@dataclass(frozen=True, slots=True)
class Alert:
    """One rule on one slice of one run, with everything that is remembered of it.

    `step`: the newest that was looked at, by the diagnosis where the rule is about one. `observation`: the newest, None
    before the first. `muted`: why it is not told.
    """

    rule: Rule
    slice: str | None = None
    state: State = field(default_factory=State)
    notified: Notified = field(default_factory=Notified)
    step: int | None = None
    memory: Memory = field(default_factory=dict)
    observation: Observation | None = None
    muted: str | None = None

    @property
    def status(self) -> AlertStatus:
        """As other alerts see it."""
        return AlertStatus(self.rule, self.slice, self.state.phase, self.notified.open)


@dataclass(frozen=True, slots=True)
class Transition:
    """An alert changed its phase."""

    alert: Alert  # afterwards
    before: Phase
    step: int | None
    at: datetime

    @property
    def key(self) -> str:
        """The same whenever the same steps are looked at."""
        where = self.step if self.step is not None else self.at.isoformat()
        return f"{self.alert.rule.name}/{self.alert.slice or ''}/{where}/{self.alert.state.phase}"


@dataclass(frozen=True, slots=True)
class Message:
    """Something to tell, about `alert` as it stands; `word` is a `Notification.state`. `key` is unique within the
    run."""

    alert: Alert
    word: str
    episode: str
    key: str
    step: int | None
    at: datetime
    acknowledgement: Acknowledgement | None = None


@dataclass(frozen=True, slots=True)
class Context:
    """What decides, besides the alerts, whether something is told. `notify_from`: older news is history; None:
    everything is told.

    `accepted`: why a cause that alerts share is lived with, see `run_status.lived_with`. `returned_to`: the first step
    of each attempt with which the run went back to a checkpoint.
    """

    run: str
    now: datetime
    silences: Sequence[Silence] = ()
    acknowledgements: Mapping[str, Acknowledgement] = field(default_factory=dict)
    notify_from: datetime | None = None
    accepted: Mapping[str, str] = field(default_factory=dict)
    returned_to: Sequence[int] = ()


def evaluate_step(alerts: Iterable[Alert], facts: StepFacts) -> tuple[list[Alert], list[Transition]]:
    """The alerts after one more step. Those that have seen it already, and those whose rule looks at no steps, stay as
    they are."""
    after, transitions = [], []
    for alert in alerts:
        if isinstance(alert.rule.when, PresentCondition) or (alert.step is not None and facts.step <= alert.step):
            after.append(alert)
            continue
        observation, memory = _seen(alert, facts)
        state = advance(alert.state, observation, alert.rule, step=facts.step, now=facts.at)
        after.append(replace(alert, state=state, observation=observation, step=facts.step, memory=memory))
        transitions += _transition(alert.state, after[-1], facts.step, facts.at)
    return after, transitions


def _seen(alert: Alert, facts: StepFacts) -> tuple[Observation, Memory]:
    """What an alert's rule sees in one step, and what it remembers then."""
    if alert.slice is not None and "=" not in alert.slice:
        return Observation("missing", f"a rule judges {MOST_SLICES} slices; the others are not judged"), alert.memory
    when = alert.rule.when
    assert not isinstance(when, PresentCondition)  # noqa: S101 - these look at no steps
    try:
        return when.observe(alert.rule, alert.slice, facts, alert.memory)
    except _EVALUATION_ERRORS as error:
        # One rule that cannot be evaluated says so, and the others go on.
        words = f"the rule cannot be evaluated ({type(error).__name__}: {error})"
        return Observation("error", words), alert.memory


def evaluate_status(
    alerts: Iterable[Alert], observations: Mapping[str, Observation], now: datetime, *, diagnosed: int | None = None
) -> tuple[list[Alert], list[Transition]]:
    """The alerts after a look at how things are now.

    Args:
        alerts: of one run.
        observations: by rule name, only of rules that could be looked at.
        now: time of the look.
        diagnosed: newest step that the diagnosis has seen; None: there is none.
    """
    after, transitions = [], []
    for alert in alerts:
        observation = observations.get(alert.rule.name)
        if observation is None:
            after.append(alert)
            continue
        step = diagnosed if alert.rule.when.counts_steps else None
        steps = 1 if step is None else _stands_for(alert, observation, step)
        state = advance(alert.state, observation, alert.rule, step=None, now=now, steps=steps)
        after.append(replace(alert, state=state, observation=observation, step=step))
        transitions += _transition(alert.state, after[-1], None, now)
    return after, transitions


def _stands_for(alert: Alert, observation: Observation, step: int) -> int:
    """For how many steps a diagnosis speaks that has seen `step`.

    What lasts has lasted since the diagnosis before. What is new stands since the finding's first step, and not before
    a diagnosis that did not name it; of an end nothing says where it began.
    """
    gone = None if alert.step is None else max(0, step - alert.step)
    if (alert.state.phase, observation.verdict) in {(Phase.PENDING, "bad"), (Phase.RECOVERING, "good")}:
        return gone or 0
    if observation.verdict != "bad":
        return 1
    stood = step - (observation.since_step or 0) + 1
    return max(1, stood if gone is None else min(stood, gone))


def _transition(before: State, alert: Alert, step: int | None, at: datetime) -> list[Transition]:
    """The one that an alert has made; none while its phase is the same."""
    return [] if alert.state.phase is before.phase else [Transition(alert, before.phase, step, at)]


def end(alert: Alert, now: datetime) -> tuple[Alert, list[Transition]]:
    """The alert of a rule that was removed, and the notification of its end: not what it saw last."""
    ended = replace(
        alert,
        state=State(Phase.NORMAL, Reason.RULE_GONE, changed_at=now),
        observation=Observation("good", f"the rule {alert.rule.name} was removed; the condition may still hold"),
    )
    gone = alert.state.phase.active
    return ended, [Transition(ended, alert.state.phase, alert.step, now)] if gone else []


def notify(
    alerts: Sequence[Alert], context: Context, *, step: int | None, at: datetime
) -> tuple[list[Alert], list[Message]]:
    """What people have to be told so that they know how the alerts stand, and the alerts once they were.

    Args:
        alerts: all of one run.
        context: what else decides.
        step: that was looked at last.
        at: its time.
    """
    notified = list(alerts)
    messages: list[Message] = []
    if not any(alert.state.phase.active or alert.notified.open or alert.muted for alert in notified):
        return notified, messages
    # The most severe first: once it is told, those it inhibits keep quiet.
    for index in sorted(range(len(notified)), key=lambda i: _rank(notified[i])):
        others = [other.status for other in notified if other is not notified[index]]
        notified[index], told = _notify_one(notified[index], others, context, step, at)
        messages += told
    return notified, messages


def _rank(alert: Alert) -> tuple[int, bool]:
    return {"critical": 0, "warning": 1, "info": 2}[alert.rule.severity], alert.rule.sums_up


def _notify_one(
    alert: Alert, others: Sequence[AlertStatus], context: Context, step: int | None, at: datetime
) -> tuple[Alert, list[Message]]:
    if not alert.state.phase.active:
        word = "resolved" if alert.notified.open else None
        alert = replace(alert, muted=None)
    else:
        muted = muted_by(context.run, alert.status, others, context.silences, context.now)
        if muted is None and alert.rule.metric is not None:
            muted = context.accepted.get(alert.rule.shared_cause)
        if muted is None and context.notify_from is not None and at < context.notify_from and not alert.notified.open:
            muted = "history: it happened too long ago for a notification"
        alert = replace(alert, muted=muted)
        word = None if muted else _due(alert, context)
    if word is None:
        return alert, []
    return _notification(alert, word, context, step, at)


def episode_of(run: str, alert: Alert, returned_to: Sequence[int] = ()) -> str:
    """Names one firing of a rule, the same whenever the same steps are looked at; one that begins at a step that was
    trained again is another than that of the attempt before."""
    state = alert.state
    where = state.started_step if state.started_step is not None else f"{state.started_at:%Y%m%dT%H%M%S}"
    again = 0 if state.started_step is None else sum(step <= state.started_step for step in returned_to)
    attempt = f"again-{again}" if again else None
    return "/".join(filter(None, (run, alert.rule.name, alert.slice, str(where), attempt)))


def _due(alert: Alert, context: Context) -> str | None:
    """What people do not know yet about an alert that fires."""
    if not alert.notified.open:
        return "firing"
    acknowledgement = context.acknowledgements.get(alert.notified.episode or "")
    acknowledged = acknowledgement is not None and acknowledgement.in_force(context.now)
    if acknowledged and not alert.notified.acknowledged:
        return "acknowledged"
    if alert.notified.acknowledged and not acknowledged:
        return REMINDER  # a snooze is over
    # Somebody who takes care looks at the numbers anyway.
    return "updated" if not acknowledged and _much_worse(alert) else None


def _much_worse(alert: Alert) -> bool:
    """Whether the value has moved by a factor, further away from what the rule allows, since the last notification."""
    value = None if alert.observation is None else alert.observation.value
    before, declared = alert.notified.value, alert.rule.declared
    if value is None or not before or value <= 0 or before <= 0 or declared is None:
        return False
    return (
        value >= _WORSE * before
        if declared.worse == "higher"
        else declared.worse == "lower" and value * _WORSE <= before
    )


def _notification(
    alert: Alert, word: str, context: Context, step: int | None, at: datetime
) -> tuple[Alert, list[Message]]:
    begins = word == "firing"
    episode = episode_of(context.run, alert, context.returned_to) if begins else alert.notified.episode or ""
    # A rule that looks at steps again may find an episode again that was notified before.
    count = alert.notified.count + 1
    notified = Notified(
        episode=episode,
        open=word != "resolved",
        value=None if alert.observation is None else alert.observation.value,
        count=count,
        acknowledged=word == "acknowledged" or (not begins and word != REMINDER and alert.notified.acknowledged),
        since_step=alert.state.started_step if begins else alert.notified.since_step,
    )
    after = replace(alert, notified=notified)
    message = Message(
        alert=after,
        word=word,
        episode=episode,
        key=f"{episode}/{count}/{word}",
        step=step,
        at=at,
        acknowledgement=context.acknowledgements.get(episode) if word == "acknowledged" else None,
    )
    return after, [message]


def with_new_slices(alerts: Sequence[Alert], rules: Sequence[Rule], facts: StepFacts) -> list[Alert]:
    """`alerts`, and one for every slice that a rule looks at and that turns up in this step for the first time.

    Beyond `MOST_SLICES` of a rule, one for all others, which says that they are not judged.
    """
    extended = list(alerts)
    for rule in rules:
        if rule.slice is None:
            continue
        slices = [alert.slice for alert in alerts if alert.rule.name == rule.name and alert.slice is not None]
        new = [part for part in parts_of(rule, facts) if part is not None and part not in slices]
        others = rule.slice.partition("=")[0] + _OTHERS
        room = max(MOST_SLICES - sum(part != others for part in slices), 0)
        extended += [Alert(rule, part) for part in new[:room]]
        if len(new) > room and others not in slices:
            extended.append(Alert(rule, others))
    return extended


def begin(rules: Sequence[Rule], *, besides: Container[tuple[str, str | None]] = ()) -> list[Alert]:
    """The alerts of a run that was never evaluated; not those of `besides`, by rule and slice."""
    return [Alert(rule, part) for rule in rules for part in parts_of(rule, None) if (rule.name, part) not in besides]


def through_steps(
    alerts: Sequence[Alert], rules: Sequence[Rule], steps: Iterable[StepFacts], context: Context
) -> Iterator[tuple[list[Alert], list[Transition], list[Message]]]:
    """Steps in order; after each the alerts, the transitions it brought and what is to be told."""
    current = list(alerts)
    for facts in steps:
        current, transitions = evaluate_step(with_new_slices(current, rules, facts), facts)
        current, messages = notify(current, context, step=facts.step, at=facts.at)
        yield current, transitions, messages


def parts_of(rule: Rule, facts: StepFacts | None) -> list[str | None]:
    """The slices of a step that a rule looks at; of no step: those that it names."""
    if rule.slice is None:
        return [None]
    dimension, named, _ = rule.slice.partition("=")
    if named:
        return [rule.slice]
    return [] if facts is None else [f"{dimension}={name}" for name in sorted(facts.slices.get(dimension, ()))]
