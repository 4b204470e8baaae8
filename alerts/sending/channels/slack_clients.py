"""Slack's clients through an opener of ours: urllib's own follows redirects to any host, and takes the token along.

They replace the SDK's one function that opens an address; a test with a server that redirects says when a newer SDK calls it otherwise.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.request import OpenerDirector, Request

from slack_sdk import WebClient
from slack_sdk.web.file_upload_v2_result import FileUploadV2Result
from slack_sdk.webhook import WebhookClient, WebhookResponse

_ANSWER: Final = 4 << 20  # bytes that are read of one; a page of a channel's history is the largest


class CarefulWebhookClient(WebhookClient):
    """Of an incoming webhook."""

    def __init__(self, through: OpenerDirector, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        self._through = through

    def _perform_http_request_internal(self, url: str, req: Request) -> WebhookResponse:
        found = _answer(self._through, req, self.timeout)
        return WebhookResponse(url=url, status_code=found["status"], body=found["body"], headers=dict(found["headers"]))


class CarefulWebClient(WebClient):
    """Of the Web API."""

    def __init__(self, through: OpenerDirector, **options: Any) -> None:
        super().__init__(**options)
        self._through = through

    def _perform_urllib_http_request_internal(self, url: str, req: Request) -> dict[str, Any]:
        del url  # it is the request's
        return _answer(self._through, req, self.timeout)

    def _upload_file(self, *, url: str, data: bytes, timeout: int, **_: Any) -> FileUploadV2Result:
        found = _answer(self._through, Request(url, data, method="POST"), timeout)  # noqa: S310 - the opener knows http alone
        return FileUploadV2Result(status=found["status"], body=found["body"])


def _answer(through: OpenerDirector, request: Request, timeout: int) -> dict[str, Any]:
    with through.open(request, timeout=timeout) as answer:
        body = answer.read(_ANSWER).decode("utf-8", errors="replace")
        return {"status": answer.status, "headers": answer.headers, "body": body}
