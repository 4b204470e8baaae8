"""Checks of each request's host and origin, and the security headers of the answer.

Streamlit checks the Host header of its websocket only, and only on request. Without a check, a foreign page can point
its host name at this machine (DNS rebinding). It can then read the dashboard through the browser of any visitor.
Streamlit also admits pages of other local servers. It requests this machine's address from a server on the internet
before it refuses a visitor. The guard prevents all three.
"""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from importlib.resources import files
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from logprobe.app.dashboard.access.settings import Access, host_names, is_address, is_loopback

_HARMLESS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_SCHEMES: Final = frozenset({"http", "https"})  # a page of a file or of another program has none of these
_POLICY_VIOLATION: Final = 1008  # RFC 6455, 7.4.1
_INLINE: Final = re.compile(rb"<script>(.*?)</script>", re.DOTALL)


def policy() -> str:
    """Return the page's Content-Security-Policy, which permits scripts only from our files and Streamlit's.

    Inline scripts are permitted by the hashes of those in Streamlit's page, so injected markup runs nothing. Streamlit
    imports a component's script from a blob and sets inline styles.
    """
    page = files("streamlit").joinpath("static", "index.html").read_bytes()
    hashes = " ".join(f"'sha256-{b64encode(sha256(script).digest()).decode()}'" for script in _INLINE.findall(page))
    return (
        f"default-src 'self'; script-src 'self' blob: {hashes}; style-src 'self' 'unsafe-inline'; img-src 'self' data: "
        "blob:; "
        "font-src 'self' data:; connect-src 'self'; object-src 'none'; base-uri 'self'; form-action 'self'; "
        "frame-ancestors 'self'"
    )


HEADERS: Final = {
    "content-security-policy": policy(),
    "x-content-type-options": "nosniff",
    "x-frame-options": "SAMEORIGIN",
    "referrer-policy": "same-origin",  # addresses carry names of runs
    "cross-origin-resource-policy": "same-origin",
}


class Guard:
    """ASGI middleware around the whole dashboard."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._origin = access.origin
        self._names = host_names(access)
        self._any_address = not is_loopback(access.address)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        wrong = self._wrong(scope)
        if wrong is None:
            await self._app(scope, receive, _with_headers(send))
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": wrong})
        else:
            await PlainTextResponse(f"{wrong}\n", status_code=403, headers=HEADERS)(scope, receive, send)

    def _wrong(self, scope: Scope) -> str | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not self._ours(host):
            return "not a host name of this dashboard; start it with --public-url set to the URL that browsers use"
        origin = headers.get("origin")
        acts = scope["type"] == "websocket" or scope["method"] not in _HARMLESS
        if acts and origin is not None and not self._same(origin, host):
            return "requested by another page; start the dashboard with --public-url set to the URL that browsers use"
        return None

    def _ours(self, host: str) -> bool:
        """Return true if `host` is a known name, or any IP address if the dashboard listens beyond this machine.

        Names have to be known because DNS rebinding puts a name into the Host header.
        """
        try:
            name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
        except ValueError:
            return False
        return name in self._names or (self._any_address and is_address(name))

    def _same(self, origin: str, host: str) -> bool:
        scheme, _, asking = origin.lower().partition("://")
        return origin.lower() == self._origin or (scheme in _SCHEMES and asking == host.lower())


def _with_headers(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return sent
