"""Anything else (mail, Teams, PagerDuty, ntfy …) through the package apprise. Needs ``pip install
'logprobe[apprise]'``."""

from __future__ import annotations

import importlib
import logging
from typing import Any, Final

from logprobe.alerts.sending import messages
from logprobe.alerts.sending.channels.addresses import check_host
from logprobe.alerts.sending.channels.calls import Calls
from logprobe.alerts.sending.channels.channel import Outgoing, Receipt
from logprobe.alerts.sending.credentials import Secret
from logprobe.collectors.errors import ChannelError, ConfigurationError, MissingExtraError

_TYPES: Final = {"info": "info", "warning": "warning", "critical": "failure"}


class AppriseUrl:
    """One address of apprise, as in ``mailto://…``."""

    pace = 1.0

    def __init__(self, name: str, *, url: Secret, calls: Calls) -> None:
        """Raises `MissingExtraError` without apprise, `ConfigurationError` for an address that it does not know."""
        self.name = name
        self._calls = calls
        apprise = _apprise()
        asset = apprise.AppriseAsset()
        asset.http_redirects = False  # of an apprise that knows it; an older one follows them
        self._target = apprise.Apprise(asset=asset)
        if not self._target.add(url.reveal()):
            raise ConfigurationError(
                f"channel {name}: apprise does not know this kind of address; see "
                "https://github.com/caronc/apprise/wiki"
            )

    def send(self, outgoing: Outgoing) -> Receipt:
        """Sends the message as plain text. What went wrong, apprise does not say."""
        note = outgoing.notification
        kind = "success" if note.state == "resolved" else _TYPES.get(note.level or note.severity, "info")
        title, body = messages.heading(note), messages.plain(note)
        done = self._calls.run(lambda: self._notify(body=body, title=title, notify_type=kind, body_format="text"))
        if not done:
            raise ChannelError("uncertain", "apprise could not deliver the message; check the address and its target")
        return {}

    def _notify(self, **message: Any) -> bool:
        for host in (target.host for target in self._target if target.host):
            try:
                check_host(host.strip("[]"))
            except ChannelError:
                raise
            except OSError:  # a name that leads nowhere, or no name at all: apprise says whether it could deliver
                continue
        return bool(self._target.notify(**message))

    def check(self) -> list[str]:
        """Return the line on what apprise cannot do."""
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
