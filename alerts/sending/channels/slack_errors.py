"""Slack's SDK with care: what its error codes mean for a delivery, and a client that follows no redirect.

urllib's own opener follows redirects to any host, and takes the token along. The client replaces the SDK's one function
that opens an address; a test with a server that redirects says when a newer SDK calls it otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from http.client import HTTPException
from logging import CRITICAL, Logger
from typing import Any, Final, TypeVar
from urllib.request import OpenerDirector, Request

from slack_sdk import WebClient
from slack_sdk.errors import SlackApiError, SlackClientError

from logprobe.alerts.sending.channels.network import network_error, retry_after
from logprobe.alerts.sending.credentials import Secret, redacted
from logprobe.collectors.errors import ChannelError

_ANSWER: Final = 4 << 20  # bytes that are read of one; a page of a channel's history is the largest


class CarefulWebClient(WebClient):
    """Client of the Web API that follows no redirect."""

    def __init__(self, through: OpenerDirector, **options: Any) -> None:
        super().__init__(**options)
        self._through = through

    def _perform_urllib_http_request_internal(self, url: str, req: Request) -> dict[str, Any]:
        del url  # it is the request's
        return _answer(self._through, req, self.timeout)


def _answer(through: OpenerDirector, request: Request, timeout: int) -> dict[str, Any]:
    with through.open(request, timeout=timeout) as answer:
        body = answer.read(_ANSWER).decode("utf-8", errors="replace")
        return {"status": answer.status, "headers": answer.headers, "body": body}


T = TypeVar("T")

# The SDK logs requests, which hold the token. This logger belongs to no tree and says nothing.
SILENT: Final = Logger("logprobe.slack", CRITICAL + 1)  # noqa: LOG001 - one from getLogger would inherit handlers

_CODE: Final = re.compile(r"[a-z0-9_]{1,80}")
_TOO_MANY: Final = 429
_SERVER: Final = 500

_NEW_ONE: Final = (
    "create a new bot token at https://api.slack.com/apps (OAuth & Permissions) and replace the old one with it"
)
_SETUP: Final = {
    "invalid_auth": f"the token is not valid; {_NEW_ONE}",
    "not_authed": f"there is no token; {_NEW_ONE}",
    "account_inactive": f"the token belongs to a deleted bot or workspace; {_NEW_ONE}",
    "token_revoked": f"the token was revoked; {_NEW_ONE}",
    "token_expired": f"the token has expired; {_NEW_ONE}",
    "no_permission": "the workspace does not allow this app to do it; ask its administrator",
    "missing_scope": "the app lacks a scope; add it under OAuth & Permissions and install the app again",
    "channel_not_found": "the bot sees no such channel; use the ID at the end of the channel's details, and invite the "
    "bot",
    "not_in_channel": "the bot is not in the channel; type /invite @your-bot there",
    "is_archived": "the channel is archived; choose another one",
    "channel_is_archived": "the channel is archived; choose another one",
    "restricted_action": "a workspace preference forbids posting there; ask its administrator",
    "posting_to_general_channel_denied": "only some people may post to this channel; choose another one",
}
_BUSY: Final = ("ratelimited", "rate_limited", "message_limit_exceeded", "team_added_to_org", "org_login_required")
_UNCERTAIN: Final = ("internal_error", "fatal_error", "service_unavailable", "request_timeout")


def translated(work: Callable[[], T], secrets: Sequence[Secret]) -> T:
    """Return the result of `work`; errors of the SDK and of the network become `ChannelError`, without secrets and
    without their cause."""
    try:
        return work()
    except SlackApiError as error:
        failure = api_error(error)
    except SlackClientError as error:
        failure = ChannelError("refused", f"Slack's SDK refused: {error}")
    except (OSError, HTTPException) as error:
        failure = network_error(error, secrets)
    # Something on the way may have quoted the request; and the SDK's errors hold it, and with it the token.
    words = redacted(str(failure), secrets)
    raise ChannelError(failure.reason, words, retry_after=failure.retry_after) from None


def api_error(error: SlackApiError) -> ChannelError:
    """Return the error of an answer with ``ok: false``."""
    response = error.response
    code = str(response.get("error", "unknown_error"))
    details = [str(line) for line in (response.get("response_metadata") or {}).get("messages", [])]
    if needed := response.get("needed"):
        details.append(f"needed: {needed}")
    return answered(code, response.status_code, retry_after(response.headers), "; ".join(details)[:300])


def answered(code: str, status: int, wait: float | None, details: str = "") -> ChannelError:
    """Return the error of an error code and an HTTP status."""
    recognised = _CODE.fullmatch(code) is not None
    message = f"Slack answered {code if recognised else 'an unknown response'}" + (f" ({details})" if details else "")
    if status == _TOO_MANY or code in _BUSY:
        return ChannelError("busy", message, retry_after=wait)
    if code in _SETUP:
        return ChannelError("setup", f"{message}: {_SETUP[code]}")
    if status >= _SERVER or code in _UNCERTAIN or not recognised:  # not known: a proxy's page, say
        return ChannelError("uncertain", f"{message}, HTTP status {status}")
    return ChannelError("refused", f"{message}, HTTP status {status}")
