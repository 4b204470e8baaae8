"""`logprobe ship`: send the pending segments of this machine to its bucket."""

from __future__ import annotations

from logprobe.app.surface.arguments import Arguments
from logprobe.collectors.log_lines import log_to_stderr
from logprobe.collectors.shipping import command


def run(arguments: Arguments) -> int:
    """Ship until the backlog is empty, the bucket refuses the credentials, or Ctrl-C or SIGTERM arrives."""
    log_to_stderr()
    return command.run(None if arguments.home is None else str(arguments.home), arguments.seconds)
