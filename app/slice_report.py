"""`logprobe metrics RUN --slice DIMENSION`: the metrics of parts of a run's sequences.

The JSON form is public API, one document, unknown is null; without ``--per-step`` every ``step`` is null, the whole window:

    {"run": …, "dimension": "weight_lag", "folded_steps": n,
     "slices": [{"step": …, "slice": "0", "sequences": n, "tokens": n, "metrics": {…}}]}

Steps that were folded have no sequences to slice (``logprobe up --keep-store-gib``); ``folded_steps`` of the window are left out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from logprobe.app.parsers.arguments import home_path, require_run
from logprobe.app.text import tables
from logprobe.monitor.analysis import slices
from logprobe.monitor.reader import open_reader


def show(arguments: argparse.Namespace, keys: Sequence[str] | None) -> int:
    """Prints the slices of one run. `keys`: which metrics; None: all."""
    with open_reader(home_path(arguments)) as reader:
        require_run(arguments.name, reader.read("app_runs")["run"].to_pylist())
        table = slices.by(
            reader, arguments.name, arguments.slice, steps=arguments.steps, metrics=keys, per_step=arguments.per_step
        )
        window = {"first": arguments.steps[0], "last": arguments.steps[1]}
        folded = reader.read("fold_kept", run=arguments.name, **window).to_pylist()[0]
    if arguments.json:
        head = {"run": arguments.name, "dimension": arguments.slice, "folded_steps": folded["folded"]}
        sys.stdout.write(tables.dump_rows(head, "slices", documents(table)))
        return 0
    if folded["folded"]:
        print(
            "{folded:,} steps ({first_folded} to {last_folded}) are folded and not in these slices".format(**folded),
            file=sys.stderr,
        )
    if not table.num_rows:
        print("no sequences in these steps", file=sys.stderr)
    else:
        _print(table if arguments.per_step else table.drop_columns("step"), arguments.slice)
    return 0


def documents(table: pa.Table) -> list[dict[str, Any]]:
    """One document per row of `logprobe.monitor.analysis.slices.by`."""
    facts = ["step", "slice", "sequences", "tokens"]
    keys = [name for name in table.column_names if name not in facts]
    return [
        {**{name: row[name] for name in facts}, "metrics": {key: row[key] for key in keys}} for row in table.to_pylist()
    ]


def _print(table: pa.Table, dimension: str) -> None:
    named = table.set_column(
        table.column_names.index("slice"), dimension, table["slice"].combine_chunks().fill_null("unknown")
    )
    print(tables.aligned(named.column_names, tables.rows_of(named)))
