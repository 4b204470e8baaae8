"""The other channels: signed JSON, apprise."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import pytest
from alert_notes import NOTE
from sending import Bench

from logprobe.alerts.sending.channels.apprise_url import AppriseUrl
from logprobe.alerts.sending.channels.calls import Calls
from logprobe.alerts.sending.channels.channel import Outgoing
from logprobe.alerts.sending.channels.network import retry_after
from logprobe.alerts.sending.channels.webhook import Webhook, key_of, sign
from logprobe.alerts.sending.credentials import Secret
from logprobe.collectors.errors import ChannelError, ConfigurationError
from logprobe.monitor.store.store import Store

SECRET = Secret("whsec_" + "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


class Receiver:
    """An HTTP server that takes requests, and answers with the statuses it was given, then 200."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.statuses: list[int] = []
        self.headers: dict[str, str] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self) -> Any:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                receiver.requests.append((self.command, headers, body))
                self.send_response(receiver.statuses.pop(0) if receiver.statuses else 200)
                for name, value in receiver.headers.items():
                    self.send_header(name, value)
                self.end_headers()

            do_GET = do_POST

            def log_message(self, *arguments: object) -> None:
                return

        return Handler


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    with Receiver() as running:
        yield running


def webhook(receiver: Receiver, *, seconds: float = 90.0) -> Webhook:
    calls = Calls(seconds, threading.Event())
    return Webhook("hook", url=Secret(receiver.url), secret=SECRET, calls=calls, clock=lambda: NOW)


def signature(headers: dict[str, str], body: bytes) -> str:
    """Signature that a receiver with the secret expects."""
    return sign(key_of(SECRET), headers["webhook-id"], int(NOW.timestamp()), body)


def test_a_webhook_is_signed_and_can_be_verified(receiver: Receiver) -> None:
    webhook(receiver).send(Outgoing(NOTE))
    ((_, headers, body),) = receiver.requests
    assert json.loads(body) == NOTE.document()
    assert headers["webhook-id"] == NOTE.key
    assert headers["webhook-signature"] == signature(headers, body)


def test_the_signature_is_that_of_the_specification() -> None:
    # The example of https://github.com/standard-webhooks/standard-webhooks (spec, and its libraries' tests).
    signed = sign(key_of(SECRET), "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize(
    ("status", "reason"),
    [(500, "uncertain"), (429, "busy"), (503, "busy"), (401, "setup"), (302, "setup"), (422, "refused")],
)
def test_answers_of_a_receiver(receiver: Receiver, status: int, reason: str) -> None:
    receiver.statuses = [status]
    receiver.headers = {"Retry-After": "7", "Location": receiver.url}
    with pytest.raises(ChannelError, match=str(status)) as caught:
        webhook(receiver).send(Outgoing(NOTE))
    assert caught.value.reason == reason
    assert caught.value.retry_after == (7.0 if reason == "busy" else None)
    assert len(receiver.requests) == 1  # a redirect was not followed


def test_a_repetition_has_the_same_id(store: Store, receiver: Receiver) -> None:
    receiver.statuses = [500]
    bench = Bench(store, webhook(receiver))
    bench.enqueue(NOTE)
    bench.run()
    bench.finish()
    assert [headers["webhook-id"] for _, headers, _ in receiver.requests] == [NOTE.key] * 2


@pytest.mark.parametrize("run", ["läufe", "実験/α-1", "two\nlines", " a%20b"])
def test_a_message_about_a_run_of_any_name_arrives(store: Store, receiver: Receiver, run: str) -> None:
    receiver.statuses = [500]
    bench = Bench(store, webhook(receiver))
    bench.enqueue(replace(NOTE, run=run, key=f"{run}/k3/1/firing"))
    bench.run()
    bench.finish()
    assert bench.states() == {"hook": (1, 0, 0)}
    assert len(receiver.requests) == 2
    assert len({headers["webhook-id"] for _, headers, _ in receiver.requests}) == 1
    for _, headers, body in receiver.requests:
        assert headers["webhook-signature"] == signature(headers, body)
        assert json.loads(body)["run"] == run


@pytest.mark.parametrize(
    ("stated", "least", "most"), [("7", 7, 7), ("9" * 400, 86400, 86400), (600, 480, 602), (10**6, 86400, 86400)]
)
def test_when_a_receiver_may_be_asked_again(stated: str | int, least: float, most: float) -> None:
    """A number of seconds, or a moment: here so many seconds ahead."""
    moment = stated if isinstance(stated, str) else format_datetime(datetime.now(UTC) + timedelta(seconds=stated), True)
    assert least <= (retry_after({"Retry-After": moment}) or 0) <= most


@pytest.mark.parametrize("stated", ["soon", "", "-3", "Wed, 21 Oct 2015 07:28:00 GMT", "Wed, 99 Oct 2015 07:28:00 GMT"])
def test_what_is_no_time_to_ask_again(stated: str) -> None:
    assert retry_after({"Retry-After": stated}) is None


@pytest.mark.parametrize("secret", ["short", "whsec_AAAA", "whsec_no base64 here, surely"])
def test_a_weak_secret_is_refused_and_not_quoted(receiver: Receiver, secret: str) -> None:
    calls = Calls(1.0, threading.Event())
    with pytest.raises(ConfigurationError) as caught:
        Webhook("hook", url=Secret(receiver.url), secret=Secret(secret), calls=calls, clock=lambda: NOW)
    assert secret.removeprefix("whsec_") not in str(caught.value)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of apprise's own imports
def test_apprise_sends_to_its_address(receiver: Receiver) -> None:
    url = receiver.url.replace("http://", "json://")
    channel = AppriseUrl("mail", url=Secret(url), calls=Calls(90.0, threading.Event()))
    channel.send(Outgoing(NOTE))
    document = json.loads(receiver.requests[0][2])
    assert (document["title"], document["type"]) == ("Critical: k3 grows · run", "failure")
    receiver.statuses = [500]
    with pytest.raises(ChannelError, match="apprise could not deliver"):
        channel.send(Outgoing(NOTE))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of apprise's own imports
def test_an_address_that_apprise_does_not_know_is_not_quoted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(ConfigurationError) as caught:
        AppriseUrl("mail", url=Secret("nosuch://canary-password"), calls=Calls(1.0, threading.Event()))
    assert "canary" not in str(caught.value) + caplog.text


def test_the_receiver_in_the_documentation_works(receiver: Receiver, repository: Path) -> None:
    page = (repository / "docs" / "alerts.md").read_text(encoding="utf-8")
    namespace: dict[str, Any] = {}
    exec(page.split("```python\n")[1].split("```")[0], namespace)
    calls, key = Calls(90.0, threading.Event()), "a key of more than 24 bytes"
    url, clock = Secret(receiver.url), lambda: datetime.now(UTC)
    Webhook("hook", url=url, secret=Secret(key), calls=calls, clock=clock).send(Outgoing(NOTE))
    ((_, headers, body),) = receiver.requests
    assert namespace["genuine"](key.encode(), headers, body, set())
    assert not namespace["genuine"](key.encode(), headers, body + b" ", set())
    assert not namespace["genuine"](key.encode(), headers, body, {NOTE.key})
    assert not namespace["genuine"](key.encode(), headers | {"webhook-timestamp": "1"}, body, set())
