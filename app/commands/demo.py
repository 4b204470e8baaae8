"""`logprobe demo`: show recorded runs and a live training through recorder, spool, service and dashboard."""

from __future__ import annotations

from logprobe.app.demo import show
from logprobe.app.surface.arguments import Arguments


def run(arguments: Arguments) -> int:
    """Run the demo until Ctrl-C or SIGTERM."""
    show.run(speed=arguments.speed, port=arguments.port, home=arguments.home_given)
    return 0
