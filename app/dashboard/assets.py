"""Static files of the dashboard: our JavaScript modules and plotly.js, with the header that makes browsers preload
them.

They are not inlined, because an inlined script is sent again with every rerun. The URL includes a fingerprint of all
files, so browsers may cache them permanently. Nothing is loaded from other servers.
"""

from __future__ import annotations

import gc
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from hashlib import sha256
from importlib import import_module
from importlib.resources import files
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from streamlit import config

PLOTLY: Final = "plotly-basic.min.js"
_FOLDER: Final = files("logprobe.app.dashboard")
_PLACES: Final = {
    PLOTLY: _FOLDER.joinpath("vendor", PLOTLY),
    **{name: _FOLDER.joinpath("browser", name) for name in ("plot.js", "strip.js", "heart.js")},
}


@asynccontextmanager
async def warmed(_: object) -> AsyncIterator[None]:
    """Load the first page's modules and compress files during the startup of the server.

    A separate thread could deadlock with the server's imports.
    """
    for name in ("overview", "runs"):
        import_module(f"logprobe.app.dashboard.pages.{name}")
    link()
    for name in _PLACES:
        _compressed(name)
    # Streamlit has all garbage collected after every run of a page: what is loaded by now stays.
    gc.collect()
    gc.freeze()
    yield


@cache
def _compressed(name: str) -> bytes:
    return gzip.compress(_PLACES[name].read_bytes(), compresslevel=6)


@cache
def fingerprint() -> str:
    """Return a fingerprint that changes with the content of any file."""
    return sha256(b"".join(place.read_bytes() for place in _PLACES.values())).hexdigest()[:16]


def prefix() -> str:
    """Return the base path of the server without a trailing slash."""
    path = str(config.get_option("server.baseUrlPath") or "").strip("/")
    return f"/{path}" if path else ""


def base_url() -> str:
    """Return the base path of the static files without a trailing slash."""
    return f"{prefix()}/logprobe-assets/{fingerprint()}"


async def _serve(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in _PLACES:
        return Response("there is no such file", status_code=404, media_type="text/plain")
    headers = {
        "Cache-Control": "public, max-age=31536000, immutable",
        "Vary": "Accept-Encoding",
        "X-Content-Type-Options": "nosniff",
    }
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return Response(_PLACES[name].read_bytes(), media_type="text/javascript", headers=headers)
    return Response(_compressed(name), media_type="text/javascript", headers=headers | {"Content-Encoding": "gzip"})


def routes() -> list[Route]:
    """Return routes to mount next to Streamlit's own."""
    return [Route(prefix() + "/logprobe-assets/{fingerprint}/{name}", _serve)]


class Hints:
    """ASGI middleware that adds a Link header (RFC 8288) to pages, so that browsers preload their files."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request with the header added."""

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                if headers.get("content-type", "").startswith("text/html"):
                    headers.append("link", link())
            await send(message)

        await self._app(scope, receive, sent if scope["type"] == "http" else send)


@cache
def link() -> str:
    """Return the value of the header. Plotly.js is listed as a module, so that browsers parse it before its import."""
    files = (f"{base_url()}/{name}" for name in (PLOTLY, "plot.js", "heart.js"))
    return ", ".join(f'<{file}>; rel="modulepreload"' for file in files)
