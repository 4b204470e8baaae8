"""`logprobe runs`: what was recorded here."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from typing import Any

from logprobe.app.parsers.arguments import home_path
from logprobe.app.runs import Run, runs_of
from logprobe.app.text import tables
from logprobe.collectors.errors import LogprobeError
from logprobe.monitor.deletion.tombstones import Tombstones
from logprobe.monitor.elsewhere import Briefly, checked
from logprobe.monitor.home import Home
from logprobe.monitor.reader import open_reader


def run(arguments: argparse.Namespace) -> int:
    """Prints one line per run, the newest first; with --also those of each other place after them, and where they are.

    Exit code 1 when a place could not be read, which stderr names.
    """

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
    also = checked(arguments.also, home, arguments.ca)
    with open_reader(home) as reader:
        lines = [line(known) for known in runs_of(reader.read("app_runs"), datetime.now(UTC))]
    lines = [known | {"where": str(home.path)} for known in lines] if also else lines
    failed = 0
    for where in also:
        try:
            rows = Briefly(where, arguments.ca).read("app_runs")
        except LogprobeError as error:
            print(f"logprobe: {error}", file=sys.stderr)
            failed = 1
            continue
        lines += [line(known) | {"where": where} for known in runs_of(rows, datetime.now(UTC))]
    if arguments.json:
        print("[" + ",\n ".join(map(tables.dump, lines)) + "]")
    elif lines:
        print(tables.aligned(list(lines[0]), [list(known.values()) for known in lines]))
    else:
        print("no runs yet", file=sys.stderr)
    _say_deleted(home)
    return failed


def _say_deleted(home: Home) -> None:
    """Runs that are still recorded, though they were deleted: somebody may wonder where they are."""
    for each in Tombstones(home).all().values():
        if each.late and each.released_at is None:
            words = f"{each.run} was deleted at {each.deleted_at}; {each.late:,} segments that came since were removed"
            hint = f"to use the name again: logprobe delete {each.run} --release"
            print(tables.harmless(f"{words}; {hint}"), file=sys.stderr)
