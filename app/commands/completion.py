"""`logprobe completion SHELL`: a script that completes commands and options, from the same declarations as the help."""

from __future__ import annotations

import argparse

import shtab

from logprobe.app.parsers.command_line import build


def run(arguments: argparse.Namespace) -> int:
    """Prints the script."""
    print(shtab.complete(build(), arguments.shell))
    return 0
