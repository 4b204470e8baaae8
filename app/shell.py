"""The script Streamlit runs per session: what all pages share, and which pages there are."""

from __future__ import annotations

import streamlit as st

from logprobe.app.chart import icon, stylesheet
from logprobe.app.views.overview import overview

PAGES = (st.Page(overview, title="Overview", url_path="overview", default=True),)

st.set_page_config(page_title="logprobe", page_icon=icon(), layout="wide")
st.html(f"<style>{stylesheet()}</style>")
st.navigation(PAGES, position="hidden").run()
