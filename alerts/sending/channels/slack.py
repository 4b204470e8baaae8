"""Slack with a bot token: one message per transition, the first one edited in place, the others in its thread.

Slack knows no idempotency for callers. Each message carries the notification's key as metadata; after an attempt of
unknown outcome the channel's recent history is searched for it before anything is sent again.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

from slack_sdk.web import SlackResponse

from logprobe.alerts.notification import Notification
from logprobe.alerts.sending.channels import slack_message
from logprobe.alerts.sending.channels.addresses import opener
from logprobe.alerts.sending.channels.calls import Calls
from logprobe.alerts.sending.channels.channel import Outgoing, Receipt
from logprobe.alerts.sending.channels.slack_errors import SILENT, CarefulWebClient, translated
from logprobe.alerts.sending.credentials import Secret
from logprobe.collectors.errors import ChannelError

T = TypeVar("T")
LOGGER: Final = logging.getLogger("logprobe.alerts")

EVENT: Final = "logprobe_notification"
_CLOCKS: Final = timedelta(minutes=10)  # between Slack's clock and ours
_PAGE: Final = 200
_MOST_PAGES: Final = 50  # a channel that is busier than that gets the message again
_POST: Final = "chat:write"
_HISTORY: Final = {"channels:history", "groups:history", "im:history", "mpim:history"}


class Slack:
    """One Slack channel, through a bot token."""

    pace = 1.0  # Slack's limit, per channel

    def __init__(
        self,
        name: str,
        *,
        token: Secret,
        channel: str,
        calls: Calls,
        api_url: str,
    ) -> None:
        """`channel`: its ID, as in C0123456789."""
        self.name = name
        self._channel = channel
        self._calls = calls
        self._secrets = (token,)
        self._client = CarefulWebClient(
            opener(),
            token=token.reveal(),
            base_url=api_url,
            timeout=math.ceil(calls.seconds),
            logger=SILENT,
            retry_handlers=[],  # waiting and sending again is the outbox's
        )

    def send(self, outgoing: Outgoing) -> Receipt:
        """Posts, unless it has been; then brings the first message up to date."""
        posted = self._find(outgoing) if outgoing.uncertain_since else None
        if outgoing.thread is None:
            return self._first(outgoing, posted)
        try:
            if posted is None:
                self._post(outgoing, slack_message.reply(outgoing.notification))
        except ChannelError as error:
            if "thread_not_found" not in str(error):
                raise
            return self._first(replace(outgoing, thread=None), None)  # the first message was deleted
        if not outgoing.overtaken:
            self._edit(outgoing.thread, outgoing.notification)
        return outgoing.thread  # whichever message of the thread is asked, it names the first

    def check(self) -> list[str]:
        """Which scopes are missing. Raises `ChannelError` when the token is not valid."""
        answer = self._call(self._client.auth_test)
        granted = {scope.strip() for scope in _header(answer, "x-oauth-scopes").split(",")} - {""}
        if not granted:
            return []
        missing = [] if _POST in granted else [f"the scope {_POST} is missing: nothing can be posted"]
        if not granted & _HISTORY:
            missing.append(
                "the scope channels:history (groups:history for a private channel) is missing: a message may be "
                "duplicated after a crash"
            )
        return missing

    def _first(self, outgoing: Outgoing, posted: Receipt | None) -> Receipt:
        return posted or self._post(outgoing, slack_message.message(outgoing.notification))

    def _post(self, outgoing: Outgoing, content: dict[str, Any]) -> Receipt:
        arguments = {"channel": self._channel, "metadata": _metadata(outgoing.notification.key), **content}
        if outgoing.thread:
            # What is critical and the end of a snooze must reach those who do not follow the thread.
            n = outgoing.notification
            loud = n.state == "still_firing" or (n.state == "firing" and n.level == "critical")
            arguments |= {"thread_ts": outgoing.thread["ts"], "reply_broadcast": loud}
        answer = self._call(lambda: self._client.chat_postMessage(**arguments))
        return _receipt(answer["channel"], answer["ts"], outgoing.notification.key)

    def _edit(self, thread: Receipt, notification: Notification) -> None:
        """Bring the thread's first message up to date. A reply has been posted: after a failure it is looked for."""
        content = slack_message.message(notification)
        del content["unfurl_links"], content["unfurl_media"]  # not of chat.update
        arguments = {"channel": thread["channel"], "ts": thread["ts"], "metadata": _metadata(thread["key"]), **content}
        try:
            self._call(lambda: self._client.chat_update(**arguments))
        except ChannelError as error:
            if error.reason != "refused":
                raise ChannelError("uncertain", str(error), retry_after=error.retry_after) from None
            LOGGER.warning("%s: the first message of the thread was not updated: %s", self.name, error)

    def _find(self, outgoing: Outgoing) -> Receipt | None:
        """The message, if an earlier attempt has brought it there. Without the scope to look, it may come twice."""
        try:
            for message in self._recent(outgoing):
                if _key(message) == outgoing.notification.key:
                    return _receipt(self._channel, message["ts"], outgoing.notification.key)
        except ChannelError as error:
            if "missing_scope" in str(error):
                LOGGER.warning("%s: cannot search for the message, it may be duplicated: %s", self.name, error)
                return None
            raise ChannelError("uncertain", str(error), retry_after=error.retry_after) from None
        return None

    def _recent(self, outgoing: Outgoing) -> Iterator[dict[str, Any]]:
        """Messages since the attempt of unknown outcome, in the thread and in the channel: there may have been no
        thread then."""
        if outgoing.thread is not None:
            try:
                yield from self._pages(self._client.conversations_replies, outgoing, ts=outgoing.thread["ts"])
            except ChannelError as error:
                if "thread_not_found" not in str(error):
                    raise
        yield from self._pages(self._client.conversations_history, outgoing)

    def _pages(
        self, method: Callable[..., SlackResponse], outgoing: Outgoing, **where: str
    ) -> Iterator[dict[str, Any]]:
        arguments: dict[str, Any] = {
            "channel": self._channel,
            "oldest": _slack_time(outgoing.uncertain_since),
            "limit": _PAGE,
            "include_all_metadata": True,
            **where,
        }
        for _ in range(_MOST_PAGES):
            answer = self._call(lambda: method(**arguments))
            yield from answer["messages"]
            cursor = (answer.get("response_metadata") or {}).get("next_cursor")
            if not cursor:
                return
            arguments["cursor"] = cursor

    def _call(self, work: Callable[[], T]) -> T:
        return self._calls.run(lambda: translated(work, self._secrets))


def _metadata(key: str) -> dict[str, Any]:
    return {"event_type": EVENT, "event_payload": {"key": key}}


def _key(message: dict[str, Any]) -> str | None:
    metadata = message.get("metadata") or {}
    key = (metadata.get("event_payload") or {}).get("key") if metadata.get("event_type") == EVENT else None
    return str(key) if key is not None else None


def _receipt(channel: str, ts: str, key: str) -> Receipt:
    return {"channel": channel, "ts": ts, "key": key}


def _slack_time(since: datetime | None) -> str:
    return "0" if since is None else f"{(since - _CLOCKS).timestamp():.6f}"


def _header(answer: SlackResponse, name: str) -> str:
    values: Sequence[str] = [value for key, value in answer.headers.items() if key.lower() == name]
    return values[0] if values else ""
