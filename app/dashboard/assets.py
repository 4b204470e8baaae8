"""Static files of the dashboard: our JavaScript modules and plotly.js.

Served by us and not inlined, because an inlined script travels again with every rerun; the address carries a
fingerprint of all files, so the browser may keep them for good. Nothing is loaded from elsewhere.
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

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from streamlit import config


@asynccontextmanager
async def warmed(_: object) -> AsyncIterator[None]:
    """A lifespan of the server. Not in a thread beside it: two threads that import the same packages can get in each
    other's way."""
    load()
    yield


def load() -> None:
    """Loads the first page's modules, and compresses the files that it asks for."""
    import_module("logprobe.app.dashboard.pages.overview")
    prepare()
    # Streamlit has all garbage collected after every run of a page: what is loaded by now stays, and need not be looked
    # at again.
    gc.collect()
    gc.freeze()


PLOTLY: Final = "plotly-basic.min.js"
_FOLDER: Final = files("logprobe.app.dashboard").joinpath("browser")
_VENDOR: Final = files("logprobe.app.dashboard").joinpath("vendor")
_INLINED: Final = "loader.js"  # comes with the page, and finds the others
_MODULES: Final = tuple(
    sorted(file.name for file in _FOLDER.iterdir() if file.name.endswith(".js") and file.name != _INLINED)
)
_FOREVER: Final = "public, max-age=31536000, immutable"


@cache
def content(name: str) -> bytes:
    """A file by its name, as the browser asks for it."""
    return (_VENDOR if name == PLOTLY else _FOLDER).joinpath(name).read_bytes()


@cache
def _compressed(name: str) -> bytes:
    return gzip.compress(content(name), compresslevel=6)


@cache
def fingerprint() -> str:
    """Changes whenever any of the files does."""
    digest = sha256()
    for name in (*_MODULES, PLOTLY):
        digest.update(content(name))
    return digest.hexdigest()[:16]


def prepare() -> None:
    """Reads and compresses all files, so that the first visitor need not wait for it."""
    for name in (PLOTLY, *_MODULES):
        _compressed(name)
    fingerprint()


def base_url() -> str:
    """Path below which the files are served, without a slash at its end."""
    return f"{prefix()}/logprobe-assets/{fingerprint()}"


def prefix() -> str:
    """Path below which the server answers, without a slash at its end."""
    path = str(config.get_option("server.baseUrlPath") or "").strip("/")
    return f"/{path}" if path else ""


async def _serve(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in (*_MODULES, PLOTLY):
        return Response("there is no such file", status_code=404, media_type="text/plain")
    headers = {"Cache-Control": _FOREVER, "Vary": "Accept-Encoding", "X-Content-Type-Options": "nosniff"}
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return Response(content(name), media_type="text/javascript", headers=headers)
    return Response(_compressed(name), media_type="text/javascript", headers=headers | {"Content-Encoding": "gzip"})


def routes() -> list[Route]:
    """Routes to mount beside Streamlit's own."""
    return [Route(prefix() + "/logprobe-assets/{fingerprint}/{name}", _serve)]
