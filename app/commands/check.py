"""`logprobe check`: compares the store with its raw files; changes nothing. Exit code 2 when something is wrong.

The JSON form: ``{"tables", "raw_files", "not_compared", "problems": [sentence]}``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from logprobe.app.parsers.arguments import home_path
from logprobe.app.text import tables
from logprobe.monitor.home import Home
from logprobe.monitor.recovery.checking import Checked, check


def run(arguments: argparse.Namespace) -> int:
    """Checks, also while the service runs."""
    checked = check(Home(home_path(arguments)))
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
