"""`logprobe demo`: recorded runs, and one that continues live, through recorder, spool, service and dashboard."""

from __future__ import annotations

import argparse

from logprobe.app import demo


def run(arguments: argparse.Namespace) -> int:
    """Returns after Ctrl-C or SIGTERM."""
    demo.run(names=arguments.run, speed=arguments.speed, port=arguments.port, data=arguments.data, home=arguments.home)
    return 0
