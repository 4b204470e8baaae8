"""Changes before the onset of an incident: settings with both values, and replicas and slices that appeared or
disappeared. The functions are pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

_MOST: Final = 20  # settings of one change that are named
_KIND: Final = {"engine_config": "engine", "trainer_config": "trainer", "sampling_params": "sampling params"}
Row = Mapping[str, Any]


def settings(before: str, after: str) -> list[tuple[str, Any, Any]]:
    """Return settings that differ between two configuration documents (JSON) as (dotted name, before, after).

    A setting that is not set is None.

    >>> settings('{"a": {"b": 1}, "c": 2}', '{"a": {"b": 3}, "c": 2, "d": true}')
    [('a.b', 1, 3), ('d', None, True)]
    """
    old, new = dict(_leaves(json.loads(before))), dict(_leaves(json.loads(after)))
    return [
        (name, old.get(name), new.get(name))
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and (value or not name):
        for key, inner in value.items():
            yield from _leaves(inner, f"{name}.{key}" if name else str(key))
    else:
        yield name, value


def configured(row: Row) -> str:
    """Return the changed settings with old and new values. `row`: row of `incident_configs`."""
    changed = settings(row["before"], row["document"])
    shown = [f"{name} {_said(old)} → {_said(new)}" for name, old, new in changed[:_MOST]]
    more = [f"and {len(changed) - _MOST} more"] if len(changed) > _MOST else []
    return "; ".join([*shown, *more]) or "no setting that is recorded"


def _said(value: Any) -> str:
    return "not set" if value is None else json.dumps(value, ensure_ascii=False).strip('"')


def kind(row: Row) -> str:
    """Return the owner of a configuration, which is a row of `incident_configs`.

    >>> kind({"kind": "engine_config", "replica": "r1"}), kind({"kind": "other", "replica": None})
    ('engine r1', 'other')
    """
    return " ".join(filter(None, (_KIND.get(row["kind"], row["kind"]), row["replica"])))


def came_and_went(parts: Sequence[Row], onset: int) -> list[tuple[int, str, str]]:
    """Return replicas and tags that appeared or disappeared before the onset, as (step, kind, words).

    Args:
        parts: rows of `incident_parts`. Values in the first step count as older.
        onset: first bad step.
    """
    begins = min((row["first"] for row in parts), default=0)
    events = []
    for row in parts:
        name = row["what"] if row["what"] == "replica" else f"tag {row['what']}"
        if begins < row["first"] <= onset:
            events.append((row["first"], name, f"{row['value']} comes up"))
        if row["last"] < onset:
            events.append((row["last"] + 1, name, f"{row['value']} is gone"))
    return sorted(events)
