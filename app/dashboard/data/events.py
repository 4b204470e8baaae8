"""What happened to a run besides training, as marks on its charts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from logprobe.app.text.numbers import number


@dataclass(frozen=True)
class Event:
    """`kind` is "weights", "config", "learning_rate", "restart", "alert" or "correction".

    `step` is None while no step has finished after it.
    """

    kind: str
    step: int | None
    words: str


def events_of(rows: pa.Table) -> tuple[Event, ...]:
    """Rows of `app_events` as marks, in their order."""
    return tuple(Event(row["kind"], row["step"], _words(row)) for row in rows.to_pylist())


def rates_of(rows: pa.Table) -> tuple[Event, ...]:
    """Rows of `app_learning_rates` as marks, in their order."""
    return tuple(Event("learning_rate", row["step"], _learning_rate(row)) for row in rows.to_pylist())


def marks_of(rows: pa.Table) -> tuple[Event, ...]:
    """Rows of `app_marks` as marks, in their order: alerts that began to fire, and what became of the correction."""
    return tuple(Event(row["kind"], row["step"], _label(row)) for row in rows.to_pylist())


def _label(row: Mapping[str, Any]) -> str:
    if row["kind"] == "alert":
        return f"alert {row['label']}"
    return f"correction {row['label']}"


def _words(row: Mapping[str, Any]) -> str:
    if row["kind"] == "weights":
        return _weights(row)
    if row["label"] == "attempt":
        return "trained again from here on: the newest attempt counts"
    return f"{row['label']} {'started again' if row['kind'] == 'restart' else 'changed'}"


def _weights(row: Mapping[str, Any]) -> str:
    parts = [f"weights {row['label']}" if row["label"] is not None else "weights, version unknown"]
    if row["pause_mode"] is not None:
        parts.append(f"pause: {row['pause_mode']}")
    if row["cache_cleared"] is False:
        parts.append("prefix cache kept")
    return ", ".join(parts)


def _learning_rate(row: Mapping[str, Any]) -> str:
    until = f", until step {row['until']:,}" if row["until"] > row["step"] else ""
    return f"{row['label']} {number(row['before'])} → {number(row['after'])}{until}"
