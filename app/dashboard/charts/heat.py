"""The density of log-ratios as a chart for `browser/chart.js`: a picture of one pixel per column and bin, with lines
and gaps over it. Pure."""

from __future__ import annotations

import io
from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from logprobe.app.dashboard.charts.axes import Axis
from logprobe.app.dashboard.charts.packing import transparent, unpacked
from logprobe.app.dashboard.data.series import Floats
from logprobe.app.dashboard.theme import Theme
from logprobe.app.text.numbers import number

_HEIGHT: Final = 370
_SOFTER: Final = 0.5  # power of a share that decides its shade: tails are what one looks for
_FINE: Final = 4  # pixels of the picture per column where columns are not equally wide
_ROOMY: Final = 0.18  # of the width: a gap with room for its reason
_DASHES: Final = {"p1": "dash", "p50": "solid", "p99": "dash"}


def heat_chart(drawn: Mapping[str, Any], run: str, axis: Axis, theme: Theme) -> dict[str, object]:
    """Data of `browser/chart.js`; `drawn`: of `density_of`."""
    tokens, edges = tokens_of(drawn), edges_of(drawn, axis)
    lines, rows = drawn["lines"], drawn["rows"]
    low, high = float(edges[0]), float(max(edges[-1], edges[0] + 1e-9))
    layout = {
        "height": _HEIGHT, "margin": {"l": 54, "r": 40, "t": 8, "b": 40, "pad": 0}, "showlegend": False,
        "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)", "font": {"size": 11, "color": theme.muted},
        "hovermode": "closest", "dragmode": "zoom", "hoverlabel": {"font": {"size": 12}, "align": "left"},
        "xaxis": {
            "range": [low, high], "showgrid": False, "zeroline": False, "tickformat": axis.tickformat, "nticks": 12,
            "title": {"text": axis.title, "standoff": 4, "font": {"size": 11}},
        },
        "yaxis": {
            "range": [0, rows], "fixedrange": True, "showgrid": False, "zeroline": False,
            "tickvals": [tick["at"] for tick in drawn["ticks"]], "ticktext": [tick["text"] for tick in drawn["ticks"]],
        },
        "images": [{
            "source": _picture(tokens, edges, drawn["ramp"], even=axis.kind in {"step", "onset"}), "xref": "x", "yref": "y",
            "x": low, "y": rows, "sizex": high - low, "sizey": rows, "sizing": "stretch", "layer": "below",
        }],
        "shapes": [_gap(gap, edges, rows, theme) for gap in drawn["gaps"]],
        "annotations": [*_reasons(drawn["gaps"], edges, rows, theme), *_names(lines, theme)],
    }  # fmt: skip
    middles = (edges[:-1] + edges[1:]) / 2
    return {
        "run": run, "figure": {"data": [*_lines(lines, middles, theme)], "layout": layout}, "columns": [],
        "stops": [_stops(drawn, run, tokens, middles)], "unit": axis.unit, "window": None, "rows": [], "legend": [],
        "zooms": True, "note": drawn["note"], "note_help": "", "absent": "", "kinds": [], "events": [], "alt": drawn["alt"],
    }  # fmt: skip


def tokens_of(drawn: Mapping[str, Any]) -> NDArray[np.int64]:
    """Tokens by column and bin, shape [columns, bins]."""
    return unpacked(drawn["tokens"]).astype(np.int64).reshape(-1, drawn["rows"])


def darkest(tokens: NDArray[np.int64]) -> float:
    """The share of a column's tokens per bin that is drawn darkest. The middle bin holds all smaller |d|, often most of
    the tokens: it alone may be above."""
    shares = tokens / np.maximum(tokens.sum(axis=1, keepdims=True), 1)
    shares[:, tokens.shape[1] // 2] = 0
    return float(shares.max(initial=0.0)) or 1.0


def edges_of(drawn: Mapping[str, Any], axis: Axis) -> Floats:
    """Where columns begin on the axis, and where the last one ends: half a step before the first step of each."""
    count = (drawn["last"] - drawn["first"]) // drawn["width"] + 1
    begins = np.minimum(drawn["first"] + np.arange(count + 1) * drawn["width"], drawn["last"] + 1).astype(np.float64)
    if axis.kind in {"step", "onset"}:
        return axis.place(begins) - 0.5
    middles: Floats = (axis.place(begins - 1) + axis.place(begins)) / 2
    return middles


def _picture(tokens: NDArray[np.int64], edges: Floats, ramp: Sequence[str], *, even: bool) -> str:
    """A PNG, its columns as wide as on the axis."""
    from PIL import Image  # noqa: PLC0415 -- only this page needs it

    shades = np.array([[int(color[at : at + 2], 16) for at in (1, 3, 5)] for color in ramp], dtype=np.uint8)
    shares = tokens / np.maximum(tokens.sum(axis=1, keepdims=True), 1)
    depth = np.minimum(1.0, shares / darkest(tokens)) ** _SOFTER
    shade = np.maximum(1, np.round(depth * (len(shades) - 1))).astype(np.int64)
    cells = np.concatenate([shades[shade], np.where(tokens > 0, 255, 0).astype(np.uint8)[..., None]], axis=2)
    if not even:
        wide = _FINE * len(tokens)
        at = edges[0] + (np.arange(wide) + 0.5) / wide * (edges[-1] - edges[0])
        cells = cells[np.clip(np.searchsorted(edges, at) - 1, 0, len(tokens) - 1)]
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(cells.transpose(1, 0, 2)[::-1])).save(file, "PNG")
    return f"data:image/png;base64,{b64encode(file.getvalue()).decode('ascii')}"


