"""Who may look and who may act, in a real browser: through a real proxy with the home's token, and signed in. Read-only: test_pages.py."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest
from dashboard_process import PATIENCE, Watched, confirm, dashboard, opened
from oidc_provider import CLIENT, SECRET, Provider, provider
from playwright.sync_api import Browser, Page, expect
from playwright.sync_api import TimeoutError as PlaywrightTimeoutError
from recorded_home import ingest_recorded
from reverse_proxy import documented, nginx
from training_calls import HOSTILE, attack

from logprobe.app.processes.stack import free_port
from logprobe.collectors.recorder.recorder import Recorder
from logprobe.monitor.home import Home
from logprobe.monitor.reader import open_reader

pytestmark = pytest.mark.browser

MARKED = re.compile("^<img src=x")
ALERTS = "alerts: [{name: hostile, severity: critical, metric: logprob_abs_diff_mean, above: 0.01, steps: 2}]\n"


def told(home: Path) -> str:
    """What was done to the correction of the run, and by whom."""
    with open_reader(Home(home)) as reader:
        rows = reader.read("controller_actions", run="v1-initial").to_pylist()
    return "\n".join(f"{row['name']} {row['words']} {row['details']}" for row in rows)


def type_token(page: Page, token: str) -> None:
    page.get_by_label("token", exact=True).fill(token)
    page.get_by_role("button", name="Unlock").click()


def test_behind_a_proxy_the_token_opens_what_can_be_done_and_stands_nowhere(
    browser: Browser, tmp_path: Path, repository: Path, artifacts: Path
) -> None:
    home, port, outside = tmp_path / "home", free_port("127.0.0.1", 0), free_port("127.0.0.1", 0)
    ingest_recorded(home, "v1-initial", before_step=12)
    public = f"http://localhost:{outside}/logprobe"
    server = documented(repository / "docs" / "cluster.md").replace("listen 443 ssl", f"listen 127.0.0.1:{outside}")
    server = re.sub(r"  ssl_.*\n", "", server).replace("127.0.0.1:8501", f"127.0.0.1:{port}")
    (tmp_path / "nginx").mkdir()
    with dashboard("up", "--home", str(home), "--port", str(port), "--public-url", public), nginx(tmp_path / "nginx", server, outside):  # fmt: skip
        seen = Watched(browser, public)
        page = seen.page
        page.goto(f"{public}/?page=correction&run=v1-initial")
        expect(opened(page, "Arm").get_by_role("button", name="Arm")).to_be_disabled()
        page.keyboard.press("Escape")
        seen.shot(artifacts, "security-token-form")
        type_token(page, "guessed")
        expect(page.get_by_test_id("stAlert")).to_contain_text("Wrong token")
        token = (home / "token").read_text().strip()
        assert (home / "token").stat().st_mode & 0o777 == 0o600
        _until_told_to_wait(page)
        _until_open(page, token)
        expect(opened(page, "Arm").get_by_role("button", name="Arm")).to_be_enabled()
        page.keyboard.press("Escape")
        assert token not in page.url
        assert token not in page.content()
        assert not any(token in str(cookie) for cookie in seen.context.cookies())
        assert page.evaluate("JSON.stringify(localStorage) + JSON.stringify(sessionStorage)").find(token) == -1
        confirm(page, "Arm", {"your name": "ada"})
        expect(page.locator("table[aria-label=audit]")).to_contain_text("ada")
        page.goto(f"{public}/?run=v1-initial")
        page.wait_for_selector(".lp-plot .trace", state="attached", timeout=PATIENCE)
        other = Watched(browser, public)  # another browser: another session
        other.page.goto(f"{public}/?page=correction&run=v1-initial")
        expect(other.page.get_by_label("token", exact=True)).to_be_visible()
        expect(opened(other.page, "Only suggest").get_by_role("button", name="Only suggest")).to_be_disabled()
        assert seen.complaints == other.complaints == []
        assert refusal(f"http://127.0.0.1:{port}/logprobe/", Host="evil.example") == 403
        seen.close()
        other.close()
    assert "ada" in told(home)


def _until_told_to_wait(page: Page) -> None:
    """Each wrong try makes the next wait twice as long: sooner or later one comes too early, however slow this machine is."""
    for number in range(60):
        if "wait" in " ".join(page.get_by_test_id("stAlert").all_inner_texts()):
            return
        type_token(page, f"guess {number}")
        page.wait_for_timeout(500)
    pytest.fail("no client was asked to wait")


def _until_open(page: Page, token: str) -> None:
    """The address has to wait after wrong tries; a person tries again until it may."""
    field = page.get_by_label("token", exact=True)
    for _ in range(100):
        with suppress(PlaywrightTimeoutError):  # the page may open while the next try is typed
            field.fill(token, timeout=1000)
            page.get_by_role("button", name="Unlock").click(timeout=1000)
        with suppress(AssertionError):
            expect(field).to_have_count(0, timeout=2000)
            return
    pytest.fail("the right token does not open the page")


def refusal(url: str, **headers: str) -> int:
    """Status of a request."""
    try:
        with urlopen(Request(url, headers=headers), timeout=90) as answer:
            return answer.status
    except HTTPError as error:
        return error.code


@pytest.fixture(scope="module")
def read_only(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a dashboard for everybody to look at, of a home full of markup."""
    home = tmp_path_factory.mktemp("hostile") / "home"
    with Recorder(home, HOSTILE, rank=0) as recorder:
        recorder.report("hostile", HOSTILE, severity="error", component="test")
        attack(recorder, range(4))
    (home / "logprobe.yaml").write_text(ALERTS)
    with dashboard("up", "--home", str(home), "--port", "0", "--address", "0.0.0.0", "--read-only") as url:
        yield url


