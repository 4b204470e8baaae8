"""Panels drawn in the browser: one `st.components.v2` component, one JavaScript module per kind of panel.

A module is fetched once from `logprobe.app.dashboard.assets` and kept by the browser; a rerun sends data only. A panel
stays mounted as long as its key does, and with it the reader's zoom.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from types import SimpleNamespace
from typing import Any, Final

import streamlit as st

from logprobe.app.dashboard.assets import base_url
from logprobe.app.dashboard.browser.address import heard, unsent

_FOLDER: Final = files("logprobe.app.dashboard.browser")


def _nothing() -> None:
    """A trigger needs a callback to be listened to; the rerun it causes is all that is wanted."""


@cache
def _component() -> Callable[..., Any]:
    loader = _FOLDER.joinpath("loader.js").read_text(encoding="utf-8")
    component: Callable[..., Any] = st.components.v2.component("logprobe.panel", js=loader, isolate_styles=False)
    return component


def panel(kind: str, key: str, data: Mapping[str, Any], *, triggers: tuple[str, ...] = ()) -> Any:
    """Mount, or bring up to date, the panel `key` with `data` (JSON).

    `kind` names its module, `<kind>.js` beside this file; `triggers`: events it may send; read as attributes, None
    while there is none.
    """
    listeners = {f"on_{name}_change": _nothing for name in triggers}
    sent = _component()(key=key, data={"panel": kind, "assets": base_url(), "address": unsent(), **data}, **listeners)
    return SimpleNamespace(**{name: _heard(getattr(sent, name)) for name in triggers})


def _heard(sent: Mapping[str, Any] | None) -> Any:
    """What a panel sent; the address as it was then comes along."""
    if sent is None:
        return None
    heard(sent["address"], sent["told"])
    return sent["value"]


def stylesheet() -> str:
    """All of our CSS, for one ``st.html``."""
    sheets = sorted((file for file in _FOLDER.iterdir() if file.name.endswith(".css")), key=lambda file: file.name)
    return "".join(sheet.read_text(encoding="utf-8") for sheet in sheets)


def icon() -> str:
    """The page's icon, as SVG text; a named icon would be fetched from the internet."""
    return _FOLDER.joinpath("icon.svg").read_text(encoding="utf-8")
