"""The density of log-ratios as a chart, as pure functions.

The chart is a picture of one pixel per column and bin, overlaid with quantiles and gaps.
"""

from __future__ import annotations

import io
import math
from base64 import b64encode
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Final

import numpy as np

from logprobe.app.dashboard.figures import STEPS, Chart, plain, transparent
from logprobe.app.dashboard.panels import PAIR_WORDS
from logprobe.app.dashboard.theme import Theme
from logprobe.app.dashboard.thinning import Floats
from logprobe.app.text.numbers import number
from logprobe.monitor.analysis.log_ratio_density import Density

QUANTILES: Final = {"p1": 0.01, "p50": 0.5, "p99": 0.99}
_HEIGHT: Final = 370
_SOFTER: Final = 0.5  # power of a share that decides its shade: tails are what one looks for
_ROOMY: Final = 0.18  # of the width: a gap with room for its reason
_LABELLED: Final = 4  # decades at most, on either side
_ROOM: Final = 0.05  # of the height, between 0 and the next label
_PLAIN: Final = 3  # decades around 1 that are written out


def heat_chart(run: str, density: Density, pair: str, *, theme: Theme, why_absent: str) -> tuple[Chart, float]:
    """Return the chart, and the share of a step's tokens per bin with the darkest colour.

    `why_absent`: missing input of a pair without log-probs, or "".
    """
    tokens, edges, rows = density.tokens_CB, edges_of(density), density.tokens_CB.shape[1]
    low, high = float(edges[0]), float(max(edges[-1], edges[0] + 1e-9))
    gaps = list(gaps_of(density, why_absent))
    lines = density.quantiles(list(QUANTILES.values()))
    middles = (edges[:-1] + edges[1:]) / 2
    shade = darkest(tokens)
    layout = {
        "height": _HEIGHT,
        "margin": {"l": 54, "r": 40, "t": 8, "b": 40, "pad": 0},
        "showlegend": False,
        "uirevision": f"{run} {pair}",
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"size": 11, "color": theme.muted},
        "hovermode": "closest",
        "dragmode": "zoom",
        "xaxis": {
            "range": [low, high],
            "showgrid": False,
            "zeroline": False,
            "tickformat": ",d",
            "nticks": 12,
            "title": {"text": STEPS, "standoff": 4, "font": {"size": 11}},
        },
        "yaxis": {
            "range": [0, rows],
            "fixedrange": True,
            "showgrid": False,
            "zeroline": False,
            "tickvals": [at for at, _ in ticks(density)],
            "ticktext": [text for _, text in ticks(density)],
        },
        "images": [
            {
                "source": _picture(tokens, ramp(theme, theme.color(pair)), shade),
                "xref": "x",
                "yref": "y",
                "x": low,
                "y": rows,
                "sizex": high - low,
                "sizey": rows,
                "sizing": "stretch",
                "layer": "below",
            }
        ],
        "shapes": [_gap(edges[begin], edges[end], rows, theme) for begin, end, _ in gaps],
        "annotations": [*_reasons(gaps, edges, rows, theme), *_names(lines, theme)],
    }
    ends = density.edges()
    words = {}
    for at in range(len(tokens)):
        place = float(middles[at])
        words[str(int(place)) if place == int(place) else repr(place)] = _said(density, at, lines, ends, gaps)
    chart = Chart(
        {"data": _lines(lines, middles, theme), "layout": layout},
        run,
        alt_of(density, pair, lines, ends),
        words=words,
        whole=True,
        note=note_of(density),
    )
    return chart, shade if tokens.any() else 0.0


def edges_of(density: Density) -> Floats:
    """Return the edges of the columns. Each column begins half a step before its first step."""
    columns = density.columns
    begins = np.minimum(columns.first + np.arange(columns.size + 1) * columns.width, columns.last + 1)
    beside: Floats = begins.astype(np.float64) - 0.5
    return beside


