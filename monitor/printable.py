"""File names as text that every store, log and JSON document takes: a name is bytes, and need not be UTF-8."""

from __future__ import annotations


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
