"""Alerts in the store, written in one transaction with their consequences.

The journal contains sent messages but no states of alerts. A rebuilt store begins with the messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Final

import duckdb
import pyarrow as pa
from pydantic import TypeAdapter

from logprobe.alerts.rules.alert import LEVELS, Acknowledgement, Alert, Silence, Told
from logprobe.monitor import queries
from logprobe.monitor.queries import Source
from logprobe.monitor.store.store import Store

_DOCUMENT: Final = TypeAdapter(Alert)
_TEXTS: Final = ("run", "rule", "fingerprint", "phase", "severity", "episode", "muted", "words", "document")
_STATES: Final = pa.schema(
    [
        *((name, pa.string()) for name in _TEXTS),
        *((name, pa.int64()) for name in ("step", "started_step")),
        ("told", pa.bool_()),
        ("changed_at", pa.timestamp("us", "UTC")),
        ("value", pa.float64()),
    ]
)


@dataclass(frozen=True, slots=True)
class Known:
    """Stored state of a run: its alerts by rule, and the messages sent about each rule, with their newest step."""

    alerts: Mapping[str, Alert] = field(default_factory=dict)
    told: Mapping[str, tuple[Told, int | None]] = field(default_factory=dict)


def load(source: Source, runs: Sequence[str]) -> dict[str, Known]:
    """Return the stored alerts of each run, and sent messages for runs without alerts."""
    alerts: dict[str, dict[str, Alert]] = {run: {} for run in runs}
    for row in queries.alert_load(source, runs=list(runs)).to_pylist():
        alerts[row["run"]][row["rule"]] = _DOCUMENT.validate_json(row["document"])
    told: dict[str, dict[str, tuple[Told, int | None]]] = {run: {} for run in runs}
    fresh = [run for run, of_run in alerts.items() if not of_run]
    for sent in queries.alert_told(source, runs=fresh).to_pylist() if fresh else ():
        facts: dict[str, Any] = {**sent, "level": LEVELS.index(sent["level"]), "peak": LEVELS.index(sent["severity"])}
        newest = Told(**{each.name: facts[each.name] for each in fields(Told)})
        told[sent["run"]][sent["rule"]] = (newest, sent["step"])
    return {run: Known(alerts[run], told[run]) for run in runs}


def save(store: Store, cursor: duckdb.DuckDBPyConnection, alerts: Iterable[tuple[str, Alert]]) -> None:
    """Store the alerts of runs inside a transaction."""
    rows = [_row(run, alert) for run, alert in alerts]
    if rows:
        store.execute(cursor, "replace", pa.Table.from_pylist(rows, _STATES), table="alert_states")


def _row(run: str, alert: Alert) -> dict[str, object]:
    same = ("rule", "fingerprint", "phase", "severity", "muted", "step", "changed_at")
    return {
        "run": run,
        **{name: getattr(alert, name) for name in same},
        "episode": alert.told.episode,
        "told": alert.told.level > 0,
        "started_step": alert.since_step,
        "value": None if alert.seen is None else alert.seen.value,
        "words": None if alert.seen is None else alert.seen.words,
        "document": _DOCUMENT.dump_json(alert).decode(),
    }


def silences(source: Source, now: datetime) -> list[Silence]:
    """Return the silences that have not expired."""
    return [Silence(**row) for row in queries.alert_silences(source, now=now.isoformat()).to_pylist()]


def acknowledgements(source: Source, runs: Sequence[str]) -> dict[str, Acknowledgement]:
    """Return the acknowledgements of these runs by episode."""
    rows = queries.alert_acknowledged(source, runs=list(runs)).to_pylist()
    return {row["episode"]: Acknowledgement(row["episode"], row["author"], row["reason"]) for row in rows}
