"""Sanitizing of foreign text for spreadsheets, stores and file names. A spreadsheet executes a cell that begins with
"=".
"""

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
    """Return `text` for a spreadsheet cell, without control characters or formulas.

    >>> [csv_cell(text) for text in ("=cmd|' /C calc'!A0", "-1.5", "-x", "a=b")]
    ["'=cmd|' /C calc'!A0", '-1.5', "'-x", 'a=b']
    """
    formula = _FORMULAS.search(text) and not _NUMBERS.search(text)
    return ("'" if formula else "") + steerless(text)


def printable(text: str) -> str:
    r"""Return a file name as text. Escape bytes that are not UTF-8, which Python represents as lone surrogates.

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
    """Return a file name unchanged if it is text of moderate length. Otherwise quote and truncate it, and add a
    digest.
    """
    if name.isprintable() and len(os.fsencode(name)) <= _LONGEST_NAME:
        return name
    raw = os.fsencode(name)
    return f"{quote_from_bytes(raw)[:_LONGEST_NAME]}-{hashlib.sha256(raw).hexdigest()[:12]}"
