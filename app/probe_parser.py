"""The grammar of `logprobe probe`. Imports nothing heavy."""

from __future__ import annotations

import argparse


def declare(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `logprobe probe`."""
    parser.add_argument(
        "name", metavar="RUN", help="a run whose engine is running and whose prompts are recorded (docs/proof.md)"
    )
    parser.add_argument("--url", required=True, metavar="URL", help="of `vllm serve`, e.g. http://localhost:8000")
    parser.add_argument(
        "--replica", metavar="NAME", help="the engine's LOGPROBE_REPLICA, where the run has several engines"
    )
    parser.add_argument(
        "--sequences", type=int, default=4, metavar="N", help="to score again, at most (default: %(default)s)"
    )
    parser.add_argument(
        "--share",
        type=float,
        default=0.001,
        metavar="X",
        help="of the run's sampled tokens that probes may score again in all (default: %(default)s)",
    )
    parser.add_argument(
        "--running", type=int, metavar="N", help="requests in the engine above which it counts as busy (default: 32)"
    )
    parser.add_argument("--key-env", metavar="NAME", help="environment variable with the engine's API key")
    parser.add_argument("--json", action="store_true", help="one JSON document; unknown is null")
