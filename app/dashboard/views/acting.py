"""Doing something from a page: only by whom it is granted, only through the running service, only what was confirmed,
and once."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

import streamlit as st

from logprobe.app.dashboard.access import token
from logprobe.app.dashboard.access.settings import Access, Permission, Visitor, is_direct, permission
from logprobe.app.dashboard.access.tries import Tries
from logprobe.app.dashboard.browser import panel
from logprobe.app.dashboard.elements.blocks import Block, text
from logprobe.app.dashboard.views.login import person
from logprobe.app.dashboard.views.session import feed, home, is_new
from logprobe.app.text.numbers import duration
from logprobe.collectors.errors import ConfigurationError, LogprobeError
from logprobe.monitor.home import Home
from logprobe.monitor.reader import connect

_LOGGER: Final = logging.getLogger("logprobe.app")
_SAID: Final = "said"
_DONE: Final = "done"
_MARK: Final = "token"  # of the token that this session was opened with, never the token itself
_MESSAGE: Final = "message of the token form"
_TRIES: Final = Tries()
_AUTHORS: Final = ("by", "author")  # what actions call the person who asked


@cache
def _access() -> Access:
    return Access.of(os.environ)


def blocked(run: str) -> str:
    """Why nothing can be done from this page; "": it can."""
    if feed().snapshot(run).away_since is not None:
        return "the monitor service is not responding"
    return granted().value


def granted() -> Permission:
    """Whether this session may act, and why not."""
    someone = person()
    visitor = Visitor(
        may_act=None if someone is None else someone.may_act,
        direct=is_direct(st.context.ip_address, st.context.headers),
        unlocked=_MARK in st.session_state
        and token.same(st.session_state[_MARK], token.mark(token.read(Home(home())))),
    )
    return permission(_access(), visitor)


def ask(action: str, document: Mapping[str, Any]) -> Any:
    """Has the service do it, and returns its answer; who signed in is its author, whatever the page says.

    Raises `ConfigurationError` when this session may not act, `LogprobeError` as the action does,
    `ServiceUnavailableError` when the service does not answer.
    """
    allowed = granted()
    if allowed is not Permission.GRANTED:
        raise ConfigurationError(f"nothing was done: {allowed.value}")
    someone = person()
    stated = {} if someone is None else {name: someone.email for name in _AUTHORS if name in document}
    with connect(home()) as reader:
        return reader.act(action, {**document, **stated})


def attempt(place: str, wanted: Mapping[str, Any] | None, do: Callable[[Mapping[str, Any]], str]) -> None:
    """Does what was confirmed at `place`, a page about a run, and redraws it with what came of it."""
    if not is_new(wanted, _DONE):
        return
    try:
        st.session_state[f"{_SAID} {place}"] = (do(wanted), "info")
    except LogprobeError as error:
        st.session_state[f"{_SAID} {place}"] = (str(error).partition("\n")[0], "critical")
    st.rerun(scope="fragment")


def said(place: str) -> list[Block]:
    """What came of the last thing done there in this session."""
    words = st.session_state.get(f"{_SAID} {place}")
    return [] if words is None else [text(*words)]


def token_form() -> None:
    """Where the home's token is typed; nothing where this session needs none, or none would help."""
    if granted() is not Permission.LOCKED:
        return
    sent = panel("token_form", "token_form", {"said": st.session_state.get(_MESSAGE, "")}, triggers=("do",))
    if is_new(sent.do, _DONE):
        st.session_state[_MESSAGE] = _opened(str(sent.do.get("token", "")).strip())
        st.rerun(scope="fragment")


def _opened(given: str) -> str:
    """Remembers that the right token was typed; else why it does not open."""
    address, now = st.context.ip_address or "this machine", time.monotonic()
    wait = _TRIES.wait(address, now)
    if wait:
        return f"Too many failed attempts: wait {duration(wait)} and try again."
    expected = token.read(Home(home()))
    if not token.same(given, expected):
        wrong = _TRIES.failed(address, now)
        _LOGGER.warning("wrong token entered from %s, %d in a row", address, wrong)
        return "Wrong token. It is in the file `token` of the data directory."
    wrong = _TRIES.passed(address)
    _LOGGER.info("correct token entered from %s, after %d failed attempts", address, wrong)
    st.session_state[_MARK] = token.mark(expected)
    return ""
