"""Points with their errors, and lanes of arrivals over time, for `browser/chart.js`: each says what it is. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, Final

from logprobe.app.dashboard.charts.packing import transparent
from logprobe.app.dashboard.theme import Theme
from logprobe.app.text.numbers import number

_REACH: Final = 2  # standard errors
_HEIGHT, _LANE, _AROUND = 250, 30, 60
_MARGIN: Final = {"l": 64, "r": 10, "t": 10, "b": 40, "pad": 0}
_SYMBOLS: Final = {
    "kept": ("prefix cache kept", "circle"),
    "odd": ("versions skipped, or an older one", "triangle-down"),
}


def points_chart(data: Mapping[str, Any], run: str, theme: Theme) -> dict[str, object]:
    """Points of `data` (`x`, `y`, `error`, `words`) and the `reference` that they are to be compared with.

    `split`: where a line stands between two of them; `log`: whether the y axis is logarithmic.
    """
    points, reference = data["points"], data["reference"]
    bars = [None if point["error"] is None or data["log"] else _REACH * point["error"] for point in points]
    trace = {
        "type": "scatter", "mode": "markers", "x": [point["x"] for point in points], "y": [point["y"] for point in points],
        "text": [escape(point["words"], quote=False) for point in points], "hoverinfo": "text",
        "marker": {"size": 6, "color": theme.accent}, "meta": {"kind": "points"},
        "error_y": {"type": "data", "array": bars, "visible": any(bars), "color": theme.accent, "thickness": 1, "width": 0},
    }  # fmt: skip
    layout = _layout(_HEIGHT, theme, data["x"])
    layout["yaxis"] = {
        "type": "log" if data["log"] else "linear", "gridcolor": theme.line, "zeroline": False, "fixedrange": True, "nticks": 5,
        "rangemode": "normal" if data["log"] else "tozero", "exponentformat": "e",
    }  # fmt: skip
    layout["shapes"] = [*_reference(reference, theme), *_split(data["split"], theme)]
    said = [] if reference is None else [reference["words"]]
    alt = "; ".join([f"{data['title']}: {len(points)} points", *said, "arrow keys go from point to point"])
    stops = sorted(points, key=lambda point: float(point["x"]))
    return _chart(run, [trace], layout, alt, [(point["x"], point["words"]) for point in stops])


def _reference(reference: Mapping[str, Any] | None, theme: Theme) -> list[dict[str, Any]]:
    if reference is None:
        return []
    reach = _REACH * (reference["error"] or 0.0)
    across = {"xref": "x domain", "yref": "y", "x0": 0, "x1": 1, "layer": "below"}
    band = {"type": "rect", "y0": reference["y"] - reach, "y1": reference["y"] + reach, "line": {"width": 0}}
    line = {"type": "line", "y0": reference["y"], "y1": reference["y"], "line": {"width": 1, "color": theme.neutral}}
    return [across | band | {"fillcolor": transparent(theme.neutral, 0.15)}, across | line]


def _split(at: float | None, theme: Theme) -> list[dict[str, Any]]:
    line = {"width": 1, "dash": "dash", "color": theme.neutral}
    upright = {"type": "line", "xref": "x", "yref": "paper", "y0": 0, "y1": 1, "layer": "below"}
    return [] if at is None else [upright | {"x0": at, "x1": at, "line": line}]


def lanes_chart(data: Mapping[str, Any], run: str, theme: Theme) -> dict[str, object]:
    """A lane per engine, the trainer on top: a tick where a version arrived, a bar for how long it took, marks for what
    was odd about it. `data`: see `timeline` in `pages/weights.py`."""
    lanes, first, last = data["lanes"], data["from"], data["to"]
    colors = {"": theme.text, "warning": theme.update, "critical": theme.alarm}
    layout = _layout(len(lanes) * _LANE + _AROUND, theme, "time, UTC")
    layout["margin"] = {**_MARGIN, "l": 190}
    room = 0.02 * (last - first) if first is not None and last > first else 0.5
    shown = None if first is None else [_time(first - room), _time(last + room)]
    layout["xaxis"] |= {"type": "date", "range": shown}
    layout["yaxis"] = {
        "range": [len(lanes) - 0.5, -0.5], "fixedrange": True, "zeroline": False, "gridcolor": theme.line,
        "tickvals": list(range(len(lanes))), "ticktext": [_name(lane) for lane in lanes],
    }  # fmt: skip
    bars = [(each["at"] - each["delay"], each["at"], at) for at, lane in enumerate(lanes) for each in lane["arrivals"] if each.get("delay")]  # fmt: skip
    ticks = [(at, lane, each) for at, lane in enumerate(lanes) for each in lane["arrivals"]]
    traces = [
        {
            "type": "scatter", "mode": "lines", "hoverinfo": "skip", "meta": {"kind": "bars"},
            "x": [x for begin, end, _ in bars for x in (_time(begin), _time(end), None)],
            "y": [y for *_, at in bars for y in (at, at, None)], "line": {"width": 6, "color": transparent(theme.accent, 0.45)},
        },
        _marks("arrivals", ticks, "line-ns-open", [colors[lane["tone"]] if lane["engine"] else theme.muted for _, lane, _ in ticks], 0.0),
        *(
            _marks(kind, [tick for tick in ticks if _is(kind, tick[2])], symbol, theme.update, shift)
            for (kind, (_, symbol)), shift in zip(_SYMBOLS.items(), (0.32, -0.32), strict=True)
        ),
    ]  # fmt: skip
    layout["shapes"] = [
        _gone(at, lane, last, theme) for at, lane in enumerate(lanes) if lane["gone"] and last is not None
    ]
    stops = sorted(((each["at"] * 1000, _said(lane, each)) for _, lane, each in ticks), key=lambda stop: stop[0])
    there = [words for kind, (words, _) in _SYMBOLS.items() if any(_is(kind, each) for *_, each in ticks)]
    signs = {
        "prefix cache kept": "●",
        "versions skipped, or an older one": "▼",
        "time it took": "▬",
        "no update since": "┅",
    }
    there += ["time it took"] * bool(bars) + ["no update since"] * any(lane["gone"] for lane in lanes)
    kinds = [{"kind": words, "name": words, "sign": signs[words], "color": theme.update} for words in there]
    return _chart(run, traces, layout, data["alt"], stops) | {"kinds": kinds}


def _is(kind: str, arrival: Mapping[str, Any]) -> bool:
    return bool(arrival.get("kept") if kind == "kept" else arrival.get("skipped") or arrival.get("backwards"))


def _marks(
    kind: str,
    ticks: Sequence[tuple[int, Mapping[str, Any], Mapping[str, Any]]],
    symbol: str,
    color: object,
    shift: float,
) -> dict[str, Any]:
    tall = symbol.startswith("line")
    return {
        "type": "scatter", "mode": "markers", "meta": {"kind": kind}, "hoverinfo": "text",
        "x": [_time(each["at"]) for *_, each in ticks], "y": [at + shift for at, *_ in ticks],
        "text": [escape(_said(lane, each), quote=False) for _, lane, each in ticks],
        "marker": {"symbol": symbol, "size": 14 if tall else 6, "color": color, "line": {"width": 1.4 if tall else 0, "color": color}},
    }  # fmt: skip


def _gone(at: int, lane: Mapping[str, Any], last: float, theme: Theme) -> dict[str, Any]:
    since = lane["arrivals"][-1]["at"] if lane["arrivals"] else last
    line = {"width": 1.5, "dash": "dash", "color": theme.alarm}
    return {"type": "line", "xref": "x", "yref": "y", "x0": _time(since), "x1": _time(last), "y0": at, "y1": at, "layer": "below", "line": line}  # fmt: skip


def _name(lane: Mapping[str, Any]) -> str:
    return escape(lane["name"], quote=False) + (
        f"<br><i>{escape(lane['note'], quote=False)}</i>" if lane["note"] else ""
    )


def _said(lane: Mapping[str, Any], arrival: Mapping[str, Any]) -> str:
    kept, skipped = arrival.get("kept"), arrival.get("skipped")
    parts = [
        f"{lane['name']}: version {arrival['version']}",
        f"of step {arrival['step']:,}" if "step" in arrival else "",
        f"arrived {datetime.fromtimestamp(arrival['at'], UTC):%H:%M:%S} UTC",
        f"took {number(arrival['delay'])} s" if "delay" in arrival else "",
        f"pause mode {arrival['mode']}" if "mode" in arrival else "",
        f"paused {number(arrival['pause'])} s" if "pause" in arrival else "",
        "" if kept is None else "prefix cache kept" if kept else "prefix cache cleared",
        "announced but never loaded" if lane["engine"] and not arrival.get("loaded") else "",
        f"{skipped:,} {'version' if skipped == 1 else 'versions'} skipped before it" if skipped else "",
        "older than the one before it" if arrival.get("backwards") else "",
        f"reloaded {arrival['reloads']:,}×" if "reloads" in arrival else "",
    ]
    return " · ".join(filter(None, parts))


def _time(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S.%f}"


def _layout(height: int, theme: Theme, title: str) -> dict[str, Any]:
    return {
        "height": height, "margin": dict(_MARGIN), "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"size": 11, "color": theme.muted}, "showlegend": False, "hovermode": "closest", "dragmode": False,
        "hoverlabel": {"font": {"size": 12}, "align": "left"}, "annotations": [],
        "xaxis": {
            "gridcolor": theme.line, "zeroline": False, "fixedrange": True, "nticks": 10,
            "title": {"text": escape(title, quote=False), "standoff": 4, "font": {"size": 11}},
        },
    }  # fmt: skip


def _chart(
    run: str, traces: Sequence[object], layout: Mapping[str, Any], alt: str, stops: Sequence[tuple[float, str]]
) -> dict[str, object]:
    """Data of `browser/chart.js`; `stops`: places to go to by arrow keys, with what is said there."""
    places, words = [place for place, _ in stops], [said for _, said in stops]
    return {
        "run": run, "figure": {"data": list(traces), "layout": layout}, "columns": [],
        "stops": [{"name": run, "steps": places, "places": None, "words": words}], "unit": "", "zooms": False, "window": None, "rows": [],
        "legend": [], "note": "", "note_help": "", "absent": "", "kinds": [], "events": [], "alt": alt,
    }  # fmt: skip
