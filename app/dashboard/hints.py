"""What a page will need is named with the page itself, so that the browser fetches it beside Streamlit's own files.

Otherwise it would learn of our modules, of plotly.js and of the parts of Streamlit that show them only from the first
answer to its websocket, when it could already draw.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs

import streamlit
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from logprobe.app.dashboard.assets import PLOTLY, base_url, content, prefix
from logprobe.app.dashboard.page_table import BY_PATH

_EVERYWHERE: Final = ("address", "bar")
_IMPORT: Final = re.compile(rb'^import [^"]*"\./([a-z_]+\.js)";', re.MULTILINE)
_STREAMLIT: Final = Path(streamlit.__file__).parent / "static"
_LATE: Final = ("BidiComponent", "Html")  # of Streamlit: what shows a panel and a style sheet, loaded when there is one
_CHUNK: Final = re.compile(r'(?:from|import)"\./([^"]+\.js)"')


class Hints:
    """ASGI middleware: pages (HTML) get a Link header (RFC 8288; rel from the HTML standard)."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        page = _page(scope)

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                if headers.get("content-type", "").startswith("text/html"):
                    headers.append("link", link(page))
            await send(message)

        await self._app(scope, receive, sent if scope["type"] == "http" else send)


def _page(scope: Scope) -> str:
    """The page that the address names, as `views/page.py` reads it."""
    asked = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("page", [""])[-1]
    return asked if asked in BY_PATH else ""


@cache
def link(page: str) -> str:
    """Value of the header for a page: its modules with all that they import, and plotly.js where it has a chart.

    Plotly.js as a module, too: so it is parsed before it is asked for.
    """
    panels = (*_EVERYWHERE, *BY_PATH[page].panels)
    names = [*([PLOTLY] if "chart" in panels else []), *sorted(set(_needed(f"{name}.js" for name in panels)))]
    files = [*(f"{base_url()}/{name}" for name in names), *(f"{prefix()}/static/js/{name}" for name in late_chunks())]
    return ", ".join(f'<{file}>; rel="modulepreload"' for file in files)


def late_chunks() -> list[str]:
    """Streamlit's files behind `_LATE`, with what they import, that its page does not name itself; none where it has no
    such files."""
    page, folder = _STREAMLIT / "index.html", _STREAMLIT / "static" / "js"
    named = page.read_text(encoding="utf-8") if page.is_file() else ""
    chunks: dict[str, None] = {}
    left = [file.name for name in _LATE for file in folder.glob(f"{name}.*.js")]
    while left:
        name = left.pop()
        if name not in named and name not in chunks and (folder / name).is_file():
            chunks[name] = None
            left += _CHUNK.findall((folder / name).read_text(encoding="utf-8"))
    return sorted(chunks)


def _needed(names: Iterable[str]) -> Iterator[str]:
    for name in names:
        yield name
        yield from _needed(chunk.decode() for chunk in _IMPORT.findall(content(name)))
