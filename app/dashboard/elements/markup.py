"""Blocks that are only read, as HTML: everything in them is text, and is escaped where it is put in. Pure.

A link has the address of a page; the bar (`browser/bar.js`) keeps a plain click on it within the session, and copies
what a button holds.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from logprobe.app.text.html import Markup, element, joined

Block = Mapping[str, Any]

_MARKS: Final = re.compile(r"([\\`*_{}\[\]()#+\-.!|~>$:<&])")
_NARROWEST, _WIDEST = 8, 44  # characters of a column, for its width
_READ: Final = frozenset({"heading", "text", "facts", "verdict"})


def is_read(data: Block) -> bool:
    """Whether a block is only read and followed, a table aside: nothing is to be done in it."""
    if data["type"] == "actions":
        return all("href" in action for action in data["actions"])
    return data["type"] in _READ


def section(label: str, blocks: Sequence[Block]) -> Markup:
    """Blocks below each other, as a part of the page that is called `label`; "": as more of the part before."""
    if not label:
        return element("div", joined(map(block, blocks)), class_="lp lp-report")
    return element("section", joined(map(block, blocks)), class_="lp lp-report", aria_label=label)


def block(data: Block) -> Markup:
    """One block that `is_read`, or a table without actions."""
    kind: Markup = _KINDS[data["type"]](data)
    return kind


def _heading(data: Block) -> Markup:
    note = [element("span", coded(data["note"]), class_="lp-hint")] if data["note"] else []
    return element("h2", _plain(data["text"]), *note, class_="lp-title")


def _text(data: Block) -> Markup:
    more = {"role": "status"} if data["tone"] else {}
    kind = f"lp-text lp-tone-{data['tone']}" if data["tone"] else "lp-text"
    return element("p", coded(data["text"]), class_=kind, **more)


def _facts(data: Block) -> Markup:
    return _pairs(data["items"], "lp-facts-list")


def _pairs(items: Sequence[Sequence[str]], kind: str) -> Markup:
    parts = [
        part
        for name, value, *copied in items
        for part in (element("dt", _plain(name)), element("dd", coded(value), *map(_copy, filter(None, copied))))
    ]
    return element("dl", *parts, class_=f"lp-pairs {kind}")


def _copy(words: str) -> Markup:
    named = {"data_copy": words, "aria_label": f"Copy {words}", "class_": "lp-button lp-copy"}
    return element("button", "Copy", type="button", **named)


def _verdict(data: Block) -> Markup:
    head = [
        element("span", _plain(data["icon"]), class_="lp-icon", aria_hidden="true"),
        element("b", _plain(data["word"])),
        element("span", coded(data["words"]), class_="lp-words"),
        *([element("span", _plain(data["note"]), class_="lp-hint")] if data.get("note") else []),
    ]
    parts = [element("p", *head, class_="lp-headline")]
    parts += [_pairs(data["facts"], "lp-why")] if data["facts"] else []
    parts += [_pairs(data["do"], "lp-do")] if data["do"] else []
    parts += [element("p", *map(anchor, data["links"]), class_="lp-links")] if data.get("links") else []
    return element("div", *parts, class_=f"lp-verdict lp-tone-{data['tone']}", role="status")


def anchor(link: Block, kind: str = "") -> Markup:
    """A link to another view of the dashboard."""
    more = {"title": str(link["help"])} if link.get("help") else {}
    more |= {"class_": kind} if kind else {}
    return element("a", _plain(link.get("title") or link["label"]), href=str(link["href"]), **more)


def links(actions: Iterable[Block]) -> Markup:
    """Links that look like the buttons beside them."""
    return element("div", *(anchor(action, "lp-button") for action in actions), class_="lp-actions")


def _links(data: Block) -> Markup:
    return links(data["actions"])


def _table(data: Block) -> Markup:
    return table(data["name"], data["head"], data["rows"], empty=data["empty"])


def table(
    name: str,
    head: Sequence[str],
    rows: Sequence[Block],
    *,
    empty: str = "",
    part: str = "",
    columns: Markup | str = "",
) -> Markup:
    """Rows under their heads.

    Args:
        name: of the table.
        head: of the columns.
        rows: as `blocks.row` makes them.
        empty: what it means that there are none.
        part: of a table that is drawn in several, "first" or "next"; of the next ones the heads are only to be heard.
        columns: their widths, from `columns_of`.
    """
    if not rows:
        return element("p", coded(empty), class_="lp-text lp-hint")
    cells = element("tr", *(element("th", _plain(word), scope="col") for word in head))
    top = element("thead", cells, **({"class_": "lp-heard"} if part == "next" else {}))
    body = element("tbody", *(_row(row, head) for row in rows))
    kind = f"lp-table{' lp-part' if part else ''}"
    whole = element("table", Markup(columns), top, body, class_=kind, aria_label=name)
    return element("div", whole, class_="lp-scroll")


def columns_of(head: Sequence[str], rows: Sequence[Block]) -> Markup:
    """Widths of columns by how long their texts are, for a table that is drawn in several parts."""
    texts = [[name, *(_words(row["cells"][at]) for row in rows)] for at, name in enumerate(head)]
    widths = [min(_WIDEST, max(_NARROWEST, *map(len, column))) for column in texts]
    columns = [element("col", style=f"width: {100 * width / sum(widths):.1f}%") for width in widths]
    return element("colgroup", *columns)


def _words(cell: object) -> str:
    return str(cell["title"] if isinstance(cell, Mapping) else cell)


def _row(row: Block, head: Sequence[str]) -> Markup:
    cells = list(_cells(row, head))
    return element("tr", *cells, **({"class_": f"lp-tone-{row['tone']}"} if row["tone"] else {}))


def _cells(row: Block, head: Sequence[str]) -> Iterator[Markup]:
    for name, cell in zip(head, row["cells"], strict=True):
        inside = anchor(cell) if isinstance(cell, Mapping) else coded(cell)
        yield element("td", element("div", inside), data_label=name)


def coded(words: object) -> Markup:
    """Text in which backticks mark code."""
    parts = str(words).split("`")
    return Markup("".join(element("code", _plain(part)) if at % 2 else _plain(part) for at, part in enumerate(parts)))


def unmarked(words: str) -> str:
    """Text for a label of Streamlit, which reads labels as Markdown."""
    return _MARKS.sub(r"\\\1", words)


def _plain(words: object) -> Markup:
    return Markup(html.escape(str(words)))


_KINDS: Final = {
    "heading": _heading, "text": _text, "facts": _facts, "verdict": _verdict, "table": _table, "actions": _links,
}  # fmt: skip
