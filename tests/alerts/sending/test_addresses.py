"""Where channels may connect to: real servers that redirect, addresses of clouds in every spelling, and who may allow them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self
from urllib.error import URLError

import pytest
from alert_notes import NOTE

from logprobe.alerts.sending.channels import addresses
from logprobe.alerts.sending.channels.apprise_url import AppriseUrl
from logprobe.alerts.sending.channels.calls import Calls
from logprobe.alerts.sending.channels.channel import Channel, Outgoing
from logprobe.alerts.sending.channels.settings import channels_of
from logprobe.alerts.sending.channels.slack import Slack
from logprobe.alerts.sending.channels.webhook import Webhook
from logprobe.alerts.sending.credentials import Secret
from logprobe.collectors.errors import ChannelError, ConfigurationError
from logprobe.monitor.home import Home

KEY = Secret("x" * 32)
METADATA = (
    "169.254.169.254",
    "169.254.170.2",
    "[::ffff:169.254.169.254]",
    "[64:ff9b::a9fe:a9fe]",
    "[fe80::1]",
    "[fd00:ec2::254]",
    "100.100.100.200",
    "168.63.129.16",
    "0.0.0.0",
    "[::]",
)


class Redirecting:
    """A server that sends every caller on to another one, and what arrived at both."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.inner: list[str] = []
        self._servers = [ThreadingHTTPServer(("127.0.0.1", 0), self._handler(place)) for place in (0, 1)]
        self.url = f"http://127.0.0.1:{self._servers[0].server_port}"

    def __enter__(self) -> Self:
        for server in self._servers:
            threading.Thread(target=server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def _handler(self, place: int) -> type[BaseHTTPRequestHandler]:
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                (owner.inner if place else owner.asked).append(self.path)
                self.send_response(200 if place else 302)
                self.send_header("Location", f"http://127.0.0.1:{owner._servers[1].server_port}/secret")
                body = b'{"ok": true, "channel": "C1", "ts": "1"}' if place else b"the secret of an inner page"
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_GET

            def log_message(self, *_: object) -> None:
                return

        return Handler


@pytest.fixture
def redirecting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Redirecting]:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    with Redirecting() as running:
        yield running


def made(kind: str, url: str) -> Channel:
    calls = Calls(90.0, threading.Event())
    if kind == "webhook":
        return Webhook("c", url=Secret(url), secret=KEY, calls=calls, clock=lambda: datetime.now(UTC))
    if kind == "slack":
        return Slack("c", token=Secret("xoxb-1"), channel="C1", api_url=f"{url}/", calls=calls)
    return AppriseUrl("c", url=Secret(url.replace("http:", "json:")), calls=calls)


KINDS = ("webhook", "slack", "apprise")
quiet = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of apprise's own imports


@quiet
@pytest.mark.parametrize("kind", KINDS)
def test_no_channel_follows_a_redirect_or_tells_what_was_answered(redirecting: Redirecting, kind: str) -> None:
    with pytest.raises(ChannelError) as caught:
        made(kind, redirecting.url).send(Outgoing(NOTE))
    assert redirecting.asked
    assert not redirecting.inner
    assert "secret" not in str(caught.value)


@quiet
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("host", ["169.254.169.254", "[fe80::1]", "2852039166", "0.0.0.0"])
def test_no_channel_connects_to_where_clouds_keep_secrets(kind: str, host: str) -> None:
    with pytest.raises(ChannelError, match="use another one") as caught:
        made(kind, f"http://{host}:9").send(Outgoing(NOTE))
    assert caught.value.reason == "setup"


def test_a_name_that_turns_into_another_address_is_refused_when_connecting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rebinding: the name is harmless when it is looked at, and the peer is what counts."""
    import socket

    first = socket.create_server(("127.0.0.1", 0))
    monkeypatch.setattr(addresses, "forbidden", lambda address: address == "127.0.0.1")
    monkeypatch.setattr(addresses, "check_host", lambda *_: None)
    with pytest.raises((URLError, ChannelError), match="use another one"):
        addresses.opener().open(f"http://127.0.0.1:{first.getsockname()[1]}/", timeout=90)
    first.close()


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://127.0.0.1/x", "data:text/plain,x"])
def test_the_opener_knows_the_web_alone(url: str) -> None:
    with pytest.raises(URLError, match="unknown url type"):
        addresses.opener().open(url, timeout=90)


@quiet
@pytest.mark.parametrize("address", ["file:///etc/passwd", "exec:///bin/true", "/etc/passwd"])
def test_apprise_opens_no_file(address: str) -> None:
    with pytest.raises(ConfigurationError, match="does not know this kind of address"):
        AppriseUrl("c", url=Secret(address), calls=Calls(1.0, threading.Event()))


def configured(folder: Path, url: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "url").write_text(url)
    (folder / "url").chmod(0o600)
    (folder / "logprobe.yaml").write_text("channels: {c: {kind: webhook, url: ./url, secret: $KEY}}")
    environment = {"KEY": "x" * 32}
    channels_of(Home(folder), environment=environment, stopping=threading.Event(), clock=lambda: datetime.now(UTC))


@pytest.mark.parametrize("host", METADATA)
def test_such_an_address_is_refused_at_the_start(tmp_path: Path, host: str) -> None:
    with pytest.raises(ConfigurationError, match="use another address"):
        configured(tmp_path, f"http://{host}/hook")


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://example.org/x", "gopher://x", "http:///x", "javascript:1"]
)
def test_a_webhook_is_an_address_of_the_web(tmp_path: Path, url: str) -> None:
    with pytest.raises(ConfigurationError, match="not an https:// or http:// URL"):
        configured(tmp_path, url)


def test_what_is_said_of_an_answer_is_its_status_alone(redirecting: Redirecting) -> None:
    channel = made("webhook", redirecting.url)
    with pytest.raises(ChannelError, match=r"HTTP status 302, a redirect; use the address it points to$"):
        channel.send(Outgoing(replace(NOTE, key="other")))
