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
_ROUTED: Final = pa.schema([("key", pa.string()), ("channel", pa.string())])
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
    pairs = [
        {"key": row["key"], "channel": name} for row in rows for name in wanted(Notification.from_json(row["document"]))
    ]
    with store.transaction(records=False) as cursor:
        store.execute(cursor, "outbox_route", pa.Table.from_pylist(pairs, _ROUTED), now=now)
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
    _write(store, "outbox_begin", delivery, now=now, next_at=next_at)


def failed(store: Store, delivery: Delivery, error: str, *, uncertain: bool, next_at: datetime) -> None:
    """Record the failure of the attempt. `uncertain`: true if the message may have arrived."""
    _write(store, "outbox_failed", delivery, error=error[:_LONGEST_ERROR], uncertain=uncertain, next_at=next_at)


def sent(store: Store, delivery: Delivery, receipt: Receipt, now: datetime) -> None:
    """Record the arrival of the message."""
    kept = json.dumps(dict(receipt)) if receipt else None
    _write(store, "outbox_finish", delivery, status="sent", now=now, receipt=kept, error=None)


def dead(store: Store, delivery: Delivery, error: str, now: datetime, telling: Notification | None) -> None:
    """Abandon the delivery and enqueue `telling` for the other channels, in the same transaction."""
    facts = {"status": "dead", "now": now, "receipt": None, "error": error[:_LONGEST_ERROR]}
    _write(store, "outbox_finish", delivery, telling, **facts)


def _write(store: Store, statement: str, delivery: Delivery, telling: Notification | None = None, **facts: Any) -> None:
    with store.transaction(records=False) as cursor:
        store.execute(cursor, statement, key=delivery.key, channel=delivery.channel, **facts)
        if telling is not None:
            enqueue(store, cursor, telling)
