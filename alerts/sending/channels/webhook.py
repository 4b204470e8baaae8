"""A signed JSON webhook, by the Standard Webhooks specification (https://www.standardwebhooks.com).

The signature covers the notification's key and the time, so that the receiver can refuse forgeries and replays, and
drop repetitions.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import string
from collections.abc import Callable, Mapping
from datetime import datetime
from http.client import HTTPException
from typing import Final
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request

from logprobe.alerts.sending.channels.addresses import opener
from logprobe.alerts.sending.channels.calls import Calls
from logprobe.alerts.sending.channels.channel import Outgoing, Receipt
from logprobe.alerts.sending.channels.network import network_error, retry_after
from logprobe.alerts.sending.credentials import Secret
from logprobe.collectors.errors import ChannelError, ConfigurationError

ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"

_PREFIX: Final = "whsec_"
_PLAIN: Final = string.punctuation.replace("%", "")  # in a header, beside letters and digits; the rest is quoted
_SHORTEST_KEY: Final = 24  # bytes; the specification's minimum
_ANSWER: Final = 65_536  # bytes that are read of it
_BUSY: Final = (429, 503)
_AUTHENTICATION: Final = (401, 403, 404, 410)
_SERVER: Final = 500
_REDIRECT: Final = range(300, 400)


class Webhook:
    """One receiver of JSON documents."""

    pace = 0.0

    def __init__(
        self,
        name: str,
        *,
        url: Secret,
        secret: Secret,
        calls: Calls,
        clock: Callable[[], datetime],
    ) -> None:
        """`secret`: ``whsec_`` and a key in base64, or any other text of 24 bytes or more. Raises
        `ConfigurationError`."""
        self.name = name
        self._calls = calls
        self._secrets = (url, secret)
        self._url = url
        self._key = key_of(secret)
        self._clock = clock
        self._opener = opener()

    def send(self, outgoing: Outgoing) -> Receipt:
        """Posts the notification. Sent again under the same ``webhook-id`` while it is not known to have arrived."""
        body = json.dumps(outgoing.notification.document(), ensure_ascii=False, allow_nan=False).encode()
        key = quote(outgoing.notification.key, safe=_PLAIN)
        seconds = int(self._clock().timestamp())
        headers = {
            "Content-Type": "application/json; charset=utf-8",
            "User-Agent": "logprobe",
            ID: key,
            TIMESTAMP: str(seconds),
            SIGNATURE: sign(self._key, key, seconds, body),
        }
        self._calls.run(lambda: self._post(body, headers))
        return {}

    def check(self) -> list[str]:
        """Return no line: nothing is known before a message is sent."""
        return []

    def _post(self, body: bytes, headers: Mapping[str, str]) -> None:
        request = Request(self._url.reveal(), body, dict(headers), method="POST")  # noqa: S310 - its scheme was checked
        try:
            with self._opener.open(request, timeout=self._calls.seconds) as answer:
                answer.read(_ANSWER)
                return
        except HTTPError as error:
            failure = _answered(error.code, retry_after(dict(error.headers)))
            error.close()
        except (OSError, HTTPException) as error:
            failure = network_error(error, self._secrets)
        raise failure from None  # urllib's errors hold the address, and it may hold a password


def key_of(secret: Secret) -> Secret:
    """The signing key, as text of one character per byte. Raises `ConfigurationError` when it is too short, or no
    base64."""
    text = secret.reveal()
    try:
        key = base64.b64decode(text.removeprefix(_PREFIX), validate=True) if text.startswith(_PREFIX) else text.encode()
    except binascii.Error:
        raise ConfigurationError("the webhook's secret starts with whsec_, but no base64 follows") from None
    if len(key) < _SHORTEST_KEY:
        raise ConfigurationError(
            f"the webhook's secret has less than {_SHORTEST_KEY} bytes; make one: openssl rand -hex 32"
        )
    return Secret(key.decode("latin-1"))


def sign(key: Secret, message_id: str, seconds: int, body: bytes) -> str:
    """The value of ``webhook-signature``: ``v1,`` and HMAC-SHA256 of id, time and body, in base64."""
    signed = f"{message_id}.{seconds}.".encode() + body
    digest = hmac.new(key.reveal().encode("latin-1"), signed, hashlib.sha256).digest()
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
