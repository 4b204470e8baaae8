"""A Slack on loopback: what it would refuse is refused here, and it can fail in named ways.

Blocks are parsed with slack_sdk's own models, which know the limits of each; a block that comes out of them changed has keys that
Slack does not know. Text that Slack would read as a mention is noted in `violations`.
"""

from __future__ import annotations

import json
import re
import socket
import struct
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qsl

from slack_sdk.errors import SlackObjectFormationError
from slack_sdk.models.blocks import Block

TOKEN = "xoxb-0000-canary-token"
CHANNEL = "C0123456789"
SCOPES = ("chat:write", "channels:history")
NEEDED = {
    "chat.postMessage": "chat:write",
    "chat.update": "chat:write",
    "conversations.history": "channels:history",
    "conversations.replies": "channels:history",
}
MOST_BLOCKS = 50
MOST_TEXT = 40_000

# Named failures; "hang" is another. "before": nothing was accepted; "after": it was, and the sender does not hear of it.
FAILURES = (
    "500_before",
    "500_after",
    "reset_before",
    "reset_after",
    "portal_before",
    "ratelimited",
)


class FakeSlack:
    """Starts with the ``with`` block. `messages` is what people would see in all channels, in order."""

    def __init__(self, *, interval: float = 1.0, scopes: tuple[str, ...] = SCOPES, member: bool = True) -> None:
        self.messages: list[dict[str, Any]] = []
        self.calls: list[str] = []
        self.violations: list[str] = []
        self.limited = 0  # how often a sender was too fast
        self.scopes = scopes
        self.retry_after = 1  # seconds
        self._interval = interval
        self._member = member
        self._failures: dict[str, list[str]] = {}
        self._last_post = -interval
        self._number = 0
        self._lock = threading.RLock()
        self._given_up = threading.Semaphore(0)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"slack": self}))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.let_go(1000)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def api_url(self) -> str:
        return f"{self.root}/api/"

    def fail(self, method: str, *failures: str) -> None:
        """The next calls of `method` fail, one after the other: names of FAILURES, or an error code of Slack's."""
        self._failures.setdefault(method, []).extend(failures)

    def by_key(self, key: str) -> list[dict[str, Any]]:
        """The messages that carry a notification's key."""
        return [m for m in self.messages if m.get("metadata", {}).get("event_payload", {}).get("key") == key]

    def texts(self) -> str:
        return json.dumps(self.messages, ensure_ascii=False)

    def next_failure(self, method: str) -> str | None:
        with self._lock:
            waiting = self._failures.get(method)
            return waiting.pop(0) if waiting else None

    def hang(self) -> None:
        """Until somebody lets go of it, or the test ends: longer than any sender waits."""
        self._given_up.acquire(timeout=120)

    def let_go(self, calls: int = 1) -> None:
        """So many senders have given up a call that hangs, or is about to."""
        self._given_up.release(calls)

    def answer(self, method: str, arguments: dict[str, Any], authorization: str | None) -> tuple[int, dict[str, Any]]:
        """HTTP status and document of a call of the web API."""
        if authorization != f"Bearer {TOKEN}":
            return 200, {"ok": False, "error": "invalid_auth" if authorization else "not_authed"}
        if NEEDED.get(method) not in {None, *self.scopes}:
            return 200, {
                "ok": False,
                "error": "missing_scope",
                "needed": NEEDED[method],
                "provided": ",".join(self.scopes),
            }
        with self._lock:
            return getattr(self, "_" + method.replace(".", "_"))(arguments)

    def post(self, channel: str, content: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Accepts a message, or says why not."""
        error = self._channel_error(channel) or self._content_error(content)
        if error:
            return 200, {"ok": False, **error}
        now = time.monotonic()
        if now - self._last_post < self._interval:
            self.limited += 1
            return 429, {"ok": False, "error": "ratelimited"}
        if content.get("thread_ts") and not any(m["ts"] == content["thread_ts"] for m in self.messages):
            return 200, {"ok": False, "error": "thread_not_found"}
        self._last_post = now
        message = {**content, "ts": self._ts(), "channel": channel}
        self.messages.append(message)
        return 200, {"ok": True, "channel": channel, "ts": message["ts"], "message": content}

    def _auth_test(self, arguments: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        return 200, {"ok": True, "team": "fake", "user": "logprobe", "bot_id": "B1"}

    def _chat_postMessage(self, arguments: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        return self.post(arguments.pop("channel"), arguments)

    def _chat_update(self, arguments: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        channel, ts = arguments.pop("channel"), arguments.pop("ts")
        error = self._channel_error(channel) or self._content_error(arguments)
        if error:
            return 200, {"ok": False, **error}
        found = [m for m in self.messages if m["ts"] == ts and m["channel"] == channel]
        if not found:
            return 200, {"ok": False, "error": "message_not_found"}
        found[0].update(arguments, edited={"ts": self._ts()})
        return 200, {"ok": True, "channel": channel, "ts": ts, "text": arguments["text"]}

    def _conversations_history(self, arguments: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        return self._page(arguments, lambda m: "thread_ts" not in m or m.get("reply_broadcast"))

    def _conversations_replies(self, arguments: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if not any(m["ts"] == arguments["ts"] for m in self.messages):
            return 200, {"ok": False, "error": "thread_not_found"}
        return self._page(arguments, lambda m: arguments["ts"] in {m["ts"], m.get("thread_ts")})

    def _page(self, arguments: dict[str, Any], belongs: Callable[[dict[str, Any]], Any]) -> tuple[int, dict[str, Any]]:
        if error := self._channel_error(arguments["channel"]):
            return 200, {"ok": False, **error}
        oldest, start = float(arguments.get("oldest", 0)), int(arguments.get("cursor") or 0)
        # Apps outside of the marketplace get 15 messages at a time, whatever they ask for.
        limit = min(15, int(arguments.get("limit", 100)))
        found = [
            m for m in self.messages if m["channel"] == arguments["channel"] and belongs(m) and float(m["ts"]) > oldest
        ]
        page = [dict(m) for m in found[::-1][start : start + limit]]
        if arguments.get("include_all_metadata") not in {"1", "true", True}:
            for message in page:
                message.pop("metadata", None)
        more = start + limit < len(found)
        cursor = str(start + limit) if more else ""
        return 200, {"ok": True, "messages": page, "has_more": more, "response_metadata": {"next_cursor": cursor}}

    def _channel_error(self, channel: str) -> dict[str, Any] | None:
        if channel != CHANNEL:
            return {"error": "channel_not_found"}
        return None if self._member else {"error": "not_in_channel"}

    def _content_error(self, content: dict[str, Any]) -> dict[str, Any] | None:
        if not content.get("text"):
            self.violations.append("no fallback text")
        if len(content.get("text", "")) > MOST_TEXT:
            return {"error": "msg_too_long"}
        blocks = list(content.get("blocks", []))
        for attachment in content.get("attachments", []):
            if not attachment.get("fallback"):
                self.violations.append("an attachment without fallback")
            blocks += attachment.get("blocks", [])
        if any(re.search(r"<[!@#]", text) for text in _strings(content)):
            self.violations.append(f"a mention: {content}")
        problems = _problems(blocks)
        return {"error": "invalid_blocks", "response_metadata": {"messages": problems}} if problems else None

    def _ts(self) -> str:
        self._number += 1
        return f"{time.time():.3f}{self._number:03d}"


def _problems(blocks: list[dict[str, Any]]) -> list[str]:
    problems = [f"{len(blocks)} blocks"] if len(blocks) > MOST_BLOCKS else []
    for block in blocks:
        parsed = Block.parse(block)
        try:
            back = parsed.to_dict() if parsed is not None else None
        except SlackObjectFormationError as error:
            problems.append(f"[ERROR] {error}")
            continue
        if back != block:
            problems.append(f"[ERROR] invalid block {block}")
    return problems


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return [text for child in children for text in _strings(child)]


class _Handler(BaseHTTPRequestHandler):
    slack: FakeSlack
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        slack, body = self.slack, self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path, _, query = self.path.partition("?")
        method = path.rpartition("/")[2]
        slack.calls.append(method)
        failure = slack.next_failure(method)
        if failure is not None and self._fails(failure, "before"):
            return
        status, document = self._answer(method, query, body, failure)
        if failure is not None and self._fails(failure, "after"):
            return
        self._write(status, document)

    def _answer(self, method: str, query: str, body: bytes, failure: str | None) -> tuple[int, Any]:
        slack = self.slack
        if failure == "ratelimited":
            return 429, {"ok": False, "error": "ratelimited"}
        if failure is not None and failure not in FAILURES:
            return 200, {"ok": False, "error": failure}
        if "json" in self.headers.get("Content-Type", ""):
            arguments = json.loads(body or b"{}")
        else:
            arguments = dict(parse_qsl(query) + parse_qsl(body.decode()))
        return slack.answer(method, arguments, self.headers.get("Authorization"))

    def _fails(self, failure: str, when: str) -> bool:
        if failure == "hang":
            self.slack.hang()
            self.close_connection = True
        elif failure == f"500_{when}":
            self._write(500, "<html>something went wrong</html>")
        elif failure == f"portal_{when}":  # a proxy that wants somebody to sign in
            self._write(200, "<html>Sign in</html>")
        elif failure == f"reset_{when}":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            self.close_connection = True
        else:
            return False
        return True

    def _write(self, status: int, document: Any) -> None:
        body = document.encode() if isinstance(document, str) else json.dumps(document).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("x-oauth-scopes", ",".join(self.slack.scopes))
            if status == 429:
                self.send_header("Retry-After", str(self.slack.retry_after))
            self.end_headers()
            self.wfile.write(body)
        except ConnectionError:  # the sender was killed, or has given up
            self.close_connection = True

    def finish(self) -> None:
        try:
            super().finish()
        except (ConnectionError, ValueError, OSError):
            return

    def log_message(self, *arguments: object) -> None:
        return