def _lines(lines: Sequence[Mapping[str, Any]], middles: Floats, theme: Theme) -> list[dict[str, Any]]:
    """Each quantile over its own halo, so that it is seen on any shade."""
    base = {"type": "scatter", "mode": "lines", "x": middles.tolist(), "hoverinfo": "skip"}
    pens = ((3.6, theme.page, "solid"), (1.2, theme.text, ""))
    return [
        base | {"y": line["at"], "name": line["name"], "meta": {"kind": line["name"]}, "line": {"width": width, "color": color, "dash": dash or _DASHES[line["name"]]}}
        for line in lines
        for width, color, dash in pens
    ]  # fmt: skip


def _names(lines: Sequence[Mapping[str, Any]], theme: Theme) -> list[dict[str, Any]]:
    known = [(line["name"], next((at for at in reversed(line["at"]) if at is not None), None)) for line in lines]
    return [
        {"text": name, "xref": "x domain", "x": 1, "xanchor": "left", "yref": "y", "y": at, "showarrow": False, "xshift": 4, "font": {"size": 11, "color": theme.text}}
        for name, at in known
        if at is not None
    ]  # fmt: skip


def _gap(gap: Mapping[str, Any], edges: Floats, rows: int, theme: Theme) -> dict[str, Any]:
    line = {"width": 1, "dash": "dot", "color": theme.muted}
    return {
        "type": "rect", "xref": "x", "yref": "y", "x0": float(edges[gap["from"]]), "x1": float(edges[gap["to"]]), "y0": 0, "y1": rows,
        "layer": "below", "line": line, "fillcolor": transparent(theme.neutral, 0.1),
    }  # fmt: skip


def _reasons(gaps: Sequence[Mapping[str, Any]], edges: Floats, rows: int, theme: Theme) -> list[dict[str, Any]]:
    """Why there is no density, where there is room for it; arrow keys and pointer say it everywhere."""
    roomy = [gap for gap in gaps if edges[gap["to"]] - edges[gap["from"]] > _ROOMY * (edges[-1] - edges[0])]
    return [
        {
            "text": escape(gap["why"], quote=False), "x": float(edges[gap["from"]] + edges[gap["to"]]) / 2, "y": rows / 2, "showarrow": False,
            "bgcolor": theme.page, "font": {"size": 12, "color": theme.text},
        }
        for gap in roomy
    ]  # fmt: skip


def _stops(drawn: Mapping[str, Any], run: str, tokens: NDArray[np.int64], middles: Floats) -> dict[str, object]:
    firsts = drawn["first"] + np.arange(len(tokens)) * drawn["width"]
    lasts = np.minimum(firsts + drawn["width"] - 1, drawn["last"])
    words = [
        _said(drawn, tokens, at, int(first), int(last))
        for at, (first, last) in enumerate(zip(firsts, lasts, strict=True))
    ]
    return {"name": run, "steps": firsts.tolist(), "places": middles.tolist(), "words": words}


def _said(drawn: Mapping[str, Any], tokens: NDArray[np.int64], at: int, first: int, last: int) -> str:
    where = f"step {first:,}" if first == last else f"steps {first:,}–{last:,}"
    why = next((gap["why"] for gap in drawn["gaps"] if gap["from"] <= at < gap["to"]), "")
    total = int(tokens[at].sum())
    if why or not total:
        return f"{where} · {why or 'no step here'}"
    values = [(line["name"], line["at"][at]) for line in drawn["lines"]]
    ends = drawn["edges"]
    quantiles = [
        f"{name} {number(ends[min(int(place), len(ends) - 1)])}" for name, place in values if place is not None
    ]
    return f"{where} · {total:,} tokens · d: {', '.join(quantiles)}"
