"""Logging of logprobe's processes, one line per message even if a name contains control characters."""

from __future__ import annotations

import logging
from typing import Final

from logprobe.collectors.plain_text import harmless, steerless

_FORMAT: Final = "%(asctime)s %(name)s %(levelname)s %(message)s"


class _Formatter(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:
        # A message is one line, and ends where it ends
        record.message = harmless(record.message)
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        return steerless(super().format(record))


def log_to_stderr() -> None:
    """Log to stderr in a process of logprobe, one line per message even if a name contains control characters."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Formatter(_FORMAT))
    logging.basicConfig(handlers=[handler], level=logging.INFO)
