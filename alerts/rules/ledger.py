"""Alerts in the store, written with what follows from them, or not at all.

What was sent is in the journal, how alerts stand is not: a store that was lost begins with what users were told.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import duckdb
import pyarrow as pa

from logprobe.alerts.rules.alert import LEVELS, Alert, Seen, State, Told
from logprobe.alerts.rules.telling import Acknowledgement, Silence
from logprobe.monitor import queries
from logprobe.monitor.queries import Source
from logprobe.monitor.store.store import Store

_TIME: Final = pa.timestamp("us", "UTC")
_STATES: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("run", "rule", "fingerprint", "phase", "severity", "episode", "muted")),
        *((name, pa.string()) for name in ("words", "document")),
        ("told", pa.bool_()),
        ("step", pa.int64()),
        ("started_step", pa.int64()),
        ("changed_at", _TIME),
        ("value", pa.float64()),
    ]
)


@dataclass(frozen=True, slots=True)
class Known:
    """Stored state of a run: its alerts by rule, and the messages sent about each rule, with their newest step."""

    alerts: Mapping[str, Alert] = field(default_factory=dict)
    told: Mapping[str, tuple[Told, int | None]] = field(default_factory=dict)


def load(source: Source, runs: Sequence[str]) -> dict[str, Known]:
    """Return what is stored of each run; what was sent only of runs of which no alert is."""
    alerts: dict[str, dict[str, Alert]] = {run: {} for run in runs}
    for row in queries.alert_load(source, runs=list(runs)).to_pylist():
        alerts[row["run"]][row["rule"]] = _alert(row["rule"], row["fingerprint"], json.loads(row["document"]))
    told: dict[str, dict[str, tuple[Told, int | None]]] = {run: {} for run in runs}
    fresh = [run for run, of_run in alerts.items() if not of_run]
    for sent in queries.alert_told(source, runs=fresh).to_pylist() if fresh else ():
        told[sent["run"]][sent["rule"]] = (_told(sent), sent["step"])
    return {run: Known(alerts[run], told[run]) for run in runs}


def _told(row: queries.AlertTold) -> Told:
    return Told(
        episode=row["episode"],
        level=LEVELS.index(row["level"]),
        peak=LEVELS.index(row["severity"]),
        cause=row["cause"],
        count=row["count"],
        acknowledged=row["acknowledged"],
        since_step=row["since_step"],
    )


def save(store: Store, cursor: duckdb.DuckDBPyConnection, alerts: Iterable[tuple[str, Alert]]) -> None:
    """Keep alerts of runs, inside a transaction."""
    rows = [_row(run, alert) for run, alert in alerts]
    if rows:
        store.execute(cursor, "alert_save", pa.Table.from_pylist(rows, _STATES))


def forget(store: Store, cursor: duckdb.DuckDBPyConnection, run: str, rules: Sequence[str]) -> None:
    """Forget alerts of thresholds that were removed, inside a transaction."""
    if rules:
        store.execute(cursor, "alert_forget", run=run, rules=list(rules))


def silences(source: Source, now: datetime) -> list[Silence]:
    """Return those that have not expired."""
    return [Silence(**row) for row in queries.alert_silences(source, now=now.isoformat()).to_pylist()]


def acknowledgements(source: Source, runs: Sequence[str]) -> dict[str, Acknowledgement]:
    """Return who acknowledged what in these runs, by episode."""
    rows = queries.alert_acknowledged(source, runs=list(runs)).to_pylist()
    return {
        row["episode"]: Acknowledgement(row["episode"], row["author"], row["reason"], row["time"], row["until"])
        for row in rows
    }


def _row(run: str, alert: Alert) -> dict[str, object]:
    return {
        "run": run,
        "rule": alert.rule,
        "fingerprint": alert.fingerprint,
        "phase": alert.state.phase,
        "severity": alert.severity,
        "episode": alert.told.episode,
        "told": alert.told.level > 0,
        "muted": alert.muted,
        "step": alert.step,
        "started_step": alert.state.since_step,
        "changed_at": alert.state.changed_at,
        "value": None if alert.seen is None else alert.seen.value,
        "words": None if alert.seen is None else alert.seen.words,
        "document": json.dumps(_document(alert)),
    }


def _document(alert: Alert) -> dict[str, object]:
    state = _values(alert.state)
    times = {name: None if state[name] is None else state[name].isoformat() for name in ("since_at", "changed_at")}
    return {
        "state": {**state, **times},
        "told": _values(alert.told),
        "seen": None if alert.seen is None else _values(alert.seen),
        **{name: getattr(alert, name) for name in ("needs", "keeps", "step", "cause", "muted")},
    }


def _values(fields: State | Told | Seen) -> dict[str, Any]:
    """By name. `dataclasses.asdict` copies each value, which takes ten times as long."""
    return {name: getattr(fields, name) for name in fields.__slots__}


def _alert(rule: str, fingerprint: str, document: Mapping[str, Any]) -> Alert:
    state = dict(document["state"])
    for name in ("since_at", "changed_at"):
        state[name] = None if state[name] is None else datetime.fromisoformat(state[name])
    return Alert(
        rule,
        fingerprint,
        state=State(**state),
        told=Told(**document["told"]),
        seen=None if document["seen"] is None else Seen(**document["seen"]),
        cause=None if document["cause"] is None else (document["cause"][0], document["cause"][1]),
        **{name: document[name] for name in ("needs", "keeps", "step", "muted")},
    )
