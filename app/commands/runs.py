"""`logprobe runs`: what was recorded here."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from typing import Any

from logprobe.app import tables
from logprobe.app.arguments import home_path
from logprobe.app.runs import Run, runs_of
from logprobe.monitor.deletion.tombstones import Tombstones
from logprobe.monitor.home import Home
from logprobe.monitor.reader import open_reader


def run(arguments: argparse.Namespace) -> int:
    """Prints one line per run, the newest first."""

    def line(known: Run) -> dict[str, Any]:
        return {
            "run": known.name,
            "state": known.liveness.state.value,
            "steps": known.steps,
            "last_step": known.last_step,
            "sequences": known.sequences,
            "tokens": known.tokens,
            "last_record_at": known.last_record,
        }

    home = Home(home_path(arguments))
    with open_reader(home) as reader:
        lines = [line(known) for known in runs_of(reader.read("app_runs"), datetime.now(UTC))]
    if arguments.json:
        print("[" + ",\n ".join(map(tables.dump, lines)) + "]")
    elif lines:
        print(tables.aligned(list(lines[0]), [list(known.values()) for known in lines]))
    else:
        print("no runs yet", file=sys.stderr)
    for each in Tombstones(home).all().values():
        if each.late and each.released_at is None:  # somebody may wonder where it is
            words = f"{each.run} was deleted at {each.deleted_at}; {each.late:,} segments that came since were removed"
            print(
                tables.harmless(f"{words}; to use the name again: logprobe delete {each.run} --release"),
                file=sys.stderr,
            )
    return 0
