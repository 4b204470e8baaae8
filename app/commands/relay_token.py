"""`logprobe relay-token` (and `reader-token`): who may send which runs to this home's service, or to every service of a
fleet."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

from logprobe.app.parsers.arguments import home_path
from logprobe.app.text import tables
from logprobe.collectors.plain_text import complain
from logprobe.monitor.fleet.table import Fleet
from logprobe.monitor.home import Home
from logprobe.monitor.relay import tokens
from logprobe.monitor.relay.files import RelayFiles
from logprobe.monitor.relay.tokens import Writers


def run(arguments: argparse.Namespace) -> int:
    """Of those who write. Prints a new token, alone on its line; without a name, or of one that has a token, what there
    is."""
    return change(arguments, lambda place: place.tokens)


def change(arguments: argparse.Namespace, file: Callable[[RelayFiles], Path]) -> int:
    """The same of the tokens in a file of each home."""
    places = [file(RelayFiles.of(home.create()).create()) for home in _homes(arguments)]
    by_place, now, name = {place: tokens.load(place) for place in places}, datetime.now(UTC), arguments.name
    of_name = {
        place: Writers({name: writers.by_name[name]}) for place, writers in by_place.items() if name in writers.by_name
    }
    if name is None:
        _list(by_place, now, arguments)
    elif arguments.revoke:
        for place in of_name or places:
            tokens.save(place, by_place[place].revoke(name))
    elif of_name and not (arguments.run or arguments.rotate):
        _list(of_name, now, arguments)
        complain(f"{name} has a token; --rotate makes another one")
    else:
        overlap, secret = timedelta(hours=arguments.overlap), tokens.new_secret()
        runs = arguments.run or [run for writers in of_name.values() for run in writers.by_name[name].runs]
        changed = {
            place: writers.grant(name, runs, now, overlap=overlap, secret=secret) for place, writers in by_place.items()
        }
        for place, (writers, _) in changed.items():
            tokens.save(place, writers)
        print(changed[places[0]][1])
    return 0


def _homes(arguments: argparse.Namespace) -> list[Home]:
    if arguments.fleet is None:
        return [Home(home_path(arguments))]
    fleet = Fleet(Path(arguments.fleet).expanduser())
    return [fleet.home(name) for name in fleet.services]


def _list(by_place: Mapping[Path, Writers], now: datetime, arguments: argparse.Namespace) -> None:
    rows = [
        {
            **({"home": str(place.parent.parent)} if len(by_place) > 1 else {}),
            "name": writer.name,
            "runs": ", ".join(writer.runs),
            "tokens": sum(secret.counts(now) for secret in writer.secrets),
            "newest": max((secret.created for secret in writer.secrets), default=None),
        }
        for place, writers in by_place.items()
        for writer in writers.by_name.values()
    ]
    if arguments.json:
        print(json.dumps(rows))
    elif rows:
        print(tables.aligned(list(rows[0]), [list(row.values()) for row in rows]))
    else:
        print(f"no tokens; make one: logprobe {arguments.command} NAME --run PATTERN")
