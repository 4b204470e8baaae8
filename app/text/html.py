"""HTML as text, with untrusted text escaped. The functions are pure.

`Markup` is finished HTML. All other content is escaped, so a name can never become markup.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import Any, Final

from logprobe.app.text import tables

_WIDEST: Final = 2_000
_PROSE: Final = frozenset({"dd", "li", "p", "td"})
_CODE: Final = re.compile("`([^`]+)`")


class Markup(str):
    """Finished HTML."""

    __slots__ = ()


def escaped(value: Any) -> Markup:
    """Return finished HTML unchanged and other values as escaped text."""
    if isinstance(value, Markup):
        return value
    return Markup(html.escape(tables.cell(value, _WIDEST)))


def element(tag: str, *content: Any, **attributes: str) -> Markup:
    """Return an element with escaped attributes and content. Backticks in prose mark code.

    A trailing underscore in the name of an attribute is removed (``class_``). Other underscores become hyphens
    (``aria_label``).

    >>> element("p", "a < b", class_="x"), element("td", "see `<x>`")
    ('<p class="x">a &lt; b</p>', '<td>see <code>&lt;x&gt;</code></td>')
    """
    markup = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{html.escape(value)}"' for name, value in attributes.items()
    )
    inside = "".join(_prose(part) if tag in _PROSE else escaped(part) for part in content)
    return Markup(f"<{tag}{markup}>{inside}</{tag}>")


def _prose(value: Any) -> str:
    return value if isinstance(value, Markup) else _CODE.sub(r"<code>\1</code>", escaped(value))


def joined(parts: Iterable[Any]) -> Markup:
    """Join parts without a separator."""
    return Markup("\n".join(map(escaped, parts)))


@cache
def style() -> str:
    """Return the style of a document."""
    return files("logprobe.app.view").joinpath("report.css").read_text(encoding="utf-8")
