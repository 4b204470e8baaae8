"""A small OpenID Connect provider on this machine: discovery, authorisation code with PKCE, signed identity tokens, keys.

Everybody who comes is `user`, without a question. It refuses what a real one refuses: a wrong client or secret, a redirect to
elsewhere, a code used twice, a verifier that does not fit its challenge.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, urlencode

import uvicorn
from joserfc import jwt
from joserfc.jwk import RSAKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

CLIENT, SECRET = "logprobe", "of-the-client"


class Provider:
    """`user`: claims of whoever signs in next."""

    def __init__(self, port: int, redirect_uri: str) -> None:
        self.issuer = f"http://127.0.0.1:{port}"
        self.user: dict[str, Any] = {"email": "ada@example.org", "email_verified": True, "name": "Ada"}
        self.signed_in = 0
        self._redirect_uri = redirect_uri
        self._key = RSAKey.generate_key(2048, {"kid": "one", "use": "sig", "alg": "RS256"})
        self._codes: dict[str, dict[str, str]] = {}
        self.app = Starlette(
            routes=[
                Route("/.well-known/openid-configuration", self._discovery),
                Route("/authorize", self._authorize),
                Route("/token", self._token, methods=["POST"]),
                Route("/keys", self._keys),
            ]
        )

    async def _discovery(self, _: Request) -> Response:
        return JSONResponse(
            {
                "issuer": self.issuer,
                "authorization_endpoint": f"{self.issuer}/authorize",
                "token_endpoint": f"{self.issuer}/token",
                "jwks_uri": f"{self.issuer}/keys",
                "response_types_supported": ["code"],
                "subject_types_supported": ["public"],
                "id_token_signing_alg_values_supported": ["RS256"],
                "code_challenge_methods_supported": ["S256"],
            }
        )

    async def _authorize(self, request: Request) -> Response:
        asked = dict(request.query_params)
        if (
            asked["client_id"] != CLIENT
            or asked["redirect_uri"] != self._redirect_uri
            or asked["code_challenge_method"] != "S256"
        ):
            return Response("refused", 400)
        code = secrets.token_urlsafe()
        self._codes[code] = asked
        return RedirectResponse(f"{self._redirect_uri}?{urlencode({'code': code, 'state': asked['state']})}")

    async def _token(self, request: Request) -> Response:
        form = {name: values[0] for name, values in parse_qs((await request.body()).decode()).items()}
        asked = self._codes.pop(form["code"], None)
        shown = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        challenge = (
            base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest()).rstrip(b"=").decode()
        )
        if (
            asked is None
            or request.headers.get("authorization") != f"Basic {shown}"
            or challenge != asked["code_challenge"]
        ):
            return JSONResponse({"error": "invalid_grant"}, 400)
        now = int(time.time())
        claims = {
            "iss": self.issuer,
            "aud": CLIENT,
            "sub": self.user.get("email", "nobody"),
            "iat": now,
            "exp": now + 3600,
            "nonce": asked["nonce"],
        }
        identity = jwt.encode({"alg": "RS256", "kid": "one"}, {**claims, **self.user}, self._key)
        self.signed_in += 1
        return JSONResponse({"access_token": "none", "token_type": "Bearer", "expires_in": 3600, "id_token": identity})

    async def _keys(self, _: Request) -> Response:
        return JSONResponse({"keys": [self._key.as_dict(private=False)]})


@contextmanager
def provider(port: int, redirect_uri: str) -> Iterator[Provider]:
    """Serves one until the block ends."""
    found = Provider(port, redirect_uri)
    server = uvicorn.Server(uvicorn.Config(found.app, host="127.0.0.1", port=port, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    yield found
    server.should_exit = True
    thread.join(90)
