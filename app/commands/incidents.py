"""`logprobe incidents`: what went badly wrong: a list, or the last one of a run with what changed before it.

The JSON form of `show`: ``{"incident": {"id", "run", "opened_at", "opened_step", "since_step", "cause", "closed_at",
…}, "facts": {…}, "happened": […], "changes": […], "last_good_step", "checkpoint", "checkpoint_folder", "diagnosis":
{…}}``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Final

from logprobe.app.parsers.arguments import home_path, require_run
from logprobe.app.report.gather import read
from logprobe.app.report.incident import Incident, changes, facts, happened, last_good
from logprobe.app.runs import run_reader
from logprobe.app.text import tables
from logprobe.app.text.numbers import when
from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.plain_text import harmless
from logprobe.monitor import queries
from logprobe.monitor.compare import Place
from logprobe.monitor.queries import Source
from logprobe.monitor.reader import open_reader

_WIDEST: Final = 110
_LISTED: Final = ("id", "opened_at", "since_step", "cause", "closed_at")
_INTERNAL: Final = frozenset({"document", "told"})


def run(arguments: argparse.Namespace) -> int:
    """List incidents, or show one; return the exit code."""
    return _show(arguments) if arguments.action == "show" else _list(arguments)


def _list(arguments: argparse.Namespace) -> int:
    with open_reader(home_path(arguments)) as reader:
        if arguments.name:
            require_run(arguments.name, [row["run"] for row in queries.app_runs(reader).to_pylist()])
        rows = queries.incident_list(reader, run=arguments.name).to_pylist()
    if arguments.json:
        print(tables.dump(rows))
    elif rows:
        shown = [[when(row[name]) if name.endswith("_at") else row[name] for name in _LISTED] for row in rows]
        head = [name.removesuffix("_at").replace("_", " ") for name in _LISTED]
        print(tables.aligned(head, shown, widest=_WIDEST))
    else:
        print("no incidents: no run has been critical")
    return 0


def _show(arguments: argparse.Namespace) -> int:
    with run_reader(arguments) as reader:
        incident = read(Place(arguments.name, arguments.name, reader), _last(reader, arguments.name))
    tables.show(_document(incident), lambda: "\n".join(_text(incident)) + "\n", as_json=arguments.json)
    return 0


def _last(source: Source, run: str) -> queries.IncidentShow:
    """Return the run's last incident. Raises `ConfigurationError` if it had none."""
    newest = queries.incident_newest(source, runs=[run]).to_pylist()
    if not newest:
        raise ConfigurationError(f"{run} has no incident: it has not been critical")
    return queries.incident_show(source, incident=newest[0]["id"]).to_pylist()[0]


def _document(incident: Incident) -> dict[str, object]:
    opened = incident.opened or {}
    keys = ("time", "step", "what", "words")
    return {
        "incident": {name: value for name, value in opened.items() if name not in _INTERNAL},
        "facts": dict(facts(incident)),
        "happened": [dict(zip(keys, row, strict=True)) for row in happened(incident)],
        "changes": [dict(zip(keys, row, strict=True)) for row in changes(incident)],
        "last_good_step": last_good(incident),
        "checkpoint": incident.saved and incident.saved["step"],
        "checkpoint_folder": incident.saved and incident.saved["folder"],
        "diagnosis": incident.document,
    }


def _text(incident: Incident) -> Iterator[str]:
    opened = incident.opened or {}
    yield harmless(f"incident {opened.get('id')}: {incident.headline}")
    named = facts(incident)
    widest = max(len(name) for name, _ in named)
    yield from (f"{name:<{widest}}  {harmless(value)}" for name, value in named)
    for title, head, rows in (
        ("what happened", ("UTC", "step", "what", "words"), happened(incident)),
        ("what changed before", ("UTC", "step", "what", "change"), changes(incident)),
    ):
        yield ""
        yield f"{title}: none" if not rows else f"{title}\n{tables.aligned(list(head), rows, widest=_WIDEST)}"
