"""HTTP of the channels: no redirects, no metadata services of clouds, and errors that state whether the message may
have arrived.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from typing import Any, Final
from urllib.error import URLError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPRedirectHandler, build_opener

from pydantic import SecretStr

from logprobe.collectors.errors import ChannelError, ConfigurationError

SECONDS: Final = 10.0  # without a byte, after which a call ends
BYTES: Final = 4 << 20  # that are read of an answer; a page of a Slack channel's history is the largest
_LONGEST: Final = 86_400.0  # seconds; by then a message is given up
_HIDDEN: Final = "[secret]"
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
# Beside the link-local ones: metadata services of AWS (IPv6), Alibaba, Azure and Oracle.
_METADATA: Final = frozenset(
    ipaddress.ip_address(text) for text in ("fd00:ec2::254", "100.100.100.200", "168.63.129.16", "192.0.0.192")
)


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:  # the answer becomes an `HTTPError`
        return None


OPENER: Final = build_opener(_NoRedirects)


def forbidden(text: str) -> bool:
    """Return whether an IP address is link-local, a cloud's metadata service, or not a unicast address.

    >>> [forbidden(a) for a in ("169.254.169.254", "::ffff:169.254.169.254", "fe80::1%eth0", "0.0.0.0")]
    [True, True, True, True]
    >>> [forbidden(a) for a in ("10.0.0.1", "127.0.0.1")]
    [False, False]
    """
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else None
        address = address.ipv4_mapped or address.sixtofour or inner or address
    return address.is_link_local or address.is_multicast or address.is_unspecified or address in _METADATA


def refuse(host: str) -> None:
    """Raise `ChannelError` if a host name resolves to a forbidden address. Callers check before each connection."""
    try:
        places = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # the connection fails and says so; or a proxy knows the name
        return
    for address in (str(place[0]) for *_, place in places):
        if forbidden(address):
            words = f"its host resolves to {address}, which is link-local or a cloud's metadata service"
            raise ChannelError("setup", f"{words}; use another address")


def checked_url(url: SecretStr, label: str) -> SecretStr:
    """Return `url`. Raise `ConfigurationError` for a URL without http(s) or with a forbidden host, without quoting
    it.
    """
    try:
        parts = urlsplit(url.get_secret_value())
        valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        valid = False
    if not valid or not url.get_secret_value().isascii():
        raise ConfigurationError(f"{label} is not an https:// or http:// URL; write the whole address")
    try:
        literal = forbidden(parts.hostname or "")
    except ValueError:
        literal = False  # a name
    if literal:
        raise ConfigurationError(f"{label} is link-local or a cloud's metadata service; use another address")
    return url


def retry_after(headers: Mapping[str, Any]) -> float | None:
    """Return the seconds of a ``Retry-After`` header, at most one day, or None without a valid header."""
    stated = next((str(value) for name, value in headers.items() if name.lower() == "retry-after"), "")
    if stated.isdecimal():
        return min(float(stated), _LONGEST)
    try:
        left = (parsedate_to_datetime(stated) - datetime.now(UTC)).total_seconds()
    except (TypeError, ValueError):
        return None
    return min(left + 1.0, _LONGEST) if left > 0 else None  # it names a second, which is to be over


def redacted(text: str, secrets: Iterable[SecretStr]) -> str:
    """Return `text` without the secrets, in plain or URL-quoted form."""
    for secret in (secret.get_secret_value() for secret in secrets):
        for form in {secret, quote(secret, safe=""), quote(secret)}:
            text = text.replace(form, _HIDDEN)
    return text


def network_error(error: OSError | HTTPException, secrets: Iterable[SecretStr]) -> ChannelError:
    """Return the error of a failed connection. Its outcome is certain only if no connection was made."""
    cause = error.reason if isinstance(error, URLError) and isinstance(error.reason, Exception) else error
    # Errors of the HTTP client quote parts of the URL.
    words = (
        redacted(f"{type(cause).__name__}: {cause}", secrets) if isinstance(cause, OSError) else type(cause).__name__
    )
    if isinstance(cause, (socket.gaierror, ConnectionRefusedError)):
        return ChannelError("unreachable", f"cannot connect ({words})")
    return ChannelError("uncertain", f"no response ({words})")
