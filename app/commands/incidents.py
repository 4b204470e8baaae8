"""`logprobe incidents`: what went wrong badly, one object per time: listing, showing, commenting, closing.

The JSON form of `show`: ``{"incident": {"id", "run", "opened_at", "opened_step", "since_step", "cause", "closed_at",
"closed_by", "resolution", …}, "facts": {…}, "happened": […], "changes": […], "comments": […], "similar": […],
"last_good_step", "checkpoint", "checkpoint_folder", "diagnosis": {…}}``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from logprobe.alerts.incidents.actions import ACTIONS, CLOSE, COMMENT
from logprobe.alerts.incidents.ledger import find
from logprobe.app.parsers.arguments import home_path, require_run
from logprobe.app.report.gather import read
from logprobe.app.report.incident import Incident, changes, facts, happened, last_good, report, similar
from logprobe.app.report.written import write_report
from logprobe.app.text import tables
from logprobe.app.text.numbers import when
from logprobe.collectors.plain_text import harmless
from logprobe.monitor import queries
from logprobe.monitor.compare import Place
from logprobe.monitor.home import Home
from logprobe.monitor.reader import open_reader
from logprobe.monitor.service.actions import perform

_WIDEST: Final = 110
_LISTED: Final = ("id", "opened_at", "since_step", "cause", "comments", "closed_at", "closed_by", "resolution")
_HELD: Final = frozenset({"document", "healthy", "seen", "calm", "told"})  # not of interest to people


def run(arguments: argparse.Namespace) -> int:
    """Does what was asked; → exit code."""
    return _COMMANDS[arguments.action](arguments)


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
    with open_reader(home_path(arguments)) as reader:
        opened = find(reader, arguments.incident, by_id=arguments.id)
        incident = read(Place(opened["run"], opened["run"], reader), opened)
    if arguments.html:
        write_report(Path(arguments.html), report(incident))
    else:
        tables.show(_document(incident), lambda: "\n".join(_text(incident)) + "\n", as_json=arguments.json)
    return 0


def _document(incident: Incident) -> dict[str, object]:
    opened = incident.opened or {}
    keys = ("time", "step", "what", "words")
    return {
        "incident": {name: value for name, value in opened.items() if name not in _HELD},
        "facts": dict(facts(incident)),
        "happened": [dict(zip(keys, row, strict=True)) for row in happened(incident)],
        "changes": [dict(zip(keys, row, strict=True)) for row in changes(incident)],
        "comments": list(incident.comments),
        "similar": list(incident.similar),
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
    comments = [(when(row["time"]), row["author"], row["words"]) for row in incident.comments]
    parts: Sequence[tuple[str, Sequence[str], Sequence[Sequence[Any]]]] = (
        ("what happened", ("UTC", "step", "what", "words"), happened(incident)),
        ("what changed before", ("UTC", "step", "what", "change"), changes(incident)),
        ("comments", ("UTC", "who", "words"), comments),
        ("similar incidents", ("incident", "opened", "since step", "resolution"), similar(incident)),
    )
    for title, head, rows in parts:
        yield ""
        yield f"{title}: none" if not rows else f"{title}\n{tables.aligned(list(head), rows, widest=_WIDEST)}"


def _comment(arguments: argparse.Namespace) -> int:
    document = {
        "incident": arguments.incident,
        "by_id": arguments.id,
        "author": arguments.author,
        "words": arguments.words,
    }
    done = perform(ACTIONS, Home(home_path(arguments)), COMMENT, document)
    print(f"{harmless(done['incident'])}: noted")
    return 0


def _close(arguments: argparse.Namespace) -> int:
    document = {
        "incident": arguments.incident,
        "by_id": arguments.id,
        "author": arguments.author,
        "resolution": arguments.resolution,
    }
    done = perform(ACTIONS, Home(home_path(arguments)), CLOSE, document)
    print(harmless(f"{done['incident']}: closed by {done['closed_by']} at {when(done['closed_at'])} UTC"))
    return 0


_COMMANDS: Final[dict[str, Callable[[argparse.Namespace], int]]] = {
    "close": _close,
    "comment": _comment,
    "list": _list,
    "show": _show,
}
