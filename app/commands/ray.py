"""`logprobe ray up|down`: a relay on every node of a Ray cluster, and away again.

The JSON form is public API, an array with one object per node:

    [{"node", "home", "pid", "segments", "problem"}]
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from typing import Any

from logprobe.app.processes.ray_relays import NodeState, Settings, relays
from logprobe.app.text import tables
from logprobe.collectors.relay import command

_HEADER = ["node", "home", "relay", "segments waiting", "problem"]


def run(arguments: argparse.Namespace) -> int:
    """Exit code 1 when a node has no relay, or segments were left behind."""
    with contextlib.redirect_stdout(sys.stderr), relays(arguments.ray) as nodes:  # Ray's threads print
        if arguments.action == "up":
            states = nodes.up(settings(arguments))
            well = all(state.problem is None for state in states)
        else:
            states = nodes.down(arguments.seconds)
            well = all(state.segments == 0 for state in states)
    _print(states, arguments)
    return 0 if well else 1


def settings(arguments: argparse.Namespace) -> Settings:
    """As `logprobe relay` takes them. Raises `ConfigurationError`."""
    asked = command.options(argparse.Namespace(**vars(arguments), drain=False, with_collectors=False))
    ca = None if asked.target.ca is None else str(asked.target.ca.absolute())
    return Settings(str(asked.home), asked.target.address, str(asked.target.token.absolute()), ca, asked.rate)


def _print(states: list[NodeState], arguments: argparse.Namespace) -> None:
    if arguments.json:
        print(tables.dump_lines(state.document() for state in states))
        return
    rows: list[list[Any]] = [
        [state.node[:12], state.home, state.pid, state.segments, state.problem] for state in states
    ]
    print(tables.aligned(_HEADER, rows, widest=90) if rows else "no relays")
