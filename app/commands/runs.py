"""`logprobe runs`: what was recorded here."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

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
    home = Home(home_path(arguments))
    also = checked(arguments.also, home, arguments.ca)
    with open_reader(home) as reader:
        lines = lines_of(reader.read("app_runs"))
    lines = [known | {"where": str(home.path)} for known in lines] if also else lines
    failed = 0
    for where in also:
        try:
            rows = Briefly(where, arguments.ca).read("app_runs")
        except LogprobeError as error:
            print(f"logprobe: {error}", file=sys.stderr)
            failed = 1
            continue
        lines += [known | {"where": where} for known in lines_of(rows)]
    show(lines, as_json=arguments.json)
    _say_deleted(home)
    return failed


def lines_of(rows: pa.Table) -> list[dict[str, Any]]:
    """What is said of each run. `rows`: of `app_runs`."""
    return [_line(known) for known in runs_of(rows, datetime.now(UTC))]


def _line(known: Run) -> dict[str, Any]:
    return {
        "run": known.name,
        "state": known.liveness.state.value,
        "steps": known.steps,
        "last_step": known.last_step,
        "sequences": known.sequences,
        "tokens": known.tokens,
        "last_record_at": known.last_record,
    }


def show(lines: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    """Prints them, one line per run."""
    if as_json:
        print(tables.dump_lines(lines))
    elif lines:
        print(tables.aligned(list(lines[0]), [list(known.values()) for known in lines]))
    else:
        print("no runs yet", file=sys.stderr)


def _say_deleted(home: Home) -> None:
    """Runs that are still recorded, though they were deleted: somebody may wonder where they are."""
    for each in Tombstones(home).all().values():
        if each.late and each.released_at is None:
            words = f"{each.run} was deleted at {each.deleted_at}; {each.late:,} segments that came since were removed"
            hint = f"to use the name again: logprobe delete {each.run} --release"
            print(tables.harmless(f"{words}; {hint}"), file=sys.stderr)
