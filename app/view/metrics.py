"""`logprobe show RUN --metrics`: show the metrics of a run by step, or without RUN their definitions.

The JSON forms are public API, one document each. Values that are unknown or not finite are null. The forms by step, by
group of sequences (``--slice``) and as logged by another framework (``--as``):

    {"run": …, "steps": [
      {"step": n, "tokens": n, "sequences": n, "metrics": {"backend.k3_kl": …, "weight_lag_mean": …}}]}
    {"run": …, "dimension": "weight_lag", "frozen_steps": n, "slices": [
      {"step": …, "slice": "0", "sequences": n, "tokens": n, "metrics": {…}}]}
    {"run": …, "as": "verl", "steps": [{"step": n, "sequences": n, "seen": n, "metrics": {"rollout_corr/kl": …}}]}

Without ``--per-step`` a slice covers the whole window and its ``step`` is null. ``frozen_steps``: number of omitted
steps, whose sequences were deleted (setting ``keep_store_gib``). ``seen``: number of ``sequences`` with raw tokens and
log-probs of both sides. The metrics of another framework cover only these.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from logprobe.app.runs import run_reader
from logprobe.app.surface.arguments import Arguments, refuse_usage
from logprobe.app.text import tables
from logprobe.collectors.errors import ConfigurationError, QueryError
from logprobe.monitor import peers, queries
from logprobe.monitor.analysis import slices
from logprobe.monitor.metrics import CATALOG, KEYS
from logprobe.monitor.metrics import metric as declared
from logprobe.monitor.reader import Reader

# What the table shows where no metric was chosen: the mismatch, its likely cause, and whether to believe it.
_HEADLINE: Final = (
    "backend.k3_kl",
    "backend.ess",
    "weight_lag_mean",
    "entropy",
    "reward",
    "backend.coverage",
)


def show(arguments: Arguments) -> int:
    """Print the metrics of one run, or the catalog without a run."""
    if arguments.name is None:
        return _list(as_json=arguments.json)
    _check_combination(arguments)
    if arguments.peer is not None:
        _as_framework(arguments)
    elif arguments.slice is not None:
        _slice(arguments)
    else:
        _by_step(arguments)
    return 0


def _check_combination(arguments: Arguments) -> None:
    """End the process with a usage error if options do not go together."""
    forms = [name for name in ("slice", "peer") if getattr(arguments, name)]
    refused = {
        "one of --slice and --as at a time": len(forms) > 1,
        "--option goes with --as": arguments.option and forms != ["peer"],
        "--per-step goes with --slice": arguments.per_step and forms != ["slice"],
    }
    for problem, applies in refused.items():
        if applies:
            refuse_usage(problem)


def _by_step(arguments: Arguments) -> None:
    for key in arguments.metric or ():
        declared(key)
    first, last = arguments.steps
    with run_reader(arguments) as reader:
        summaries = queries.cli_steps(reader, run=arguments.name, first=first, last=last)
        values = queries.cli_metrics(reader, run=arguments.name, first=first, last=last)
    steps = documents(summaries, values, arguments.metric or KEYS)
    _show_steps({"run": arguments.name}, steps, ("sequences",), arguments, arguments.metric or _HEADLINE)


def documents(summaries: pa.Table, values: pa.Table, keys: Sequence[str]) -> list[dict[str, Any]]:
    """Return one document per step, from rows of `cli_steps` (step, tokens, sequences) and `cli_metrics` (step,
    metric, value).
    """
    by_step: dict[int, dict[str, float]] = {}
    for step, key, value in zip(*(values[name].to_pylist() for name in ("step", "metric", "value")), strict=True):
        by_step.setdefault(step, {})[key] = value
    return [
        {**row, "metrics": {key: by_step.get(row["step"], {}).get(key) for key in keys}}
        for row in summaries.select(["step", "tokens", "sequences"]).to_pylist()
    ]


def _show_steps(
    head: dict[str, Any],
    steps: list[dict[str, Any]],
    counts: Sequence[str],
    arguments: Arguments,
    keys: Sequence[str],
) -> None:
    """Print steps with their `counts`. The text form has the metrics `keys`."""
    if arguments.json:
        sys.stdout.write(tables.dump_rows(head, "steps", steps))
    elif not steps:
        print("no steps yet", file=sys.stderr)
    else:
        facts = ("step", *counts)
        rows = [[*(s[fact] for fact in facts), *(s["metrics"].get(key) for key in keys)] for s in steps]
        print(tables.fitted([*facts, *keys], rows))


def _as_framework(arguments: Arguments) -> None:
    framework, options = peers.named(arguments.peer), peers.options_of(arguments.peer, _pairs(arguments))
    first, last = arguments.steps
    with run_reader(arguments) as reader:
        rows = queries.cli_steps(reader, run=arguments.name, first=first, last=last).to_pylist()
        steps = [_logged(reader, row, options, arguments) for row in rows]
    if steps and not any(step["seen"] for step in steps):
        raise QueryError(
            f"run {arguments.name!r}: raw tokens with log-probs of both sides are kept for none of these steps, and a "
            f"view of {arguments.peer} needs them; choose newer --steps, or raise `keep_gib` of the settings"
        )
    head = {"run": arguments.name, "as": arguments.peer}
    _show_steps(head, steps, ("sequences", "seen"), arguments, arguments.metric or framework.headline)
    if not arguments.json and any(step["seen"] < step["sequences"] for step in steps):
        print("numbers cover only sequences whose raw tokens are kept", file=sys.stderr)


def _pairs(arguments: Arguments) -> dict[str, str]:
    pairs = [text.partition("=") for text in arguments.option or ()]
    for name, equals, _ in pairs:
        if not equals:
            raise ConfigurationError(f"--option {name!r} has no value; write NAME=VALUE")
    return {name: value for name, _, value in pairs}


def _logged(reader: Reader, row: queries.CliSteps, options: dict[str, object], arguments: Arguments) -> dict[str, Any]:
    """Return the metrics that the framework would have logged. Only one step's tokens are in memory at a time."""
    step = row["step"]
    tokens = queries.peer_tokens(reader, run=arguments.name, first=step, last=step)
    report = peers.view_of_table(arguments.peer, tokens, **options)
    metrics = {key: _number(step, report, key) for key in arguments.metric} if arguments.metric else dict(report)
    return {"step": step, "sequences": row["sequences"], "seen": tokens.num_rows, "metrics": metrics}


