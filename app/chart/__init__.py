"""Panels drawn in the browser: one `st.components.v2` component, one JavaScript module per kind of panel.

A module is fetched once from `logprobe.app.assets` and kept by the browser; a rerun sends data only. A panel stays
mounted as long as its key does, and with it the reader's zoom.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import streamlit as st

from logprobe.app.assets import base_url

Kind = Literal["bar", "tiles", "chart", "report"]


def _nothing() -> None:
    """A trigger needs a callback to be listened to; the rerun it causes is all that is wanted."""


@cache
def _component() -> Callable[..., Any]:
    loader = files("logprobe.app.chart").joinpath("loader.js").read_text(encoding="utf-8")
    component: Callable[..., Any] = st.components.v2.component("logprobe.panel", js=loader, isolate_styles=False)
    return component


def panel(kind: Kind, key: str, data: dict[str, Any], *, triggers: tuple[str, ...] = ()) -> Any:
    """Mount, or bring up to date, the panel `key` with `data` (JSON). `triggers`: events it may send; read as attributes."""
    listeners = {f"on_{name}_change": _nothing for name in triggers}
    return _component()(key=key, data={"panel": kind, "assets": base_url(), **data}, **listeners)


def stylesheet() -> str:
    """All of our CSS, for one ``st.html``."""
    folder = files("logprobe.app.chart")
    return "".join(folder.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "style.css"))


def icon() -> str:
    """The page's icon, as SVG text; a named icon would be fetched from the internet."""
    return files("logprobe.app.chart").joinpath("icon.svg").read_text(encoding="utf-8")
