"""Arguments of `logprobe relay`. Imports nothing heavy: the command line parser is built at every call."""

from __future__ import annotations

import argparse
from typing import Final

SERVICE_VARIABLE: Final = "LOGPROBE_SERVICE"
CA_VARIABLE: Final = "LOGPROBE_SERVICE_CA"
SERVICE_TOKEN_VARIABLE: Final = "LOGPROBE_SERVICE_TOKEN"  # noqa: S105 - the variable's name; it holds the path of a file
_UNITS: Final = (("k", 1e3), ("m", 1e6), ("g", 1e9))


def declare(parser: argparse.ArgumentParser) -> None:
    """The arguments, apart from ``--home``."""
    parser.add_argument("--to", metavar="URL", help="grpc+tls://HOST:PORT of the service (default: $LOGPROBE_SERVICE)")
    parser.add_argument("--ca", metavar="FILE", help="certificate to trust, PEM (default: $LOGPROBE_SERVICE_CA)")
    parser.add_argument("--token", metavar="FILE", help="file with the token (default: $LOGPROBE_SERVICE_TOKEN)")
    parser.add_argument("--limit", type=rate, metavar="RATE", help="bytes per second, e.g. 20MB (default: no limit)")
    ending = parser.add_mutually_exclusive_group()
    ending.add_argument("--drain", action="store_true", help="end when everything in the spool is acknowledged")
    ending.add_argument(
        "--with-collectors", action="store_true", help="end when no collector uses this home and the spool is empty"
    )


def rate(text: str) -> float:
    """An argparse type: bytes per second.

    >>> rate("20MB"), rate("1500")
    (20000000.0, 1500.0)
    """
    number, unit = text.strip().lower().removesuffix("/s").removesuffix("b"), 1.0
    for letter, factor in _UNITS:
        if number.endswith(letter):
            number, unit = number.removesuffix(letter), factor
    try:
        value = float(number) * unit
    except ValueError:
        value = 0.0
    if not 1 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a rate; write bytes per second, e.g. 20MB")
    return value
