"""The pictures of README and docs/tutorial.md: the demo's incident in a real browser, from the first alert to the run's end.

    python docs/pictures.py          # five to fifteen minutes; writes docs/images/overview.png and tutorial-*.png

It needs the development environment (`make dev`) and Chromium (`CHROMIUM` names another one).
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from PIL import Image
from playwright.sync_api import Page, sync_playwright

IMAGES: Final = Path(__file__).resolve().parent / "images"
RUN: Final = "rescue"
PATIENCE: Final = 900_000  # milliseconds, for a busy machine
LARGEST: Final = 100_000  # bytes of a picture
_ADDRESS: Final = re.compile(r"dashboard at (http://[^/]+)")
_WIDTH, _HEIGHT = 1200, 700


@dataclass(frozen=True)
class Picture:
    """A view, what its page says by then (a regular expression), and the heading it begins with."""

    name: str
    view: str
    says: str
    top: str | None = None
    height: int = _HEIGHT


PICTURES: Final = (
    Picture("tutorial-1-alerts", f"run={RUN}&page=alerts", "staleness", height=520),
    Picture("tutorial-2-runs", "page=runs", r"\d+ of \d+ runs", height=320),
    Picture("overview", f"run={RUN}", "^on since step", height=860),
    Picture("tutorial-3-diagnosis", f"run={RUN}&page=diagnosis", "1. staleness", height=820),
    Picture("tutorial-4-weights", f"run={RUN}&page=mismatch&view=weights", "lags behind", height=560),
    Picture("tutorial-5-tokens", f"run={RUN}&page=tokens", "the correction of this step", height=1120),
    Picture(
        "tutorial-6-actions", f"run={RUN}&page=correction", "^(Helped|Reward kept|Harmed)", top="Trend", height=1060
    ),
    Picture(
        "tutorial-7-compare",
        f"run={RUN}&page=compare&baseline=rescue-without",
        "519 of 519",
        top="Curves",
        height=820,
    ),
)


def main() -> int:
    """Takes all of them."""
    with tempfile.TemporaryDirectory() as home, demo(Path(home)) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_chromium(), args=["--no-sandbox"], timeout=PATIENCE)
        page = browser.new_page(viewport={"width": _WIDTH, "height": _HEIGHT})
        page.set_default_timeout(PATIENCE)
        for picture in PICTURES:
            data = taken(page, address, picture)
            (IMAGES / f"{picture.name}.png").write_bytes(data)
            print(f"{picture.name}: {len(data):,} bytes", file=sys.stderr)
        browser.close()
    return 0


def taken(page: Page, address: str, picture: Picture) -> bytes:
    """The picture as PNG, once the page says what it is to show."""
    page.set_viewport_size({"width": _WIDTH, "height": picture.height})
    page.goto(f"{address}/?{picture.view}")
    page.get_by_text(re.compile(picture.says)).first.wait_for()
    if picture.top is not None:
        page.get_by_role("heading", name=picture.top).evaluate("(heading) => heading.scrollIntoView()")
    page.wait_for_timeout(3000)  # charts are drawn a moment after their words
    return small(page.screenshot())


def small(png: bytes) -> bytes:
    """The picture with as many colours as fit."""
    image = Image.open(io.BytesIO(png)).convert("RGB")
    for colours in (255, 128, 64, 32):
        out = io.BytesIO()
        image.quantize(colours).save(out, "PNG", optimize=True)
        if out.tell() <= LARGEST:
            return out.getvalue()
    raise ValueError(f"a picture of {out.tell():,} bytes: take less of the page")


@contextmanager
def demo(home: Path) -> Iterator[str]:
    """`logprobe demo` in this folder; yields the dashboard's address."""
    command = [sys.executable, "-m", "logprobe.app.cli", "demo", "--port", "0", "--home", str(home / "home")]
    log = home / "log"
    with log.open("w") as told, subprocess.Popen(command, stderr=told) as process:  # noqa: S603 - this interpreter
        try:
            while (match := _ADDRESS.search(log.read_text())) is None:
                if process.poll() is not None:
                    raise RuntimeError(log.read_text())
                time.sleep(0.2)
            yield match[1]
        finally:
            process.terminate()


def _chromium() -> str:
    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        raise RuntimeError("no chromium: install it, or set CHROMIUM to its path")
    return path


if __name__ == "__main__":
    sys.exit(main())
