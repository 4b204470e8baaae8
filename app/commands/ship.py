"""`logprobe ship`: send what waits on this machine to the bucket that it records for."""

from __future__ import annotations

import argparse

from logprobe.collectors.plain_text import log_to_stderr
from logprobe.collectors.shipping import command


def run(arguments: argparse.Namespace) -> int:
    """Return when nothing waits, after Ctrl-C or SIGTERM, or when the bucket refuses the credentials."""
    log_to_stderr()
    return command.run(arguments)
