"""`logprobe recompute RUN`: computes the metrics of stored steps again, from their raw tokens, after a definition has
changed.

The JSON form is public API, one document:

    {"run", "steps", "sequences", "tokens", "seconds", "kept": [{"first", "last", "why"}]}
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from typing import Final, TypedDict

from logprobe.app.parsers.arguments import home_path, require_run
from logprobe.app.text import tables
from logprobe.app.text.terminal import replace_line
from logprobe.monitor import queries
from logprobe.monitor.home import Home
from logprobe.monitor.recompute.recomputing import Progress, recompute, writer_of

_WIDTH: Final = 20


class Kept(TypedDict):
    """Consecutive steps that kept their metrics, and why."""

    first: int
    last: int
    why: str


class Document(TypedDict):
    """The JSON form."""

    run: str
    steps: int
    sequences: int
    tokens: int
    seconds: float
    kept: list[Kept]


def run(arguments: argparse.Namespace) -> int:
    """Recomputes, and says which steps kept the metrics that they had."""
    home = Home(home_path(arguments))
    with writer_of(home) as writer:
        require_run(arguments.name, queries.app_runs(writer)["run"].to_pylist())
        began = time.monotonic()
        progress = recompute(home, writer, arguments.name, steps=arguments.steps, show=lambda now: _show(now, began))
        document = _document(arguments.name, progress, time.monotonic() - began)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    tables.show(document, lambda: _words(document), as_json=arguments.json)
    return 0


def _show(progress: Progress, began: float) -> None:
    share = progress.tokens / max(progress.of_tokens, 1)
    seconds = time.monotonic() - began
    left = f", {seconds * (1 / share - 1):.0f} s left" if share else ""
    full = int(_WIDTH * min(share, 1))
    replace_line(
        f"[{'=' * full}{'-' * (_WIDTH - full)}] {progress.steps:,}/{progress.of_steps:,} steps, {progress.tokens:,} "
        f"tokens{left}"
    )


def _document(run: str, progress: Progress, seconds: float) -> Document:
    return {
        "run": run,
        "steps": progress.steps,
        "sequences": progress.sequences,
        "tokens": progress.tokens,
        "seconds": seconds,
        "kept": _ranges(progress.kept),
    }


def _ranges(kept: dict[int, str]) -> list[Kept]:
    """Consecutive entries with the same reason as one.

    >>> _ranges({1: "gone", 2: "gone", 7: "folded"})
    [{'first': 1, 'last': 2, 'why': 'gone'}, {'first': 7, 'last': 7, 'why': 'folded'}]
    """
    ranges: list[Kept] = []
    for step, why in sorted(kept.items()):
        if ranges and ranges[-1]["why"] == why and ranges[-1]["last"] == step - 1:
            ranges[-1]["last"] = step
        else:
            ranges.append({"first": step, "last": step, "why": why})
    return ranges


def _words(document: Document) -> Iterator[str]:
    words = "{steps:,} steps of {run} recomputed from {tokens:,} tokens of {sequences:,} sequences in {seconds:.1f} s"
    yield words.format(**document)
    for kept in document["kept"]:
        steps = f"step {kept['first']}" if kept["first"] == kept["last"] else f"steps {kept['first']} to {kept['last']}"
        yield f"unchanged: {steps} ({kept['why']})"
