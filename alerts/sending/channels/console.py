"""The terminal or log of the service: every notification as one line."""

from __future__ import annotations

import sys
from typing import TextIO

from logprobe.alerts.sending import messages
from logprobe.alerts.sending.channels.channel import Outgoing, Receipt
from logprobe.collectors.errors import ChannelError


class Console:
    """Writes to standard error, or to `stream`."""

    pace = 0.0

    def __init__(self, name: str, stream: TextIO | None = None) -> None:
        self.name = name
        self._stream = stream

    def send(self, outgoing: Outgoing) -> Receipt:
        """Writes one line; characters that would move a terminal's cursor are left out."""
        line = "".join(c for c in messages.one_line(outgoing.notification) if c.isprintable())
        try:
            print(f"logprobe: {line}", file=self._stream or sys.stderr, flush=True)
        except (OSError, ValueError) as error:
            raise ChannelError("unreachable", f"standard error cannot be written ({error})") from None
        return {}

    def check(self) -> list[str]:
        """Nothing to check."""
        return []
