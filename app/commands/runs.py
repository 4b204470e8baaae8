"""`logprobe runs`: what was recorded here."""

from __future__ import annotations

import argparse
import sys

from logprobe.app.arguments import home_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("--json", action="store_true", help="a JSON array, one object per run")


def run(arguments: argparse.Namespace) -> int:
    """Prints one line per run, the newest first."""
    from logprobe.app import tables
    from logprobe.monitor.reader import open_reader

    with open_reader(home_path(arguments)) as reader:
        found = reader.read("cli_runs")
    if arguments.json:
        tables.write_json(found, sys.stdout)
    elif found.num_rows:
        tables.write_table(found, sys.stdout)
    else:
        print("no runs yet", file=sys.stderr)
    return 0
