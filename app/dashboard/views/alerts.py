"""Alerts: what fires and taking care of it, the rules behind it, and who hears of it."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import streamlit as st

from logprobe.alerts.rules.actions import ACKNOWLEDGE, SILENCE, UNSILENCE
from logprobe.alerts.sending.actions import AGAIN, CHANNELS, DROP, TEST
from logprobe.app.dashboard.data.feed import RunView
from logprobe.app.dashboard.elements.blocks import Block
from logprobe.app.dashboard.pages.alerts import Alerts, alerts_blocks, matchers_of, snooze
from logprobe.app.dashboard.pages.channels import channels_blocks, tested
from logprobe.app.dashboard.views.acting import ask, attempt, blocked, said
from logprobe.app.dashboard.views.page import report
from logprobe.app.dashboard.views.rules import consult, rules
from logprobe.app.dashboard.views.session import guarded, kept, rows_of
from logprobe.app.runs import Run
from logprobe.collectors.errors import ConfigurationError

_KEY: Final = "alerts"
_CHANNELS: Final = "channels"
_AUDITED: Final = 20


def draw(run: Run, _: RunView) -> None:
    """Draws the page."""
    with guarded(_KEY):
        _current(run.name)
    with guarded("rules"):
        rules(run.name)
    with guarded(_CHANNELS):
        _telling(run.name)


def _current(run: str) -> None:
    place = f"{_KEY} {run}"
    known = kept(place, lambda: _read(run))
    if known is not None:
        blocks: list[Block] = [*said(place), *alerts_blocks(known, run=run, blocked=blocked(run))]
        wanted = report(_KEY, "alerts", blocks)
        attempt(place, wanted, _take_care)


def _read(run: str) -> Alerts:
    silences = rows_of("alert_silences", now=datetime.now(UTC).isoformat())
    return Alerts(
        current=rows_of("alert_list", run=run),
        history=rows_of("alert_history", run=run),
        silences=[{**each, "matchers": json.loads(each["matchers"])} for each in silences],
        channels=bool(consult(CHANNELS, {})["channels"]),
    )


def _take_care(asked: Mapping[str, Any]) -> str:
    """Does what was confirmed; says what was done. Raises `LogprobeError`."""
    by, reason = asked.get("by"), asked.get("reason")
    if asked.get("id") == "ack":
        ask(ACKNOWLEDGE, {"episode": asked.get("episode"), "author": by, "reason": reason})
        return f"Acknowledged by {by}."
    if asked.get("id") == "snooze":
        lasting = snooze(str(asked.get("for")), _their_time())
        ask(ACKNOWLEDGE, {"episode": asked.get("episode"), "author": by, "for": lasting})
        return f"Snoozed by {by}."
    if asked.get("id") == "silence":
        document = {"id": secrets.token_hex(4), "matchers": matchers_of(asked), "for": asked.get("for"), "author": by}
        ask(SILENCE, {**document, "reason": reason})
        return f"Silenced by {by}."
    ask(UNSILENCE, {"id": asked.get("silence"), "author": by})
    return "The silence has ended."


def _their_time() -> datetime:
    """Now, where the reader is."""
    try:
        zone = ZoneInfo(st.context.timezone or "UTC")
    except (ZoneInfoNotFoundError, ValueError):
        zone = ZoneInfo("UTC")
    return datetime.now(zone)


def _telling(run: str) -> None:
    known = kept(_CHANNELS, _read_channels)
    if known is not None:
        blocks = [*said(_CHANNELS), *channels_blocks(*known, blocked=blocked(run))]
        wanted = report(_CHANNELS, "channels", blocks)
        attempt(_CHANNELS, wanted, _handle)


def _read_channels() -> tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]:
    return consult(CHANNELS, {}), rows_of("outbox_dead_letters"), rows_of("alert_audit", count=_AUDITED)


def _handle(asked: Mapping[str, Any]) -> str:
    """Does what was confirmed about a channel; says what came of it. Raises `LogprobeError`."""
    channel, by = asked.get("channel"), asked.get("by")
    if asked.get("id") == "test":
        outcome = ask(TEST, {"channel": channel, "author": by, "id": str(asked.get("at"))})
        if not outcome["delivered"]:
            raise ConfigurationError(tested(outcome, str(channel)))
        return tested(outcome, str(channel))
    action, words = (AGAIN, "is queued") if asked.get("id") == "again" else (DROP, "was dropped")
    status = ask(action, {"key": asked.get("key"), "channel": channel, "author": by})["status"]
    return f"The message {words}." if status in {"waiting", "dropped"} else f"No change: the message was {status}."
