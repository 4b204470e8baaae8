"""HTML as text, with untrusted text escaped. The functions are pure.

`Markup` is finished HTML. All other content is escaped, so a name can never become markup.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from itertools import zip_longest
from typing import Any, Final

from logprobe.app.text import tables

_WIDEST: Final = 2_000
_PLAIN: Final = frozenset({"code", "text", "title"})  # elements that hold no others
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
    """Return an element with escaped attributes and content. Text between backticks is code.

    A trailing underscore in the name of an attribute is removed (``class_``). Other underscores become hyphens
    (``aria_label``).

    >>> element("p", "a < b", class_="x"), element("td", "see `<x>`")
    ('<p class="x">a &lt; b</p>', '<td>see <code>&lt;x&gt;</code></td>')
    """
    markup = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{html.escape(value)}"' for name, value in attributes.items()
    )
    inside = "".join(escaped(part) if tag in _PLAIN else _prose(part) for part in content)
    return Markup(f"<{tag}{markup}>{inside}</{tag}>")


def _prose(value: Any) -> str:
    return value if isinstance(value, Markup) else _CODE.sub(r"<code>\1</code>", escaped(value))


def pairs(items: Iterable[Sequence[Any]], **attributes: str) -> Markup:
    """Return names and values as a list, a pair per line."""
    lines = (each for name, value, *_ in items for each in (element("dt", name), element("dd", value)))
    return element("dl", *lines, **attributes)


def table(
    name: str, head: Sequence[str], rows: Iterable[Sequence[Any]], *, tones: Sequence[str] = (), caption: str = ""
) -> Markup:
    """Return a scrollable table. `tones`: severity of each row that determines its colour, or "". `caption`: text above
    it.
    """
    lines = []
    for row, tone in zip_longest(rows, tones, fillvalue=""):
        lines.append(
            element("tr", *(element("td", cell) for cell in row), **({"class_": f"lp-tone-{tone}"} if tone else {}))
        )
    top = element("thead", element("tr", *(element("th", word, scope="col") for word in head)))
    said = [element("caption", caption)] if caption else []
    whole = element("table", *said, top, element("tbody", *lines), aria_label=name)
    return element("div", whole, class_="scroll", tabindex="0", role="region", aria_label=f"table {name}")


def joined(parts: Iterable[Any]) -> Markup:
    """Join parts without a separator."""
    return Markup("\n".join(map(escaped, parts)))


@cache
def style() -> str:
    """Return the style of a document."""
    return files("logprobe.app.view").joinpath("report.css").read_text(encoding="utf-8")
