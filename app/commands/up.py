"""`logprobe up`: the monitor service and the dashboard, until Ctrl-C."""

from __future__ import annotations

import argparse

from logprobe.app.arguments import home_path, port


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("--port", type=port, default=8501, help="of the dashboard; 0: any free one (default: %(default)s)")
    parser.add_argument("--address", default="127.0.0.1", help="that the dashboard listens on (default: %(default)s)")
    parser.add_argument("--no-app", action="store_true", help="the monitor service only")


def run(arguments: argparse.Namespace) -> int:
    """Returns after Ctrl-C or SIGTERM."""
    from logprobe.app.stack import Stack, say
    from logprobe.app.supervisor import stop_on_signals
    from logprobe.monitor.home import Home

    stack = Stack(Home(home_path(arguments)), address=arguments.address, port=arguments.port, app=not arguments.no_app)
    with stop_on_signals() as stop:
        stack.run(stop)
    say("stopped")
    return 0

