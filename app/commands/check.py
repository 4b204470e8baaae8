"""`logprobe store check`: compares the store with its raw files. Exit code 2 when something is wrong.

The JSON form: ``{"tables", "raw_files", "not_compared", "problems": [sentence]}``. With ``--repair`` the store is made
to fit the raw tokens and the spool, whatever became of it: ``{"new_store", "set_aside": [file], "adopted_files",
"sequences", "redundant_files", "forgotten_files", "unreadable": [why], "incomplete": {run: [[first step, last step]]},
"from_spool", "seconds"}``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Final

from logprobe.app.surface.arguments import Arguments, home_path
from logprobe.app.text import tables
from logprobe.monitor.home import Home
from logprobe.monitor.recovery.checking import Checked, check
from logprobe.monitor.recovery.rebuilding import Rebuilt, rebuild

_LOST: Final = (
    "unknown  what has no raw tokens: scalars of step records, weight marks, configurations, health records, alerts, "
    "acceptances, "
    "audit"
)


def run(arguments: Arguments) -> int:
    """Check, also while the service runs; or repair, which needs the home for itself."""
    home = Home(home_path(arguments))
    if arguments.repair:
        done = rebuild(home)
        tables.show(asdict(done), lambda: repaired(done), as_json=arguments.json)
        return 0
    checked = check(home)
    tables.show(checked, lambda: _words(checked), as_json=arguments.json)
    return 2 if checked["problems"] else 0


def _words(checked: Checked) -> Iterator[str]:
    yield f"checked  {checked['tables']:,} tables, {checked['raw_files']:,} raw files"
    if checked["not_compared"]:
        yield (
            f"unknown  whether {checked['not_compared']:,} of the raw files hold the bytes that were written: they are "
            "in an object "
            "store, or of an earlier logprobe, which noted no checksum"
        )
    yield from (f"problem  {problem}" for problem in checked["problems"])
    yield "no problems" if not checked["problems"] else "what to do: docs/operating.md"


def repaired(done: Rebuilt) -> Iterator[str]:
    """Say what was done, for people."""
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
