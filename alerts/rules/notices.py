"""Notifications of messages, with numbers and preceding changes. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import datetime
from typing import Final
from urllib.parse import urlencode

from logprobe.alerts.notification import Notification
from logprobe.alerts.rules.alert import LEVELS, Message, Seen
from logprobe.alerts.rules.periods import link as incident_link
from logprobe.alerts.rules.thresholds import BIT_EQUALITY, LIVENESS, Threshold
from logprobe.monitor.judgement import JUDGEMENT

_BEFORE, _AFTER = 50, 20  # steps of a chart, so that what was usual can be seen beside it
_NOTHING: Final = Seen(None, "")


def build(
    run: str,
    message: Message,
    threshold: Threshold | None,
    *,
    newest: int | None = None,
    changes: Sequence[tuple[str, datetime]] = (),
    page: str | None = None,
    severity: str | None = None,
    incident: str | None = None,
    grouped: Sequence[str] = (),
) -> Notification:
    """Return the notification of a message about `run`.

    Args:
        run: name of the run.
        message: see `Message`.
        threshold: threshold of the message, or None.
        newest: newest step of the run.
        changes: preceding changes as (description, time).
        page: URL of the dashboard, or None.
        severity: severity of the whole run.
        incident: incident of the message, or None.
        grouped: firing alerts of the run, one line each.
    """
    alert, seen = message.alert, message.alert.seen or _NOTHING
    over = message.word == "resolved"
    step = message.step if message.step is not None else newest
    since = alert.told.since_step if seen.since_step is None else seen.since_step
    more = (
        f"logprobe show {shlex.quote(run)}{'' if alert.rule in {JUDGEMENT, LIVENESS, BIT_EQUALITY} else ' --metrics'}"
    )
    return Notification(
        key=message.key,
        run=run,
        rule=alert.rule,
        episode=message.episode,
        state=message.word,
        severity=LEVELS[alert.told.peak],
        level=LEVELS[alert.level],
        at=message.at,
        summary=_summary(seen.words, message),
        step=step,
        metric=None if threshold is None else threshold.metric,
        value=seen.value,
        unit=seen.unit,
        since_step=since,
        layer=seen.layer,
        cause=seen.cause,
        fix=None if over else seen.fix,
        more=None if over else more,
        changes=tuple(f"{change}, {at:%Y-%m-%d %H:%M:%S} UTC" for change, at in changes),
        link=_link(page, run, step, since) if incident is None else incident_link(page, run, incident),
        run_severity=severity,
        incident=incident,
        grouped=() if incident is None else tuple(grouped),
    )


def _summary(words: str, message: Message) -> str:
    if (taken := message.acknowledgement) is not None:
        return f"{taken.author} acknowledged it: {taken.reason}"
    if words.partition(" ")[0].isalpha():  # a word and no name
        words = words[0].upper() + words[1:]
    if words and not words.endswith((".", "!", "?", "…")):
        words += "."
    return f"{'Resolved. ' if message.word == 'resolved' else ''}{words}".strip()


def _link(page: str | None, run: str, step: int | None, since: int | None) -> str | None:
    wanted = {"run": run} if step is None else {"run": run, "step": step, "steps": steps_around(step, since)}
    return None if page is None else f"{page}/?{urlencode(wanted, safe=':')}"


def steps_around(step: int, since: int | None = None) -> str:
    """Return the range of steps in the chart of an alert, in the dashboard's URL syntax ``first:last``.

    >>> steps_around(533, 470), steps_around(4)
    ('420:553', '0:24')
    """
    first = step if since is None else min(since, step)
    return f"{max(0, first - _BEFORE)}:{step + _AFTER}"
