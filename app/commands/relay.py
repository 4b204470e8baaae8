"""`logprobe relay`: send what this machine records to a service on another one."""

from __future__ import annotations

import argparse

from logprobe.collectors.plain_text import log_to_stderr
from logprobe.collectors.relay import command


def run(arguments: argparse.Namespace) -> int:
    """Returns when it is done, or after Ctrl-C or SIGTERM."""
    log_to_stderr()
    return command.run(arguments)
