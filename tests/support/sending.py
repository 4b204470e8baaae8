"""A sender with a clock of the test's own: back-offs of minutes pass at once."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from random import Random

from fake_slack import CHANNEL, TOKEN, FakeSlack
from pydantic import SecretStr

from logprobe.alerts.notification import Notification
from logprobe.alerts.sending import outbox
from logprobe.alerts.sending.channels.channel import Channel
from logprobe.alerts.sending.channels.settings import Route
from logprobe.alerts.sending.channels.slack import Slack
from logprobe.alerts.sending.delivery import Dispatcher
from logprobe.monitor import queries
from logprobe.monitor.store.store import Store

ALL = frozenset({"info", "warning", "critical"})


def bot(slack: FakeSlack, *, token: str = TOKEN, channel: str = CHANNEL) -> Slack:
    """A bot that does not wait between messages: where the pace matters, the test says so."""
    made = Slack("team", token=SecretStr(token), channel=channel, api_url=slack.api_url)
    made.pace = 0.0
    return made


class Bench:
    """A store's outbox and the delivery to some channels."""

    def __init__(self, store: Store, *channels: Channel) -> None:
        self.store = store
        # The store stamps notifications with the real time, so this clock starts there.
        self._began = self.now = datetime.now(UTC) + timedelta(seconds=1)
        self._set_by = timedelta(0)
        self.stopping = threading.Event()
        routes = [Route(channel, ALL) for channel in channels]
        self.dispatcher = Dispatcher(
            store,
            lambda: routes,
            clock=lambda: self.now,
            steady=self._steady,
            random=Random(7),
            stopping=self.stopping,
            seconds=90.0,
        )

    def _steady(self) -> float:
        return (self.now - self._began - self._set_by).total_seconds()

    def set_clock(self, by: timedelta) -> None:
        """The clock is set; no time passes."""
        self.now += by
        self._set_by += by

    def enqueue(self, *notes: Notification) -> None:
        with self.store.transaction() as cursor:
            for note in notes:
                outbox.enqueue(self.store, cursor, note)

    def run(self, *, hours: float = 0.0, minutes_between: float = 0.5) -> None:
        """One turn of every channel, or one every so often for some hours."""
        for _ in range(1 + int(hours * 60 / minutes_between)):
            self.dispatcher.run_once()
            for turn in self.dispatcher._turns.values():
                turn.result()
            self.now += timedelta(minutes=minutes_between)

    def finish(self) -> None:
        """Runs until nothing waits. In real time too: a call that hangs must end before there is another one."""
        deadline = time.monotonic() + 120
        while any(waiting for _, waiting, _ in self.states().values()):
            assert time.monotonic() < deadline, self.states()
            self.run(minutes_between=0.1)

    def states(self) -> dict[str, tuple[int, int, int]]:
        """Per channel how many are sent, waiting, dead."""
        rows = queries.outbox_channels(self.store).to_pylist()
        return {row["channel"]: (row["sent"], row["waiting"], row["dead"]) for row in rows}

    def error(self) -> str:
        """The error of the newest failed attempt."""
        rows = self.store.query("SELECT last_error FROM deliveries WHERE last_error IS NOT NULL ORDER BY next_at DESC")
        return str(rows["last_error"][0])
