"""From a message to the notification that channels send: the numbers, what they mean, and what changed before. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from urllib.parse import urlencode

from logprobe.alerts.incidents.ledger import link as incident_link
from logprobe.alerts.notification import Notification
from logprobe.alerts.rules.judging.evaluation import REMINDER, Message
from logprobe.alerts.rules.judging.observation import Observation
from logprobe.alerts.rules.rule import Rule

_RUN: Final = re.compile(r"\bRUN\b")
_BEFORE, _AFTER = 50, 20  # steps of a chart, so that what was usual can be seen beside it
_NOTHING: Final = Observation("missing", "")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a notification tells beside the alert itself.

    Attributes:
        step: newest step of the run.
        series: recent (step, value) of the metric.
        changes: what changed before, as (what, when).
        page: address of the dashboard; None: there is none.
        severity: of the run as a whole.
        incident: that the message belongs to; None: to none.
        grouped: alerts that fire in the run, one line each.
    """

    step: int | None = None
    series: Sequence[tuple[int, float]] = ()
    changes: Sequence[tuple[str, datetime]] = ()
    page: str | None = None
    severity: str | None = None
    incident: str | None = None
    grouped: Sequence[str] = ()


def build(run: str, message: Message, around: Surroundings) -> Notification:
    """The notification of a message about `run`."""
    alert, rule = message.alert, message.alert.rule
    seen = alert.observation or _NOTHING
    step = message.step if message.step is not None else around.step
    since = seen.since_step if seen.since_step is not None else alert.notified.since_step
    return Notification(
        key=message.key,
        run=run,
        rule=rule.name,
        episode=message.episode,
        state=message.word,
        severity=rule.severity,
        at=message.at,
        summary=_summary(rule, seen, message),
        step=step,
        metric=rule.metric,
        pair=rule.of_pair,
        slice=alert.slice,
        value=seen.value,
        unit=seen.unit if seen.unit is not None or rule.declared is None else rule.declared.unit,
        baseline=seen.baseline,
        since_step=since,
        doubling_steps=seen.doubling_steps,
        description=_description(rule, run, message),
        layer=seen.layer or rule.layer,
        cause=seen.cause,
        fix=None if message.word == "resolved" else seen.fix or rule.annotations.fix,
        changes=tuple(f"{change}, {at:%Y-%m-%d %H:%M:%S} UTC" for change, at in around.changes),
        labels=rule.labels,
        link=_link(around, run, step, since),
        runbook=None if message.word == "resolved" else runbook_link(around.page, run, rule.name),
        series=tuple(around.series),
        run_severity=around.severity,
        incident=around.incident,
        grouped=() if around.incident is None else tuple(around.grouped),
    )


def _description(rule: Rule, run: str, message: Message) -> str:
    """What it means and what to do, with the run's name where the rule says RUN; nothing is to be done about what is
    over."""
    if message.word == "resolved":
        return ""
    text = " ".join(filter(None, (rule.annotations.description, rule.annotations.runbook)))
    return _RUN.sub(lambda _: run, text)


def _summary(rule: Rule, seen: Observation, message: Message) -> str:
    if message.acknowledgement is not None:
        acknowledgement = message.acknowledgement
        if acknowledgement.until is not None:
            return (
                f"{acknowledgement.author} snoozed it until {acknowledgement.until:%Y-%m-%d %H:%M} UTC: "
                f"{acknowledgement.reason}"
            )
        return f"{acknowledgement.author} acknowledged it: {acknowledgement.reason}"
    if message.word == REMINDER:
        return " ".join(filter(None, ("The snooze ended, and it is still firing.", _sentence(seen.words))))
    if message.word == "resolved":
        return f"Resolved. {_sentence(seen.words)}".strip()
    return " ".join(filter(None, (rule.annotations.summary, _sentence(seen.words))))


def _sentence(words: str) -> str:
    """A capital letter in front, unless it begins with a name, and a full stop behind."""
    if not words:
        return ""
    is_word = words.partition(" ")[0].isalpha()
    return (words[0].upper() if is_word else words[0]) + words[1:] + ("" if words.endswith((".", "!", "?")) else ".")


def _link(around: Surroundings, run: str, step: int | None, since: int | None) -> str | None:
    if around.page is None or around.incident is not None:
        return incident_link(around.page, run, around.incident or "")
    wanted = {"run": run} if step is None else {"run": run, "step": step, "steps": steps_around(step, since)}
    return f"{around.page}/?{urlencode(wanted, safe=':')}"


def runbook_link(page: str | None, run: str, rule: str) -> str | None:
    """Where the dashboard at `page` says what to do about an alert of `rule`; None: there is no dashboard."""
    return None if page is None else f"{page}/?{urlencode({'page': 'alerts', 'run': run, 'runbook': rule})}"


def steps_around(step: int, since: int | None = None) -> str:
    """The steps that a chart of an alert shows, as the dashboard's address has them: ``first:last``.

    >>> steps_around(533, 470), steps_around(4)
    ('420:553', '0:24')
    """
    first = step if since is None else min(since, step)
    return f"{max(0, first - _BEFORE)}:{step + _AFTER}"
