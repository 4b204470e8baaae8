"""The page's address as a session knows it: what the browser said last, and what the server put there since.

Streamlit reads an address when a page is loaded and writes it whole. The browser puts things there by itself meanwhile
(zoom, scales); so what is true is the browser's: it comes along with all that panels send, and what the server wants
there is told to panels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl

import streamlit as st

_LOADED: Final = "address as loaded"
_KNOWN: Final = "address"
_UNTOLD: Final = "address, not told yet"
_LAST: Final = "address, told last"  # its number, and what it was


def current() -> dict[str, str]:
    """What the address says, name by name."""
    loaded = st.query_params.to_dict()
    if st.session_state.get(_LOADED) != loaded:
        st.session_state[_LOADED], st.session_state[_KNOWN] = loaded, dict(loaded)
    address: dict[str, str] = st.session_state[_KNOWN]
    return address


def heard(address: str, told: int) -> None:
    """The browser's address, as it is: ``?page=tokens&step=12``; `told`: the last wish that it had heard of by then."""
    current()
    known = dict(parse_qsl(address.removeprefix("?")))
    number, wish = st.session_state.get(_LAST, (0, {}))
    st.session_state[_KNOWN] = _with(known, {**(wish if number > told else {}), **st.session_state.get(_UNTOLD, {})})


def put(state: Mapping[str, Any]) -> None:
    """Puts names and values into the address; None or "" takes a name out."""
    address = current()
    texts = {name: "" if value is None else str(value) for name, value in state.items()}
    changed = {name: text for name, text in texts.items() if address.get(name, "") != text}
    if changed:
        st.session_state[_KNOWN] = _with(address, changed)
        st.session_state[_UNTOLD] = st.session_state.get(_UNTOLD, {}) | changed


def unsent() -> dict[str, object] | None:
    """What the next panel has to put into the browser's address, once; None: nothing."""
    state = st.session_state.pop(_UNTOLD, None)
    if state is None:
        return None
    st.session_state[_LAST] = (st.session_state.get(_LAST, (0, {}))[0] + 1, state)
    return {"number": st.session_state[_LAST][0], "state": state}


def _with(address: Mapping[str, str], changed: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in {**address, **changed}.items() if text}
