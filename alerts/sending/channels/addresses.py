"""Addresses that a channel may connect to: http and https, no redirects, and no address at which a cloud hands its
machines their secrets.

The address is looked at when the connection is made, whatever name led to it, before anything is sent.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
from collections.abc import Callable
from functools import partial
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from typing import Any, Final
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    UnknownHandler,
)

from logprobe.collectors.errors import ChannelError

_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
# Beside the link-local ones: metadata services of AWS (IPv6), Alibaba, Azure and Oracle.
_METADATA: Final = frozenset(
    ipaddress.ip_address(text) for text in ("fd00:ec2::254", "100.100.100.200", "168.63.129.16", "192.0.0.192")
)


def forbidden(text: str) -> bool:
    """Return whether an IP address is link-local, a cloud's metadata service, or none that one machine has.

    >>> [forbidden(a) for a in ("169.254.169.254", "::ffff:169.254.169.254", "fe80::1%eth0", "0.0.0.0")]
    [True, True, True, True]
    >>> [forbidden(a) for a in ("10.0.0.1", "127.0.0.1")]
    [False, False]
    """
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        mapped = address.ipv4_mapped or address.sixtofour
        if mapped is None and address in _NAT64:
            mapped = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        address = mapped or address
    return address.is_link_local or address.is_multicast or address.is_unspecified or address in _METADATA


def is_forbidden_literal(host: str) -> bool:
    """Return whether `host` is a forbidden address as it is written; of a name nothing is known before it is
    resolved."""
    try:
        return forbidden(host)
    except ValueError:
        return False


def check_host(host: str, port: int = 0) -> None:
    """Raises `ChannelError` when a name leads to a forbidden address; `OSError` when it leads nowhere. For callers with
    clients of their own."""
    for *_, place in socket.getaddrinfo(host, port or None, type=socket.SOCK_STREAM):
        _refuse(str(place[0]))


def opener() -> OpenerDirector:
    """Opens http and https, nothing else; an answer that redirects is an error, as `HTTPError`."""
    director = OpenerDirector()  # without urllib's own: they follow redirects, and open files
    for handler in (
        ProxyHandler(),
        UnknownHandler(),
        _Http(),
        _Https(),
        HTTPDefaultErrorHandler(),
        HTTPErrorProcessor(),
    ):
        director.add_handler(handler)
    return director


class _Http(HTTPHandler):
    def http_open(self, req: Request) -> HTTPResponse:
        return self.do_open(partial(_connection, HTTPConnection), req)


class _Https(HTTPSHandler):
    def __init__(self) -> None:
        super().__init__(context=ssl.create_default_context())
        self._checked = ssl.create_default_context()

    def https_open(self, req: Request) -> HTTPResponse:
        return self.do_open(partial(_connection, HTTPSConnection), req, context=self._checked)


def _connection(kind: Callable[..., Any], host: str, **options: Any) -> Any:
    connection = kind(host, **options)
    connection._create_connection = _connected  # noqa: SLF001 -- http.client's place for it
    return connection


def _connected(*arguments: Any) -> socket.socket:
    """A connection to an address that is allowed; nothing was sent to any other."""
    (host, port), *_ = arguments
    check_host(host, port)  # a refused address is not even connected to
    connection = socket.create_connection(*arguments)
    try:
        _refuse(connection.getpeername()[0])  # and what the name means may have changed since
    except BaseException:
        connection.close()
        raise
    return connection


def _refuse(address: str) -> None:
    if forbidden(address):
        raise ChannelError(
            "setup",
            f"its address resolves to {address}, which is link-local or a cloud's metadata service; use another one",
        )