def darkest(tokens: Any) -> float:
    """Return the share of a column's tokens per bin that has the darkest colour.

    Only the middle bin may exceed it. That bin holds all smaller |d| and often most of the tokens.
    """
    shares = tokens / np.maximum(tokens.sum(axis=1, keepdims=True), 1)
    shares[:, tokens.shape[1] // 2] = 0
    return float(shares.max(initial=0.0)) or 1.0


def ramp(theme: Theme, color: str, shades: int = 64) -> Any:
    """Return colours from that of the page through `color` to that of the text, shape [shades, 3]."""
    knots = np.array(
        [[int(each[at : at + 2], 16) for at in (1, 3, 5)] for each in (theme.page, color, theme.text)], dtype=np.float64
    )
    places = np.linspace(0, 1, shades)
    return (
        np.stack([np.interp(places, (0, 0.6, 1), knots[:, channel]) for channel in range(3)], axis=1)
        .round()
        .astype(np.uint8)
    )


def _picture(tokens: Any, colors: Any, shade: float) -> str:
    """Return a PNG as a data URL, a pixel per column and bin."""
    from PIL import Image  # noqa: PLC0415 -- only this page needs it

    shares = tokens / np.maximum(tokens.sum(axis=1, keepdims=True), 1)
    depth = np.minimum(1.0, shares / shade) ** _SOFTER
    level = np.maximum(1, np.round(depth * (len(colors) - 1))).astype(np.int64)
    cells = np.concatenate([colors[level], np.where(tokens > 0, 255, 0).astype(np.uint8)[..., None]], axis=2)
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(cells.transpose(1, 0, 2)[::-1])).save(file, "PNG")
    return f"data:image/png;base64,{b64encode(file.getvalue()).decode('ascii')}"


def ticks(density: Density) -> list[tuple[float, str]]:
    """Return ticks at 0 and at powers of ten on either side, without overlapping labels."""
    low, high = math.ceil(math.log10(density.floor) + 1e-9), math.floor(math.log10(density.ceiling))
    every = max(1, math.ceil((high - low + 1) / _LABELLED))
    middle, room = density.place(0.0), _ROOM * density.tokens_CB.shape[1]
    powers = [power for power in range(high, low - 1, -every) if density.place(10.0**power) - middle >= room]
    sizes = [(10.0**power, number(10.0**power) if -_PLAIN <= power <= _PLAIN else f"1e{power}") for power in powers]
    signed = [*((-size, f"−{text}") for size, text in sizes), (0.0, "0"), *reversed(sizes)]
    return [(density.place(d), text) for d, text in signed]


def gaps_of(density: Density, why_absent: str) -> Iterator[tuple[int, int, str]]:
    """Yield ranges of columns without a density, each with its reason."""
    at = 0
    for reason, members in groupby(_why(density, column, why_absent) for column in range(density.columns.size)):
        count = len(list(members))
        if reason:
            yield at, at + count, reason
        at += count


def _why(density: Density, column: int, why_absent: str) -> str:
    if density.tokens_CB[column].any() or not density.steps_C[column]:
        return ""  # there, or there was no step to be seen
    if density.profiled_C[column] < density.steps_C[column]:
        return "not profiled yet: this follows within seconds"
    if not density.kept_C[column]:
        return "raw tokens were not kept: record them, or raise the retention budget"
    if density.broken_C[column]:
        return "every token with both log-probs is broken"
    return why_absent or "no token has both log-probs of this pair"


def _lines(lines: Floats, middles: Floats, theme: Theme) -> list[dict[str, Any]]:
    """Return each quantile as a line over a halo, which is visible on any shade."""
    base = {"type": "scatter", "mode": "lines", "x": middles.tolist(), "hoverinfo": "skip"}
    dashes = {"p1": "dash", "p50": "solid", "p99": "dash"}
    return [
        base
        | {
            "y": [None if np.isnan(y) else round(float(y), 2) for y in lines[:, at]],
            "name": name,
            "line": {"width": width, "color": color, "dash": dash},
        }
        for at, name in enumerate(QUANTILES)
        for width, color, dash in ((3.6, theme.page, "solid"), (1.2, theme.text, dashes[name]))
    ]


