"""File names as text that every store, log and JSON document takes: a name is bytes, and need not be UTF-8."""

from __future__ import annotations

import hashlib
import os
from typing import Final
from urllib.parse import quote_from_bytes

_LONGEST_NAME: Final = 180  # bytes; a file system takes 255, and more may follow


def printable(text: str) -> str:
    r"""`text` with bytes that are no UTF-8, which Python carries as lone surrogates, spelled out.

    >>> printable("run\udcff"), printable("Läufe")
    ('run\\xff', 'Läufe')
    """
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def is_text(name: str) -> bool:
    r"""Whether a file's name is valid UTF-8.

    >>> is_text("run"), is_text("run\udcff")
    (True, False)
    """
    return name.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in name)


def file_name(name: str) -> str:
    """A file name as it is, where that is text of a sane length; else quoted and cut, with a digest that keeps names apart."""
    if name.isprintable() and len(os.fsencode(name)) <= _LONGEST_NAME:
        return name
    raw = os.fsencode(name)
    return f"{quote_from_bytes(raw)[:_LONGEST_NAME]}-{hashlib.sha256(raw).hexdigest()[:12]}"
