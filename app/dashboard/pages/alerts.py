"""The Alerts page as blocks: what fires, what is about to, what is silenced, what happened. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from urllib.parse import urlencode

from logprobe.alerts.rules.judging.mutes import FIELDS
from logprobe.alerts.rules.notification_builder import steps_around
from logprobe.app.dashboard.elements.blocks import Block, heading, place, row, table
from logprobe.app.text.numbers import number

Row = Mapping[str, Any]

RECENT: Final = 30
TOMORROW: Final = "tomorrow"
_MORNING: Final = 9  # o'clock, where whoever snoozes is
_FIRING: Final = frozenset({"firing", "recovering"})
_CALM: Final = frozenset({"normal", "no_data"})
_HEAD: Final = ("alert", "severity", "since", "value", "observation", "acknowledged by")
_BY: Final = {"name": "by", "label": "your name", "required": True}
_REASON: Final = {"name": "reason", "label": "reason", "required": True}
_FOR: Final = {"name": "for", "label": "for (90s, 10m, 2h, 1d)", "value": "2h", "required": True}
_SNOOZES: Final = (("1 h", "1h"), ("4 h", "4h"), ("until tomorrow", TOMORROW))


@dataclass(frozen=True)
class Alerts:
    """Rows of `alert_list`, `alert_history` and `alert_silences` about one run; `channels`: whether there is anywhere to send them."""

    current: Sequence[Row]
    history: Sequence[Row]
    silences: Sequence[Row]
    channels: bool = True


def alerts_blocks(alerts: Alerts, *, run: str, blocked: str) -> list[Block]:
    """Blocks of `browser/report.js`. `blocked`: why nothing can be done from this page; "": it can."""
    firing = [each for each in alerts.current if each["phase"] in _FIRING]
    pending = [each for each in alerts.current if each["phase"] == "pending"]
    recent = [each for each in reversed(alerts.history) if _tells(each)][:RECENT]
    return [
        heading("Firing", _count(firing, channels=alerts.channels)),
        table("firing", _HEAD, [_alert(each, run, blocked) for each in firing], empty="No alerts firing."),
        heading("Pending", "condition met, but not yet for long enough"),
        table("pending", _HEAD, [_alert(each, run, blocked) for each in pending], empty="None."),
        heading("Silenced", "matching alerts send no notifications, in any run of this home"),
        table("silences", ("what", "until", "by", "reason"), _silences(alerts.silences, blocked), empty="Nothing."),
        {"type": "actions", "actions": [_new_silence(run, blocked)]},
        heading("Recent", f"the last {RECENT} transitions, without those between “no data” and “normal”"),
        table(
            "recent",
            ("alert", "step", "change", "value", "observation"),
            _history(recent, run),
            empty="None.",
            fold=True,
        ),
    ]


def matchers_of(given: Mapping[str, Any]) -> dict[str, str]:
    """What the form of a silence says, as field → pattern; what was left empty matches anything.

    >>> matchers_of({"rule": "gap-*", "run": "", "labels": "team=rl, gpu=h200", "by": "Ada"})
    {'rule': 'gap-*', 'team': 'rl', 'gpu': 'h200'}
    """
    fields = {name: str(given.get(name) or "").strip() for name in FIELDS}
    pairs = (each.partition("=") for each in str(given.get("labels") or "").split(","))
    labels = {name.strip(): pattern.strip() for name, _, pattern in pairs if name.strip()}
    return {name: pattern for name, pattern in fields.items() if pattern} | labels


def snooze(choice: str, now: datetime) -> str:
    """How long a choice lasts, as the service reads it. `now`: with the time zone of whoever snoozes."""
    if choice != TOMORROW:
        return choice
    morning = (now + timedelta(days=1)).replace(hour=_MORNING, minute=0, second=0, microsecond=0)
    return f"{(morning - now).total_seconds():.0f}s"


def _tells(each: Row) -> bool:
    """Whether a transition is of interest: that a rule has data for the first time, or again, is not."""
    before, after = each["before"], each["after"]
    return before != after and not {before, after} <= _CALM


def _count(rows: Sequence[Row], *, channels: bool) -> str:
    if not channels:
        return f"{len(rows)}; no channel is configured, so no notifications are sent" if rows else "0"
    unsent = sum(each["muted"] is not None for each in rows)
    return f"{len(rows)}, {unsent} of them without notification" if unsent else str(len(rows))


def _name(each: Row) -> str:
    return " ".join(filter(None, [each["rule"], each["slice"]]))


def _step(step: int | None, steps: str, run: str) -> str | Block:
    """A step, as a link to the chart of the steps around it."""
    if step is None:
        return "–"
    query = urlencode({"run": run, "steps": steps}, safe=":")
    words = f"the chart of steps {steps.replace(':', ' to ')}"
    return place(f"step {step:,}", href=f"./?{query}", path=f"?steps={steps}", help=words)


def _time(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M} UTC"


def _alert(each: Row, run: str, blocked: str) -> Block:
    began = each["started_step"]
    newest = began if each["step"] is None else each["step"]
    cells = [
        _name(each),
        each["severity"],
        _step(began, steps_around(newest or 0, began), run),
        number(each["value"]),
        each["words"] or "–",
        _who(each),
    ]
    return row(cells, tone=each["severity"], actions=[_why(run), *_remedies(each, run, blocked)])


def _who(each: Row) -> str:
    if each["acknowledged_by"]:
        until = each["acknowledged_until"]
        return f"{each['acknowledged_by']}, until {_time(until)}" if until else str(each["acknowledged_by"])
    return (each["muted"] and f"not notified: {each['muted']}") or "nobody"


def _why(run: str) -> Block:
    query = urlencode({"page": "diagnosis", "run": run})
    return {"label": "Diagnosis", "href": f"./?{query}", "path": "diagnosis"}


def _remedies(each: Row, run: str, blocked: str) -> Iterable[Block]:
    if each["episode"] and each["phase"] in _FIRING and (not each["acknowledged_by"] or each["acknowledged_until"]):
        args = {"episode": each["episode"]}
        yield {
            "id": "ack", "label": "Acknowledge", "args": args, "disabled": blocked, "fields": [_BY, _REASON],
            "words": f"Acknowledge `{_name(each)}`: no more notifications during this episode.",
        }  # fmt: skip
        yield {
            "id": "snooze", "label": "Snooze", "args": args, "disabled": blocked, "fields": [_BY],
            "choices": [{"label": label, "args": {"for": lasting}} for label, lasting in _SNOOZES],
            "words": f"Snooze `{_name(each)}`: notify again if it is still firing.",
        }  # fmt: skip
    yield {
        "id": "silence", "label": "Silence", "args": {"rule": each["rule"], "run": run}, "disabled": blocked,
        "fields": [_BY, _REASON, _FOR],
        "words": f"Silence `{each['rule']}` in run `{run}`: no notifications for this long, even if it fires again.",
    }  # fmt: skip


def _new_silence(run: str, blocked: str) -> Block:
    fields = [
        {"name": "rule", "label": "rule; * and ? are wildcards", "value": ""},
        {"name": "run", "label": "run", "value": run},
        {"name": "severity", "label": "severity", "value": "", "options": ["", "info", "warning", "critical"]},
        {"name": "slice", "label": "slice, as in replica=a", "value": ""},
        {"name": "labels", "label": "labels, as in team=rl", "value": ""},
        _FOR,
        _BY,
        _REASON,
    ]
    words = "Alerts that match all of these fields send no notifications. Empty fields match anything."
    return {"id": "silence", "label": "New silence", "disabled": blocked, "fields": fields, "words": words}


def _silences(rows: Sequence[Row], blocked: str) -> list[Block]:
    def end(each: Row) -> Block:
        words, args = "Matching alerts send notifications again.", {"silence": each["id"]}
        return {"id": "unsilence", "label": "End", "args": args, "disabled": blocked, "fields": [_BY], "words": words}

    return [
        row(
            [_matching(each["matchers"]), _time(each["expires_at"]), each["author"], each["reason"]],
            actions=[end(each)],
        )
        for each in rows
    ]


def _matching(matchers: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={pattern}" for name, pattern in matchers.items())


def _history(rows: Sequence[Row], run: str) -> list[Block]:
    return [
        row(
            [
                _name(each),
                _step(each["step"], steps_around(each["step"] or 0), run),
                f"{each['before']} → {each['after']}".replace("_", " "),
                number(each["value"]),
                each["words"] or "–",
            ],
            tone=each["severity"] if each["after"] == "firing" else "",
        )
        for each in rows
    ]
