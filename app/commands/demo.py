"""`logprobe demo`: recorded runs, and one that is trained live, through recorder, spool, service and dashboard."""

from __future__ import annotations

from logprobe.app.demo import show
from logprobe.app.surface.arguments import Arguments


def run(arguments: Arguments) -> int:
    """Return after Ctrl-C or SIGTERM."""
    show.run(speed=arguments.speed, port=arguments.port, home=arguments.home_given)
    return 0