def test_markup_in_what_was_recorded_stays_text(read_only: str, browser: Browser) -> None:
    """On pages that draw it by other means each: a grid, charts, tokens, tables. Of every page: test_pages.py."""
    seen = Watched(browser, read_only)
    page = seen.page
    for path in ("runs", "", "tokens", "alerts"):
        page.goto("about:blank")  # the page before asks for nothing any more
        page.goto(f"{read_only}/{path}?run={quote(HOSTILE, safe='')}")
        expect(page.get_by_role("combobox", name="run", exact=True)).to_have_value(MARKED)
        page.wait_for_timeout(2000)  # whatever the page fetches next
        if path == "alerts":
            expect(page.locator("table[aria-label=firing]")).to_contain_text("hostile")
        _is_text(page)
    assert seen.complaints == []
    seen.close()


def _is_text(page: Page) -> None:
    """Nothing of what was written became an element or ran."""
    assert page.evaluate("window.hostile") is None, page.url
    foreign = "img[src=x], a[href^='javascript:'], [src^='http://foreign'], a[href^='http://foreign']"
    assert page.locator(foreign).count() == 0, page.url


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path, Provider]]:
    """A dashboard that asks for a sign-in: its address, its home, and the provider."""
    home, port = tmp_path_factory.mktemp("signed") / "home", free_port("127.0.0.1", 0)
    ingest_recorded(home, "v1-initial", before_step=12)
    address = f"http://localhost:{port}/logprobe"
    with provider(free_port("127.0.0.1", 0), f"{address}/oauth2callback") as known:
        auth = {
            "redirect_uri": f"{address}/oauth2callback",
            "cookie_secret": "0123456789abcdef" * 4,
            "client_id": CLIENT,
            "client_secret": SECRET,
            "server_metadata_url": f"{known.issuer}/.well-known/openid-configuration",
        }
        text = "[auth]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in auth.items())
        text += '[access]\nread = ["*@example.org"]\nact = ["ada@example.org"]\n'
        (home / "secrets.toml").touch(mode=0o600)
        (home / "secrets.toml").write_text(text)
        with dashboard("up", "--home", str(home), "--port", str(port), "--public-url", address):
            yield address, home, known


class Listening:
    """Everything the server told a browser: what came over the websocket, and the body of every answer."""

    def __init__(self, page: Page) -> None:
        self.heard: list[bytes] = []
        page.on("websocket", lambda stream: stream.on("framereceived", self._frame))

    def _frame(self, payload: Any) -> None:
        self.heard.append(payload if isinstance(payload, bytes) else payload.encode())

    def mentions(self, text: str) -> bool:
        return any(text.encode() in frame for frame in self.heard)


def test_before_the_sign_in_nothing_is_told_and_after_it_the_person_is_the_author(
    signed: tuple[str, Path, Provider], browser: Browser, artifacts: Path
) -> None:
    address, home, known = signed
    known.user = {"email": "ada@example.org", "email_verified": True}
    seen, before = Watched(browser, address), known.signed_in
    page = seen.page
    listening = Listening(page)
    page.goto(f"{address}/?page=correction&run=v1-initial")
    button = page.get_by_role("button", name="Sign in")
    expect(button).to_be_visible()
    seen.shot(artifacts, "security-login")
    page.wait_for_timeout(3000)  # longer than a page waits for news
    assert listening.heard
    assert not listening.mentions("v1-initial")
    assert not listening.mentions(str(home))
    assert "v1-initial" not in page.locator("body").inner_text()
    seen._host = None  # the way leads over the provider, on a port of its own
    button.click()
    expect(page.get_by_text("Signed in as ada@example.org")).to_be_visible()
    assert known.signed_in == before + 1
    page.goto(f"{address}/?page=correction&run=v1-initial")
    expect(opened(page, "Arm").get_by_role("button", name="Arm")).to_be_enabled()
    page.keyboard.press("Escape")
    assert listening.mentions("v1-initial")
    confirm(page, "Arm", {"your name": "somebody else"})
    expect(page.locator("table[aria-label=audit]")).to_contain_text("ada@example.org")
    assert "ada@example.org" in told(home)
    assert "somebody else" not in told(home)
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("button", name="Sign in")).to_be_visible()
    seen.close()


@pytest.mark.parametrize("user", ["grace@example.org", "mallory@evil.example"])
def test_who_signs_in_sees_what_the_lists_allow(
    signed: tuple[str, Path, Provider], browser: Browser, user: str
) -> None:
    address, _, known = signed
    known.user = {"email": user, "email_verified": True}
    context = browser.new_context()
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    listening = Listening(page)
    page.goto(f"{address}/?page=correction&run=v1-initial")
    page.get_by_role("button", name="Sign in").click(timeout=PATIENCE)
    expect(page.get_by_role("button", name="Sign out")).to_be_visible()
    page.goto(f"{address}/?page=correction&run=v1-initial")
    if user.startswith("grace"):
        expect(opened(page, "Kill switch")).to_contain_text("under act in")
    else:
        expect(page.get_by_text("has no access")).to_be_visible()
        page.wait_for_timeout(2500)
        assert not listening.mentions("v1-initial")
    context.close()
