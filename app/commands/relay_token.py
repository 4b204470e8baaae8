"""`logprobe relay-token` (and `reader-token`): who may send which runs to this home's service."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from logprobe.app.parsers.arguments import home_path
from logprobe.app.text import tables
from logprobe.collectors.plain_text import complain
from logprobe.monitor.home import Home
from logprobe.monitor.relay import tokens
from logprobe.monitor.relay.files import RelayFiles
from logprobe.monitor.relay.tokens import Writers


def run(arguments: argparse.Namespace) -> int:
    """Of those who write. Prints a new token, alone on its line; without a name, or of one that has a token, what there
    is."""
    return change(arguments, lambda place: place.tokens)


def change(arguments: argparse.Namespace, file: Callable[[RelayFiles], Path]) -> int:
    """The same of the tokens in a file of the home."""
    place = file(RelayFiles.of(Home(home_path(arguments)).create()).create())
    writers, now, name = tokens.load(place), datetime.now(UTC), arguments.name
    if name is None:
        _list(writers, now, arguments)
    elif arguments.revoke:
        tokens.save(place, writers.revoke(name))
    elif name in writers.by_name and not (arguments.run or arguments.rotate):
        _list(Writers({name: writers.by_name[name]}), now, arguments)
        complain(f"{name} has a token; --rotate makes another one")
    else:
        overlap = timedelta(hours=arguments.overlap)
        changed, token = writers.grant(name, arguments.run or (), now, overlap=overlap)
        tokens.save(place, changed)
        print(token)
    return 0


def _list(writers: Writers, now: datetime, arguments: argparse.Namespace) -> None:
    rows = [
        {
            "name": writer.name,
            "runs": ", ".join(writer.runs),
            "tokens": sum(secret.counts(now) for secret in writer.secrets),
            "newest": max((secret.created for secret in writer.secrets), default=None),
        }
        for writer in writers.by_name.values()
    ]
    if arguments.json:
        print(json.dumps(rows))
    elif rows:
        print(tables.aligned(list(rows[0]), [list(row.values()) for row in rows]))
    else:
        print(f"no tokens; make one: logprobe {arguments.command} NAME --run PATTERN")
