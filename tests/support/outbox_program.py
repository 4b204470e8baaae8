"""Sends the outbox of a home to a Slack channel until nothing waits: for tests, as a process to kill."""

from __future__ import annotations

import os
import signal
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

from pydantic import SecretStr

from logprobe.alerts.sending import outbox
from logprobe.alerts.sending.channels.settings import Route
from logprobe.alerts.sending.channels.slack import Slack
from logprobe.alerts.sending.delivery import Dispatcher
from logprobe.monitor import queries
from logprobe.monitor.home import Home
from logprobe.monitor.store.store import Store

CHANNEL, TOKEN = "C0123456789", "xoxb-0000-canary-token"
SETTLE = timedelta(seconds=0.2)
PACE = 0.0  # seconds


def main(home: Path, api_url: str, point: str) -> None:
    """Kills its own process at `point`: before or after the outbox is told that an attempt begins, or that it has sent a message."""
    _kill_at(point)
    stopping = threading.Event()
    bot = Slack("team", token=SecretStr(TOKEN), channel=CHANNEL, api_url=api_url)
    bot.pace, bot.settle = PACE, SETTLE
    with Home(home).lock(), Store.open(Home(home)) as store:
        routes = [Route(bot, frozenset({"warning", "critical"}))]
        dispatcher = Dispatcher(
            store, lambda: routes, clock=lambda: datetime.now(UTC), random=Random(0), stopping=stopping
        )
        dispatcher.run_once()
        while any(state["waiting"] for state in queries.outbox_channels(store).to_pylist()):
            dispatcher.run_once()
            dispatcher._turns["team"].result()
        dispatcher.close()


def _kill_at(point: str) -> None:
    when, _, what = point.partition(" ")
    if when not in {"before", "after"}:
        return
    original = getattr(outbox, what)

    def replaced(*arguments: object, **named: object) -> None:
        if when == "after":
            original(*arguments, **named)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(outbox, what, replaced)
