"""Doing something from a page: only through the running service, only what was confirmed, and each confirmation once."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from typing import Any, Final

import streamlit as st
from streamlit import config

from logprobe.app.dashboard.pages.blocks import Block, text
from logprobe.app.dashboard.views.session import feed, home
from logprobe.collectors.errors import LogprobeError
from logprobe.monitor.reader import connect

_SAID: Final = "said"
_DONE: Final = "done"


def blocked(run: str) -> str:
    """Why nothing can be done from this page; "": it can."""
    if feed().look(run).away_since is not None:
        return "the monitor service does not answer"
    return "" if _local() else "this dashboard can be reached from other machines; use the command line"


def _local() -> bool:
    address = str(config.get_option("server.address") or "")
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def ask(action: str, document: Mapping[str, Any]) -> dict[str, Any]:
    """Has the service do it. Raises `LogprobeError` as the action does, `ServiceUnavailableError` when nobody answers."""
    with connect(home()) as reader:
        return reader.act(action, document)


def attempt(place: str, wanted: Mapping[str, Any] | None, do: Callable[[Mapping[str, Any]], str]) -> None:
    """Does what was confirmed at `place`, a page about a run, and draws it anew with what came of it."""
    if wanted is None or wanted.get("at") == st.session_state.get(_DONE):
        return
    st.session_state[_DONE] = wanted.get("at")
    try:
        st.session_state[f"{_SAID} {place}"] = (do(wanted), "info")
    except LogprobeError as error:
        st.session_state[f"{_SAID} {place}"] = (str(error).partition("\n")[0], "critical")
    st.rerun(scope="fragment")


def said(place: str) -> list[Block]:
    """What came of the last thing done there in this session."""
    words = st.session_state.get(f"{_SAID} {place}")
    return [] if words is None else [text(*words)]
