"""`logprobe token`: what has to be typed to act from a dashboard that other machines reach."""

from __future__ import annotations

import argparse

from logprobe.app.dashboard.access import token
from logprobe.app.parsers.arguments import home_path
from logprobe.monitor.home import Home


def run(arguments: argparse.Namespace) -> int:
    """Prints the home's token, alone on its line; makes it when there is none yet."""
    home = Home(home_path(arguments)).create()
    print(token.renew(home) if arguments.new else token.read(home))
    return 0
