"""The parts drawn by our JavaScript: plotly figures, the strip of tokens, and the heartbeat of a page.

The inlined script of each imports its module from `logprobe-assets`, which the browser caches. A rerun sends only
changed data.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any, Final

import streamlit as st

from logprobe.app.dashboard.assets import PLOTLY, base_url
from logprobe.app.dashboard.figures import Chart

_FOLDER: Final = files("logprobe.app.dashboard.browser")
_LOADER: Final = """
const modules = (globalThis.logprobeModules ??= new Map()), ended = new WeakMap();
export default (component) => {
  const { parentElement: root, data } = component, address = new URL(data.module, document.baseURI).href;
  if (!modules.has(address)) modules.set(address, import(address));
  modules.get(address).then((module) => ended.set(root, module.default(component)));
  return () => ended.get(root)?.();
};
"""


@cache
def _component() -> Callable[..., Any]:
    component: Callable[..., Any] = st.components.v2.component("logprobe.part", js=_LOADER, isolate_styles=False)
    return component


def _mount(module: str, key: str, data: Mapping[str, Any], **listeners: Any) -> Any:
    return _component()(key=key, data={"module": f"{base_url()}/{module}.js", **data}, **listeners)


def plot(
    key: str,
    chart: Chart,
    *,
    zoomed: Callable[[tuple[float, float] | None], None] | None = None,
    picked: Callable[[float], None] | None = None,
) -> None:
    """Draw a chart.

    Args:
        key: key of the chart, unique on the page.
        chart: chart to draw. A changed chart is redrawn.
        zoomed: callback after a zoom, with the range of the x axis, or None for the whole axis.
        picked: callback with the x place of a click.
    """

    # Both are triggers: what is said is said again with the rerun it asks for, though the heart's was sent in between.
    def heard() -> None:
        seen = st.session_state[key]["range"]
        if zoomed is not None:
            zoomed(None if seen is None else (float(seen[0]), float(seen[1])))

    def clicked() -> None:
        place = st.session_state[key]["pick"]
        if picked is not None and place is not None:
            picked(float(place))

    about = {
        "figure": chart.text,
        "alt": chart.alt,
        "rows": chart.rows,
        "words": chart.words,
        "axis": chart.axis,
        "note": chart.note,
        "zooms": chart.zooms,
        "whole": chart.whole,
        "picks": picked is not None,
        "library": f"{base_url()}/{PLOTLY}",
    }
    version = sha256(repr(about).encode()).hexdigest()[:16]
    _mount(
        "plot",
        key,
        {**about, "version": version},
        on_range_change=heard,
        on_pick_change=clicked,
    )


def strip(key: str, data: Mapping[str, Any]) -> int | None:
    """Draw tokens. Return the position of the selected token, or None."""
    version = sha256(repr(data).encode()).hexdigest()[:16]
    sent = _mount("strip", key, {**data, "version": version}, default={"token": None}, on_token_change=_nothing)
    token: int | None = sent.token
    return token


def heart(seconds: float) -> None:
    """Rerun the surrounding fragment at an interval in seconds while the page is visible."""
    # What a component says, Streamlit sends with all else that is said in the same moment, and reruns one fragment:
    # a zoom or a click would be lost to this one. A form is sent at once and alone: by Enter in its field, which nobody
    # sees.
    with st.form("heart form", border=False):
        # An answer has to differ from the one before: the page hears nothing of data that did not change.
        _mount("heart", "heart", {"every": seconds, "answer": time.monotonic()})
        with st.container(key="beat"):
            st.text_input("ask for news")
            st.form_submit_button("ask for news")


def _nothing() -> None:
    """Do nothing, because a change already causes a rerun."""


def stylesheet() -> str:
    """Return all of our CSS."""
    return _FOLDER.joinpath("style.css").read_text(encoding="utf-8")


def icon(color: str = "") -> str:
    """Return the page's icon as SVG text with a dot of this colour. Browsers would fetch a named icon from the
    internet.
    """
    svg = _FOLDER.joinpath("icon.svg").read_text(encoding="utf-8")
    dot = f'<circle cx="24" cy="24" r="8" fill="{color}" stroke="#fff" stroke-width="2"/></svg>' if color else "</svg>"
    return svg.strip().removesuffix("</svg>") + dot
