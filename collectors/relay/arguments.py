"""Arguments of `logprobe relay`, and the variable that says the same. Imports nothing heavy: the command line parser
is built at every call."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from logprobe.collectors.environment import pairs
from logprobe.collectors.errors import ConfigurationError

SERVICE_VARIABLE: Final = "LOGPROBE_SERVICE"
_PARTS: Final = frozenset({"ca", "token", "node"})
_UNITS: Final = (("k", 1e3), ("m", 1e6), ("g", 1e9))


@dataclass(frozen=True, slots=True)
class Service:
    """Where a service is, and how a node comes to it. `ca`, `token`: files with the certificate to trust and the token;
    `node`: what the node is called where its host name says nothing. What is not said is ""."""

    address: str
    ca: str = ""
    token: str = ""
    node: str = ""


def service(environment: Mapping[str, str], given: str | None = None) -> Service:
    """What ``LOGPROBE_SERVICE`` says, or `given`, which may leave all but the address to it.

    Raises `ConfigurationError`.

    >>> service({"LOGPROBE_SERVICE": "grpc+tls://a:1,token=~/token"}, "grpc+tls://b:2,node=n1")
    Service(address='grpc+tls://b:2', ca='', token='~/token', node='n1')
    """
    said: dict[str, str] = {}
    address = ""
    for text in filter(None, (environment.get(SERVICE_VARIABLE), given)):
        address, _, rest = text.partition(",")
        said |= pairs(rest)
        if said.keys() - _PARTS:  # not quoted: it may be a token
            raise ConfigurationError(
                f"after the address {address!r} only ,ca=FILE ,token=FILE and ,node=NAME may follow"
            )
    return Service(address, **said)


def declare(parser: argparse.ArgumentParser) -> None:
    """The arguments, apart from ``--home``."""
    parser.add_argument("--to", metavar="URL", help="grpc+tls://HOST:PORT of the service (default: $LOGPROBE_SERVICE)")
    parser.add_argument("--ca", metavar="FILE", help="certificate to trust, PEM (default: ca= of it)")
    parser.add_argument("--token", metavar="FILE", help="file with the token (default: token= of it)")
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
