"""Parts of pages that commands write: what stands between two markers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def write_between(page: Path, begin: str, end: str, lines: Iterable[str]) -> None:
    """Replaces what stands between two markers. Raises `ValueError` when the page does not have both, in this order."""
    text = page.read_text(encoding="utf-8")
    before, rest = text.split(begin, 1) if begin in text else (text, "")
    if end not in rest:
        raise ValueError(f"{page} has no {begin} … {end}")
    page.write_text("\n".join([before + begin, "", *lines, "", end + rest.split(end, 1)[1]]), encoding="utf-8")
