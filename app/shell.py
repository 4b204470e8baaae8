"""The script Streamlit runs per session: what all pages share, and which pages there are.

A page is named by the address's query, not by its path: Streamlit's own part of the browser would look for the server below the
path first, and report what it does not find there as errors.
"""

from __future__ import annotations

from typing import Final

import streamlit as st

from logprobe.app.chart import icon, stylesheet
from logprobe.app.views.actions import actions
from logprobe.app.views.alerts import alerts
from logprobe.app.views.diagnosis import diagnosis
from logprobe.app.views.overview import overview
from logprobe.app.views.page import current

DRAWN: Final = {"": overview, "diagnosis": diagnosis, "alerts": alerts, "actions": actions}

st.set_page_config(page_title="logprobe", page_icon=icon(), layout="wide")
st.html(f"<style>{stylesheet()}</style>")
DRAWN[current()]()
