"""`logprobe sql "…"`: run a read-only query over the views tokens, sequences, steps, weights and events."""

from __future__ import annotations

import sys

from logprobe.app.surface.arguments import Arguments, home_path
from logprobe.app.text import tables
from logprobe.monitor.reader import open_reader


def run(arguments: Arguments) -> int:
    """Run the query and print its rows."""
    with open_reader(home_path(arguments)) as reader:
        answer = reader.query(arguments.query)
    if arguments.json:
        tables.write_json(answer, sys.stdout)
    elif arguments.csv:
        tables.write_csv(answer, sys.stdout)
    else:
        tables.write_table(answer, sys.stdout)
    return 0
