"""What a page will need is named with the page itself, so that the browser fetches it beside Streamlit's own files.

Otherwise it would learn of our modules and of plotly.js only from the first answer to its websocket.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from logprobe.app.dashboard.assets import PLOTLY, base_url, content

_FIRST: Final = ("address.js", "bar.js", "report.js", "tiles.js", "chart.js")  # panels of the page that opens by itself
_IMPORT: Final = re.compile(rb'^import [^"]*"\./([a-z_]+\.js)";', re.MULTILINE)


class Hints:
    """ASGI middleware: pages (HTML) get a Link header (RFC 8288; rel from the HTML standard)."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                if headers.get("content-type", "").startswith("text/html"):
                    headers.append("link", link())
            await send(message)

        await self._app(scope, receive, sent if scope["type"] == "http" else send)


@cache
def link() -> str:
    """Value of the header: plotly.js, and the modules of the first page with all that they import.

    Plotly.js as a module, too: so it is parsed before it is asked for, and pages that do without it need not say why.
    """
    names = (PLOTLY, *sorted(set(_needed(_FIRST))))
    return ", ".join(f'<{base_url()}/{name}>; rel="modulepreload"' for name in names)


def _needed(names: tuple[str, ...]) -> Iterator[str]:
    for name in names:
        yield name
        yield from _needed(tuple(each.decode() for each in _IMPORT.findall(content(name))))
