"""Text that came from outside, on its way to a terminal or a spreadsheet.

Names of runs, metrics and tags, messages and texts are whatever somebody recorded. A terminal obeys control characters, and a
spreadsheet runs a cell that begins with "=".
"""

from __future__ import annotations

import re
from typing import Final

# C0 without tab and newline, DEL and C1, and what turns the direction of writing round.
_CONTROL: Final = "\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069"
_CONTROLS: Final = re.compile(f"[{_CONTROL}]")
CONTROL_RE2: Final = "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x{9f}\\x{202a}-\\x{202e}\\x{2066}-\\x{2069}]"
INSTEAD: Final = "\ufffd"
# Patterns that Python and RE2 read alike. As spreadsheets have it, also in full width; blanks in front are cut by some.
FORMULA: Final = "^[\\s\u00a0\ufeff]*[=+@\uff1d\uff0b\uff0d\uff20-]|^[\\t\\n]"
NUMBER: Final = "^[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]+)?$"
_FORMULAS, _NUMBERS = re.compile(FORMULA), re.compile(NUMBER)


def steerless(text: str) -> str:
    """`text` without control characters but tabs and line ends, so that it cannot steer a terminal."""
    return _CONTROLS.sub(INSTEAD, text)


def csv_cell(text: str) -> str:
    """`text` for a cell of a table that people open: no control characters, and no formula.

    >>> [csv_cell(text) for text in ("=cmd|' /C calc'!A0", "-1.5", "-x", "a=b")]
    ["'=cmd|' /C calc'!A0", '-1.5', "'-x", 'a=b']
    """
    formula = _FORMULAS.search(text) and not _NUMBERS.search(text)
    return ("'" if formula else "") + steerless(text)
