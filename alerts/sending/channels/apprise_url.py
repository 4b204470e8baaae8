"""Channel for mail, Teams, PagerDuty, ntfy and other services through the package apprise.

Needs ``pip install 'logprobe[apprise]'``.
"""

from __future__ import annotations

import importlib
import logging
from datetime import timedelta
from typing import Any, Final

from pydantic import SecretStr

from logprobe.alerts.sending import messages
from logprobe.alerts.sending.channels import web
from logprobe.alerts.sending.channels.channel import Outgoing, Receipt
from logprobe.collectors.errors import ChannelError, ConfigurationError, MissingExtraError

_TYPES: Final = {"info": "info", "warning": "warning", "critical": "failure"}


class AppriseUrl:
    """Channel for one address of apprise, such as ``mailto://…``."""

    kind = "apprise"
    settle = timedelta(0)
    pace = 1.0

    def __init__(self, name: str, *, url: SecretStr) -> None:
        """Set up the channel. Raise `MissingExtraError` without apprise, `ConfigurationError` for an unsupported
        address.
        """
        self.name = name
        apprise = _apprise()
        asset = apprise.AppriseAsset()
        asset.http_redirects = False  # of an apprise that knows it; an older one follows them
        self._target = apprise.Apprise(asset=asset)
        if not self._target.add(url.get_secret_value()):
            raise ConfigurationError(
                f"channel {name}: apprise does not know this kind of address; see "
                "https://github.com/caronc/apprise/wiki"
            )

    def send(self, outgoing: Outgoing) -> Receipt:
        """Send the message as plain text. Apprise reports no reason of a failure."""
        note = outgoing.notification
        kind = "success" if note.state == "resolved" else _TYPES.get(note.level or note.severity, "info")
        for host in (target.host for target in self._target if target.host):
            web.refuse(host)
        told = {"title": messages.heading(note), "body": messages.plain(note)}
        if not self._target.notify(**told, notify_type=kind, body_format="text"):
            raise ChannelError("uncertain", "apprise could not deliver the message; check the address and its target")
        return {}

    def check(self) -> list[str]:
        """Return the limitation of apprise as one line."""
        return ["apprise cannot check what it has sent: a message may be duplicated after a crash"]


def _apprise() -> Any:
    try:
        module = importlib.import_module("apprise")
    except ImportError:
        raise MissingExtraError("the package 'apprise' is not installed; pip install 'logprobe[apprise]'") from None
    # Both write addresses, which hold passwords, into their logs.
    logging.getLogger("apprise").setLevel(logging.CRITICAL + 1)
    logging.getLogger("urllib3").setLevel(logging.WARNING)
    return module
