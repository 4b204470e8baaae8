"""The part of the Alerts page about telling: channels, what none of them took, what people did. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from logprobe.app.dashboard.elements.blocks import Block, heading, row, table, text

Row = Mapping[str, Any]

_BY: Final = {"name": "by", "label": "your name", "required": True}
_CHANNELS: Final = ("channel", "kind", "receives", "state", "last message", "sent", "waiting", "abandoned")
_LOST: Final = ("alert", "channel", "when", "attempts", "error")
_NONE: Final = "None, so no notifications are sent. List `channels` in `logprobe.yaml` in the home, or in the environment (`docs/channels.md`)."


def channels_blocks(
    document: Mapping[str, Any], lost: Sequence[Row], done: Sequence[Row], *, blocked: str
) -> list[Block]:
    """Blocks of `browser/report.js`.

    Args:
        document: as the service describes its channels.
        lost: rows of `outbox_dead_letters`.
        done: rows of `alert_audit`.
        blocked: why nothing can be done from this page; "": it can.
    """
    channels = document["channels"]
    return [
        heading("Channels", "`logprobe.yaml` in the home is reloaded when it changes; secrets are never shown"),
        *([text(document["problem"], "warning")] if document["problem"] else []),
        table("channels", _CHANNELS, [_channel(each, blocked) for each in channels], empty=_NONE),
        heading("Not delivered", "messages that a channel rejected, or did not accept for a day"),
        table("undelivered", _LOST, [_letter(each, blocked) for each in lost], empty="None."),
        heading("Audit", "newest first"),
        table(
            "audit",
            ("when", "who", "what", "about", "words"),
            [_done(each) for each in done],
            empty="Nothing yet.",
            fold=True,
        ),
    ]


def tested(outcome: Mapping[str, Any], channel: str) -> str:
    """What became of a test message, in one line."""
    return f"{channel}: {'; '.join(outcome['lines'])}"


def _channel(each: Row, blocked: str) -> Block:
    state, tone = _state(each)
    cells = [
        each["name"],
        (each["kind"] or "not configured any more").replace("_", " "),
        ", ".join(each["severities"]) or "–",
        state,
        _when(each["last_sent_at"]),
        f"{each['sent']:,}",
        f"{each['waiting']:,}",
        f"{each['dead']:,}",
    ]
    return row(cells, tone=tone, actions=[_test(each["name"], blocked)] if each["kind"] else [])


def _state(each: Row) -> tuple[str, str]:
    """In words, and a tone where somebody should look."""
    paced = f"; asked for fewer messages {each['limited']}×" if each["limited"] else ""
    if each["kind"] is None:
        return ("messages are waiting for it to recover" if each["waiting"] else "–"), ""
    if each["waits_until"]:
        return f"paused until {_clock(each['waits_until'])}: {each['why']}{paced}", "warning"
    if each["last_error"]:
        return f"tries again: {each['last_error']}{paced}", "warning"
    return ("works" if each["sent"] else "not used yet") + paced, ""


def _test(name: str, blocked: str) -> Block:
    words = f"Sends a message to `{name}` now, marked as a test."
    return {
        "id": "test",
        "label": "Send a test",
        "args": {"channel": name},
        "disabled": blocked,
        "fields": [_BY],
        "words": words,
    }


def _letter(each: Row, blocked: str) -> Block:
    args = {"key": each["key"], "channel": each["channel"]}
    again = f"`{each['channel']}` gets one more attempt; if the channel can tell, it first checks whether the message has arrived."
    drop = "The message is not sent; the alert itself does not change."
    actions: list[Block] = [
        {"id": "again", "label": "Send again", "args": args, "disabled": blocked, "fields": [_BY], "words": again},
        {
            "id": "drop",
            "label": "Drop",
            "args": args,
            "disabled": blocked,
            "fields": [_BY],
            "words": drop,
            "danger": True,
        },
    ]
    alert = f"{each['rule']} of {each['run']}, {each['state'].replace('_', ' ')}"
    cells = [alert, each["channel"], _when(each["time"]), str(each["attempts"]), each["last_error"] or "–"]
    return row(cells, actions=actions)


def _done(each: Row) -> Block:
    return row([_when(each["time"]), each["author"], each["action"], each["subject"], each["words"]])


def _when(time: datetime | str | None) -> str:
    if time is None:
        return "never"
    known = datetime.fromisoformat(time) if isinstance(time, str) else time
    return f"{known:%Y-%m-%d %H:%M} UTC"


def _clock(time: datetime | str) -> str:
    known = datetime.fromisoformat(time) if isinstance(time, str) else time
    return f"{known:%H:%M:%S} UTC"
