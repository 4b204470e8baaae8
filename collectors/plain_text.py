"""Sanitizing of foreign text for terminals and logs.

Names of runs, metrics and tags, reasons, messages and addresses are free text. A terminal obeys control characters, and
a line break could forge a log line.
"""

from __future__ import annotations

import re
import sys
from typing import Final

# C0 without tab and newline, DEL and C1; what turns the direction of writing; separators that some take for line ends.
# As RE2 has it, too.
CONTROL_RE2: Final = (
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x{9f}\\x{61c}\\x{200e}\\x{200f}\\x{2028}-\\x{202e}\\x{2066}-\\x{2069}]"
)
_CONTROL: Final = "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
_SURROGATE: Final = "\ud800-\udfff"  # bytes of an argument or a file's name that are no text: no stream can write them
_STEERING: Final = re.compile(f"[{_CONTROL}{_SURROGATE}]")
_MORE_THAN_A_LINE: Final = re.compile(f"[{_CONTROL}{_SURROGATE}\t\n]")
INSTEAD: Final = "\ufffd"


def steerless(text: str) -> str:
    """Return `text` without control characters except tabs and line ends, so that it cannot control a terminal."""
    return _STEERING.sub(INSTEAD, text)


def harmless(text: str) -> str:
    r"""Return `text` as part of one line, also without tabs and line ends.

    >>> harmless("run\n2026-01-01 forged\x1b[2J")
    'run�2026-01-01 forged�[2J'
    """
    return _MORE_THAN_A_LINE.sub(INSTEAD, text)


def complain(message: str) -> None:
    """Write one line to stderr, with control characters replaced."""
    sys.stderr.write(f"logprobe: {harmless(' '.join(message.split()))}\n")
    sys.stderr.flush()
