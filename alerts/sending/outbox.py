"""The outbox: notifications are stored in the transaction of the transition that they tell of, and sent afterwards.

One delivery per notification and channel. Before every attempt it is committed that one begins, so that a process that
was killed, or an answer that was lost, leaves a delivery behind of which it is known that its message may have arrived.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import pyarrow as pa

from logprobe.alerts.notification import Notification
from logprobe.alerts.sending.channels.channel import Outgoing, Receipt
from logprobe.monitor import queries
from logprobe.monitor.store.store import Store

_ROUTED_AT_ONCE: Final = 500
_LATEST: Final = timedelta(minutes=10)  # no attempt is put off for longer: one that is, was before the clock was set
_LONGEST_ERROR: Final = 500  # characters


@dataclass(frozen=True, slots=True)
class Delivery:
    """One notification that waits for one channel."""

    key: str
    channel: str
    attempts: int  # that have begun
    enqueued_at: datetime
    last_error: str | None
    outgoing: Outgoing


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
        incident=notification.incident,
    )


def route(store: Store, wanted: Callable[[Notification], list[str]], now: datetime) -> int:
    """Makes the deliveries of new notifications; `wanted` names the channels of one. → how many notifications there
    were.

    Raises `StoreError`. Done twice, or by two threads, it is done once.
    """
    rows = queries.outbox_unrouted(store.kept, limit=_ROUTED_AT_ONCE).to_pylist()
    if not rows:
        return 0
    pairs = [(row["key"], name) for row in rows for name in wanted(Notification.from_json(row["document"]))]
    incoming = pa.table({"key": [key for key, _ in pairs], "channel": [name for _, name in pairs]}, schema=_ROUTED)
    with store.transaction() as cursor:
        store.execute(cursor, "outbox_route", incoming, now=now)
        store.execute(cursor, "outbox_routed", keys=[row["key"] for row in rows], now=now)
    return len(rows)


_ROUTED: Final = pa.schema([("key", pa.string()), ("channel", pa.string())])


def due(store: Store, channel: str, now: datetime) -> Delivery | None:
    """The delivery of `channel` to be tried next, if one is due."""
    rows = queries.outbox_due(store, channel=channel, now=now, latest=now + _LATEST).to_pylist()
    return _delivery(channel, rows[0]) if rows else None


def begin(store: Store, delivery: Delivery, *, now: datetime, next_at: datetime) -> None:
    """An attempt begins. `next_at`: when the next one may, should this process end before it says what became of it."""
    with store.transaction() as cursor:
        store.execute(cursor, "outbox_begin", key=delivery.key, channel=delivery.channel, now=now, next_at=next_at)


def failed(store: Store, delivery: Delivery, error: str, *, uncertain: bool, next_at: datetime) -> None:
    """The attempt has failed; `uncertain`: the message may have arrived all the same."""
    with store.transaction() as cursor:
        store.execute(
            cursor,
            "outbox_failed",
            key=delivery.key,
            channel=delivery.channel,
            error=error[:_LONGEST_ERROR],
            uncertain=uncertain,
            next_at=next_at,
        )


def sent(store: Store, delivery: Delivery, receipt: Receipt, now: datetime) -> None:
    """The message has arrived."""
    _finish(store, delivery, "sent", now, receipt=json.dumps(dict(receipt)) if receipt else None, error=None)


def dead(store: Store, delivery: Delivery, error: str, now: datetime, telling: Notification | None) -> None:
    """The delivery is given up. In the same transaction, `telling` is enqueued: other channels are to hear of it."""
    _finish(store, delivery, "dead", now, receipt=None, error=error[:_LONGEST_ERROR], telling=telling)


def send_again(store: Store, cursor: Any, *, key: str, channel: str, now: datetime) -> None:
    """Lets a delivery that was given up wait for its channel once more; any other stays as it is. Inside a
    transaction."""
    store.execute(cursor, "outbox_again", key=key, channel=channel, now=now)


def drop(store: Store, cursor: Any, *, key: str, channel: str, now: datetime) -> None:
    """Takes a delivery that was given up off the list; any other stays as it is. Inside a transaction."""
    store.execute(cursor, "outbox_drop", key=key, channel=channel, now=now)


def _finish(
    store: Store,
    delivery: Delivery,
    status: str,
    now: datetime,
    *,
    receipt: str | None,
    error: str | None,
    telling: Notification | None = None,
) -> None:
    with store.transaction() as cursor:
        store.execute(
            cursor,
            "outbox_finish",
            key=delivery.key,
            channel=delivery.channel,
            status=status,
            now=now,
            receipt=receipt,
            error=error,
            uncertain_since=delivery.outgoing.uncertain_since if status == "dead" else None,
        )
        if telling is not None:
            enqueue(store, cursor, telling)


def _delivery(channel: str, row: Mapping[str, Any]) -> Delivery:
    outgoing = Outgoing(
        notification=Notification.from_json(row["document"]),
        thread=json.loads(row["thread"]) if row["thread"] else None,
        uncertain_since=row["uncertain_since"],
        overtaken=row["overtaken"],
        later=row["later"],
    )
    return Delivery(row["key"], channel, row["attempts"], row["enqueued_at"], row["last_error"], outgoing)
