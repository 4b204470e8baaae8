"""`logprobe compact`: gives the free space of a home's store back to the disk.

The JSON form: ``{"before", "after", "tables", "seconds"}``, sizes in bytes.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict

from logprobe.app.parsers.arguments import home_path
from logprobe.app.text import tables
from logprobe.monitor.home import Home
from logprobe.monitor.store.compaction import compact


def run(arguments: argparse.Namespace) -> int:
    """Compacts; no service may run."""
    home = Home(home_path(arguments))
    with home.lock():
        done = compact(home)
    words = (
        f"{done.before / 2**20:,.1f} MiB before, {done.after / 2**20:,.1f} after; {done.tables} tables read back "
        "equal\n"
    )
    tables.show(asdict(done), lambda: words, as_json=arguments.json)
    return 0
