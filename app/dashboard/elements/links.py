"""Addresses of the dashboard's pages. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import quote, unquote, urlencode

from logprobe.app.runs import Run


def link(path: str, run: Run | None) -> str:
    """Address of a page about `run`, relative to any page of the dashboard."""
    named = {"page": path, "run": None if run is None else run.name}
    return f"./?{urlencode({name: value for name, value in named.items() if value}, quote_via=quote)}"


def in_address(names: Iterable[str]) -> str:
    """Names as `runs` holds them; a comma may be part of a name. `browser/compare.js` does the same.

    >>> in_address(["a", "b,c"]), from_address("a,b%2Cc")
    ('a,b%2Cc', ('a', 'b,c'))
    """
    return ",".join(name.replace("%", "%25").replace(",", "%2C") for name in names)


def from_address(text: str | None) -> tuple[str, ...]:
    """Names that `in_address` wrote."""
    return tuple(unquote(name) for name in (text or "").split(",") if name)
