"""Pages of words and tables: blocks (`elements/blocks.py`) drawn by Streamlit.

What is only read is HTML (`elements/markup.py`). What is to be done is asked twice: a button opens a form that says
what will happen, and only its own button does it. One form is open at a time; it keeps what was typed while news
arrives.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

import streamlit as st

from logprobe.app.dashboard.elements import markup
from logprobe.app.dashboard.elements.blocks import Block
from logprobe.app.dashboard.views.chart import figure

_UNFOLDED: Final = 8  # rows of a long table
_LONGEST: Final = 200  # characters of a field
_BY: Final = "your name"  # as it was last given in this session
_OPENED: Final = "form that is open"


def report(key: str, label: str, blocks: Sequence[Block]) -> Mapping[str, Any] | None:
    """Draws blocks; what someone confirmed on them, or None. `key`: unique on the page; `label`: of the part."""
    return _Part(key, label).draw(blocks)


class _Part:
    """A part of a page while it is drawn. Keys of its widgets stay the same while rows come and go."""

    def __init__(self, key: str, label: str) -> None:
        self._key, self._label = key, label
        self._used: Counter[str] = Counter()
        self._wanted: Mapping[str, Any] | None = None

    def draw(self, blocks: Sequence[Block]) -> Mapping[str, Any] | None:
        """Draws them; what was confirmed."""
        for read, group in groupby(blocks, _is_read):
            if read:
                self._read(list(group))
            else:
                for block in group:
                    self._interactive(block)
        return self._wanted

    def _read(self, blocks: Sequence[Block]) -> None:
        st.html(markup.section(self._label, blocks))
        self._label = ""

    def _name(self, name: str) -> str:
        """A key for a widget, another one each time."""
        self._used[name] += 1
        return f"{self._key} {name} {self._used[name]}"

    def _interactive(self, block: Mapping[str, Any]) -> None:
        if block["type"] == "details":
            name = self._name(block["name"])
            with st.expander(markup.unmarked(block["summary"]), key=name):
                self._wanted = report(name, block["name"], block["blocks"]) or self._wanted
        elif block["type"] == "table":
            self._table(block)
        elif block["type"] == "figure":
            self._read([block["heading"]])
            figure(self._name("figure"), block["chart"])
        else:
            self._actions("", block["actions"])

    def _table(self, block: Mapping[str, Any]) -> None:
        rows = block["rows"]
        shown = rows[:_UNFOLDED] if _folds(block) else rows
        with st.container(gap="xxsmall"):
            self._rows(block, shown, "first")
        if len(shown) < len(rows):
            with st.expander(f"{len(rows) - len(shown)} more", key=self._name(f"{block['name']} more")):
                self._rows(block, rows[len(shown) :], "next")

    def _rows(self, block: Mapping[str, Any], rows: Sequence[Block], part: str) -> None:
        """Rows up to and including one with actions, then these."""
        columns = markup.columns_of(block["head"], block["rows"])
        for lines in _up_to_actions(rows):
            table = markup.table(block["name"], block["head"], lines, part=part, columns=columns)
            st.html(f'<div class="lp">{table}</div>')
            self._actions(f"{block['name']} {lines[-1]['cells'][0]}", lines[-1]["actions"])
            part = "next"

    def _actions(self, of: str, actions: Sequence[Mapping[str, Any]]) -> None:
        """Links, and buttons that open a form."""
        if not actions:
            return
        links = [action for action in actions if "href" in action]
        doing = {
            self._name(f"{of} {action['id']} {action.get('args') or ''}"): action
            for action in actions
            if "href" not in action
        }
        with st.container(horizontal=True, gap="xsmall", vertical_alignment="center"):
            if links:
                st.html(f'<div class="lp">{markup.links(links)}</div>', width="content")
            for name, action in doing.items():
                why = markup.unmarked(action["disabled"].replace("`", ""))
                st.button(action["label"], key=name, disabled=bool(why), help=why or None, on_click=_open, args=(name,))
        name = st.session_state.get(_OPENED, "")
        if name in doing and not doing[name]["disabled"]:
            self._wanted = _form(name, doing[name]) or self._wanted


def _is_read(block: Mapping[str, Any]) -> bool:
    if block["type"] == "table":
        return not _folds(block) and not any(row["actions"] for row in block["rows"])
    return markup.is_read(block)


def _folds(table: Mapping[str, Any]) -> bool:
    return bool(table["fold"]) and len(table["rows"]) > _UNFOLDED + 2


def _up_to_actions(rows: Sequence[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    part: list[Mapping[str, Any]] = []
    for row in rows:
        part.append(row)
        if row["actions"]:
            yield part
            part = []
    if part:
        yield part


def _open(name: str) -> None:
    st.session_state[_OPENED] = name


def _form(name: str, action: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Asks for what the action needs; what was given, once it is confirmed."""
    choices = action.get("choices") or [{"label": action.get("confirm") or action["label"], "args": {}}]
    fields = action.get("fields") or ()
    with st.form(f"{name} form", width=560):
        st.html(f'<p class="lp lp-text">{markup.coded(action["words"])}</p>')
        given = {field["name"]: _field(f"{name} {field['name']}", field) for field in fields}
        with st.container(horizontal=True, gap="small"):
            chosen = [st.form_submit_button(choice["label"], type="primary") for choice in choices]
            st.form_submit_button("Cancel", on_click=_open, args=("",))
    if not any(chosen):
        return None
    missing = [field["label"] for field in fields if field.get("required") and not given[field["name"]]]
    if missing:
        st.error(markup.unmarked(f"Missing: {', '.join(missing)}."))
        return None
    _open("")
    st.session_state[_BY] = given.get("by") or st.session_state.get(_BY, "")
    return {
        "id": action["id"], **(action.get("args") or {}), **choices[chosen.index(True)]["args"], **given,
        "at": time.time_ns(),
    }  # fmt: skip


def _field(key: str, field: Mapping[str, Any]) -> str:
    label, value = field["label"], field.get("value") or ""
    if options := field.get("options"):
        return str(st.selectbox(label, options, options.index(value), format_func=lambda each: each or "any", key=key))
    value = value or (st.session_state.get(_BY, "") if field["name"] == "by" else "")
    return (st.text_input(label, value, max_chars=_LONGEST, key=key) or "").strip()
