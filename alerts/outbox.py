"""The outbox: notifications are stored in the transaction of the transition that they tell of, and sent afterwards."""

from __future__ import annotations

from typing import Any

from logprobe.alerts.notification import Notification
from logprobe.monitor.store import Store


def enqueue(store: Store, cursor: Any, notification: Notification) -> None:
    """Puts `notification` into the outbox, inside a `Store.transaction` whose cursor is `cursor`.

    It is sent if and only if that transaction is committed. Enqueued again under the same key, nothing changes.
    """
    store.execute(
        cursor,
        "outbox_enqueue",
        key=notification.key,
        run=notification.run,
        rule=notification.rule,
        episode=notification.episode,
        state=notification.state,
        severity=notification.severity,
        step=notification.step,
        time=notification.at,
        document=notification.to_json(),
    )
