"""Alerts: what fires and taking care of it, thresholds, and who hears of it."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import urlencode
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import streamlit as st

from logprobe.alerts.rules.actions import ACKNOWLEDGE, FIELDS, SILENCE, UNSILENCE
from logprobe.alerts.rules.notices import steps_around
from logprobe.alerts.rules.thresholds import Threshold, of_home
from logprobe.alerts.sending.actions import AGAIN, CHANNELS, DROP, TEST
from logprobe.app.dashboard.data.feed import RunView
from logprobe.app.dashboard.elements.blocks import BY, Block, action, heading, place, row, table, text
from logprobe.app.dashboard.views.acting import ask, attempt, blocked, said
from logprobe.app.dashboard.views.report import report
from logprobe.app.dashboard.views.session import feed, guarded, home, kept
from logprobe.app.runs import Run
from logprobe.app.text.numbers import number
from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor import queries
from logprobe.monitor.judgement import FIRING
from logprobe.monitor.reader import connect

Row = Mapping[str, Any]

RECENT: Final = 30
TOMORROW: Final = "tomorrow"
_MORNING: Final = 9  # o'clock, where whoever snoozes is
_HEAD: Final = ("alert", "severity", "since", "value", "observation", "acknowledged by")
_REASON: Final = {"name": "reason", "label": "reason", "required": True}
_FOR: Final = {"name": "for", "label": "for (90s, 10m, 2h, 1d)", "value": "2h", "required": True}
_SNOOZES: Final = (("1 h", "1h"), ("4 h", "4h"), ("until tomorrow", TOMORROW))


@dataclass(frozen=True)
class Alerts:
    """Rows of `alert_list`, `alert_history` and `alert_silences` about one run; `channels`: whether there is anywhere
    to send them."""

    current: Sequence[Row]
    history: Sequence[Row]
    silences: Sequence[Row]
    channels: bool = True


def alerts_blocks(alerts: Alerts, *, run: str, blocked: str) -> list[Block]:
    """Blocks of `views/report.py`. `blocked`: why nothing can be done from this page; "": it can."""
    firing = [alert for alert in alerts.current if alert["phase"] in FIRING]
    pending = [alert for alert in alerts.current if alert["phase"] == "pending"]
    recent = list(reversed(alerts.history))[:RECENT]
    return [
        heading("Firing", _count(firing, channels=alerts.channels)),
        table("firing", _HEAD, [_alert(alert, run, blocked) for alert in firing], empty="No alerts firing."),
        heading("Pending", "condition met, but not yet for long enough"),
        table("pending", _HEAD, [_alert(alert, run, blocked) for alert in pending], empty="None."),
        heading("Silenced", "matching alerts send no notifications, in any run of this home"),
        table("silences", ("what", "until", "by", "reason"), _silences(alerts.silences, blocked), empty="Nothing."),
        {"type": "actions", "actions": [_new_silence(run, blocked)]},
        heading("Recent", f"the last {RECENT} messages"),
        table(
            "recent",
            ("alert", "step", "message", "value", "observation"),
            _history(recent, run),
            empty="None.",
            fold=True,
        ),
    ]


def snooze(choice: str, now: datetime) -> str:
    """How long a choice lasts, as the service reads it. `now`: with the time zone of the person who snoozes."""
    if choice != TOMORROW:
        return choice
    morning = (now + timedelta(days=1)).replace(hour=_MORNING, minute=0, second=0, microsecond=0)
    return f"{(morning - now).total_seconds():.0f}s"


def _count(rows: Sequence[Row], *, channels: bool) -> str:
    if not channels:
        return f"{len(rows)}; no channel is configured, so no notifications are sent" if rows else "0"
    unsent = sum(alert["muted"] is not None for alert in rows)
    return f"{len(rows)}, {unsent} of them without notification" if unsent else str(len(rows))


def _step(step: int | None, steps: str, run: str) -> str | Block:
    """A step, as a link to the chart of the steps around it."""
    if step is None:
        return "–"
    query = urlencode({"run": run, "steps": steps}, safe=":")
    words = f"the chart of steps {steps.replace(':', ' to ')}"
    return place(f"step {step:,}", href=f"./?{query}", help=words)


def _alert(alert: Row, run: str, blocked: str) -> Block:
    began = alert["started_step"]
    newest = began if alert["step"] is None else alert["step"]
    cells = [
        alert["rule"],
        alert["severity"],
        _step(began, steps_around(newest or 0, began), run),
        number(alert["value"]),
        alert["words"] or "–",
        _who(alert),
    ]
    return row(cells, tone=alert["severity"], actions=[_why(run), *_remedies(alert, run, blocked)])


def _who(alert: Row) -> str:
    if alert["acknowledged_by"]:
        until = alert["acknowledged_until"]
        return f"{alert['acknowledged_by']}, until {_when(until)}" if until else str(alert["acknowledged_by"])
    return (alert["muted"] and f"not notified: {alert['muted']}") or "nobody"


def _why(run: str) -> Block:
    query = urlencode({"page": "diagnosis", "run": run})
    return {"label": "Diagnosis", "href": f"./?{query}"}


def _remedies(alert: Row, run: str, blocked: str) -> Iterable[Block]:
    if alert["episode"] and alert["phase"] in FIRING and (not alert["acknowledged_by"] or alert["acknowledged_until"]):
        args = {"episode": alert["episode"]}
        words = f"Acknowledge `{alert['rule']}`: no more notifications during this episode."
        yield action("ack", "Acknowledge", words, blocked, args=args, fields=[BY, _REASON])
        words = f"Snooze `{alert['rule']}`: notify again if it is still firing."
        choices = [{"label": label, "args": {"for": lasting}} for label, lasting in _SNOOZES]
        yield action("snooze", "Snooze", words, blocked, args=args, choices=choices)
    words = f"Silence `{alert['rule']}` in run `{run}`: no notifications for this long, even if it fires again."
    args = {"rule": alert["rule"], "run": run}
    yield action("silence", "Silence", words, blocked, args=args, fields=[BY, _REASON, _FOR])


def _new_silence(run: str, blocked: str) -> Block:
    fields: list[Block] = [
        {"name": "rule", "label": "rule; * and ? are wildcards", "value": ""},
        {"name": "run", "label": "run", "value": run},
        _FOR,
        BY,
        _REASON,
    ]
    words = "Alerts that match both patterns send no notifications. An empty field matches anything."
    return action("silence", "New silence", words, blocked, fields=fields)


def _silences(rows: Sequence[Row], blocked: str) -> list[Block]:
    def end(silence: Row) -> Block:
        words = "Matching alerts send notifications again."
        return action("unsilence", "End", words, blocked, args={"silence": silence["id"]})

    return [
        row(
            [
                f"{silence['rule']} in {silence['run']}",
                _when(silence["expires_at"]),
                silence["author"],
                silence["reason"],
            ],
            actions=[end(silence)],
        )
        for silence in rows
    ]


def _history(rows: Sequence[Row], run: str) -> list[Block]:
    return [
        row(
            [
                transition["rule"],
                _step(transition["step"], steps_around(transition["step"] or 0), run),
                transition["state"].replace("_", " "),
                number(transition["value"]),
                transition["words"] or "–",
            ],
            tone=transition["severity"] if transition["state"] == "firing" else "",
        )
        for transition in rows
    ]


_KEY: Final = "alerts"
_CHANNELS: Final = "channels"


def draw(run: Run, _: RunView) -> None:
    """Draws the page."""
    with guarded(_KEY):
        _current(run.name)
    with guarded("thresholds"):
        report("thresholds", "thresholds", thresholds_blocks(of_home(home())))
    with guarded(_CHANNELS):
        _telling(run.name)


def thresholds_blocks(found: Sequence[Threshold]) -> list[Block]:
    """Blocks of `views/report.py`: the thresholds of the home."""
    rows = [row([t.name, t.severity, t.fires_when, t.runs]) for t in found]
    note = "`logprobe.yaml` in the home is reloaded when it changes; `logprobe alerts try --template` begins one"
    return [
        heading("Thresholds", note),
        table("thresholds", ("alert", "severity", "fires when", "runs"), rows, empty="None."),
    ]


def consult(action: str, document: Mapping[str, Any]) -> Any:
    """Asks the service for something that changes nothing; anyone who sees the page may. Raises as `Reader.act`
    does."""
    with connect(home()) as reader:
        return reader.act(action, document)


def _current(run: str) -> None:
    place = f"{_KEY} {run}"
    alerts = kept(place, lambda: _read(run))
    if alerts is not None:
        blocks: list[Block] = [*said(place), *alerts_blocks(alerts, run=run, blocked=blocked(run))]
        wanted = report(_KEY, "alerts", blocks)
        attempt(place, wanted, _take_care)


def _read(run: str) -> Alerts:
    silences = queries.alert_silences(feed(), now=datetime.now(UTC).isoformat()).to_pylist()
    return Alerts(
        current=queries.alert_list(feed(), run=run).to_pylist(),
        history=queries.alert_history(feed(), run=run).to_pylist(),
        silences=silences,
        channels=bool(consult(CHANNELS, {})["channels"]),
    )


def _take_care(wanted: Mapping[str, Any]) -> str:
    """Does what was confirmed; says what was done. Raises `LogprobeError`."""
    by, reason = wanted.get("by"), wanted.get("reason")
    if wanted.get("id") == "ack":
        ask(ACKNOWLEDGE, {"episode": wanted.get("episode"), "author": by, "reason": reason})
        return f"Acknowledged by {by}."
    if wanted.get("id") == "snooze":
        lasting = snooze(str(wanted.get("for")), _their_time())
        ask(ACKNOWLEDGE, {"episode": wanted.get("episode"), "author": by, "for": lasting})
        return f"Snoozed by {by}."
    if wanted.get("id") == "silence":
        meant = {name: wanted.get(name) for name in FIELDS}
        document = {"id": secrets.token_hex(4), **meant, "for": wanted.get("for"), "author": by}
        ask(SILENCE, {**document, "reason": reason})
        return f"Silenced by {by}."
    ask(UNSILENCE, {"id": wanted.get("silence"), "author": by})
    return "The silence has ended."


def _their_time() -> datetime:
    """Now, where the reader is."""
    try:
        zone = ZoneInfo(st.context.timezone or "UTC")
    except (ZoneInfoNotFoundError, ValueError):
        zone = ZoneInfo("UTC")
    return datetime.now(zone)


def _telling(run: str) -> None:
    channels = kept(_CHANNELS, _read_channels)
    if channels is not None:
        blocks = [*said(_CHANNELS), *channels_blocks(*channels, blocked=blocked(run))]
        wanted = report(_CHANNELS, "channels", blocks)
        attempt(_CHANNELS, wanted, _handle)


def _read_channels() -> tuple[dict[str, object], list[queries.OutboxDeadLetters]]:
    return consult(CHANNELS, {}), queries.outbox_dead_letters(feed()).to_pylist()


def _handle(wanted: Mapping[str, Any]) -> str:
    """Does what was confirmed about a channel; says what came of it. Raises `LogprobeError`."""
    channel, by = wanted.get("channel"), wanted.get("by")
    if wanted.get("id") == "test":
        outcome = ask(TEST, {"channel": channel, "author": by, "id": str(wanted.get("at"))})
        if not outcome["delivered"]:
            raise ConfigurationError(tested(outcome, str(channel)))
        return tested(outcome, str(channel))
    action, words = (AGAIN, "is queued") if wanted.get("id") == "again" else (DROP, "was dropped")
    status = ask(action, {"key": wanted.get("key"), "channel": channel, "author": by})["status"]
    return f"The message {words}." if status in {"waiting", "dropped"} else f"No change: the message was {status}."


_CHANNEL_COLUMNS: Final = ("channel", "kind", "receives", "state", "last message", "sent", "waiting", "abandoned")
_LOST: Final = ("alert", "channel", "when", "attempts", "error")
_NONE: Final = (
    "None, so no notifications are sent. List `channels` in `logprobe.yaml` in the home (`docs/channels.md`)."
)


def channels_blocks(document: Mapping[str, Any], lost: Sequence[Row], *, blocked: str) -> list[Block]:
    """Blocks of `views/report.py`.

    Args:
        document: as the service describes its channels.
        lost: rows of `outbox_dead_letters`.
        blocked: why nothing can be done from this page; "": it can.
    """
    channels = document["channels"]
    return [
        heading("Channels", "`logprobe.yaml` in the home is reloaded when it changes; secrets are never shown"),
        *([text(document["problem"], "warning")] if document["problem"] else []),
        table("channels", _CHANNEL_COLUMNS, [_channel(channel, blocked) for channel in channels], empty=_NONE),
        heading("Not delivered", "messages that a channel rejected, or did not accept for a day"),
        table("undelivered", _LOST, [_letter(letter, blocked) for letter in lost], empty="None."),
    ]


def tested(outcome: Mapping[str, Any], channel: str) -> str:
    """What became of a test message, in one line."""
    return f"{channel}: {'; '.join(outcome['lines'])}"


def _channel(channel: Row, blocked: str) -> Block:
    state, tone = _state(channel)
    cells = [
        channel["name"],
        (channel["kind"] or "not configured any more").replace("_", " "),
        ", ".join(channel["severities"]) or "–",
        state,
        _when(channel["last_sent_at"]),
        f"{channel['sent']:,}",
        f"{channel['waiting']:,}",
        f"{channel['dead']:,}",
    ]
    return row(cells, tone=tone, actions=[_test(channel["name"], blocked)] if channel["kind"] else [])


def _state(channel: Row) -> tuple[str, str]:
    """In words, and a tone where someone should look."""
    paced = f"; asked for fewer messages {channel['limited']}×" if channel["limited"] else ""
    if channel["kind"] is None:
        return ("messages are waiting for it to recover" if channel["waiting"] else "–"), ""
    if channel["waits_until"]:
        return f"paused until {_clock(channel['waits_until'])}: {channel['why']}{paced}", "warning"
    if channel["last_error"]:
        return f"tries again: {channel['last_error']}{paced}", "warning"
    return ("works" if channel["sent"] else "not used yet") + paced, ""


def _test(name: str, blocked: str) -> Block:
    words = f"Sends a message to `{name}` now, marked as a test."
    return action("test", "Send a test", words, blocked, args={"channel": name})


def _letter(letter: Row, blocked: str) -> Block:
    args = {"key": letter["key"], "channel": letter["channel"]}
    again = (
        f"`{letter['channel']}` gets one more attempt; if the channel can tell, it first checks whether the message "
        "has arrived."
    )
    drop = "The message is not sent; the alert itself does not change."
    actions = [
        action("again", "Send again", again, blocked, args=args),
        action("drop", "Drop", drop, blocked, args=args, danger=True),
    ]
    alert = f"{letter['rule']} of {letter['run']}, {letter['state'].replace('_', ' ')}"
    cells = [alert, letter["channel"], _when(letter["time"]), str(letter["attempts"]), letter["last_error"] or "–"]
    return row(cells, actions=actions)


def _when(time: datetime | str | None) -> str:
    if time is None:
        return "never"
    moment = datetime.fromisoformat(time) if isinstance(time, str) else time
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def _clock(time: datetime | str) -> str:
    moment = datetime.fromisoformat(time) if isinstance(time, str) else time
    return f"{moment:%H:%M:%S} UTC"
