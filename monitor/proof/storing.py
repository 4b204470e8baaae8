"""Storage of experiments by the commands, through the running service or directly."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor import queries
from logprobe.monitor.home import Home
from logprobe.monitor.service import actions
from logprobe.monitor.service.jobs import Part
from logprobe.monitor.store.store import Store

RECORD: Final = "proof.record"
_KINDS: Final = ("score", "bisect")


def part(store: Store, _: threading.Event) -> Part:
    """Return the service's part that stores experiments."""
    return Part(actions=actions.offered(_ACTIONS, store))


def record(home: Home, run: str, kind: str, document: Mapping[str, Any], author: str) -> None:
    """Store the result of an experiment. Raises `ConfigurationError`, `HomeBusyError` or `StoreError`."""
    text = json.dumps(document)
    actions.perform(_ACTIONS, home, RECORD, {"run": run, "kind": kind, "author": author, "document": text})


def _record(store: Store, document: Mapping[str, Any], now: datetime) -> dict[str, object]:
    """Store an experiment: ``{"run", "kind": "score" | "bisect", "author", "document": JSON text}``."""
    run = actions.run_of(document)
    kind, author, text = (actions.text(document, name) for name in ("kind", "author", "document"))
    if kind not in _KINDS:
        raise ConfigurationError(f"unknown kind {kind!r}; pass score or bisect")
    store.archive.tombstones.refuse(run)
    rows = queries.experiments_latest(store, run=run).to_pylist()
    if not any(row["kind"] == kind and row["document"] == text for row in rows):  # asked twice, done once
        departs = str(json.loads(text)["departs"])
        with store.transaction() as cursor:
            store.execute(
                cursor, "experiments_write", run=run, kind=kind, now=now, author=author, departs=departs, document=text
            )
    return {"run": run, "kind": kind}


_ACTIONS: Final[actions.Actions] = {RECORD: ("store the result of an experiment", _record)}
