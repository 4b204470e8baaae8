"""`logprobe sql "…"`: any read-only query over the views tokens, sequences, steps, weights, events."""

from __future__ import annotations

import argparse
import sys

from logprobe.app.arguments import home_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("query", metavar="QUERY", help='e.g. "SELECT step, avg(reward) FROM sequences GROUP BY step"')
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="a JSON array, one object per row")
    form.add_argument("--csv", action="store_true", help="comma-separated values with a header")


def run(arguments: argparse.Namespace) -> int:
    """Prints the rows of the answer."""
    from logprobe.app import tables
    from logprobe.monitor.reader import open_reader

    with open_reader(home_path(arguments)) as reader:
        found = reader.query(arguments.query)
    write = tables.write_json if arguments.json else tables.write_csv if arguments.csv else tables.write_table
    write(found, sys.stdout)
    return 0
