"""Outbox of notifications, which are stored in the transaction of their transition and sent afterwards.

Each notification has one delivery per channel. The start of every attempt is committed first. After a killed process or
a lost response, the delivery therefore shows that its message may have arrived.
"""

from __future__ import annotations

import json
from collections.abc import Callable
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
_ROUTED: Final = pa.schema([(name, pa.string()) for name in ("run", "key", "channel")])
_SAME: Final = ("key", "run", "rule", "episode", "state", "severity", "step", "incident")  # columns of a notification


@dataclass(frozen=True, slots=True)
class Delivery:
    """One notification waiting for one channel. `attempts`: number of attempts begun."""

    key: str
    channel: str
    attempts: int
    enqueued_at: datetime
    last_error: str | None
    outgoing: Outgoing


def enqueue(store: Store, cursor: Any, note: Notification) -> None:
    """Put `note` into the outbox through `cursor`, inside a `Store.transaction`.

    The note is sent if and only if that transaction is committed. A repeated key changes nothing.
    """
    columns = {name: getattr(note, name) for name in _SAME}
    store.execute(cursor, "outbox_enqueue", time=note.at, document=note.to_json(), **columns)


def route(store: Store, wanted: Callable[[Notification], list[str]], now: datetime) -> int:
    """Create the deliveries of new notifications and return the number of notifications. Raise `StoreError`.

    Idempotent, also across threads. `wanted`: names of a notification's channels.
    """
    rows = queries.outbox_unrouted(store.kept, limit=_ROUTED_AT_ONCE).to_pylist()
    if not rows:
        return 0
    notes = [Notification.from_json(row["document"]) for row in rows]
    made = [{"run": note.run, "key": note.key, "channel": name} for note in notes for name in wanted(note)]
    with store.transaction(records=False) as cursor:
        store.execute(cursor, "outbox_route", pa.Table.from_pylist(made, _ROUTED), now=now)
        store.execute(cursor, "outbox_routed", keys=[row["key"] for row in rows], now=now)
    return len(rows)


def due(store: Store, channel: str, now: datetime) -> Delivery | None:
    """Return the next due delivery of `channel`, or None."""
    rows = queries.outbox_due(store, channel=channel, now=now, latest=now + _LATEST).to_pylist()
    if not rows:
        return None
    (row,) = rows
    thread = json.loads(row["thread"]) if row["thread"] else None
    note = Notification.from_json(row["document"])
    outgoing = Outgoing(note, thread, row["overtaken"], row["uncertain_since"])
    return Delivery(row["key"], channel, row["attempts"], row["enqueued_at"], row["last_error"], outgoing)


def begin(store: Store, delivery: Delivery, *, now: datetime, next_at: datetime) -> None:
    """Record the start of an attempt. `next_at`: time of the next attempt if this process ends before the outcome."""
    _write(store, delivery, now, begun=1, uncertain=True, next_at=next_at, error=delivery.last_error)


def failed(store: Store, delivery: Delivery, error: str, *, uncertain: bool, now: datetime, next_at: datetime) -> None:
    """Record the failure of the attempt. `uncertain`: true if the message may have arrived."""
    _write(store, delivery, now, error=error, uncertain=uncertain, next_at=next_at)


def sent(store: Store, delivery: Delivery, receipt: Receipt, now: datetime) -> None:
    """Record the arrival of the message."""
    _write(store, delivery, now, status="sent", receipt=json.dumps(dict(receipt)) if receipt else None)


def dead(store: Store, delivery: Delivery, error: str, now: datetime, telling: Notification | None) -> None:
    """Abandon the delivery and enqueue `telling` for the other channels, in the same transaction."""
    _write(store, delivery, now, telling, status="dead", error=error)


def _write(
    store: Store,
    delivery: Delivery,
    now: datetime,
    telling: Notification | None = None,
    *,
    status: str = "waiting",
    begun: int = 0,
    uncertain: bool = False,
    next_at: datetime | None = None,
    error: str | None = None,
    receipt: str | None = None,
) -> None:
    with store.transaction(records=False) as cursor:
        store.execute(
            cursor,
            "outbox_progress",
            key=delivery.key,
            channel=delivery.channel,
            now=now,
            status=status,
            begun=begun,
            uncertain=uncertain,
            next_at=next_at,
            error=error and error[:_LONGEST_ERROR],
            receipt=receipt,
        )
        if telling is not None:
            enqueue(store, cursor, telling)
