"""The trend of a run's correction over steps: what it did to K3, how much it masked, and what was decided when. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from logprobe.app.dashboard.charts.downsample import thin
from logprobe.app.dashboard.charts.scales import floor_of
from logprobe.app.text.numbers import number
from logprobe.monitor.columns import floats

_POINTS: Final = 800
_ROWS: Final = (
    ("k3", "K3", "nats", True),
    ("masked", "share of tokens masked by the trainer", "", False),
    ("weight_ess", "ESS of the weights", "", False),
    ("reward", "reward", "", False),
)
_OVER: Final = frozenset({"switched_off", "rolled_back"})


def trend_data(trend: pa.Table, document: Mapping[str, Any]) -> dict[str, Any]:
    """Data of `browser/correction_trend.js`.

    Args:
        trend: rows of `controller_trend` of the whole run.
        document: as `logprobe mis` describes the correction.
    """
    steps = trend["step"].to_pylist()
    if not steps:
        return {"rows": [], "marks": [], "spans": [], "alt": ""}
    spans = spans_of(document["actions"], document["from_step"], steps[-1])
    rows = [_row(trend, row) for row in _ROWS]
    return {
        "rows": [row for row in rows if row is not None],
        "first": steps[0],
        "last": steps[-1],
        "spans": spans,
        "marks": [_mark(each) for each in document["actions"] if each["step"] is not None],
        "alt": _in_words(spans, document),
    }


def spans_of(actions: Sequence[Mapping[str, Any]], since: int | None, last: int) -> list[dict[str, Any]]:
    """When a correction was announced and when it was on, by its audit: ``{"phase", "first", "last"}``.

    `since`: first step of the newest correction, for an audit that does not say it. It is on from the step that the directive names, until one that takes it back begins; announced from the decision up to then.
    """
    found: list[dict[str, Any]] = []
    begun: int | None = None
    for each in actions:
        if each["name"] == "switched_on":
            before, begun = begun, (each["details"] or {}).get("from_step") or since or each["step"]
            if before is not None:  # another correction takes over
                found.append({"phase": "on", "first": before, "last": begun})
            found.append({"phase": "announced", "first": each["step"], "last": begun})
        elif each["name"] in _OVER and begun is not None:
            found.append({"phase": "on", "first": begun, "last": each["step"]})
            begun = None
    if begun is not None:
        found.append({"phase": "on", "first": begun, "last": max(begun, last)})
    return [span for span in found if span["last"] is not None and span["first"] is not None]


def _row(trend: pa.Table, row: tuple[str, str, str, bool]) -> dict[str, Any] | None:
    name, title, unit, log = row
    steps = trend["step"].to_numpy().astype(np.float64)
    values = floats(trend[name])
    values = np.where(values > 0, values, np.nan) if log else values
    if not np.isfinite(values).any():
        return None
    x, y = thin(steps, values, max_points=_POINTS)
    points = [[int(step), None if np.isnan(value) else float(value)] for step, value in zip(x, y, strict=True)]
    known = [value for _, value in points if value is not None]
    floor = floor_of(known, []) if log else None
    below = 0 if floor is None else sum(value < floor for value in known)
    return {"name": name, "title": title, "unit": unit, "log": log, "floor": floor, "below": below, "points": points}


def _mark(action: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "step": action["step"],
        "word": action["name"].replace("_", " "),
        "words": action["words"],
        "tone": action["severity"],
    }


def _in_words(spans: Sequence[Mapping[str, Any]], document: Mapping[str, Any]) -> str:
    on = [f"{number(span['first'])} to {number(span['last'])}" for span in spans if span["phase"] == "on"]
    state = f"The correction was on in steps {', '.join(on)}." if on else "No correction was on."
    return f"Trend of run {document['run']}. {state} {len(document['actions']):,} decisions."
