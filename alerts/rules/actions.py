"""What people do about alerts: take care of one, silence some. Asked of the running service, which owns the store, or
done directly.

Every action is a JSON object in and one out, and doing it twice is doing it once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from logprobe.alerts import audit
from logprobe.alerts.rules.fields import span
from logprobe.alerts.rules.judging.mutes import FIELDS
from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor import queries
from logprobe.monitor.service import actions
from logprobe.monitor.service.action import Action
from logprobe.monitor.store.store import Store

ACKNOWLEDGE: Final = "alerts.acknowledge"
SILENCE: Final = "alerts.silence"
UNSILENCE: Final = "alerts.unsilence"


def of(store: Store, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> dict[str, Action]:
    """The actions on an open store, for the service's endpoint."""
    return actions.offered(ACTIONS, store, clock)


def _acknowledge(store: Store, document: Mapping[str, Any], now: datetime) -> dict[str, object]:
    """``{"episode": …, "author": …, "reason": …, "for": "1h"}``; without ``for``, for as long as the episode lasts.

    The episode may be named by run, or run and rule, where that says which.
    """
    until = _until(document, now) if document.get("for") else None
    meant = _meant(store, actions.text(document, "episode"))
    author, reason = (
        actions.text(document, "author"),
        str(document.get("reason") or ("snoozed" if until else "acknowledged")),
    )
    with store.transaction() as cursor:
        for episode in (name for name, taken in meant.items() if not taken):
            store.execute(
                cursor, "alert_acknowledge", episode=episode, author=author, reason=reason, time=now, until=until
            )
            done = f"snoozed until {until:%Y-%m-%d %H:%M} UTC" if until else "acknowledged"
            audit.note(store, cursor, now, author=author, action=done, subject=episode, words=reason)
    return {"acknowledged": list(meant), "until": until}


def _meant(store: Store, wanted: str) -> dict[str, bool]:
    """The episodes that fire and that `wanted` names; whether they are acknowledged for as long as they last: the first
    one stays.

    Raises `ConfigurationError` when there is none.
    """
    rows = queries.alert_list(store, run=None).to_pylist()
    firing = {row["episode"]: row for row in rows if row["told"] and row["episode"]}
    meant = [name for name, row in firing.items() if wanted in {name, row["run"], f"{row['run']}/{row['rule']}"}]
    if not meant:
        raise ConfigurationError(f"no firing alert {wanted!r}; see `logprobe alerts list`")
    taken = {name: firing[name]["acknowledged_by"] and not firing[name]["acknowledged_until"] for name in meant}
    return {name: bool(lasting) for name, lasting in taken.items()}


def _until(document: Mapping[str, Any], now: datetime) -> datetime:
    """The end of what lasts as long as ``for`` says. Raises `ConfigurationError`."""
    try:
        until = now + span(actions.text(document, "for"))
    except (ValueError, OverflowError) as error:
        raise ConfigurationError(str(error)) from error
    if until <= now:
        raise ConfigurationError("it needs a duration; write 90s, 10m, 2h or 1d")
    return until


def _silence(store: Store, document: Mapping[str, Any], now: datetime) -> dict[str, object]:
    """``{"id": …, "matchers": {field: pattern}, "for": "2h", "author": …, "reason": …}``."""
    matchers = document.get("matchers")
    if not isinstance(matchers, dict) or not matchers:
        raise ConfigurationError(
            f"a silence needs a matcher, such as rule=gap-*; fields are {', '.join(FIELDS)} and labels"
        )
    expires = _until(document, now)
    silence, author, reason = (actions.text(document, name) for name in ("id", "author", "reason"))
    patterns = {str(name): str(pattern) for name, pattern in matchers.items()}
    with store.transaction() as cursor:
        store.execute(
            cursor,
            "alert_silence",
            id=silence,
            matchers=json.dumps(patterns),
            author=author,
            reason=reason,
            created_at=now,
            expires_at=expires,
        )
        subject = ", ".join(f"{name}={pattern}" for name, pattern in patterns.items())
        done = f"silenced until {expires:%Y-%m-%d %H:%M} UTC"
        audit.note(store, cursor, now, author=author, action=done, subject=subject, words=reason)
    return {"id": silence, "expires_at": expires}


def _unsilence(store: Store, document: Mapping[str, Any], now: datetime) -> dict[str, object]:
    """``{"id": …, "author": …}``."""
    wanted = actions.text(document, "id")
    silences = {row["id"]: row for row in queries.alert_silences(store, now=now.isoformat()).to_pylist()}
    if wanted not in silences:
        raise ConfigurationError(f"no active silence {wanted!r}; see `logprobe alerts list`")
    author = str(document.get("author") or audit.UNKNOWN_AUTHOR)
    with store.transaction() as cursor:
        store.execute(cursor, "alert_unsilence", id=wanted, now=now.isoformat())
        description = f"{silences[wanted]['matchers']}, by {silences[wanted]['author']}"
        audit.note(store, cursor, now, author=author, action="silence ended", subject=wanted, words=description)
    return {"id": wanted, "expires_at": now}


ACTIONS: Final[actions.Actions] = {
    ACKNOWLEDGE: ("acknowledge an alert", _acknowledge),
    SILENCE: ("silence matching alerts for a while", _silence),
    UNSILENCE: ("end a silence", _unsilence),
}
