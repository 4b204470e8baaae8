"""Foreign text on its way to a spreadsheet, which executes a cell that begins with "=", to a store, or from a file
name."""

from __future__ import annotations

import hashlib
import os
import re
from typing import Final
from urllib.parse import quote_from_bytes

from logprobe.collectors.plain_text import steerless

# Patterns that Python and RE2 read alike. As spreadsheets have it, also in full width; blanks in front are cut by some.
FORMULA: Final = "^[\\s\u00a0\ufeff]*[=+@\uff1d\uff0b\uff0d\uff20-]|^[\\t\\n]"
NUMBER: Final = "^[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]+)?$"
_FORMULAS, _NUMBERS = re.compile(FORMULA), re.compile(NUMBER)
_LONGEST_NAME: Final = 180  # bytes; a file system takes 255, and more may follow


def csv_cell(text: str) -> str:
    """Return `text` for a cell of a table that users open: no control characters, and no formula.

    >>> [csv_cell(text) for text in ("=cmd|' /C calc'!A0", "-1.5", "-x", "a=b")]
    ["'=cmd|' /C calc'!A0", '-1.5', "'-x", 'a=b']
    """
    formula = _FORMULAS.search(text) and not _NUMBERS.search(text)
    return ("'" if formula else "") + steerless(text)


def printable(text: str) -> str:
    r"""Return a file's name, which is bytes and need not be UTF-8, as text: what Python carries as lone surrogates is
    spelled out.

    >>> printable("run\udcff"), printable("Läufe")
    ('run\\xff', 'Läufe')
    """
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def is_text(name: str) -> bool:
    r"""Return whether a file's name is valid UTF-8.

    >>> is_text("run"), is_text("run\udcff")
    (True, False)
    """
    return name.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in name)


def file_name(name: str) -> str:
    """Return a file name unchanged if it is text of moderate length, else quoted and cut, with a digest."""
    if name.isprintable() and len(os.fsencode(name)) <= _LONGEST_NAME:
        return name
    raw = os.fsencode(name)
    return f"{quote_from_bytes(raw)[:_LONGEST_NAME]}-{hashlib.sha256(raw).hexdigest()[:12]}"
