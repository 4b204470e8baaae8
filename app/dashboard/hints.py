"""What a page will need is named with the page itself, so that the browser fetches it beside Streamlit's own files.

Otherwise it would learn of our modules and of plotly.js only from the first answer to its websocket.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Final
from urllib.parse import parse_qs

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from logprobe.app.dashboard.assets import PLOTLY, base_url, content
from logprobe.app.dashboard.page_table import BY_PATH

_EVERYWHERE: Final = ("address", "bar")
_IMPORT: Final = re.compile(rb'^import [^"]*"\./([a-z_]+\.js)";', re.MULTILINE)


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
    return ", ".join(f'<{base_url()}/{name}>; rel="modulepreload"' for name in names)


def _needed(names: Iterable[str]) -> Iterator[str]:
    for name in names:
        yield name
        yield from _needed(each.decode() for each in _IMPORT.findall(content(name)))
