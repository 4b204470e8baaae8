"""Slack through an incoming webhook: needs no app with scopes, and can neither edit nor look at what it has sent.

So a message whose attempt got no answer is sent again, and says that it may be a repetition.
"""

from __future__ import annotations

import math
from typing import Final

from logprobe.alerts.notification import Notification
from logprobe.alerts.sending.channels import slack_message
from logprobe.alerts.sending.channels.addresses import opener
from logprobe.alerts.sending.channels.calls import Calls
from logprobe.alerts.sending.channels.channel import Outgoing, Receipt
from logprobe.alerts.sending.channels.network import retry_after
from logprobe.alerts.sending.channels.slack_errors import (
    SILENT,
    CarefulWebhookClient,
    answered,
    retry_handlers,
    translated,
)
from logprobe.alerts.sending.credentials import Secret

_TAKEN: Final = (200, "ok")


class SlackWebhook:
    """One incoming webhook."""

    pace = 1.0  # Slack's limit, per webhook

    def __init__(self, name: str, *, url: Secret, calls: Calls, allow_link_local: bool = False) -> None:
        """`url`: the webhook's address, which is its password."""
        self.name = name
        self._calls = calls
        self._secrets = (url,)
        self._client = CarefulWebhookClient(
            opener(allow_link_local=allow_link_local),
            url.reveal(),
            timeout=math.ceil(calls.seconds),
            logger=SILENT,
            retry_handlers=retry_handlers(),
        )

    def send(self, outgoing: Outgoing) -> Receipt:
        """Sends one message per transition, of an incident the first and those that must not be missed: there is no
        thread for the others."""
        if outgoing.later and _may_be_missed(outgoing.notification):
            return {}
        content = slack_message.message(outgoing.notification, repeat=outgoing.uncertain_since is not None)
        answer = self._calls.run(lambda: translated(lambda: self._client.send(**content), self._secrets))
        if (answer.status_code, answer.body.strip()) != _TAKEN:
            raise answered(answer.body.strip(), answer.status_code, retry_after(answer.headers))
        return {}

    def check(self) -> list[str]:
        """What a webhook cannot do."""
        return [
            (
                "an incoming webhook cannot edit, thread or show charts, and may send duplicates after a crash; a bot "
                "token does not have these limits"
            )
        ]


def _may_be_missed(n: Notification) -> bool:
    """Whether it is news of an incident that people know of, and nothing got worse: its page tells it."""
    return n.incident is not None and (
        n.state in {"updated", "acknowledged", "resolved"} or (n.state == "firing" and n.severity != "critical")
    )
