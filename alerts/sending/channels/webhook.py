"""Signed JSON webhook according to the Standard Webhooks specification (https://www.standardwebhooks.com).

The signature covers the notification's key and the time. The receiver can refuse forgeries and replays, and drop
repetitions.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import string
from collections.abc import Callable
from datetime import datetime, timedelta
from http.client import HTTPException
from typing import Final
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import Request

from pydantic import SecretStr

from logprobe.alerts.sending.channels import web
from logprobe.alerts.sending.channels.channel import Outgoing, Receipt
from logprobe.collectors.errors import ChannelError, ConfigurationError

_PREFIX: Final = "whsec_"
_PLAIN: Final = string.punctuation.replace("%", "")  # in a header, beside letters and digits; the rest is quoted
_SHORTEST_KEY: Final = 24  # bytes; the specification's minimum
_BUSY: Final = (429, 503)
_AUTHENTICATION: Final = (401, 403, 404, 410)
_SERVER: Final = 500
_REDIRECT: Final = range(300, 400)


class Webhook:
    """Channel for a receiver of JSON documents."""

    kind = "webhook"
    settle = timedelta(0)
    pace = 0.0

    def __init__(self, name: str, *, url: SecretStr, secret: SecretStr, clock: Callable[[], datetime]) -> None:
        """Set up the channel. Raise `ConfigurationError`.

        `secret`: ``whsec_`` with a key in base64, or any other text of 24 bytes or more.
        """
        self.name = name
        self._url = web.checked_url(url, f"channel {name}: its URL")
        self._secrets = (url, secret)
        self._key = key_of(secret)
        self._clock = clock

    def send(self, outgoing: Outgoing) -> Receipt:
        """Post the notification, with the same ``webhook-id`` in each attempt."""
        url, body = self._url.get_secret_value(), json.dumps(outgoing.notification.document(), ensure_ascii=False)
        key, seconds = quote(outgoing.notification.key, safe=_PLAIN), int(self._clock().timestamp())
        headers = {
            "Content-Type": "application/json; charset=utf-8",
            "User-Agent": "logprobe",
            "webhook-id": key,
            "webhook-timestamp": str(seconds),
            "webhook-signature": sign(self._key, key, seconds, body.encode()),
        }
        web.refuse(urlsplit(url).hostname or "")
        request = Request(url, body.encode(), headers, method="POST")  # noqa: S310 - its scheme was checked
        try:
            web.OPENER.open(request, timeout=web.SECONDS).close()
        except HTTPError as error:
            failure = _answered(error.code, web.retry_after(dict(error.headers)))
            error.close()
        except (OSError, HTTPException) as error:
            failure = web.network_error(error, self._secrets)
        else:
            return {}
        raise failure  # outside of `except`: urllib's errors hold the URL, and it may hold a password

    def check(self) -> list[str]:
        """Return no lines, since a receiver cannot be checked without a message."""
        return []


def key_of(secret: SecretStr) -> bytes:
    """Return the signing key. Raise `ConfigurationError` if the key is too short or is not base64."""
    text = secret.get_secret_value()
    try:
        key = base64.b64decode(text.removeprefix(_PREFIX), validate=True) if text.startswith(_PREFIX) else text.encode()
    except binascii.Error:
        raise ConfigurationError(
            "the webhook's secret starts with whsec_, but no base64 follows; copy it again"
        ) from None
    if len(key) < _SHORTEST_KEY:
        short = f"the webhook's secret has less than {_SHORTEST_KEY} bytes; make one: openssl rand -hex 32"
        raise ConfigurationError(short)
    return key


def sign(key: bytes, message_id: str, seconds: int, body: bytes) -> str:
    """Return the value of ``webhook-signature``: ``v1,`` and HMAC-SHA256 of id, time and body, in base64."""
    digest = hmac.new(key, f"{message_id}.{seconds}.".encode() + body, hashlib.sha256).digest()
    return "v1," + base64.b64encode(digest).decode()


def _answered(status: int, wait: float | None) -> ChannelError:
    words = f"the receiver answered HTTP status {status}"
    if status in _BUSY:
        return ChannelError("busy", words, retry_after=wait)
    if status in _REDIRECT:
        return ChannelError("setup", f"{words}, a redirect; use the address it points to")
    if status in _AUTHENTICATION:
        return ChannelError("setup", f"{words}; check its address and its secret")
    return ChannelError("uncertain" if status >= _SERVER else "refused", words)
