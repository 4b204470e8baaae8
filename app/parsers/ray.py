"""The parser of `logprobe ray`. Imports nothing heavy."""

from __future__ import annotations

import argparse
from typing import Final

from logprobe.app.parsers.arguments import declare_actions
from logprobe.collectors.relay.arguments import rate


def declare(parser: argparse.ArgumentParser) -> None:
    """Adds the subcommands to `logprobe ray`."""
    declare_actions(parser, _ACTIONS)


def _up(parser: argparse.ArgumentParser) -> None:
    _cluster(parser)
    parser.add_argument("--to", metavar="URL", help="grpc+tls://HOST:PORT of the service (default: $LOGPROBE_SERVICE)")
    parser.add_argument(
        "--ca", metavar="FILE", help="certificate to trust, at this path on every node (default: $LOGPROBE_SERVICE_CA)"
    )
    parser.add_argument(
        "--token", metavar="FILE", help="the token, at this path on every node (default: $LOGPROBE_SERVICE_TOKEN)"
    )
    parser.add_argument(
        "--limit", type=rate, metavar="RATE", help="bytes per second and node, e.g. 20MB (default: no limit)"
    )


def _down(parser: argparse.ArgumentParser) -> None:
    _cluster(parser)
    parser.add_argument(
        "--seconds",
        type=float,
        default=60.0,
        metavar="N",
        help="to send what waits in the spools (default: %(default)g)",
    )


def _cluster(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ray",
        metavar="ADDRESS",
        default="auto",
        help="the cluster, from one of its nodes (default: the one that runs here)",
    )
    parser.add_argument("--json", action="store_true", help="a JSON array, one object per node")


_ACTIONS: Final = {
    "up": ("place a relay on every node; again after nodes were added", _up),
    "down": ("end the relays of all nodes, once their spools are empty", _down),
}
