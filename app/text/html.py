"""HTML as text, with everything that came from outside escaped. Pure.

Not by Jinja2: a report is lists, tables and charts whose number and kind the data decide, made by functions; a template
would have `page` in it, calls of those functions, and their arguments once more.

`Markup` is finished HTML; whatever else is put into a page is text and is escaped on its way in, so a name can never
become markup.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Final

from logprobe.app.text import tables

# Nothing may be loaded or run, whatever is in the page: names and texts of rollouts come from outside.
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
_WIDEST: Final = 400
_PROSE: Final = frozenset({"dd", "li", "p", "td"})
_CODE: Final = re.compile("`([^`]+)`")


class Markup(str):
    """Finished HTML."""

    __slots__ = ()


def escaped(value: Any) -> Markup:
    """Finished HTML as it is; anything else as text, numbers as people read them."""
    if isinstance(value, Markup):
        return value
    return Markup(html.escape(tables.cell(value, _WIDEST)))


def element(tag: str, *content: Any, **attributes: str) -> Markup:
    """One element; attributes are escaped. ``class_`` and ``aria_label`` lose or turn their underscores. In prose,
    backticks mark code.

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
    """The parts, one after another."""
    return Markup("\n".join(map(escaped, parts)))


def section(title: str, *content: Any) -> Markup:
    """A part of a page under its own title."""
    return element("section", element("h2", title), joined(content))


def table(caption: str, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> Markup:
    """A table with a caption and scoped headings; its first column names the rows. It scrolls sideways where it does
    not fit."""
    head = element("tr", *(element("th", name, scope="col") for name in header))
    body = [
        element("tr", element("th", row[0], scope="row"), *(element("td", value) for value in row[1:])) for row in rows
    ]
    whole = element("table", element("caption", caption), element("thead", head), element("tbody", *body))
    return element("div", whole, class_="scroll", tabindex="0", role="region", aria_label=caption)


def listing(items: Iterable[Any]) -> Markup:
    """A list of points."""
    return element("ul", *(element("li", item) for item in items))


def badge(word: str, tone: str) -> Markup:
    """A word whose colour says the same once more."""
    return element("span", word, class_=f"badge {tone}")


def page(title: str, *content: Any) -> str:
    """A whole document."""
    head = joined(
        [
            Markup('<meta charset="utf-8">'),
            Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            Markup('<meta name="color-scheme" content="light dark">'),
            Markup(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'),
            element("title", title),
            element("style", Markup(style())),
        ]
    )
    body = element("body", element("main", joined(content)))
    return f'<!doctype html>\n<html lang="en">\n{element("head", head)}\n{body}\n</html>\n'


@cache
def style() -> str:
    """The style of a document."""
    return files("logprobe.app.report").joinpath("report.css").read_text(encoding="utf-8")
