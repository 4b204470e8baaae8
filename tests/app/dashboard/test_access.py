"""Who may look and who may act: the decisions as tables, the files as files, the guard as requests."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket, WebSocketDisconnect

from logprobe.app.dashboard.access import sign_in, token
from logprobe.app.dashboard.access.guard import Guard
from logprobe.app.dashboard.access.settings import Access, Permission, Visitor, checked_url, is_direct, permission
from logprobe.app.dashboard.access.tries import Tries
from logprobe.app.processes.stack import Stack, free_port
from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.home import Home

LOCAL, OPEN = Access(), Access(address="0.0.0.0")
PROXIED, READ_ONLY = Access(public_url="https://host/x"), Access(read_only=True)


@pytest.mark.parametrize(
    ("access", "visitor", "expected"),
    [
        (LOCAL, Visitor(direct=True), Permission.GRANTED),
        (LOCAL, Visitor(direct=False), Permission.LOCKED),  # a proxy that that is not configured
        (LOCAL, Visitor(unlocked=True), Permission.GRANTED),
        (OPEN, Visitor(direct=True), Permission.LOCKED),
        (OPEN, Visitor(unlocked=True), Permission.GRANTED),
        (PROXIED, Visitor(direct=True), Permission.LOCKED),
        (PROXIED, Visitor(unlocked=True), Permission.GRANTED),
        (LOCAL, Visitor(direct=True, may_act=False), Permission.NOT_LISTED),
        (OPEN, Visitor(unlocked=True, may_act=False), Permission.NOT_LISTED),  # the token is no way around the lists
        (OPEN, Visitor(may_act=True), Permission.GRANTED),
        (READ_ONLY, Visitor(direct=True, unlocked=True, may_act=True), Permission.READ_ONLY),
    ],
)
def test_who_may_act(access: Access, visitor: Visitor, expected: Permission) -> None:
    assert permission(access, visitor) is expected
    assert bool(expected.value) is (expected is not Permission.GRANTED)  # every refusal says why


def test_a_session_through_a_proxy_is_not_from_this_machine() -> None:
    assert is_direct(None, {"Host": "localhost"})
    assert is_direct("::1", {})
    assert not is_direct("10.0.0.1", {})
    for name in ("X-Forwarded-For", "forwarded", "Via", "X-Real-IP"):
        assert not is_direct(None, {name: "127.0.0.1"})


def test_settings_travel_and_default_to_the_narrowest() -> None:
    for access in (LOCAL, OPEN, PROXIED, READ_ONLY):
        assert Access.of(access.environment()) == access
    assert Access.of({}) == Access(address="127.0.0.1", public_url=None, read_only=False)
    assert (PROXIED.base_path, PROXIED.origin, PROXIED.local) == ("x", "https://host", False)
    assert checked_url("https://host/a/b/") == "https://host/a/b"
    for text in ("host/x", "ftp://host", "https://", "https://host/?q=1", "https://me@host"):
        with pytest.raises(ConfigurationError, match="is not a page URL"):
            checked_url(text)


def test_wrong_tries_wait_twice_as_long_each_and_only_where_they_came_from() -> None:
    tries, now = Tries(), 0.0
    waits = []
    for count in range(1, 9):
        assert tries.failed("a", now) == count
        waits.append(tries.wait("a", now))
        now += waits[-1]
        assert tries.wait("a", now) == 0.0
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]
    assert tries.wait("b", now) == 0.0
    assert (tries.passed("a"), tries.passed("a")) == (8, 0)
    for number in range(2_000):
        tries.failed(f"address {number}", now)
    assert len(tries._addresses) == 1_000  # whoever comes from everywhere takes no memory


def test_the_token_is_private_stays_and_can_be_replaced(home: Path) -> None:
    Home(home).create()
    first = token.read(Home(home))
    assert len(first) >= 32
    assert (home / "token").stat().st_mode & 0o777 == 0o600
    assert token.read(Home(home)) == first
    (home / "token").unlink()
    second = token.read(Home(home))
    assert second != first
    # Sessions opened with the old one are closed
    assert not token.same(token.mark(first), token.mark(second))
    (home / "token").chmod(0o644)
    with pytest.raises(ConfigurationError, match="readable by other users; remove it"):
        token.read(Home(home))


def test_two_first_readers_of_a_token_read_the_same(home: Path) -> None:
    Home(home).create()
    found: list[str] = []
    readers = [threading.Thread(target=lambda: found.append(token.read(Home(home)))) for _ in range(8)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert set(found) == {token.read(Home(home))}


AUTH = """[auth]
redirect_uri = "http://localhost:8501/oauth2callback"
cookie_secret = "0123456789abcdef0123456789abcdef"
client_id = "x"
client_secret = "y"
server_metadata_url = "https://accounts.example.org/.well-known/openid-configuration"
"""
ACCESS = '[access]\nread = ["*@example.org"]\nact = ["ada@example.org"]\n'


def secrets_of(home: Path, text: str, mode: int = 0o600) -> Path:
    home.mkdir(exist_ok=True)
    file = home / sign_in.FILE
    file.write_text(text)
    file.chmod(mode)
    return home


def test_lists_say_who_may_look_and_who_may_act(home: Path) -> None:
    assert sign_in.load(home) is None
    assert sign_in.load(secrets_of(home, "[other]\nx = 1\n")) is None
    found = sign_in.load(secrets_of(home, AUTH + ACCESS))
    assert found.providers == (None,)
    assert [found.may_read(who) for who in ("Grace@Example.org", "eve@evil.example", "@example.org", "")] == [True, False, False, False]  # fmt: skip
    assert [found.may_act(who) for who in ("ada@example.org", "grace@example.org")] == [True, False]
    assert sign_in.email_of({"email": "a@b", "email_verified": False}) is None
    assert sign_in.email_of({"email": "a@b", "email_verified": "true"}) == "a@b"
    assert sign_in.email_of({"email": "a@b"}) == "a@b"
    assert sign_in.email_of({"name": "a@b"}) is None


@pytest.mark.parametrize(
    ("text", "mode", "words"),
    [
        (AUTH + ACCESS, 0o644, "chmod 600"),
        (AUTH, 0o600, "no user has access"),
        (AUTH.replace("client_secret", "secret") + ACCESS, 0o600, "lacks client_secret"),
        (AUTH.replace("oauth2callback", "back") + ACCESS, 0o600, "redirect_uri"),
        (AUTH.replace("0123456789abcdef0123456789abcdef", "short") + ACCESS, 0o600, "cookie_secret"),
        (AUTH + '[access]\nread = "everybody"\n', 0o600, "list of e-mail addresses"),
        (AUTH.replace('client_id = "x"\n', "") + ACCESS, 0o600, "names no provider"),
        (AUTH.replace("client_id", "x") + "[auth.my_own]\nclient_id = 'x'\n" + ACCESS, 0o600, "underscore"),
        ("[auth", 0o600, "cannot be read"),
    ],
)
def test_a_sign_in_that_would_let_in_nobody_or_anybody_is_refused_at_the_start(
    home: Path, text: str, mode: int, words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        sign_in.load(secrets_of(home, text, mode))


def test_where_the_provider_sends_people_back_has_to_be_this_dashboard(home: Path) -> None:
    secrets_of(home, AUTH + ACCESS)
    with pytest.raises(ConfigurationError, match="redirect_uri has to be"):
        Stack(Home(home), port=free_port("127.0.0.1", 0))
    with pytest.raises(ConfigurationError, match="https://host/x/oauth2callback"):
        Stack(Home(home), access=PROXIED, port=0)


async def _stream(socket: WebSocket) -> None:
    await socket.accept()
    await socket.close()


def client(access: Access) -> TestClient:
    routes = [
        Route("/", lambda _: PlainTextResponse("page"), methods=["GET", "POST"]),
        WebSocketRoute("/stream", _stream),
    ]
    return TestClient(Guard(Starlette(routes=routes), access), base_url="http://localhost:8501")


@pytest.mark.parametrize(
    ("access", "host", "status"),
    [
        (LOCAL, "localhost:8501", 200),
        (LOCAL, "127.0.0.1", 200),
        (LOCAL, "[::1]:8501", 200),
        (LOCAL, "LOCALHOST.", 200),
        (LOCAL, "evil.example", 403),
        (LOCAL, "10.0.0.1", 403),
        (LOCAL, "localhost.evil.example", 403),
        (LOCAL, "localhost@evil.example", 403),
        (LOCAL, "[", 403),
        (LOCAL, "", 403),
        (OPEN, "10.0.0.1:8501", 200),
        (OPEN, "[fe80::1]", 200),
        (OPEN, "evil.example", 403),
        (PROXIED, "host", 200),
        (PROXIED, "other", 403),
        (Access(address="gpu-7"), "gpu-7:8501", 200),
    ],
)
def test_which_names_are_answered(access: Access, host: str, status: int) -> None:
    answer = client(access).get("/", headers={"host": host})
    assert answer.status_code == status
    assert answer.headers["x-content-type-options"] == "nosniff"
    policy = answer.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "'unsafe-inline'" not in policy.split("script-src")[1].split(";")[0]
    assert "frame-ancestors 'self'" in policy
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    ("access", "origin", "open_"),
    [
        (LOCAL, None, True),  # a program, and no page in a browser
        (LOCAL, "http://localhost:8501", True),
        (LOCAL, "http://localhost:8888", False),
        (LOCAL, "null", False),
        (LOCAL, "file://localhost:8501", False),  # a page on a disk, or of another program, that claims our place
        (LOCAL, "app://localhost:8501", False),
        (LOCAL, "localhost:8501", False),
        (LOCAL, "https://localhost:8501", True),  # TLS in front of it, by a name of ours
        (LOCAL, "https://evil.example", False),
        (PROXIED, "https://host", True),
        (PROXIED, "https://host.evil.example", False),
    ],
)
def test_which_pages_may_connect_and_change(access: Access, origin: str | None, open_: bool) -> None:
    headers = {"host": "localhost:8501"} | ({} if origin is None else {"origin": origin})
    assert client(access).post("/", headers=headers).status_code == (200 if open_ else 403)
    assert client(access).get("/", headers=headers).status_code == 200
    if open_:
        with client(access).websocket_connect("/stream", headers=headers):
            pass
    else:
        with pytest.raises(WebSocketDisconnect), client(access).websocket_connect("/stream", headers=headers):
            pass
