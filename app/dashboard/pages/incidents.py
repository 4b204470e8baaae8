"""Incidents: all of them, or one with what happened and what changed before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, urlencode

from logprobe.app.dashboard.data.feed import Snapshot
from logprobe.app.dashboard.elements.blocks import Block, heading, place, row, table, text
from logprobe.app.dashboard.elements.links import link
from logprobe.app.dashboard.elements.verdict import setting_lines
from logprobe.app.dashboard.page_table import BY_PATH
from logprobe.app.dashboard.views.page import show
from logprobe.app.dashboard.views.report import report
from logprobe.app.dashboard.views.session import asked, feed, guarded, read_once, theme
from logprobe.app.report.gather import read
from logprobe.app.report.incident import Incident, alert_remedies, annex, story
from logprobe.app.runs import Run
from logprobe.app.text.correction import remedy
from logprobe.app.text.html import joined, style
from logprobe.app.text.judgement import SIGNS
from logprobe.app.text.numbers import when
from logprobe.monitor import queries
from logprobe.monitor.compare import Place
from logprobe.monitor.judging.leading import leading

Row = Mapping[str, Any]
_PLACE: Final = "incidents"
_HEAD: Final = ("incident", "opened, UTC", "since step", "cause", "closed, UTC")
_NEXT: Final = ("", "diagnosis", "tokens", "alerts", "actions")


def all_blocks(rows: Sequence[Row]) -> list[Block]:
    """Blocks of `views/report.py` for the list of all incidents. `rows`: of `incident_list`."""
    going_on = sum(row["closed_at"] is None for row in rows)
    return [
        heading("Incidents", f"{going_on} open, {len(rows) - going_on} closed" if rows else ""),
        table(_PLACE, _HEAD, [_line(incident) for incident in rows], empty="No run has been critical.", fold=True),
    ]


def _line(incident: Row) -> Block:
    opened = incident["closed_at"] is None
    cells = [
        place(incident["id"], href=_link(incident)),
        when(incident["opened_at"]),
        "–" if incident["since_step"] is None else f"{incident['since_step']:,}",
        (incident["cause"] or "–").replace("_", " "),
        "open" if opened else when(incident["closed_at"]),
    ]
    return row(cells, tone="critical" if opened else "")


def _query(incident: Row) -> str:
    return urlencode({"run": incident["run"], "incident": incident["id"]}, quote_via=quote)


def _link(incident: Row) -> str:
    return f"./?page=incidents&{_query(incident)}"


def verdict_block(incident: Incident, run: Run | None) -> Block:
    """Return the block above the document of an incident: its state, what to do, where to go on."""
    opened = incident.opened or {}
    first = leading(incident.document)
    icon, _ = SIGNS["critical" if opened["closed_at"] is None else "unknown"]
    state = "Open" if opened["closed_at"] is None else "Closed"
    lines = [list(pair) for pair in alert_remedies(incident)]
    lines += [] if first is None else [[first["cause"].replace("_", " "), remedy(first, incident.standing)]]
    lines += [] if first is None else setting_lines(first, incident.standing)
    return {
        "type": "verdict",
        "tone": "critical" if opened["closed_at"] is None else "unknown",
        "icon": icon,
        "word": f"{state}: incident {opened['id']}",
        "words": f"{incident.headline}.",
        "facts": [],
        "do": lines,
        "links": [
            {"title": "All incidents", "href": "./?page=incidents&incident="},
            *({"title": BY_PATH[path].title, "href": link(path, run)} for path in _NEXT if run is not None),
        ],
    }


def draw(snapshot: Snapshot, run: Run | None) -> None:  # noqa: ARG001 -- the address names the incident
    """Draws the page."""
    wanted = asked("incident")
    with guarded("incident" if wanted else "list of incidents"):
        rows = queries.incident_show(feed(), incident=wanted).to_pylist() if wanted else []
        if rows and asked("run") in {None, rows[0]["run"]}:  # another run may have been picked since
            _draw_one(snapshot, rows[0])
            return
        missing = [text(f"There is no incident {wanted!r}; these are known.", "warning")] if wanted and not rows else []
        report(_PLACE, "incidents", [*missing, *all_blocks(queries.incident_list(feed(), run=None).to_pylist())])


def _draw_one(snapshot: Snapshot, opened: Row) -> None:
    run = snapshot.run(opened["run"])
    version = (opened["id"], opened["closed_at"], opened["diagnosed_at"], run and (run.revision, run.news))
    incident = read_once("incident", version, lambda: read(Place(opened["run"], opened["run"], feed()), opened))
    if incident is None:
        return
    report("incident", "incident", [verdict_block(incident, run)])
    markup = joined([*story(incident), *annex(incident)])
    data = {"label": "postmortem", "markup": markup, "style": style(), "theme": theme().mode}
    show("document", "document", data | {"version": f"{hash((version, theme().mode)):x}"})
