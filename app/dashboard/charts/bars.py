"""Bars over buckets for `browser/chart.js`: a row per measure, a second range as marks over the first. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

from logprobe.app.dashboard.theme import Theme

_HEIGHT, _HEAD, _TOP, _BOTTOM = 58, 26, 2, 34
_LABELS: Final = 6  # on the axis


def bars_chart(column: Mapping[str, Any], profiles: Mapping[str, Any], run: str, theme: Theme) -> dict[str, object]:
    """A column of `profiles` (`profiles_of` in `pages/mismatch.py`), one row per measure."""
    measures, sides, color = profiles["measures"], profiles["sides"], profiles["color"]
    labels = [str(label) for label in column["labels"]]
    inner = len(measures) * (_HEIGHT + _HEAD)
    every = math.ceil(len(labels) / _LABELS)
    layout: dict[str, Any] = {
        "height": _TOP + inner + _BOTTOM, "margin": {"l": 4, "r": 4, "t": _TOP, "b": _BOTTOM, "pad": 0}, "showlegend": False,
        "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)", "font": {"size": 11, "color": theme.muted},
        "hovermode": "closest", "dragmode": False, "bargap": 0.04, "shapes": [], "annotations": [],
        "xaxis": {
            "anchor": "free", "position": 0, "fixedrange": True, "showgrid": False, "zeroline": False, "ticks": "",
            "range": [-0.5, len(labels) - 0.5],
            "tickvals": list(range(0, len(labels), every)), "ticktext": [escape(label, quote=False) for label in labels[::every]],
        },
    }  # fmt: skip
    traces = []
    for at, _ in enumerate(measures):
        key = "" if at == 0 else str(at + 1)
        top = at * (_HEIGHT + _HEAD) + _HEAD
        layout[f"yaxis{key}"] = {
            "domain": [max(0.0, 1 - (top + _HEIGHT) / inner), 1 - top / inner], "anchor": "x", "fixedrange": True,
            "visible": True, "showticklabels": False, "showgrid": False, "zeroline": True, "zerolinecolor": theme.muted,
        }  # fmt: skip
        traces += [
            _trace(side, values, f"y{key}", color, theme)
            for side, values in enumerate(column["values"][at][: len(sides)])
        ]
    return {
        "run": f"{run}-{column['key']}", "figure": {"data": traces, "layout": layout}, "columns": [], "zooms": False,
        "stops": [{"name": run, "steps": list(range(len(labels))), "places": None, "words": labels}], "unit": "", "window": None,
        "rows": [_row(column, profiles, at, theme) for at in range(len(measures))],
        "legend": [], "note": "", "note_help": "", "absent": "", "kinds": [], "events": [],
        "alt": ". ".join(_alt(column, measure, at) for at, measure in enumerate(measures)),
    }  # fmt: skip


def _trace(
    side: int, values: Sequence[Mapping[str, Any] | None], axis: str, color: str, theme: Theme
) -> dict[str, Any]:
    base = {
        "x": list(range(len(values))), "y": [None if each is None else each["value"] for each in values], "yaxis": axis,
        "hoverinfo": "skip", "meta": {"row": axis, "run": 0, "line": side},
    }  # fmt: skip
    if side == 0:
        return base | {"type": "bar", "marker": {"color": color, "opacity": 0.7}}
    marker = {"symbol": "line-ew-open", "size": 14, "color": theme.text, "line": {"width": 2, "color": theme.text}}
    return base | {"type": "scatter", "mode": "markers", "marker": marker}


def _row(column: Mapping[str, Any], profiles: Mapping[str, Any], at: int, theme: Theme) -> dict[str, object]:
    measure, sides, color = profiles["measures"][at], profiles["sides"], profiles["color"]
    lines = []
    for side, values in enumerate(column["values"][at][: len(sides)]):
        known = [each["value"] for each in values if each is not None]
        furthest = max(known, key=abs, default=None)  # while no bucket is looked at: the one furthest from 0
        drawn = color if side == 0 else theme.text
        name = "other" if side else "view"  # short: four of these charts stand side by side
        lines.append(
            {"line": side, "run": 0, "role": "", "name": name, "color": drawn, "dash": "solid", "latest": furthest}
        )
    return {
        "axis": f"y{at + 1}" if at else "y", "key": measure["title"], "title": measure["title"], "unit": measure["unit"], "help": column["help"],
        "log": False, "other": None, "note": "", "lines": lines,
    }  # fmt: skip


def _alt(column: Mapping[str, Any], measure: Mapping[str, str], at: int) -> str:
    first = column["values"][at][0]
    values = [
        f"{label} {'none' if each is None else each['text']}"
        for label, each in zip(column["labels"], first, strict=True)
    ]
    return f"{measure['title']} by {column['title'].lower()}: {', '.join(values)}"
