"""`logprobe metrics RUN`: the metrics of a run, step by step; `--list`: what they mean.

The JSON form is public API, one document, unknown is null:

    {"run": …, "steps": [{"step": n, "tokens": n, "sequences": n, "metrics": {"backend.k3_kl": …, "weight_lag_mean": …}}]}

`--slice DIMENSION` shows parts of the sequences instead (see `logprobe.app.slice_report`), `--profile DIMENSION` the tokens by place,
probability or size of the gap (see `logprobe.app.profile_report`), `--as FRAMEWORK` what another framework would log (see
`logprobe.app.peer_report`).
"""

from __future__ import annotations

import argparse
import sys
from typing import Any, Final

import pyarrow as pa

from logprobe.app import peer_report, profile_report, slice_report
from logprobe.app.parsers.arguments import home_path, require_run
from logprobe.app.text import tables
from logprobe.monitor.metrics import CATALOG, KEYS
from logprobe.monitor.metrics import metric as declared
from logprobe.monitor.reader import open_reader

# What the table shows when nobody chose: the gap, its size in weights, its likely cause, and whether to believe it.
_HEADLINE: Final = (
    "backend.k3_kl",
    "backend.kl",
    "backend.ess",
    "backend.ratio_deviation_1e4",
    "weight_lag_mean",
    "entropy",
    "reward",
    "backend.coverage",
)


def run(arguments: argparse.Namespace) -> int:
    """Prints the metrics of one run, or the catalog."""
    if arguments.list:
        return _list(as_json=arguments.json)
    if arguments.name is None:
        arguments.usage_error("no run named: `logprobe runs` lists them")
    _check_combination(arguments)
    if arguments.peer is not None:
        return peer_report.show(arguments)
    if arguments.profile is not None:
        return profile_report.show(arguments)
    if arguments.slice is not None:
        return slice_report.show(arguments, arguments.metric or (None if arguments.json else _HEADLINE))
    steps = _read(arguments)
    if arguments.json:
        sys.stdout.write(tables.dump_rows({"run": arguments.name}, "steps", steps))
    else:
        _print(steps, arguments.metric or _HEADLINE)
    return 0


def _check_combination(arguments: argparse.Namespace) -> None:
    """Wrong usage ends the process."""
    forms = [name for name in ("slice", "profile", "peer") if getattr(arguments, name) is not None]
    refused = {
        "one of --slice, --profile and --as at a time": len(forms) > 1,
        "--option goes with --as": arguments.option and forms != ["peer"],
        "--per-step goes with --slice or --profile": arguments.per_step and forms not in (["slice"], ["profile"]),
        "--pair goes with --profile": arguments.pair is not None and forms != ["profile"],
        "--metric does not go with --profile": arguments.metric and forms == ["profile"],
    }
    for problem, applies in refused.items():
        if applies:
            arguments.usage_error(problem)


def _read(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    for key in arguments.metric or ():
        declared(key)
    first, last = arguments.steps
    with open_reader(home_path(arguments)) as reader:
        require_run(arguments.name, reader.read("app_runs")["run"].to_pylist())
        summaries = reader.read("cli_steps", run=arguments.name, first=first, last=last)
        values = reader.read("cli_metrics", run=arguments.name, first=first, last=last)
    return documents(summaries, values, arguments.metric or KEYS)


def documents(summaries: pa.Table, values: pa.Table, keys: tuple[str, ...] | list[str]) -> list[dict[str, Any]]:
    """One document per step from `cli_steps` (step, tokens, sequences) and `cli_metrics` (step, metric, value)."""
    known: dict[int, dict[str, float]] = {}
    for step, key, value in zip(*(values[name].to_pylist() for name in ("step", "metric", "value")), strict=True):
        known.setdefault(step, {})[key] = value
    return [
        {**row, "metrics": {key: known.get(row["step"], {}).get(key) for key in keys}}
        for row in summaries.select(["step", "tokens", "sequences"]).to_pylist()
    ]


def _print(steps: list[dict[str, Any]], keys: tuple[str, ...] | list[str]) -> None:
    if not steps:
        print("no steps yet", file=sys.stderr)
        return
    rows = [[s["step"], s["tokens"], s["sequences"], *(s["metrics"].get(key) for key in keys)] for s in steps]
    print(tables.aligned(["step", "tokens", "sequences", *keys], rows))


def _list(*, as_json: bool) -> int:
    entries = [
        {
            "key": key,
            **{name: getattr(m, name) for name in ("label", "words", "formula", "unit", "worse", "grain", "source")},
            "needs": m.inputs(key),
        }
        for m in CATALOG
        for key in m.keys()  # noqa: SIM118 - a metric's keys, not a mapping's
    ]
    if as_json:
        print(tables.dump_lines(entries))
    else:
        print("\n".join(f"{e['key']}\n    {e['words']}\n    {e['formula']}" for e in entries))
    return 0
