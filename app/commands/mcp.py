"""`logprobe mcp`: serves the home to an agent over stdin and stdout, in the Model Context Protocol."""

from __future__ import annotations

import argparse
import hmac
from pathlib import Path

from logprobe.app.dashboard.access import token
from logprobe.app.parsers.arguments import home_path
from logprobe.collectors.environment import former
from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.relay.connection import content
from logprobe.monitor.home import Home


def run(arguments: argparse.Namespace) -> int:
    """Serves until the client goes."""
    home = Home(home_path(arguments))
    if arguments.act:
        _require_token(home, arguments.token)
    from logprobe.app.mcp_server import home_of, server  # noqa: PLC0415 - an extra

    server(home_of(home.path), acts=arguments.act).run("stdio")
    return 0


def _require_token(home: Home, file: str | None) -> None:
    """Anyone who may act can read the home's token. Raises `ConfigurationError`."""
    expected, old = token.read(home).encode(), former("LOGPROBE_MCP_TOKEN") or ""
    given = old.encode() if file is None else content(Path(file).expanduser(), secret=True).strip()
    if not given or not hmac.compare_digest(given, expected):
        problem = "that is another token" if given else "pass --token FILE"
        raise ConfigurationError(f"--act needs the token of {home.path}, which `logprobe token` shows: {problem}")
