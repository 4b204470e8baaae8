"""`logprobe metrics RUN --profile DIMENSION`: the gap by place, by probability or by size, over the tokens of a run.

The JSON form is public API, one document, unknown is null; without ``--per-step`` every ``step`` is null, the whole window:

    {"run": …, "profile": "position", "pair": "backend", "buckets": [
      {"step": …, "bucket": 0, "label": "0–10 %", "tokens": n, "logprob_abs_diff_mean": …, "log_ratio_mean": …, "k3_kl": …}]}

A ``bucket`` of null are broken tokens. The profile ``log_ratio`` has ``quantiles`` of |d| besides, and ``relative_error``, within
which they are right; its table shows these, since its buckets are a thousand and more.
"""

from __future__ import annotations

import argparse
import sys
from typing import Final

import pyarrow as pa

from logprobe.app.parsers.arguments import home_path, require_run
from logprobe.app.text import tables
from logprobe.monitor.analysis import profiles
from logprobe.monitor.reader import open_reader

QUANTILES: Final = (0.5, 0.9, 0.99, 0.999)
_HINT: Final = (
    "no profile of these steps: they have no raw tokens with both log-probs of the pair, or were not profiled yet"
)


def show(arguments: argparse.Namespace) -> int:
    """Prints a profile of one run."""
    pair = arguments.pair or "backend"
    window = {"pair": pair, "steps": arguments.steps, "per_step": arguments.per_step}
    quantiles = None
    with open_reader(home_path(arguments)) as reader:
        require_run(arguments.name, reader.read("app_runs")["run"].to_pylist())
        buckets = profiles.of(reader, arguments.name, arguments.profile, **window)
        if arguments.profile == "log_ratio":
            quantiles = profiles.quantiles(reader, arguments.name, QUANTILES, **window)
    if arguments.json:
        sys.stdout.write(_document(arguments, pair, buckets, quantiles))
    elif not buckets.num_rows:
        print(_HINT, file=sys.stderr)
    else:
        table = buckets.drop_columns("bucket") if quantiles is None else quantiles
        _print(table if arguments.per_step else table.drop_columns("step"))
    return 0


def _document(arguments: argparse.Namespace, pair: str, buckets: pa.Table, quantiles: pa.Table | None) -> str:
    head = {"run": arguments.name, "profile": arguments.profile, "pair": pair}
    if quantiles is not None:
        head |= {"relative_error": profiles.ERROR, "quantiles": quantiles.to_pylist()}
    return tables.dump_rows(head, "buckets", buckets.to_pylist())


def _print(table: pa.Table) -> None:
    print(tables.aligned(table.column_names, tables.rows_of(table)))