def _names(lines: Floats, theme: Theme) -> list[dict[str, Any]]:
    newest = {name: lines[np.isfinite(lines[:, at]), at] for at, name in enumerate(QUANTILES)}
    base = {
        "xref": "x domain",
        "x": 1,
        "xanchor": "left",
        "yref": "y",
        "showarrow": False,
        "xshift": 4,
        "font": {"size": 11, "color": theme.text},
    }
    return [base | {"text": name, "y": float(known[-1])} for name, known in newest.items() if len(known)]


def _gap(begin: float, end: float, rows: int, theme: Theme) -> dict[str, Any]:
    line = {"width": 1, "dash": "dot", "color": theme.muted}
    shape = {
        "type": "rect",
        "xref": "x",
        "yref": "y",
        "x0": float(begin),
        "x1": float(end),
        "y0": 0,
        "y1": rows,
        "layer": "below",
    }
    return shape | {"line": line, "fillcolor": transparent(theme.neutral, 0.1)}


def _reasons(gaps: Sequence[tuple[int, int, str]], edges: Floats, rows: int, theme: Theme) -> list[dict[str, Any]]:
    """Label the gaps of sufficient width with their reasons. Arrow keys and pointer show the reason of every gap."""
    base = {"y": rows / 2, "showarrow": False, "bgcolor": theme.page, "font": {"size": 12, "color": theme.text}}
    return [
        base | {"text": plain(why), "x": float(edges[begin] + edges[end]) / 2}
        for begin, end, why in gaps
        if edges[end] - edges[begin] > _ROOMY * (edges[-1] - edges[0])
    ]


def _said(density: Density, at: int, lines: Floats, ends: Floats, gaps: Sequence[tuple[int, int, str]]) -> str:
    columns = density.columns
    first = columns.first + at * columns.width
    last = min(first + columns.width - 1, columns.last)
    where = f"step {first:,}" if first == last else f"steps {first:,}–{last:,}"
    why = next((why for begin, end, why in gaps if begin <= at < end), "")
    total = int(density.tokens_CB[at].sum())
    if why or not total:
        return f"{where} · {why or 'no step here'}"
    known = [f"{name} {_value(lines[at, of], ends)}" for of, name in enumerate(QUANTILES) if np.isfinite(lines[at, of])]
    return f"{where} · {total:,} tokens · d: {', '.join(known)}"


def _value(place: float, ends: Floats) -> str:
    return number(float(ends[min(int(place), len(ends) - 1)]))


def note_of(density: Density) -> str:
    """Return the parts of the data that the picture omits."""
    expected, seen = int(density.expected_C.sum()), int(density.seen_C.sum())
    drawn, broken = int(density.tokens_CB.sum()), int(density.broken_C.sum())
    missing = expected - drawn - broken
    parts = [
        f"{broken:,} broken tokens left out" if broken else "",
        f"{missing:,} of {expected:,} tokens have no density" if missing > 0 and drawn else "",
        "raw tokens of some were removed or have not arrived yet" if drawn and seen < expected else "",
    ]
    return " · ".join(filter(None, parts))


def alt_of(density: Density, pair: str, lines: Floats, ends: Floats) -> str:
    """Return a description of the picture in words."""
    measured = np.flatnonzero(np.isfinite(lines[:, 1]))
    about = PAIR_WORDS[pair].partition(":")[0]
    head = f"Density of the log-ratio of the pair {pair} ({about}), steps {density.columns.first:,} to {density.columns.last:,}."
    if not len(measured):
        return f"{head} Nothing to draw."
    low, middle, high = (_value(place, ends) for place in lines[measured[-1]])
    return f"{head} In the newest column 98 % of the tokens lie between {low} and {high}, the median is near {middle}."
