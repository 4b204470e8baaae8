"""Arguments of `logprobe ship`. Imports nothing heavy: the command line parser is built at every call."""

from __future__ import annotations

import argparse


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments, apart from ``--home``."""
    parser.add_argument(
        "--seconds", metavar="N", type=float, help="give up after so long (default: only when credentials are refused)"
    )
