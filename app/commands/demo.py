"""`logprobe demo`: recorded runs, and one that continues live, through recorder, spool, service and dashboard."""

from __future__ import annotations

from logprobe.app.demo import show
from logprobe.app.surface.arguments import Arguments


def run(arguments: Arguments) -> int:
    """Returns after Ctrl-C or SIGTERM."""
    show.run(
        names=arguments.run, speed=arguments.speed, port=arguments.port, data=arguments.data, home=arguments.home_given
    )
    return 0
