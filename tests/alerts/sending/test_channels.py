"""The conformance suite: what every channel does, each against a server that answers as it is told."""

from __future__ import annotations

import json
import logging
import threading
import traceback
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from alert_notes import NOTE
from pydantic import SecretStr

from logprobe.alerts.sending.channels.apprise_url import AppriseUrl
from logprobe.alerts.sending.channels.channel import Channel, Outgoing
from logprobe.alerts.sending.channels.slack import Slack
from logprobe.alerts.sending.channels.web import checked_url, redacted, retry_after
from logprobe.alerts.sending.channels.webhook import Webhook, key_of, sign
from logprobe.alerts.sending.delivery import Deadline
from logprobe.collectors.errors import ChannelError, ConfigurationError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of apprise's own imports
NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
TOKEN, KEY, PATH = "xoxb-0000-canary-token", "canary-signing-key-of-24-bytes", "canarypath"
SECRET = SecretStr("whsec_" + "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
OK = (200, '{"ok": true, "channel": "C1", "ts": "1"}')
KINDS = ("slack", "webhook", "apprise")


class Receiver(ThreadingHTTPServer):
    """A server that keeps what it gets and gives the next of `answers` (a status and a body; None: it hangs up), then OK."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.got: list[tuple[str, dict[str, str], str]] = []  # path, headers, body
        self.answers: list[tuple[int, str] | None] = []
        self.headers: dict[str, str] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        self.server.got.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
        answer = self.server.answers.pop(0) if self.server.answers else OK
        if answer is None:
            self.close_connection = True
            return
        self.send_response(answer[0])
        for name, value in {**self.server.headers, "Content-Length": str(len(answer[1]))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer[1].encode())

    do_GET = do_POST

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def made(kind: str, url: str) -> Channel:
    if kind == "slack":
        return Slack("c", token=SecretStr(TOKEN), channel="C1", api_url=f"{url}/{PATH}/")
    if kind == "webhook":
        return Webhook("c", url=SecretStr(f"{url}/{PATH}"), secret=SecretStr(KEY), clock=lambda: NOW)
    return AppriseUrl("c", url=SecretStr(f"{url}/{PATH}".replace("http:", "json:")))


@pytest.mark.parametrize("kind", KINDS)
def test_a_message_says_what_happened(receiver: Receiver, kind: str) -> None:
    channel = made(kind, receiver.url)
    assert (channel.kind, channel.name) == (kind, "c")
    channel.send(Outgoing(NOTE))
    ((_, _, body),) = receiver.got
    for word in (NOTE.summary, NOTE.rule, NOTE.run, "140", "118", "weight sync 14"):
        assert word in json.dumps(json.loads(body), ensure_ascii=False)


def coded(error: str) -> tuple[int, str]:
    return 200, json.dumps({"ok": False, "error": error})


@pytest.mark.parametrize(
    ("kind", "answer", "reason"),
    [
        *((kind, (500, "<html>oh</html>"), "uncertain") for kind in KINDS),
        *((kind, None, "uncertain") for kind in KINDS),
        *((kind, (429, '{"ok": false, "error": "ratelimited"}'), "busy") for kind in ("slack", "webhook")),
        ("webhook", (503, ""), "busy"),
        ("webhook", (401, ""), "setup"),
        ("webhook", (302, ""), "setup"),
        ("webhook", (422, ""), "refused"),
        ("slack", coded("invalid_auth"), "setup"),
        ("slack", coded("account_inactive"), "setup"),
        ("slack", coded("invalid_blocks"), "refused"),
        ("slack", coded("internal_error"), "uncertain"),
        ("slack", (200, "<html>Sign in</html>"), "uncertain"),
        ("slack", (302, ""), "uncertain"),
        ("apprise", (302, ""), "uncertain"),
        ("apprise", (422, ""), "uncertain"),
    ],
)
def test_a_failure_says_whether_the_message_may_have_arrived_and_no_secret(
    receiver: Receiver, caplog: pytest.LogCaptureFixture, kind: str, answer: tuple[int, str] | None, reason: str
) -> None:
    caplog.set_level(logging.DEBUG)
    receiver.answers = [answer]
    receiver.headers = {"Retry-After": "7", "Location": f"{receiver.url}/elsewhere"}
    with pytest.raises(ChannelError) as caught:
        made(kind, receiver.url).send(Outgoing(NOTE))
    assert (caught.value.reason, caught.value.retry_after) == (reason, 7.0 if reason == "busy" else None)
    assert [path.startswith(f"/{PATH}") for path, _, _ in receiver.got] == [True], "no redirect is followed"
    said = "".join(traceback.format_exception(caught.value)) + caplog.text.replace(receiver.url, "")
    assert not [secret for secret in (TOKEN, KEY) if secret in said]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("secret", [TOKEN, PATH])
def test_an_answer_that_quotes_the_request_is_not_told(receiver: Receiver, kind: str, secret: str) -> None:
    quoted = json.dumps({"ok": False, "error": "invalid_arguments", "response_metadata": {"messages": [secret]}})
    receiver.answers = [(403, quoted if secret is TOKEN else secret)]
    with pytest.raises(ChannelError) as caught:
        made(kind, receiver.url).send(Outgoing(NOTE))
    assert secret not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("host", ["127.0.0.1:9", "nowhere.invalid"])
def test_no_one_is_there(kind: str, host: str) -> None:
    with pytest.raises(ChannelError) as caught:
        made(kind, f"http://{host}").send(Outgoing(NOTE))
    assert caught.value.reason == ("uncertain" if kind == "apprise" else "unreachable")
    assert PATH not in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("host", ["169.254.169.254", "[fe80::1]", "2852039166", "0.0.0.0"])
def test_no_channel_connects_to_where_clouds_keep_secrets(kind: str, host: str) -> None:
    with pytest.raises((ChannelError, ConfigurationError), match="use another address"):
        made(kind, f"http://{host}:9").send(Outgoing(NOTE))


FORBIDDEN = (
    "169.254.170.2 [::ffff:169.254.169.254] [64:ff9b::a9fe:a9fe] [fd00:ec2::254] 100.100.100.200 168.63.129.16 [::]"
)


@pytest.mark.parametrize("host", FORBIDDEN.split())
def test_such_an_address_is_refused_at_the_start(host: str) -> None:
    with pytest.raises(ConfigurationError, match="use another address"):
        checked_url(SecretStr(f"http://{host}/hook"), "its URL")


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/canary",
        "ftp://h/canary",
        "http:///canary",
        "javascript:canary",
        "canary",
        "http://",
        "https://h:canary/",
        "https://é/x",
    ],
)
def test_a_webhook_is_an_address_of_the_web_and_is_not_quoted(url: str) -> None:
    with pytest.raises(ConfigurationError, match="its URL is not an https:// or http:// URL") as caught:
        checked_url(SecretStr(url), "channel a: its URL")
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("address", ["file:///etc/canary", "exec:///bin/canary", "/etc/canary", "nosuch://canary"])
def test_an_address_that_apprise_does_not_know_is_not_quoted(caplog: pytest.LogCaptureFixture, address: str) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(ConfigurationError, match="does not know this kind of address") as caught:
        AppriseUrl("c", url=SecretStr(address))
    assert "canary" not in str(caught.value) + caplog.text


def test_a_secret_prints_as_nothing() -> None:
    secret = SecretStr("canary/1")
    assert "canary" not in f"{secret!r} {secret} {[secret]}"
    assert redacted("https://h/canary%2F1?x=canary/1", [secret]) == "https://h/[secret]?x=[secret]"


# --- The signed webhook ---


def test_the_signature_is_that_of_the_specification() -> None:
    # The example of https://github.com/standard-webhooks/standard-webhooks (spec, and its libraries' tests).
    signed = sign(key_of(SECRET), "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize("run", ["läufe", "実験/α-1", "two\nlines", " a%20b"])
def test_a_repetition_has_the_same_id_whatever_the_run_is_called(receiver: Receiver, run: str) -> None:
    note = replace(NOTE, run=run, key=f"{run}/k3/1/firing")
    for _ in range(2):
        made("webhook", receiver.url).send(Outgoing(note))
    assert len({headers["webhook-id"] for _, headers, _ in receiver.got}) == 1
    for _, headers, body in receiver.got:
        signed = sign(KEY.encode(), headers["webhook-id"], int(NOW.timestamp()), body.encode())
        assert headers["webhook-signature"] == signed
        assert json.loads(body) == note.document()


@pytest.mark.parametrize("secret", ["short", "whsec_AAAA", "whsec_no base64 here, surely"])
def test_a_weak_secret_is_refused_and_not_quoted(secret: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        key_of(SecretStr(secret))
    assert secret.removeprefix("whsec_") not in str(caught.value)


def test_the_receiver_in_the_documentation_works(receiver: Receiver, repository: Path) -> None:
    page = (repository / "docs" / "alerts.md").read_text(encoding="utf-8")
    namespace: dict[str, Any] = {}
    exec(page.split("```python\n")[1].split("```")[0], namespace)
    genuine, key = namespace["genuine"], KEY.encode()
    url = SecretStr(receiver.url)
    Webhook("c", url=url, secret=SecretStr(KEY), clock=lambda: datetime.now(UTC)).send(Outgoing(NOTE))
    ((_, headers, text),) = receiver.got
    body = text.encode()
    assert genuine(key, headers, body, set())
    assert not genuine(key, headers, body + b" ", set())
    assert not genuine(key, headers, body, {NOTE.key})
    assert not genuine(key, headers | {"webhook-timestamp": "1"}, body, set())


@pytest.mark.parametrize(
    ("stated", "least", "most"),
    [
        *(("7", 7, 7), ("9" * 400, 86400, 86400)),
        *((600, 480, 602), (10**6, 86400, 86400)),  # a moment, so many seconds ahead
        *(
            (text, 0, 0)
            for text in ("soon", "", "-3", "Wed, 21 Oct 2015 07:28:00 GMT", "Wed, 99 Oct 2015 07:28:00 GMT")
        ),
    ],
)
def test_when_a_receiver_may_be_asked_again(stated: str | int, least: float, most: float) -> None:
    ahead = stated if isinstance(stated, int) else 0
    moment = format_datetime(datetime.now(UTC) + timedelta(seconds=ahead), True) if ahead else stated
    assert least <= (retry_after({"Retry-After": moment}) or 0) <= most
    assert (retry_after({"retry-after": moment}) is None) is (most == 0)


# --- Time limits ---


@pytest.mark.parametrize(("seconds", "stops", "words"), [(0.1, False, "no response within 0.1 s"), (60, True, "stops")])
def test_a_call_that_hangs_is_left_alone_and_nothing_else_is_sent_meanwhile(
    seconds: float, stops: bool, words: str
) -> None:
    release, ended, stopping = threading.Event(), threading.Event(), threading.Event()

    def hang() -> None:
        if stops:
            stopping.set()
        release.wait(100)
        ended.set()

    limit = Deadline(seconds, stopping)
    with pytest.raises(ChannelError, match=words) as caught:
        limit.run(hang)
    assert caught.value.reason == "uncertain"
    with pytest.raises(ChannelError, match="still hangs"):
        limit.run(release.set)
    release.set()
    assert ended.wait(60)
