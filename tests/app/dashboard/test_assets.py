"""Files of ours: what a page will need is named with it, everything named is served, and what others made is unchanged."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.resources import files

import plotly.offline
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from logprobe.app.dashboard.assets import PLOTLY, Hints, base_url, routes


@pytest.fixture(scope="module")
def client() -> TestClient:
    async def page(_: Request) -> Response:
        return HTMLResponse("<p>page</p>")

    async def text(_: Request) -> Response:
        return PlainTextResponse("text")

    return TestClient(Hints(Starlette(routes=[Route("/", page), Route("/text", text), *routes()])))


def test_a_page_names_what_it_is_drawn_by_and_all_of_it_is_served(client: TestClient) -> None:
    named = re.findall(r'<([^>]+)>; rel="modulepreload"', client.get("/").headers["link"])
    assert {f"{base_url()}/{name}" for name in (PLOTLY, "plot.js", "heart.js")} == set(named)
    for name in (PLOTLY, "plot.js", "heart.js", "strip.js"):
        answer = client.get(f"{base_url()}/{name}")
        assert (answer.status_code, "immutable" in answer.headers["cache-control"]) == (200, True)
        assert "link" not in answer.headers
    assert client.get(f"{base_url()}/../../theme.py").status_code == 404
    assert "link" not in client.get("/text").headers


def test_plotly_is_served_compressed_and_as_it_was_published(client: TestClient) -> None:
    """Figures are checked by the plotly package (test_figures.py), whose plotly.js is of the same major version as ours."""
    answer = client.get(f"{base_url()}/{PLOTLY}", headers={"accept-encoding": "gzip"})
    assert answer.headers["content-encoding"] == "gzip"
    (version,) = re.findall(r"plotly\.js \(basic - minified\) v(\S+)", answer.text[:200])
    assert version.split(".")[0] == plotly.offline.get_plotlyjs_version().split(".")[0]
    folder = files("logprobe.app.dashboard").joinpath("vendor")
    assert version in folder.joinpath("__init__.py").read_text()
    assert "Permission is hereby granted" in folder.joinpath("plotly-basic.LICENSE").read_text()


PROGRAM = """
import asyncio, gc, json, sys
from logprobe.app.dashboard import assets
async def start():
    async with assets.warmed(None):
        pass
asyncio.run(start())
loaded = sorted({name.partition(".")[0] for name in sys.modules})
pages = [name for name in sys.modules if name.startswith("logprobe.app.dashboard.pages.")]
print(json.dumps({"loaded": loaded, "pages": pages, "frozen": gc.get_freeze_count(), "ready": assets._compressed.cache_info().currsize}))
"""


def test_the_first_page_is_loaded_before_anybody_asks_and_nothing_heavy_with_it() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=120)
    found = json.loads(done.stdout.splitlines()[-1])
    assert "logprobe.app.dashboard.pages.overview" in found["pages"]
    assert {"apscheduler", "duckdb", "matplotlib", "scipy", "slack_sdk", "torch", "transformers", "vllm"}.isdisjoint(
        found["loaded"]
    )
    assert found["frozen"] > 0  # collecting garbage after every run of a page passes over it
    assert found["ready"] > 1  # modules and plotly.js are compressed
