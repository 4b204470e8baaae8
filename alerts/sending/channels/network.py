"""Errors of failed HTTP exchanges: the message arrived, may have arrived, or should be sent later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from socket import gaierror
from typing import Any, Final
from urllib.error import URLError
from urllib.parse import urlsplit

from logprobe.alerts.sending.channels.addresses import is_forbidden_literal
from logprobe.alerts.sending.credentials import Secret, redacted
from logprobe.collectors.errors import ChannelError, ConfigurationError

_LONGEST: Final = 86_400.0  # seconds; by then a message is given up


def retry_after(headers: Mapping[str, Any]) -> float | None:
    """Seconds of a ``Retry-After`` header, which says so many or when, if there is a sensible one: a day at most."""
    for name, value in headers.items():
        if name.lower() == "retry-after":
            first = str(value[0] if isinstance(value, Sequence) and not isinstance(value, str) else value)
            return min(float(first), _LONGEST) if first.isdecimal() else _until(first)
    return None


def _until(moment: str) -> float | None:
    try:
        left = (parsedate_to_datetime(moment) - datetime.now(UTC)).total_seconds()
    except (TypeError, ValueError):
        return None
    return min(left + 1.0, _LONGEST) if left > 0 else None  # it names a second, which is to be over


def network_error(error: OSError | HTTPException, secrets: Sequence[Secret]) -> ChannelError:
    """Return the error of a connection that failed: certain only if none was made."""
    cause = error.reason if isinstance(error, URLError) and isinstance(error.reason, Exception) else error
    if isinstance(cause, ChannelError):  # its address is refused
        return cause
    # Errors of the HTTP client quote parts of the address.
    words = (
        redacted(f"{type(cause).__name__}: {cause}", secrets) if isinstance(cause, OSError) else type(cause).__name__
    )
    if isinstance(cause, (gaierror, ConnectionRefusedError)):
        return ChannelError("unreachable", f"cannot connect ({words})")
    return ChannelError("uncertain", f"no response ({words})")


def checked_address(secret: Secret, label: str) -> Secret:
    """`secret` itself. Raises `ConfigurationError`, without quoting it, when it is no web address, or one that
    `addresses` forbids."""
    try:
        parts = urlsplit(secret.reveal())
        valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        valid = False
    if not valid or not secret.reveal().isascii():
        raise ConfigurationError(f"{label} is not an https:// or http:// URL")
    if is_forbidden_literal(parts.hostname or ""):
        raise ConfigurationError(f"{label} is link-local or a cloud's metadata service; use another address")
    return secret
