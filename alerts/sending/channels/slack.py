"""Slack channel with a bot token: one message per transition, with the first one edited in place and the others in its
thread.

Slack offers no idempotency keys to callers. Each message carries the notification's key as metadata. After an attempt
with unknown outcome, the channel searches its recent history for the key before it sends again.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from http.client import HTTPException
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import Request

from pydantic import SecretStr
from slack_sdk import WebClient
from slack_sdk.errors import SlackApiError, SlackClientError
from slack_sdk.web import SlackResponse

from logprobe.alerts.notification import Notification
from logprobe.alerts.sending.channels import slack_message, web
from logprobe.alerts.sending.channels.channel import Outgoing, Receipt
from logprobe.collectors.errors import ChannelError

LOGGER: Final = logging.getLogger("logprobe.alerts")
# The SDK logs each request and failure; the outbox tells them. This logger belongs to no tree and says nothing.
_SILENT: Final = logging.Logger("logprobe.slack", logging.CRITICAL + 1)  # noqa: LOG001 - another inherits handlers

EVENT: Final = "logprobe_notification"
_CLOCKS: Final = timedelta(minutes=10)  # between Slack's clock and ours
_PAGE: Final = 200
_MOST_PAGES: Final = 50  # a channel that is busier than that gets the message again
_HISTORY: Final = {"channels:history", "groups:history", "im:history", "mpim:history"}
_CODE: Final = re.compile(r"[a-z0-9_]{1,80}")
_TOO_MANY: Final = 429
_SERVER: Final = 500
_NEW_ONE: Final = "create a new bot token at https://api.slack.com/apps (OAuth & Permissions)"
_ELSEWHERE: Final = "choose another channel"
_SETUP: Final = {
    "invalid_auth": f"the token is not valid; {_NEW_ONE}",
    "not_authed": f"there is no token; {_NEW_ONE}",
    "account_inactive": f"the token belongs to a deleted bot or workspace; {_NEW_ONE}",
    "token_revoked": f"the token was revoked; {_NEW_ONE}",
    "token_expired": f"the token has expired; {_NEW_ONE}",
    "no_permission": "the workspace does not allow this app to do it; ask its administrator",
    "missing_scope": "the app lacks a scope; add it under OAuth & Permissions and install the app again",
    "channel_not_found": "the bot sees no such channel; use the ID from the channel's details, and invite the bot",
    "not_in_channel": "the bot is not in the channel; type /invite @your-bot there",
    "is_archived": f"the channel is archived; {_ELSEWHERE}",
    "channel_is_archived": f"the channel is archived; {_ELSEWHERE}",
    "restricted_action": "a workspace preference forbids posting there; ask its administrator",
    "posting_to_general_channel_denied": f"only some people may post to this channel; {_ELSEWHERE}",
}
_BUSY: Final = ("ratelimited", "rate_limited", "message_limit_exceeded", "team_added_to_org", "org_login_required")
_UNCERTAIN: Final = ("internal_error", "fatal_error", "service_unavailable", "request_timeout")


class _Client(WebClient):
    """Client of the Web API without redirects. The client of the SDK would forward the token to the redirect's
    target.
    """

    def _perform_urllib_http_request_internal(self, url: str, req: Request) -> dict[str, Any]:
        web.refuse(urlsplit(url).hostname or "")
        with web.OPENER.open(req, timeout=self.timeout) as answer:
            body = answer.read(web.BYTES).decode("utf-8", errors="replace")
            return {"status": answer.status, "headers": answer.headers, "body": body}


class Slack:
    """Slack channel with a bot token."""

    kind = "slack"
    settle = timedelta(seconds=15)  # after which a message, had Slack accepted it, can be found
    pace = 1.0  # Slack's limit, per channel

    def __init__(self, name: str, *, token: SecretStr, channel: str, api_url: str) -> None:
        """Set up the channel. `channel`: ID such as C0123456789."""
        self.name = name
        self._channel = channel
        self._token = token
        self._client = _Client(
            token=token.get_secret_value(),
            base_url=api_url,
            timeout=math.ceil(web.SECONDS),
            logger=_SILENT,
            retry_handlers=[],  # waiting and sending again is the outbox's, which survives a restart
        )

    def send(self, outgoing: Outgoing) -> Receipt:
        """Post the message unless it was posted earlier, then update the first message of the thread."""
        posted = self._find(outgoing) if outgoing.uncertain_since else None
        if outgoing.thread is None:
            return posted or self._post(outgoing, slack_message.message(outgoing.notification))
        try:
            if posted is None:
                self._post(outgoing, slack_message.reply(outgoing.notification))
        except ChannelError as error:
            if "thread_not_found" not in str(error):
                raise
            alone = replace(outgoing, thread=None)  # the first message was deleted
            return self._post(alone, slack_message.message(outgoing.notification))
        if not outgoing.overtaken:
            self._edit(outgoing.thread, outgoing.notification)
        return outgoing.thread  # whichever message of the thread is asked, it names the first

    def check(self) -> list[str]:
        """Return the missing scopes. Raise `ChannelError` for an invalid token."""
        answer = self._call(self._client.auth_test)
        stated = next((value for name, value in answer.headers.items() if name.lower() == "x-oauth-scopes"), "")
        granted = {scope.strip() for scope in stated.split(",")} - {""}
        missing = []
        if granted and "chat:write" not in granted:
            missing.append("the scope chat:write is missing: nothing can be posted")
        if granted and not granted & _HISTORY:
            missing.append(
                "the scope channels:history (groups:history for a private channel) is missing: a message may be "
                "duplicated after a crash"
            )
        return missing

    def _post(self, outgoing: Outgoing, content: dict[str, Any]) -> Receipt:
        note, thread = outgoing.notification, {}
        if outgoing.thread:
            # What is critical must reach those who do not follow the thread.
            loud = note.state == "firing" and note.level == "critical"
            thread = {"thread_ts": outgoing.thread["ts"], "reply_broadcast": loud}
        where = {"channel": self._channel, "metadata": _metadata(note.key)}
        answer = self._call(self._client.chat_postMessage, **where, **content, **thread)
        return {"channel": answer["channel"], "ts": answer["ts"], "key": note.key}

    def _edit(self, thread: Receipt, notification: Notification) -> None:
        """Update the thread's first message. A failure is uncertain, so that the next attempt searches for the posted
        reply.
        """
        content = slack_message.message(notification)
        del content["unfurl_links"], content["unfurl_media"]  # not of chat.update
        where = {"channel": thread["channel"], "ts": thread["ts"], "metadata": _metadata(thread["key"])}
        try:
            self._call(self._client.chat_update, **where, **content)
        except ChannelError as error:
            if error.reason != "refused":
                raise ChannelError("uncertain", str(error), retry_after=error.retry_after) from None
            LOGGER.warning("%s: the first message of the thread was not updated: %s", self.name, error)

    def _find(self, outgoing: Outgoing) -> Receipt | None:
        """Return the message if an earlier attempt posted it. Without the history scope, a duplicate is possible."""
        key = outgoing.notification.key
        try:
            found = next((message for message in self._recent(outgoing) if _key(message) == key), None)
        except ChannelError as error:
            if "missing_scope" not in str(error):
                raise ChannelError("uncertain", str(error), retry_after=error.retry_after) from None
            LOGGER.warning("%s: cannot search for the message, it may be duplicated: %s", self.name, error)
            return None
        return None if found is None else {"channel": self._channel, "ts": found["ts"], "key": key}

    def _recent(self, outgoing: Outgoing) -> Iterator[dict[str, Any]]:
        """Yield messages since the attempt with unknown outcome, from the thread and from the channel.

        The thread may not have existed at that attempt.
        """
        since = outgoing.uncertain_since
        oldest = "0" if since is None else f"{(since - _CLOCKS).timestamp():.6f}"
        if outgoing.thread is not None:
            try:
                yield from self._pages(self._client.conversations_replies, oldest=oldest, ts=outgoing.thread["ts"])
            except ChannelError as error:
                if "thread_not_found" not in str(error):
                    raise
        yield from self._pages(self._client.conversations_history, oldest=oldest)

    def _pages(self, method: Callable[..., SlackResponse], **asked: Any) -> Iterator[dict[str, Any]]:
        asked |= {"channel": self._channel, "limit": _PAGE, "include_all_metadata": True}
        for _ in range(_MOST_PAGES):
            answer = self._call(method, **asked)
            yield from answer["messages"]
            if not (cursor := (answer.get("response_metadata") or {}).get("next_cursor")):
                return
            asked["cursor"] = cursor

    def _call(self, method: Callable[..., SlackResponse], **arguments: Any) -> SlackResponse:
        """Call Slack. Convert errors of SDK and network to `ChannelError`, without the token and without the original
        error.
        """
        try:
            return method(**arguments)
        except ChannelError:
            raise
        except SlackApiError as error:
            failure = _answered(error.response)
        except SlackClientError as error:
            failure = ChannelError("refused", f"Slack's SDK refused: {error}")
        except (OSError, HTTPException) as error:
            failure = web.network_error(error, [self._token])
        words = web.redacted(str(failure), [self._token])  # a proxy may have quoted the request
        raise ChannelError(failure.reason, words, retry_after=failure.retry_after) from None


def _answered(response: Any) -> ChannelError:
    """Return the error of a response with ``ok: false``."""
    code, status = str(response.get("error", "unknown_error")), response.status_code
    details = [str(line) for line in (response.get("response_metadata") or {}).get("messages", [])]
    details += [f"needed: {response['needed']}"] if response.get("needed") else []
    recognised = _CODE.fullmatch(code) is not None  # else a proxy's page
    told = f" ({'; '.join(details)[:300]})" if details else ""
    words = f"Slack answered {code if recognised else 'an unknown response'}{told}"
    if status == _TOO_MANY or code in _BUSY:
        return ChannelError("busy", words, retry_after=web.retry_after(response.headers))
    if code in _SETUP:
        return ChannelError("setup", f"{words}: {_SETUP[code]}")
    uncertain = status >= _SERVER or code in _UNCERTAIN or not recognised
    return ChannelError("uncertain" if uncertain else "refused", f"{words}, HTTP status {status}")


def _metadata(key: str) -> dict[str, Any]:
    return {"event_type": EVENT, "event_payload": {"key": key}}


def _key(message: dict[str, Any]) -> str | None:
    metadata = message.get("metadata") or {}
    key = (metadata.get("event_payload") or {}).get("key") if metadata.get("event_type") == EVENT else None
    return None if key is None else str(key)
