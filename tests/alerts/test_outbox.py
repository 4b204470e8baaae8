"""The outbox against a real store."""

from __future__ import annotations

from contextlib import suppress

from alert_notes import NOTE

from logprobe.alerts import outbox
from logprobe.monitor.store import Store


def test_a_notification_is_there_exactly_when_its_transaction_is(store: Store) -> None:
    with suppress(ZeroDivisionError), store.transaction() as cursor:
        outbox.enqueue(store, cursor, NOTE)
        1 / 0  # noqa: B018 - the transition fails after its notification was enqueued
    assert store.query("SELECT * FROM notifications").num_rows == 0
    for _ in range(2):  # a replay after a crash enqueues the same transition again
        with store.transaction() as cursor:
            outbox.enqueue(store, cursor, NOTE)
    assert store.query("SELECT key, document FROM notifications").to_pylist() == [
        {"key": NOTE.key, "document": NOTE.to_json()}
    ]
