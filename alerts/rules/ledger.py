"""Alerts in the store: how a run's alerts stand and how far its rules have looked, written with what follows from it,
or not at all."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

import duckdb
import pyarrow as pa

from logprobe.alerts.rules.judging.evaluation import Alert, Notified, Transition
from logprobe.alerts.rules.judging.mutes import Acknowledgement, Silence
from logprobe.alerts.rules.judging.observation import Observation
from logprobe.alerts.rules.judging.states import Phase, Reason, State
from logprobe.alerts.rules.rule import Rule
from logprobe.monitor import queries
from logprobe.monitor.queries import Source
from logprobe.monitor.store.store import Store

_TIME: Final = pa.timestamp("us", "UTC")
_STATES: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("run", "rule", "slice", "fingerprint", "phase", "reason", "severity")),
        *((name, pa.string()) for name in ("episode", "muted", "words", "document")),
        ("told", pa.bool_()),
        ("step", pa.int64()),
        ("started_step", pa.int64()),
        ("changed_at", _TIME),
        ("value", pa.float64()),
    ]
)
_TRANSITIONS: Final = pa.schema(
    [
        *(
            (name, pa.string())
            for name in ("run", "key", "rule", "slice", "severity", "before", "after", "reason", "words")
        ),
        ("step", pa.int64()),
        ("time", _TIME),
        ("value", pa.float64()),
    ]
)


@dataclass(frozen=True, slots=True)
class Kept:
    """An alert as it was kept, before it is known whether its rule is still the same."""

    rule: str
    slice: str | None
    fingerprint: str
    document: Mapping[str, Any]

    def alert(self, rule: Rule | None) -> Alert:
        """With the rule that is active now: one that judges differently starts over, and what was notified stays.

        `rule`: None when there is none by that name any more; then with the one that was in effect.
        """
        notified = Notified(**self.document["told"])
        if rule is None:
            rule = Rule.model_validate(self.document["rule"])
        elif rule.fingerprint != self.fingerprint:
            return Alert(rule, self.slice, notified=notified)
        observation = self.document["observation"]
        return Alert(
            rule,
            self.slice,
            state=_state(self.document["state"]),
            notified=notified,
            step=self.document["step"],
            memory=self.document["memory"],
            observation=None if observation is None else Observation(**observation),
            muted=self.document["muted"],
        )


def load(source: Source, runs: Sequence[str]) -> dict[str, list[Kept]]:
    """The alerts of each run as they were kept."""
    by_run: dict[str, list[Kept]] = {run: [] for run in runs}
    for row in queries.alert_load(source, runs=list(runs)).to_pylist():
        kept = Kept(row["rule"], row["slice"] or None, row["fingerprint"], json.loads(row["document"]))
        by_run[row["run"]].append(kept)
    return by_run


def save(store: Store, cursor: duckdb.DuckDBPyConnection, alerts: Iterable[tuple[str, Alert]]) -> None:
    """Keeps alerts of runs, inside a transaction."""
    rows = [_row(run, alert) for run, alert in alerts]
    if rows:
        store.execute(cursor, "alert_save", pa.Table.from_pylist(rows, _STATES))


def forget(store: Store, cursor: duckdb.DuckDBPyConnection, run: str, alerts: Iterable[Alert]) -> None:
    """Forgets alerts whose rule is gone, inside a transaction."""
    names = [f"{alert.rule.name}/{alert.slice or ''}" for alert in alerts]
    if names:
        store.execute(cursor, "alert_forget", run=run, names=names)


def append(store: Store, cursor: duckdb.DuckDBPyConnection, transitions: Iterable[tuple[str, Transition]]) -> None:
    """Writes transitions of runs down, inside a transaction; those that are already stored are left."""
    rows = [transition_row(run, transition) for run, transition in transitions]
    if rows:
        store.execute(cursor, "alert_moved", pa.Table.from_pylist(rows, _TRANSITIONS))


def transition_row(run: str, transition: Transition) -> dict[str, object]:
    """A transition as plain data; the columns of ``alert_transitions``."""
    alert = transition.alert
    return {
        "run": run,
        "key": transition.key,
        "rule": alert.rule.name,
        "slice": alert.slice or "",
        "severity": alert.rule.severity,
        "step": transition.step,
        "time": transition.at,
        "before": transition.before.value,
        "after": alert.state.phase.value,
        "reason": alert.state.reason.value,
        "value": None if alert.observation is None else alert.observation.value,
        "words": None if alert.observation is None else alert.observation.words,
    }


def silences(source: Source, now: datetime) -> list[Silence]:
    """Those that have not expired."""
    rows = queries.alert_silences(source, now=now.isoformat()).to_pylist()
    return [Silence(**{**row, "matchers": json.loads(row["matchers"])}) for row in rows]


def acknowledgements(source: Source, runs: Sequence[str]) -> dict[str, Acknowledgement]:
    """Who takes care of what in these runs, by episode."""
    rows = queries.alert_acknowledged(source, runs=list(runs)).to_pylist()
    return {
        row["episode"]: Acknowledgement(row["episode"], row["author"], row["reason"], row["time"], row["until"])
        for row in rows
    }


def _row(run: str, alert: Alert) -> dict[str, object]:
    state, seen = alert.state, alert.observation
    return {
        "run": run,
        "rule": alert.rule.name,
        "slice": alert.slice or "",
        "fingerprint": alert.rule.fingerprint,
        "phase": state.phase.value,
        "reason": state.reason.value,
        "severity": alert.rule.severity,
        "episode": alert.notified.episode,
        "told": alert.notified.open,
        "muted": alert.muted,
        "step": alert.step,
        "started_step": state.started_step,
        "changed_at": state.changed_at,
        "value": None if seen is None else seen.value,
        "words": None if seen is None else seen.words,
        "document": json.dumps(document(alert)),
    }


def document(alert: Alert) -> dict[str, object]:
    """Everything that is remembered of an alert, as JSON has it."""
    times = {name: None if time is None else time.isoformat() for name, time in _times(alert.state).items()}
    return {
        "rule": alert.rule.document,
        "state": {**_values(alert.state), **times},
        "told": _values(alert.notified),
        "step": alert.step,
        "memory": alert.memory,
        "observation": None if alert.observation is None else _values(alert.observation),
        "muted": alert.muted,
    }


def _values(fields: State | Notified | Observation) -> dict[str, object]:
    """By name. `dataclasses.asdict` copies each value, which takes ten times as long."""
    return {name: getattr(fields, name) for name in fields.__slots__}


def _times(state: State) -> dict[str, datetime | None]:
    return {"started_at": state.started_at, "changed_at": state.changed_at}


def _state(content: Mapping[str, Any]) -> State:
    times = {
        name: None if content[name] is None else datetime.fromisoformat(content[name])
        for name in ("started_at", "changed_at")
    }
    state = State(**{**content, **times})
    return replace(state, phase=Phase(state.phase), reason=Reason(state.reason))