def _number(step: int, report: peers.Report, key: str) -> float | None:
    """Return a metric by its key or short name, or None if the framework would not log it for the step."""
    if not report:
        return None
    try:
        return report[key]
    except KeyError as error:
        raise ConfigurationError(f"step {step} has no metric {error.args[0]}; choose another --metric") from None


def _slice(arguments: Arguments) -> None:
    keys = arguments.metric or (None if arguments.json else _HEADLINE)
    first, last = arguments.steps
    with run_reader(arguments) as reader:
        table = slices.by(
            reader, arguments.name, arguments.slice, steps=(first, last), metrics=keys, per_step=arguments.per_step
        )
        frozen = queries.freeze_span(reader, run=arguments.name, first=first, last=last).to_pylist()[0]
    if arguments.json:
        head = {"run": arguments.name, "dimension": arguments.slice, "frozen_steps": frozen["frozen"]}
        sys.stdout.write(tables.dump_rows(head, "slices", map(_sliced, table.to_pylist())))
        return
    if frozen["frozen"]:
        words = "{frozen:,} steps ({first_frozen} to {last_frozen}) are frozen and not in these slices"
        print(words.format(**frozen), file=sys.stderr)
    if not table.num_rows:
        print("no sequences in these steps", file=sys.stderr)
        return
    at, names = table.column_names.index("slice"), table["slice"].combine_chunks().fill_null("unknown")
    _print_table(table.set_column(at, arguments.slice, names), arguments)


def _sliced(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of `logprobe.monitor.analysis.slices.by` as a document."""
    facts = {name: row.pop(name) for name in ("step", "slice", "sequences", "tokens")}
    return {**facts, "metrics": row}


def _print_table(table: pa.Table, arguments: Arguments) -> None:
    tables.write_table(table if arguments.per_step else table.drop_columns("step"), sys.stdout)


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
