"""`logprobe mcp`: serves the home to an agent over stdin and stdout, in the Model Context Protocol."""

from __future__ import annotations

import argparse
import hmac
import os
from typing import Final

from logprobe.app.dashboard.access import token
from logprobe.app.parsers.arguments import home_path
from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.home import Home

TOKEN: Final = "LOGPROBE_MCP_TOKEN"  # noqa: S105 - the name of a variable


def run(arguments: argparse.Namespace) -> int:
    """Serves until the client goes."""
    home = Home(home_path(arguments))
    if arguments.act:
        _require_token(home)
    from logprobe.app.mcp_server import home_of, server  # noqa: PLC0415 - an extra

    server(home_of(home.path), acts=arguments.act).run("stdio")
    return 0


def _require_token(home: Home) -> None:
    """Anyone who may act knows the home's token. Raises `ConfigurationError`."""
    given = os.environ.get(TOKEN, "")
    if not given or not hmac.compare_digest(given.encode(), token.read(home).encode()):
        problem = "is not the token of" if given else "is not set; --act needs the token of"
        raise ConfigurationError(f"{TOKEN} {problem} {home.path}, which `logprobe token` shows")
