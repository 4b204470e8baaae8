"""Files of ours: what a page will need is named with it, everything named is served, and what others made is unchanged."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import plotly.offline
import pytest
import streamlit
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from logprobe.app.dashboard.assets import PLOTLY, base_url, routes
from logprobe.app.dashboard.hints import Hints, late_chunks, link
from logprobe.app.dashboard.page_table import BY_PATH, PAGES


@pytest.fixture(scope="module")
def client() -> TestClient:
    async def page(_: Request) -> Response:
        return HTMLResponse("<p>page</p>")

    async def text(_: Request) -> Response:
        return PlainTextResponse("text")

    return TestClient(Hints(Starlette(routes=[Route("/", page), Route("/text", text), *routes()])))


@pytest.mark.parametrize("page", ["", "nonsense", *(page.path for page in PAGES)])
def test_a_page_names_what_its_panels_import_and_plotly_where_it_is_drawn(client: TestClient, page: str) -> None:
    link = client.get("/", params={"page": page}).headers["link"]
    named = re.findall(r'<([^>]+)>; rel="modulepreload"', link)
    assert len(named) == link.count("<") == len(set(named))
    assert (f"{base_url()}/{PLOTLY}" in named) == ("chart" in BY_PATH.get(page, BY_PATH[""]).panels)
    assert f"{base_url()}/bar.js" in named
    for address in (each for each in named if each.startswith(base_url())):
        answer = client.get(address)
        assert (answer.status_code, "immutable" in answer.headers["cache-control"]) == (200, True)
        assert "link" not in answer.headers
        if address.endswith(PLOTLY):
            continue
        for imported in re.findall(r'from "\./([^"]+)"', answer.text):
            assert f"{base_url()}/{imported}" in named, f"{address} imports {imported}"
    assert "link" not in client.get("/text").headers


def test_a_page_names_the_parts_of_streamlit_that_it_is_shown_by() -> None:
    static = Path(streamlit.__file__).parent / "static"
    late = [f"/static/js/{name}" for name in late_chunks()]
    assert {Path(each).name.partition(".")[0] for each in late} >= {"BidiComponent", "Html"}
    assert set(late) < set(re.findall(r"<([^>]+)>", link("")))
    page = (static / "index.html").read_text()
    for address in late:
        assert address not in page  # it names those itself
        for imported in re.findall(r'(?:from|import)"\./([^"]+)"', (static / address.lstrip("/")).read_text()):
            assert f"/static/js/{imported}" in late or imported in page


def test_plotly_is_served_compressed_and_as_it_was_published(client: TestClient) -> None:
    """Figures are checked by the plotly package (test_figures.py), whose plotly.js is of the same major version as ours."""
    answer = client.get(f"{base_url()}/{PLOTLY}", headers={"accept-encoding": "gzip"})
    assert answer.headers["content-encoding"] == "gzip"
    (version,) = re.findall(r"plotly\.js \(basic - minified\) v(\S+)", answer.text[:200])
    assert version.split(".")[0] == plotly.offline.get_plotlyjs_version().split(".")[0]
    folder = files("logprobe.app.dashboard").joinpath("vendor")
    assert version in folder.joinpath("__init__.py").read_text()
    assert "Permission is hereby granted" in folder.joinpath("plotly-basic.LICENSE").read_text()
