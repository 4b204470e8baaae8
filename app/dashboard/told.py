"""Parts of the view of a run on a page, in the words of `logprobe show`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import streamlit as st

from logprobe.app.dashboard import ui
from logprobe.app.text import tables
from logprobe.app.text.html import element
from logprobe.app.view.story import Facts, Part, Points, Section, Table
from logprobe.collectors.plain_text import harmless

_WIDEST: Final = 2_000  # characters of a cell


def tell(sections: Iterable[Section]) -> None:
    """Draw sections, each under its title."""
    for section in sections:
        if section.title:
            ui.title(_begun(section.title))
        for part in section.parts:
            _part(section.title, part)


def _part(name: str, part: Part) -> None:
    if isinstance(part, Facts):
        ui.facts([(fact, tables.fact(value)) for fact, value in part.pairs if value])
    elif isinstance(part, Points):
        points = (element("li", ui.text(harmless(line))) for line in part.lines)
        st.html(element("div", element("ul", *points, class_="lp-text"), class_="lp"))
    elif isinstance(part, Table):
        if part.caption:
            ui.title(_begun(part.caption))
        lines = [ui.Line([tables.cell(value, _WIDEST) for value in row]) for row in part.rows]
        ui.table(part.caption or name, part.head, lines, fold=True)
    else:
        head = element("h3", ui.text(harmless(f"{part.number}. {part.title}")))
        said = ui.pairs([(label, harmless(words)) for label, words in part.lines])
        st.html(element("div", head, said, class_="lp"))


def _begun(words: str) -> str:
    return words[:1].upper() + words[1:]
