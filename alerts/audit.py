"""Audit of users' actions, written in the transaction of the action."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from logprobe.monitor.store.store import Store


def note(store: Store, cursor: Any, now: datetime, *, author: str, action: str, subject: str, words: str) -> None:
    """Record a user's action inside a `Store.transaction`.

    Args:
        store: the store of the transaction.
        cursor: cursor of the transaction.
        now: time of the action.
        author: name that the user gave.
        action: past participle of the action.
        subject: an episode, a rule, a silence, or a channel.
        words: change or reason.
    """
    store.execute(cursor, "alert_audit_write", time=now, author=author, action=action, subject=subject, words=words)
