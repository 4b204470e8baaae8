"""Idempotent actions of users, through the running service that owns the store, or directly without one.

An action takes a JSON object and returns one. A table maps names to descriptions and functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, TypeAlias

from logprobe.collectors.errors import ConfigurationError, ServiceUnavailableError
from logprobe.monitor.home import Home
from logprobe.monitor.reader import connect
from logprobe.monitor.service.action import Action
from logprobe.monitor.store.store import Store

Do: TypeAlias = Callable[[Store, Mapping[str, Any], datetime], Mapping[str, object]]
Actions: TypeAlias = Mapping[str, tuple[str, Do]]


def offered(actions: Actions, store: Store, clock: Callable[[], datetime] | None = None) -> dict[str, Action]:
    """Return the actions on an open store, for the service's endpoint. `clock`: time source, or None for
    the store's."""
    now = clock or store.time.now

    def bound(do: Do) -> Callable[[Mapping[str, Any]], Mapping[str, object]]:
        return lambda document: do(store, document, now())

    return {name: Action(words, bound(do)) for name, (words, do) in actions.items()}


def perform(
    actions: Actions, home: Home, name: str, document: Mapping[str, Any], *, seconds: float | None = None
) -> Any:
    """Perform one of `actions`, through the service or, without one, as owner of the data directory.

    `seconds`: time limit. The result is the action's answer. Times from a service are texts.

    Raises `ConfigurationError` for an invalid request, and `HomeBusyError` or `StoreError` if the data directory is
    unavailable.
    """
    try:
        with connect(home) as reader:
            return reader.act(name, document, seconds=seconds)
    except ServiceUnavailableError:
        if home.owner() is not None:
            raise
    with home.lock(), Store.open(home) as store:
        return actions[name][1](store, document, store.time.now())


def note(
    store: Store,
    cursor: Any,
    now: datetime,
    *,
    author: str,
    action: str,
    words: str,
    key: str | None = None,
    runs: str | None = None,
    what: str | None = None,
    until: datetime | None = None,
    up_to: float | None = None,
) -> None:
    """Append a user's action to `user_actions`, inside a `Store.transaction`. What is in force follows from these rows.

    Args:
        store: the store of the transaction.
        cursor: cursor of the transaction.
        now: time of the action.
        author: name that the user gave.
        action: past participle of the action.
        words: reason, or change.
        key: episode, silence or deleted run, or None. A second action of that name with the same key changes nothing.
        runs: name or pattern of the runs, or None for an action about no run.
        what: pattern of rules, cause, channel or file, or None if `key` names the subject.
        until: end of a silence.
        up_to: K3 in nats up to which a finding is accepted.
    """
    facts: dict[str, Any] = {"key": key, "runs": runs, "what": what, "until": until, "up_to": up_to, "words": words}
    store.execute(cursor, "user_actions_write", time=now, author=author, action=action, **facts)


def text(document: Mapping[str, Any], name: str) -> str:
    """Return a required text of an action. Raises `ConfigurationError` for a missing or blank text."""
    value = document.get(name)
    if not isinstance(value, str) or not value.strip():
        raise ConfigurationError(f"{name!r} is missing; pass a text")
    return value.strip()


def run_of(document: Mapping[str, Any]) -> str:
    """Return the run of an action, including leading and trailing blanks. Raises `ConfigurationError` for a missing
    run.
    """
    text(document, "run")
    return str(document["run"])
