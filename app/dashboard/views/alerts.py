"""Alerts: what fires, and taking care of it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from logprobe.alerts.rules.actions import ACKNOWLEDGE, SILENCE, UNSILENCE
from logprobe.app.dashboard.data.feed import Run, RunView
from logprobe.app.dashboard.pages.alerts import Alerts, alerts_blocks
from logprobe.app.dashboard.pages.blocks import Block
from logprobe.app.dashboard.views.acting import ask, attempt, blocked, said
from logprobe.app.dashboard.views.page import live, report
from logprobe.app.dashboard.views.session import feed, guarded, kept

_KEY: Final = "alerts"


def alerts() -> None:
    """Draws the page."""
    live("alerts", _run)


def _run(run: Run, _: RunView) -> None:
    place = f"{_KEY} {run.name}"
    with guarded(_KEY):
        known = kept(place, lambda: _read(run.name))
        if known is not None:
            blocks: list[Block] = [*said(place), *alerts_blocks(known, run=run.name, blocked=blocked(run.name))]
            wanted = report(_KEY, {"version": str(hash(str(blocks))), "label": "alerts", "blocks": blocks})
            attempt(place, wanted, lambda asked: _do(run.name, asked))


def _read(run: str) -> Alerts:
    def rows(name: str, **params: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = feed().read(name, **params).to_pylist()
        return found

    return Alerts(
        standing=rows("alert_list", run=run),
        history=rows("alert_history", run=run),
        silences=rows("alert_silences", now=datetime.now(UTC).isoformat()),
        lost=[row for row in rows("outbox_dead_letters") if row["run"] == run],
    )


def _do(run: str, asked: Mapping[str, Any]) -> str:
    """Does what was confirmed; says what was done. Raises `LogprobeError`."""
    by, reason = asked.get("by"), asked.get("reason")
    if asked.get("id") == "ack":
        ask(ACKNOWLEDGE, {"episode": asked.get("episode"), "author": by, "reason": reason})
        return f"Acknowledged by {by}."
    if asked.get("id") == "silence":
        matchers = {"run": run, "rule": asked.get("rule")}
        document = {"id": secrets.token_hex(4), "matchers": matchers, "for": asked.get("for"), "author": by}
        ask(SILENCE, {**document, "reason": reason})
        return f"Silenced by {by}."
    ask(UNSILENCE, {"id": asked.get("silence")})
    return "The silence has ended."
