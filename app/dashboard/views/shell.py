"""The script Streamlit runs per session: what all pages share, and which pages there are.

A page is named by the address's query, not by its path: Streamlit's own part of the browser would look for the server
below the path first, and report what it does not find there as errors. This file stands here because Streamlit would
take the modules of a folder `pages` beside it for pages, which anybody could open past what is asked here.
"""

from __future__ import annotations

from importlib import import_module

import streamlit as st

from logprobe.app.dashboard.browser import icon, stylesheet
from logprobe.app.dashboard.views.login import admitted, signed_in
from logprobe.app.dashboard.views.page import current, live

st.set_page_config(page_title="logprobe", page_icon=icon(), layout="wide")
st.html(f"<style>{stylesheet()}</style>")
if admitted():
    path = current()
    # Only the page that is looked at: what the others stand on takes longer to load than the first chart may take to
    # show.
    live(path, import_module(f"logprobe.app.dashboard.pages.{path or 'overview'}").draw)
    signed_in()
