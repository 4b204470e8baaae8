"""The dashboard's linked chart in a notebook, as a plotly figure: ``figure("/shared/logprobe", "my-run")``."""

from __future__ import annotations

from base64 import b64decode
from contextlib import suppress
from datetime import UTC, datetime
from os import PathLike
from textwrap import wrap
from typing import Any, Final

import numpy as np
import plotly.graph_objects as go

from logprobe.app.dashboard.data import METRICS, Grown, events
from logprobe.app.dashboard.figures import plain
from logprobe.app.dashboard.panels import OVERVIEW
from logprobe.app.dashboard.steps import onset_of, steps_chart
from logprobe.app.dashboard.theme import DARK, LIGHT
from logprobe.app.dashboard.verdict import read_latest_diagnosis, sentence, verdict_of
from logprobe.app.ingesting import take
from logprobe.app.runs import runs_of
from logprobe.collectors.errors import HomeBusyError, ServiceUnavailableError, StoreError
from logprobe.monitor import queries
from logprobe.monitor.home import Home
from logprobe.monitor.reader import Reader, open_reader

_LINE: Final = 22  # pixels of a line of the title
_LONGEST: Final = 120  # characters of one


def figure(home: str | PathLike[str], run: str, *, dark: bool = False) -> go.Figure:
    """Return the Overview's rows over steps, with marks, baseline band, onset and the verdict as title.

    The title also names rows without values. The data comes from the service. Without a service, the spool is ingested
    first.

    Raises:
        StoreError: the run or the store does not exist.
        ServiceUnavailableError: the service of the data directory does not answer.
    """
    _ingest(Home(home))
    with open_reader(home) as reader:
        try:
            return _figure(reader, home, run, dark=dark)
        except ServiceUnavailableError as error:
            words = f"the service of {home} stopped responding; try again, or start it: logprobe up"
            raise ServiceUnavailableError(words) from error


def _plain_values(value: Any) -> Any:
    """Return an array as plain values, because readers of a notebook access them."""
    if isinstance(value, dict) and "bdata" in value:
        return np.frombuffer(b64decode(value["bdata"]), f"<{value['dtype']}")
    return value


def _ingest(home: Home) -> None:
    """Ingest the spool unless a service runs. Skip a data directory that is busy or read-only."""
    if home.owner() is None and home.spool.is_dir():
        with suppress(HomeBusyError, OSError):
            take(home)


def _figure(reader: Reader, home: str | PathLike[str], name: str, *, dark: bool) -> go.Figure:
    runs = {run.name: run for run in runs_of(queries.app_runs(reader), datetime.now(UTC))}
    if name not in runs:
        raise StoreError(f"there is no run {name!r} in {home}; choose one of: {', '.join(runs) or 'none yet'}")
    theme, run = DARK if dark else LIGHT, runs[name]
    frame = Grown(name, METRICS, lambda: reader).at(run.revision)
    found = read_latest_diagnosis(reader, name)
    said = sentence(verdict_of(run.judgement, found, frame["step"].to_list()))
    baseline, onset = None if found is None else found.document["growth"]["baseline"], onset_of(found)
    chart = steps_chart(
        name, frame, OVERVIEW, theme, marks=events(reader, name), baseline=baseline, since=onset, exact=True
    )
    layout = chart.figure["layout"]
    for row, heading in zip(chart.rows, layout["annotations"], strict=False):  # which line is which, without a pointer
        for line in row["lines"]:
            chart.figure["data"][line["trace"]]["name"] = ", ".join(filter(None, [row["title"], line["name"]]))
            heading["text"] += f' <span style="color:{line["color"]}">{plain(line["name"])}</span>'
    title = [f"<b>{plain(name)}</b>", *(plain(line) for words in (said, chart.note) for line in wrap(words, _LONGEST))]
    head = _LINE * (len(title) + 1)
    layout |= {
        "title": {
            "text": "<br>".join(title),
            "font": {"size": 13, "color": theme.text},
            "y": 1,
            "yanchor": "top",
            "pad": {"t": _LINE},
        },
        "height": layout["height"] + head,
        "margin": {**layout["margin"], "t": layout["margin"]["t"] + head},
        "paper_bgcolor": theme.page,
        "plot_bgcolor": theme.page,
        "hovermode": "x",
        "showlegend": False,
    }
    made = go.Figure(
        [{key: _plain_values(value) for key, value in trace.items()} for trace in chart.figure["data"]], layout
    )
    return made.update_traces(hoverinfo="x+y+name", selector={"mode": "lines"})
