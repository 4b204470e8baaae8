"""`logprobe rebuild`: makes the store fit the raw tokens and the spool, whatever became of it.

The JSON form: ``{"new_store", "set_aside": [file], "adopted_files", "sequences", "redundant_files", "forgotten_files",
"unreadable": [why], "incomplete": {run: [[first step, last step]]}, "from_spool", "seconds"}``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from typing import Final

from logprobe.app.parsers.arguments import home_path
from logprobe.app.text import tables
from logprobe.monitor.home import Home
from logprobe.monitor.recovery.rebuilding import Rebuilt, rebuild

_LOST: Final = (
    "unknown  what has no raw tokens: scalars of step records, weight marks, configurations, health records, alerts, "
    "acceptances, "
    "audit"
)


def run(arguments: argparse.Namespace) -> int:
    """Rebuilds; no service may run."""
    show(rebuild(Home(home_path(arguments))), as_json=arguments.json)
    return 0


def show(done: Rebuilt, *, as_json: bool) -> None:
    """Prints what was done."""
    tables.show(asdict(done), lambda: _words(done), as_json=as_json)


def _words(done: Rebuilt) -> Iterator[str]:
    yield f"store    {'a new one' if done.new_store else 'kept'}"
    yield from (f"         set aside: {name}" for name in done.set_aside)
    yield f"raw      {done.adopted_files:,} files taken in, with {done.sequences:,} sequences"
    if done.redundant_files:
        yield f"         {done.redundant_files:,} files removed whose tokens are in others"
    if done.forgotten_files:
        yield f"         {done.forgotten_files:,} files forgotten that are gone"
    yield from (f"         cannot be read: {why}" for why in done.unreadable)
    yield f"spool    {done.from_spool:,} segments"
    for run, (first, last) in ((run, steps) for run, several in done.incomplete.items() for steps in several):
        yield (
            f"unknown  {run}: steps {first} to {last}, as far as the store did not have them: not all raw tokens are "
            "there"
        )
    if done.new_store:
        yield _LOST
    yield f"time     {done.seconds:,.1f} s"
