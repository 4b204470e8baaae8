"""Audit of the actions of users, written in the transaction of each."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from logprobe.monitor.store.store import Store

UNKNOWN_AUTHOR = "somebody"


def note(store: Store, cursor: Any, now: datetime, *, author: str, action: str, subject: str, words: str) -> None:
    """Note an action inside a `Store.transaction`.

    Args:
        store: the store of the transaction.
        cursor: its cursor.
        now: time of the action.
        author: the user's own name for themselves.
        action: past participle of the action.
        subject: an episode, a rule, a silence, or a channel.
        words: change or reason.
    """
    store.execute(cursor, "alert_audit_write", time=now, author=author, action=action, subject=subject, words=words)
