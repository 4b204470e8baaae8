"""Blocks of words and tables, as `views/report.py` draws them. Pure; all values are text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

Block = dict[str, object]
BY: Final[Block] = {"name": "by", "label": "your name", "required": True}  # who acts, for the audit


def heading(text: str, note: str = "") -> Block:
    """A title; `note` beside it in small print."""
    return {"type": "heading", "text": text, "note": note}


def text(words: str, tone: str = "") -> Block:
    """A paragraph; what stands between backticks is code. `tone`: a severity or verdict that colours it."""
    return {"type": "text", "text": words, "tone": tone}


def facts(items: Sequence[tuple[str, str]]) -> Block:
    """Names and values, one pair per line."""
    return {"type": "facts", "items": [list(item) for item in items]}


def table(name: str, head: Sequence[str], rows: Sequence[Block], *, empty: str, fold: bool = False) -> Block:
    """A table; `empty` says what it means that there are no rows. See `row`. `fold`: later rows only when the reader
    asks for them."""
    return {"type": "table", "name": name, "head": list(head), "rows": list(rows), "empty": empty, "fold": fold}


def row(cells: Sequence[str | Block], *, tone: str = "", actions: Sequence[Block] = ()) -> Block:
    """A line of a table; `actions` are in its last cell. A cell is text, or a `place` to go to."""
    return {"cells": list(cells), "tone": tone, "actions": list(actions)}


def place(title: str, *, href: str, help: str = "") -> Block:  # noqa: A002 -- of a link
    """Text that leads to another view of the dashboard. What the address has besides stays: a name with no value in
    `href` takes it out."""
    return {"title": title, "href": href, "help": help}


def action(
    name: str,
    label: str,
    words: str,
    blocked: str,
    *,
    args: Block | None = None,
    fields: Sequence[Block] = (BY,),
    **more: Any,
) -> Block:
    """A button that asks for `fields`, and then has `name` done with `args`. `words`: what it does; `blocked`: why it
    cannot be, or ""."""
    asked = {"args": args or {}, "fields": list(fields)}
    return {"id": name, "label": label, "words": words, "disabled": blocked, **asked, **more}


def details(name: str, summary: str, blocks: Sequence[Block]) -> Block:
    """What is folded away behind a line of words; `name`: by which it stays open when it has new words."""
    return {"type": "details", "name": name, "summary": summary, "blocks": list(blocks)}
