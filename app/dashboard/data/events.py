"""What happened to a run besides training, as marks on its charts."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True)
class Event:
    """`kind` is "weights", "config", "alert" or "correction"; `step` is None while no step has finished after it."""

    kind: str
    step: int | None
    words: str


def events_of(rows: pa.Table) -> tuple[Event, ...]:
    """Rows of `app_events` as marks, in their order."""
    return tuple(Event(row["kind"], row["step"], _words(row)) for row in rows.to_pylist())


def marks_of(rows: pa.Table) -> tuple[Event, ...]:
    """Rows of `app_marks` as marks, in their order: alerts that began to fire, and what became of the correction."""
    return tuple(Event(row["kind"], row["step"], _label(row)) for row in rows.to_pylist())


def _label(row: dict[str, object]) -> str:
    if row["kind"] == "alert":
        return " ".join(str(part) for part in ("alert", row["label"], row["slice"]) if part is not None)
    return f"correction {row['label']}"


def _words(row: dict[str, object]) -> str:
    if row["kind"] != "weights":
        return f"{row['label']} changed"
    parts = [f"weights {row['label']}" if row["label"] is not None else "weights, version unknown"]
    if row["pause_mode"] is not None:
        parts.append(f"pause: {row['pause_mode']}")
    if row["cache_cleared"] is False:
        parts.append("prefix cache kept")
    return ", ".join(parts)
