"""`logprobe metrics RUN --as FRAMEWORK`: what another framework would have logged, step by step.

The JSON form is public API, one document; what is not finite is null:

    {"run": …, "as": "verl", "steps": [{"step": n, "sequences": n, "seen": n, "metrics": {"rollout_corr/kl": …}}]}

`seen` of a step's `sequences` still have raw tokens with log-probs of both sides; the numbers are of these.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from logprobe.app.parsers.arguments import home_path, require_run
from logprobe.app.text import tables
from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.peers import named
from logprobe.monitor.peers.run_views import StepView, run_views
from logprobe.monitor.reader import open_reader


def show(arguments: argparse.Namespace) -> int:
    """Prints a framework's view of one run."""
    options = _options(arguments)
    first, last = arguments.steps
    with open_reader(home_path(arguments)) as reader:
        require_run(arguments.name, reader.read("app_runs")["run"].to_pylist())
        steps = list(run_views(reader, arguments.name, arguments.peer, first=first, last=last, **options))
    documents = [_document(step, arguments.metric) for step in steps]
    if arguments.json:
        sys.stdout.write(tables.dump_rows({"run": arguments.name, "as": arguments.peer}, "steps", documents))
    else:
        _print(documents, arguments.metric or named(arguments.peer).headline)
    return 0


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    pairs = [text.partition("=") for text in arguments.option or ()]
    for name, equals, _ in pairs:
        if not equals:
            raise ConfigurationError(f"--option {name!r}: write NAME=VALUE")
    return named(arguments.peer).parse_text({name: value for name, _, value in pairs})


def _document(step: StepView, keys: Sequence[str] | None) -> dict[str, Any]:
    metrics = dict(step.report) if keys is None else {key: _number(step, key) for key in keys}
    return {"step": step.step, "sequences": step.sequences, "seen": step.seen, "metrics": metrics}


def _number(step: StepView, key: str) -> float | None:
    """One number, by its key or its short name; None where the framework would have logged nothing for the step."""
    if not step.report:
        return None
    try:
        return step.report[key]
    except KeyError as error:
        raise ConfigurationError(f"step {step.step} has no metric {error.args[0]}") from None


def _print(documents: list[dict[str, Any]], keys: Sequence[str]) -> None:
    if not documents:
        print("no steps yet", file=sys.stderr)
        return
    rows = [[d["step"], d["sequences"], d["seen"], *(d["metrics"].get(key) for key in keys)] for d in documents]
    print(tables.aligned(["step", "sequences", "seen", *keys], rows))
    if any(document["seen"] < document["sequences"] for document in documents):
        print("numbers cover only sequences whose raw tokens are kept", file=sys.stderr)
