"""`logprobe ingest --once`: take what lies in the spool into the store, through the service or without one."""

from __future__ import annotations

import argparse
import sys
import threading
from typing import Any, Final

from logprobe.app import tables
from logprobe.app.arguments import home_path
from logprobe.collectors.errors import ServiceUnavailableError
from logprobe.monitor.home import Home
from logprobe.monitor.pipeline import Pipeline
from logprobe.monitor.reader import connect
from logprobe.monitor.store import Store

_WORDS: Final = (
    "{segments} segments, {tokens:,} tokens ingested; {quarantined} files moved aside; {steps} steps computed"
)


def run(arguments: argparse.Namespace) -> int:
    """Ingests, computes the steps concerned, reports."""
    home = Home(home_path(arguments))
    try:
        with connect(home) as reader:
            report = reader.ingest()
    except ServiceUnavailableError:
        report = _alone(home)
    if arguments.json:
        print(tables.dump(report))
    else:
        print(_WORDS.format(**report))
    return 0


def _alone(home: Home) -> dict[str, Any]:
    """Without a service: owns the home for the time it takes. Raises `HomeBusyError` when something else does."""

    def show(report: dict[str, Any]) -> None:
        if sys.stderr.isatty():
            print("\r{segments} segments, {tokens:,} tokens …".format(**report), end="", file=sys.stderr)

    with home.lock(), Store.open(home) as store:
        report = Pipeline(store, threading.Event()).ingest(show)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    return report
