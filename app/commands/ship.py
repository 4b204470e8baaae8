"""`logprobe ship`: send what waits on this machine to the bucket that it records for."""

from __future__ import annotations

from logprobe.app.surface.arguments import Arguments
from logprobe.collectors.log_lines import log_to_stderr
from logprobe.collectors.shipping import command


def run(arguments: Arguments) -> int:
    """Return when nothing waits, after Ctrl-C or SIGTERM, or when the bucket refuses the credentials."""
    log_to_stderr()
    return command.run(None if arguments.home is None else str(arguments.home), arguments.seconds)
