"""The controller's memory: one state per run, and the audit of everything it did, in the store."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import duckdb

from logprobe.alerts.controller.situation import Action, Control
from logprobe.collectors.directives import Directives, decode
from logprobe.collectors.errors import StoreError
from logprobe.collectors.recorder.documents import canonical_json
from logprobe.monitor.store.store import Store


@dataclass(frozen=True, slots=True)
class Memory:
    """What the store holds of one run: its control, the directives issued so far, the number of the last action."""

    control: Control
    directives: Directives
    actions: int = 0


def recall(store: Store, run: str) -> Memory:
    """What is remembered of `run`; nothing: a fresh one. Raises `StoreError` when it cannot be understood."""
    return understood(run, records(store, [run]).get(run))


def records(store: Store, runs: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What is remembered of runs, as it is stored; those of which nothing is are left out."""
    return {row["run"]: row for row in store.read("controller_read", runs=list(runs)).to_pylist()}


def understood(run: str, row: Mapping[str, Any] | None) -> Memory:
    """One of `records`; None: nothing is remembered. Raises `StoreError` when it cannot be understood."""
    if row is None:
        return Memory(Control(), Directives(run))
    try:
        control = Control.parse(json.loads(row["control"]))
        directives = decode(row["directives"].encode(), run, None)
    except (LookupError, TypeError, ValueError) as error:
        raise StoreError(
            f"the controller's state of run {run!r} cannot be read ({error}); was it written by a newer logprobe?"
        ) from error
    return Memory(control, directives, row["actions"])


def remember(
    store: Store,
    cursor: duckdb.DuckDBPyConnection,
    memory: Memory,
    actions: Sequence[Action],
    *,
    step: int | None,
    now: datetime,
) -> None:
    """Stores the state and appends `actions` to the audit, inside a transaction. `memory.actions`: number of the last one before."""
    run = memory.directives.run
    store.execute(
        cursor,
        "controller_save",
        run=run,
        control=canonical_json(memory.control.document()),
        directives=canonical_json(memory.directives.document()),
        now=now,
    )
    for number, action in enumerate(actions, start=memory.actions + 1):
        row: dict[str, Any] = {
            "run": run,
            "number": number,
            "step": step,
            "now": now,
            "name": action.name,
            "reason": action.reason,
            "words": action.words,
            "severity": action.severity,
            "details": canonical_json(action.details),
        }
        store.execute(cursor, "controller_act", **row)
