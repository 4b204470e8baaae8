"""The address of a page as a session knows it: the browser's word counts, and what the server wants is told once."""

from __future__ import annotations

import sys

import pytest
from streamlit.testing.v1 import AppTest


@pytest.fixture(autouse=True)
def _main_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streamlit leaves its script behind as `__main__`, and processes that other tests start would run it."""
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])


def _session() -> None:
    import streamlit as st

    from logprobe.app.dashboard.browser import address

    for name, argument in st.session_state.pop("calls", []):
        st.session_state.setdefault("answers", []).append(getattr(address, name)(*argument))


def answers(app: AppTest, *calls: tuple[str, tuple[object, ...]]) -> list[object]:
    """What each call returns, in one run of the session."""
    app.session_state["calls"] = list(calls)
    app.session_state["answers"] = []
    app.run()
    assert not app.exception
    found: list[object] = app.session_state["answers"]
    return found


def test_what_the_browser_says_replaces_what_was_loaded() -> None:
    app = AppTest.from_function(_session)
    app.query_params["run"] = "a"
    assert answers(app, ("current", ())) == [{"run": "a"}]
    said = answers(app, ("heard", ("?run=a&steps=3%3A5&x=", 0)), ("current", ()))
    assert said[1] == {"run": "a", "steps": "3:5"}
    assert answers(app, ("current", ()))[0] == said[1]  # Streamlit still has the address as it was loaded
    app.query_params["run"] = "b"  # reloaded
    assert answers(app, ("current", ())) == [{"run": "b"}]


def test_what_the_server_puts_is_told_once() -> None:
    app = AppTest.from_function(_session)
    app.query_params["run"] = "a"
    put = answers(
        app, ("put", ({"step": 12, "run": None, "pair": ""},)), ("current", ()), ("unsent", ()), ("unsent", ())
    )
    assert put[1:] == [{"step": "12"}, {"number": 1, "state": {"step": "12", "run": ""}}, None]
    again = answers(app, ("put", ({"step": 12},)), ("unsent", ()), ("put", ({"step": 13},)), ("unsent", ()))
    assert again == [None, None, None, {"number": 2, "state": {"step": "13"}}]


def test_a_message_from_before_a_wish_was_heard_of_does_not_undo_it() -> None:
    app = AppTest.from_function(_session)
    app.query_params["run"] = "a"
    answers(app, ("put", ({"x": "tokens"},)), ("unsent", ()))
    late = answers(app, ("heard", ("?run=a&steps=3%3A5", 0)), ("current", ()))
    assert late[1] == {"run": "a", "steps": "3:5", "x": "tokens"}
    answers(app, ("put", ({"smooth": 5},)))
    unheard = answers(app, ("heard", ("?run=a&x=tokens", 1)), ("current", ()))
    assert unheard[1] == {"run": "a", "x": "tokens", "smooth": "5"}
    told = answers(app, ("unsent", ()), ("heard", ("?run=a", 2)), ("current", ()))
    assert told[2] == {"run": "a"}
