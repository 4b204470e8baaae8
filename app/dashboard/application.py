"""Entry point of ``streamlit run``: the ASGI application around the dashboard's script.

It also serves our static files. An unexpected error becomes one line on the page, and its traceback is logged.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import streamlit as st
from starlette.middleware import Middleware
from streamlit.starlette import App

from logprobe.app.dashboard.access.guard import Guard
from logprobe.app.dashboard.access.settings import Access
from logprobe.app.dashboard.assets import Hints, routes, warmed
from logprobe.collectors.errors import LogprobeError


def _say(error: Exception) -> bool:
    if isinstance(error, LogprobeError):
        st.error(str(error))
    else:
        logging.getLogger("logprobe.app").error("a page could not be drawn", exc_info=error)
        st.error(
            f"This page could not be drawn ({type(error).__name__}); the output of `logprobe up` has the details. "
            "Reload to try again."
        )
    return True


app = App(
    Path(__file__).parent / "shell" / "script.py",
    lifespan=warmed,
    routes=routes(),
    middleware=[Middleware(Guard, access=Access.of(os.environ)), Middleware(Hints)],
    on_script_error=_say,
)
