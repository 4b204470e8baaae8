"""Sections of the view of a run on a page, in the form of its report."""

from __future__ import annotations

from collections.abc import Iterable

import streamlit as st

from logprobe.app.text.html import element
from logprobe.app.view.html import section_of
from logprobe.app.view.story import Section


def tell(sections: Iterable[Section]) -> None:
    """Draw sections, each under its title."""
    st.html(element("div", *map(section_of, sections), class_="lp"))
