"""`logprobe relay-token`: who may send which runs to this home's service."""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime, timedelta

from logprobe.app.parsers.arguments import home_path
from logprobe.app.text import tables
from logprobe.collectors.plain_text import complain
from logprobe.monitor.home import Home
from logprobe.monitor.relay import tokens
from logprobe.monitor.relay.files import RelayFiles
from logprobe.monitor.relay.tokens import Writers


def run(arguments: argparse.Namespace) -> int:
    """Prints a new token, alone on its line; without a name, or of one that has a token, what there is."""
    place = RelayFiles.of(Home(home_path(arguments)).create()).create().tokens
    writers, now, name = tokens.load(place), datetime.now(UTC), arguments.name
    if name is None:
        _list(writers, now, as_json=arguments.json)
    elif arguments.revoke:
        tokens.save(place, writers.revoke(name))
    elif name in writers.by_name and not (arguments.run or arguments.rotate):
        _list(Writers({name: writers.by_name[name]}), now, as_json=arguments.json)
        complain(f"{name} has a token; --rotate makes another one")
    else:
        overlap = timedelta(hours=arguments.overlap)
        changed, token = writers.grant(name, arguments.run or (), now, overlap=overlap)
        tokens.save(place, changed)
        print(token)
    return 0


def _list(writers: Writers, now: datetime, *, as_json: bool) -> None:
    rows = [
        {
            "name": writer.name,
            "runs": ", ".join(writer.runs),
            "tokens": sum(secret.counts(now) for secret in writer.secrets),
            "newest": max((secret.created for secret in writer.secrets), default=None),
        }
        for writer in writers.by_name.values()
    ]
    if as_json:
        print(json.dumps(rows))
    elif rows:
        print(tables.aligned(list(rows[0]), [list(row.values()) for row in rows]))
    else:
        print("no tokens; make one: logprobe relay-token NAME --run PATTERN")
