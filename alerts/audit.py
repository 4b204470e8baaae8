"""Audit of the actions of users, written in the transaction of each."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from logprobe.monitor.store.store import Store

UNKNOWN_AUTHOR = "somebody"


def note(store: Store, cursor: Any, now: datetime, *, author: str, action: str, subject: str, words: str) -> None:
    """Note an action, inside a `Store.transaction` whose cursor is `cursor`.

    Args:
        store: whose transaction it is.
        cursor: of the transaction.
        now: when it was done.
        author: who did it, by their own word.
        action: what was done, in the past tense.
        subject: an episode, a rule, a silence, or a channel.
        words: what changed, or why.
    """
    store.execute(cursor, "alert_audit_write", time=now, author=author, action=action, subject=subject, words=words)
