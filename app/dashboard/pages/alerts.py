"""The Alerts page as blocks: what fires, what is about to, what happened, what is silenced, what nobody got to hear. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from logprobe.app.dashboard.pages.blocks import Block, heading, row, table
from logprobe.app.numbers import number
from logprobe.app.tables import cell

Row = Mapping[str, Any]

RECENT: Final = 30
_FIRING: Final = frozenset({"firing", "recovering"})
_HEAD: Final = ("alert", "severity", "since", "value", "what was seen", "taken care of by")
_BY: Final = {"name": "by", "label": "your name", "required": True}
_REASON: Final = {"name": "reason", "label": "reason", "required": True}


@dataclass(frozen=True)
class Alerts:
    """Rows of `alert_list`, `alert_history`, `alert_silences` and `outbox_dead_letters` about one run."""

    standing: Sequence[Row]
    history: Sequence[Row]
    silences: Sequence[Row]
    lost: Sequence[Row]


def alerts_blocks(alerts: Alerts, *, run: str, blocked: str) -> list[Block]:
    """Blocks of `browser/report.js`. `blocked`: why nothing can be done from this page; "": it can."""
    firing = [each for each in alerts.standing if each["phase"] in _FIRING]
    pending = [each for each in alerts.standing if each["phase"] == "pending"]
    recent = [each for each in reversed(alerts.history) if each["before"] != each["after"]][:RECENT]
    return [
        heading("Firing", _count(firing)),
        table("firing", _HEAD, [_alert(each, run, blocked) for each in firing], empty="No alert fires."),
        heading("Pending", "seen, and not yet for long enough"),
        table("pending", _HEAD, [_alert(each, run, blocked) for each in pending], empty="None."),
        heading("Silenced", "nobody is told of what matches"),
        table("silences", ("what", "until", "by", "reason"), _silences(alerts.silences, blocked), empty="Nothing."),
        heading("Not delivered", "messages that no channel took"),
        table("undelivered", ("alert", "channel", "when", "attempts", "error"), _lost(alerts.lost), empty="None."),
        heading("Recent", f"the last {RECENT} changes"),
        table("recent", ("alert", "step", "change", "value", "what was seen"), _history(recent), empty="None."),
    ]


def _count(rows: Sequence[Row]) -> str:
    untold = sum(each["muted"] is not None for each in rows)
    return f"{len(rows)}, {untold} of them untold" if untold else str(len(rows))


def _name(each: Row) -> str:
    return " ".join(filter(None, [each["rule"], each["slice"]]))


def _step(step: int | None) -> str:
    return "–" if step is None else f"step {step:,}"


def _alert(each: Row, run: str, blocked: str) -> Block:
    cells = [
        _name(each),
        each["severity"],
        _step(each["started_step"]),
        number(each["value"]),
        each["words"] or "–",
        each["acknowledged_by"] or (each["muted"] and f"untold: {each['muted']}") or "nobody",
    ]
    return row(cells, tone=each["severity"], actions=list(_remedies(each, run, blocked)))


def _remedies(each: Row, run: str, blocked: str) -> Iterable[Block]:
    if each["episode"] and not each["acknowledged_by"] and each["phase"] in _FIRING:
        yield {
            "id": "ack", "label": "Acknowledge", "args": {"episode": each["episode"]}, "disabled": blocked, "fields": [_BY, _REASON],
            "words": f"You take care of `{_name(each)}`: it is not told again while this episode lasts.",
        }  # fmt: skip
    fields = [_BY, _REASON, {"name": "for", "label": "for (90s, 10m, 2h, 1d)", "value": "2h", "required": True}]
    yield {
        "id": "silence", "label": "Silence", "args": {"rule": each["rule"]}, "disabled": blocked, "fields": fields,
        "words": f"Nobody is told of `{each['rule']}` of run `{run}` for this long, not even when it begins anew.",
    }  # fmt: skip


def _silences(rows: Sequence[Row], blocked: str) -> list[Block]:
    def end(each: Row) -> Block:
        words = "Alerts that match are told again."
        return {"id": "unsilence", "label": "End", "args": {"silence": each["id"]}, "disabled": blocked, "words": words}

    return [
        row([each["matchers"], cell(each["expires_at"]), each["author"], each["reason"]], actions=[end(each)])
        for each in rows
    ]


def _lost(rows: Sequence[Row]) -> list[Block]:
    return [
        row([each["rule"], each["channel"], cell(each["time"]), str(each["attempts"]), each["last_error"] or "–"])
        for each in rows
    ]


def _history(rows: Sequence[Row]) -> list[Block]:
    return [
        row(
            [_name(each), _step(each["step"]), f"{each['before']} → {each['after']}", number(each["value"]), each["words"] or "–"],
            tone=each["severity"] if each["after"] == "firing" else "",
        )
        for each in rows
    ]  # fmt: skip
