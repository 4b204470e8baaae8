"""The real thing for a browser to look at: `logprobe up` on a home, and a page that remembers what went wrong on it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from pathlib import Path
from weakref import WeakKeyDictionary

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Locator, Page, Request, expect
from playwright.sync_api import TimeoutError as PlaywrightTimeoutError

PATIENCE = 180_000  # milliseconds; the service may have to diagnose first, and a busy machine stands still for a while
expect.set_options(timeout=PATIENCE)
_IDLE: MutableMapping[Browser, list[BrowserContext]] = WeakKeyDictionary()
_ADDRESS = re.compile(r"dashboard at (http://\S+)")


@contextmanager
def dashboard(*arguments: str, seconds: float = 180) -> Iterator[str]:
    """Runs ``logprobe ARGUMENTS`` until the block ends; yields the dashboard's address. It must stop cleanly."""
    with command(*arguments, seconds=seconds) as (address, _, _):
        yield address


@contextmanager
def command(
    *arguments: str, seconds: float = 180, **environment: str
) -> Iterator[tuple[str, subprocess.Popen[str], list[str]]]:
    """The same; yields the address, the process and what it writes. It must end with 0, whoever ends it."""
    words = [sys.executable, "-m", "logprobe.app.cli", *arguments]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment})
    lines: list[str] = []
    found = threading.Event()

    def listen() -> None:
        for line in process.stderr:
            lines.append(line)
            if _ADDRESS.search(line):
                found.set()

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    try:
        deadline = time.monotonic() + seconds
        while not found.wait(0.1):
            assert process.poll() is None, "".join(lines)
            assert time.monotonic() < deadline, "".join(lines)
        yield next(match[1] for line in lines if (match := _ADDRESS.search(line))), process, lines
    finally:
        process.terminate()
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
        listener.join(90)
        process.stderr.close()
    assert status == 0, "".join(lines)


def drag(page: Page, selector: str, start: float, end: float, *, below: float = 100, until: str = "steps=") -> None:
    """Drags over a part of an element's width, so far below its top, until the address has `until`.

    More than once, if need be: panels above it that arrive in between move it away from under the pointer.
    """
    for _ in range(6):
        box = page.locator(selector).bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + box["width"] * start, box["y"] + below)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * end, box["y"] + below, steps=4)
        page.mouse.up()
        with suppress(PlaywrightTimeoutError):
            page.wait_for_function("(until) => location.search.includes(until)", arg=until, timeout=20_000)
            return
    raise AssertionError(f"no drag over {selector} brings {until} into the address")


def confirm(page: Page, button: str, fields: Mapping[str, str] | None = None) -> None:
    """Opens the form behind a `button`, fills it in by labels, and presses the form's own."""
    form = opened(page, button)
    for label, words in (fields or {}).items():
        form.get_by_label(label).fill(words)
    form.get_by_role("button", name=button).click()


def opened(page: Page, button: str) -> Locator:
    """The form behind a `button`."""
    page.get_by_test_id("stPopover").get_by_role("button", name=button).first.click()
    form = page.get_by_test_id("stPopoverBody")
    expect(form).to_be_visible()
    return form


def chromium() -> str:
    """Path of the browser, for those who have no fixture."""
    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        raise RuntimeError("no chromium: install it, or set CHROMIUM to its path")
    return path


class Watched:
    """A page, with everything on it that should not happen: console errors, exceptions, requests to the outside."""

    def __init__(
        self, browser: Browser, address: str, *, width: int = 1280, height: int = 900, dark: bool = False
    ) -> None:
        idle = _IDLE.setdefault(browser, [])
        self.context = idle.pop() if idle else browser.new_context()
        self._idle = idle
        self.page: Page = self.context.new_page()
        self.page.set_viewport_size({"width": width, "height": height})
        self.page.emulate_media(color_scheme="dark" if dark else "light")
        self.page.set_default_timeout(PATIENCE)
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.sent = 0  # messages to the server over its websocket
        self._scheme, _, self._host = address.split("/")[:3]
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self._say(str(error)))
        self.page.on("request", self._request)
        self.page.on("websocket", lambda stream: stream.on("framesent", self._frame))

    def _heard(self, message: ConsoleMessage) -> None:
        """Streamlit looks for its server below the path of a page first, and finds nothing there."""
        known = message.location.get("url", "").endswith(("/_stcore/health", "/_stcore/host-config"))
        if message.type in {"error", "warning"} and not known:
            self._say(message.text)

    def _say(self, text: str) -> None:
        self.complaints.append(text)

    def _frame(self, _: object) -> None:
        self.sent += 1

    def _request(self, request: Request) -> None:
        self.requests.append(request.url)
        if not request.url.startswith(("data:", "blob:")) and request.url.split("/")[2] != self._host:
            self._say(f"request to the outside: {request.url}")

    def shot(self, folder: Path, name: str, *, whole: bool = False) -> None:
        """A screenshot; `whole`: of all that can be scrolled to."""
        if whole:
            height = self.page.evaluate("document.querySelector('[data-testid=stMain]').scrollHeight")
            width = (self.page.viewport_size or {})["width"]
            self.page.set_viewport_size({"width": width, "height": height + 10})
            self.page.wait_for_timeout(500)
        self.page.screenshot(path=folder / f"{name}.png")

    def close(self) -> None:
        """Leaves nothing to the next page but the scripts that the browser has compiled: most of what a first visit costs."""
        origin = {"origin": f"{self._scheme}//{self._host}", "storageTypes": "all"}
        self.page.goto("about:blank")  # what it writes when it is left is written now
        self.context.new_cdp_session(self.page).send("Storage.clearDataForOrigin", origin)
        self.context.clear_cookies()
        for page in self.context.pages:
            page.close()
        self._idle.append(self.context)
