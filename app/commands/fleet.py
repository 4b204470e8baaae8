"""`logprobe fleet`: several services, each with a share of the runs.

The JSON forms: of ``list`` ``{"services": [{"service", "home", "state", "runs", "live", "waiting", "problem"}],
"moves": [{"run", "from", "to"}]}``; of ``assign`` ``{"run", "service", "address"}``; of ``move`` ``{"run", "from",
"to", "rows", "files"}`` (`takeover`: a list of these, with ``--lost`` of ``{"run", "to", "segments", "missing",
"problem"}``); of ``undo`` ``{"run", "service"}``.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from logprobe.app.runs import runs_of
from logprobe.app.text import tables
from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.plain_text import complain, harmless
from logprobe.monitor.fleet import lost
from logprobe.monitor.fleet.others import VARIABLE
from logprobe.monitor.fleet.table import Fleet, Standing

_COLUMNS: Final = ("service", "state", "runs", "live", "waiting", "home", "problem")


def run(arguments: argparse.Namespace) -> int:
    """Lists, assigns, moves, undoes or takes over; 1 when a service is away."""
    folder = arguments.fleet or os.environ.get(VARIABLE)
    if not folder:
        raise ConfigurationError(f"no fleet: pass --fleet DIR or set {VARIABLE} to the folder of fleet.yaml")
    return _ACTIONS[arguments.action](Fleet(Path(folder).expanduser()), arguments)


def _list(fleet: Fleet, arguments: argparse.Namespace) -> int:
    services = [_row(fleet, name, standing) for name, standing in fleet.standings(_live).items()]
    moves = [{"run": name, "from": row.service, "to": row.to} for name, row in sorted(fleet.rows().items()) if row.to]
    tables.show({"services": services, "moves": moves}, lambda: _words(services, moves), as_json=arguments.json)
    return int(any(service["state"] == "away" for service in services))


def _words(services: list[dict[str, Any]], moves: list[dict[str, Any]]) -> Iterator[str]:
    yield tables.aligned(list(_COLUMNS), [[service[name] for name in _COLUMNS] for service in services]).rstrip("\n")
    for move in moves:
        name = harmless(move["run"])
        yield (
            f"{name} is on its way from {move['from']} to {move['to']}: logprobe fleet move {name} {move['to']}, or: "
            f"logprobe fleet undo {name}"
        )


def _row(fleet: Fleet, name: str, standing: Standing) -> dict[str, Any]:
    """A row of the list: of a service that is away, too."""
    answers = standing.runs is not None
    return {
        "service": name,
        "home": fleet.services[name].home,
        "state": "away" if not answers else "stopped" if standing.problem else "running",
        "runs": len(standing.runs) if standing.runs is not None else None,
        "live": standing.live if answers else None,
        "waiting": standing.waiting if answers else None,
        "problem": standing.problem,
    }


def _live(rows: pa.Table) -> int:
    return sum(not of_run.liveness.state.over for of_run in runs_of(rows, datetime.now(UTC)))


def _standings(fleet: Fleet, *, without: str | None = None) -> dict[str, Standing]:
    """Every service; stderr names those that get no run."""
    standings = fleet.standings(_live)
    for name, standing in standings.items():
        if standing.problem is not None and name != without:
            complain(f"service {name} gets no run: {standing.problem}")
    return standings


def _assign(fleet: Fleet, arguments: argparse.Namespace) -> int:
    name = arguments.name
    row = fleet.rows().get(name)
    service = row.service if row else fleet.assign(name, _standings(fleet))
    if service not in fleet.services:
        raise ConfigurationError(
            f"run {name!r} belongs to service {service!r}, which fleet.yaml does not have any more"
        )
    address = fleet.services[service].address
    document = {"run": name, "service": service, "address": address}
    tables.show(document, lambda: f"{address or fleet.services[service].home}\n", as_json=arguments.json)
    return 0


def _move(fleet: Fleet, arguments: argparse.Namespace) -> int:
    done = fleet.move(arguments.name, arguments.service, arguments.author)
    tables.show(done, lambda: _moved(done), as_json=arguments.json)
    return 0


def _moved(done: Mapping[str, Any]) -> str:
    name = harmless(done["run"])
    if done["from"] == done["to"]:
        return f"no change: {name} is at {done['to']}\n"
    proof = (
        f"{done['rows']:,} rows and {done['files']:,} files proven equal"
        if done["rows"] is not None
        else "it had arrived before"
    )
    return f"{name} moved from {done['from']} to {done['to']}: {proof}\n"


def _undo(fleet: Fleet, arguments: argparse.Namespace) -> int:
    service = fleet.undo(arguments.name, arguments.author)
    done = {"run": arguments.name, "service": service}
    tables.show(done, lambda: f"{harmless(arguments.name)} is at {service}, as before\n", as_json=arguments.json)
    return 0


def _takeover(fleet: Fleet, arguments: argparse.Namespace) -> int:
    if arguments.lost:
        return _lost(fleet, arguments)
    done = []
    for moved in fleet.takeover(arguments.service, _standings(fleet, without=arguments.service), arguments.author):
        done.append(moved)
        print(harmless(_moved(moved)), end="", file=sys.stderr if arguments.json else sys.stdout)
    if arguments.json:
        print(tables.dump(done))
    else:
        print(
            f"{len(done):,} runs taken over. Relays of a fleet with addresses follow by themselves (docs/scaling.md); "
            "give others the address and a token "
            "of the new service"
        )
    return 0


def _lost(fleet: Fleet, arguments: argparse.Namespace) -> int:
    standings = _standings(fleet, without=arguments.service)
    done = []
    for taken in lost.take_over(fleet, arguments.service, standings, arguments.author):
        done.append(taken)
        if taken["problem"] is not None:
            complain(taken["problem"])
        elif not arguments.json:
            print(_words_of_lost(taken))
    failed = sum(taken["problem"] is not None for taken in done)
    if arguments.json:
        print(tables.dump(done))
    else:
        print(
            f"{len(done) - failed:,} runs taken over, {failed:,} not; what relays still have follows. "
            f"Then take {harmless(arguments.service)} out of fleet.yaml"
        )
    return int(failed > 0)


def _words_of_lost(done: lost.TakenOver) -> str:
    name = harmless(done["run"])
    if done["segments"] is None:
        return f"{name} is at {done['to']}, whole"
    words = f"{name} goes to {done['to']}: {done['segments']:,} copied segments"
    lacking = (
        f"; {done['missing']:,} between them have no copy: at their nodes still, refused, or removed from the object "
        "store"
    )
    return words + (lacking if done["missing"] else "")


_ACTIONS: Final[Mapping[str, Callable[[Fleet, argparse.Namespace], int]]] = {
    "list": _list,
    "assign": _assign,
    "move": _move,
    "undo": _undo,
    "takeover": _takeover,
}
