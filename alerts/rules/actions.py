"""Users' actions on alerts: acknowledge, silence and accept, through the running service or directly on the store.

Every action takes and returns a JSON object. Actions are idempotent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from logprobe.alerts.rules import acceptance
from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor import queries
from logprobe.monitor.service import actions
from logprobe.monitor.service.action import Action
from logprobe.monitor.store.store import Store

ACKNOWLEDGE: Final = "alerts.acknowledge"
SILENCE: Final = "alerts.silence"
UNSILENCE: Final = "alerts.unsilence"
FIELDS: Final = ("run", "rule")  # of a silence
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def of(store: Store, clock: Callable[[], datetime] | None = None) -> dict[str, Action]:
    """Return the actions on an open store, for the service's endpoint. `clock`: time source, or None for
    the store's."""
    return actions.offered({**ACTIONS, **acceptance.ACTIONS}, store, clock)


def span(text: str) -> timedelta:
    """Return the duration of ``90s``, ``10m``, ``2h`` or ``1d``. Raise `ConfigurationError` unless it is above 0.

    >>> span("90s") == span("1.5m")
    True
    """
    unit = _UNITS.get(text.strip()[-1:])
    try:
        duration = timedelta(**{unit or "": float(text.strip()[:-1])})
    except (TypeError, ValueError, OverflowError):
        duration = timedelta(0)
    if duration <= timedelta(0):
        raise ConfigurationError(f"{text!r} is not a duration; write 90s, 10m, 2h or 1d")
    return duration


def _acknowledge(store: Store, document: Mapping[str, Any], now: datetime) -> dict[str, object]:
    """Acknowledge episodes until their end: ``{"episode": …, "author": …, "reason": …}``.

    A run, or a run and a rule, may replace the episode if unambiguous.
    """
    meant = _meant(store, actions.text(document, "episode"))
    author, reason = actions.text(document, "author"), str(document.get("reason") or "acknowledged")
    with store.transaction() as cursor:
        for episode, run in meant.items():  # the first acknowledgement stays
            done: dict[str, Any] = {"action": "acknowledged", "key": episode, "runs": run}
            actions.note(store, cursor, now, author=author, words=reason, **done)
    return {"acknowledged": list(meant)}


def _meant(store: Store, wanted: str) -> dict[str, str]:
    """Return the firing episodes that `wanted` names, each with its run.

    Raises:
        ConfigurationError: no firing episode matches.
    """
    rows = queries.alert_list(store, run=None).to_pylist()
    firing = [row for row in rows if row["told"] and row["episode"]]
    meant = [row for row in firing if wanted in {row["episode"], row["run"], f"{row['run']}/{row['rule']}"}]
    if not meant:
        raise ConfigurationError(f"no firing alert {wanted!r}; see `logprobe alerts list`")
    return {row["episode"]: row["run"] for row in meant}


def _until(document: Mapping[str, Any], now: datetime) -> datetime:
    """Return the end of the duration ``for``. Raise `ConfigurationError`."""
    try:
        return now + span(actions.text(document, "for"))
    except OverflowError as error:
        raise ConfigurationError(f"{document['for']!r} is too long; end it by hand instead") from error


def _silence(store: Store, document: Mapping[str, Any], now: datetime) -> dict[str, object]:
    """Silence alerts by a pattern of run, of rule, or of both.

    The document is ``{"id": …, "run": pattern, "rule": pattern, "for": "2h", "author": …, "reason": …}``.
    """
    patterns = {name: str(document.get(name) or "").strip() for name in FIELDS}
    if not any(patterns.values()):
        raise ConfigurationError("a silence needs a pattern of run or rule; pass one, such as run=ablation-*")
    expires = _until(document, now)
    silence, author, reason = (actions.text(document, name) for name in ("id", "author", "reason"))
    meant: dict[str, Any] = {"runs": patterns["run"] or "*", "what": patterns["rule"] or "*", "until": expires}
    with store.transaction() as cursor:
        actions.note(store, cursor, now, author=author, action="silenced", key=silence, words=reason, **meant)
    return {"id": silence, "expires_at": expires}


def _unsilence(store: Store, document: Mapping[str, Any], now: datetime) -> dict[str, object]:
    """End a silence: ``{"id": …, "author": …}``."""
    wanted = actions.text(document, "id")
    silences = {row["id"]: row for row in queries.alert_silences(store, now=now.isoformat()).to_pylist()}
    if wanted not in silences:
        raise ConfigurationError(f"no active silence {wanted!r}; see `logprobe alerts list`")
    author, ended = actions.text(document, "author"), silences[wanted]
    meant: dict[str, Any] = {"runs": ended["run"], "what": ended["rule"], "words": f"by {ended['author']}"}
    with store.transaction() as cursor:
        actions.note(store, cursor, now, author=author, action="silence ended", key=wanted, **meant)
    return {"id": wanted, "expires_at": now}


ACTIONS: Final[actions.Actions] = {
    ACKNOWLEDGE: ("acknowledge an alert", _acknowledge),
    SILENCE: ("silence matching alerts for a while", _silence),
    UNSILENCE: ("end a silence", _unsilence),
}
