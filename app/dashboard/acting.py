"""Actions of a page, for authorised users, through the running service and after confirmation.

A hidden button is no protection, so `ask` checks the session again.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import streamlit as st

from logprobe.app.dashboard import data, ui
from logprobe.app.dashboard.access import token
from logprobe.app.dashboard.access.settings import Access, Permission, Visitor, is_direct, permission
from logprobe.app.dashboard.access.sign_in import SignIn, email_of, load
from logprobe.app.dashboard.access.tries import Tries
from logprobe.app.text.numbers import duration
from logprobe.collectors.errors import ConfigurationError, LogprobeError
from logprobe.monitor.home import Home
from logprobe.monitor.reader import connect

_LOGGER: Final = logging.getLogger("logprobe.app")
_MARK: Final = "token"  # of the token that this session was opened with, never the token itself
_WHO: Final = "who acts"  # as it was last given in this session
_SAID: Final = "what was done"
_REFUSED: Final = "what was not done, and why"  # the form, and words: a page is drawn again with every news
_TRIES: Final = Tries()
_AUTHORS: Final = ("by", "author")  # what actions call the person who asked
_LONGEST: Final = 200  # characters of a field


@dataclass(frozen=True, slots=True)
class Person:
    """A signed-in user who may view the dashboard."""

    email: str
    may_act: bool


@dataclass(frozen=True)
class Field:
    """A text input of a form."""

    name: str
    label: str
    value: str = ""
    required: bool = True


BY: Final = Field("by", "your name")  # for the audit
REASON: Final = Field("reason", "reason")


@cache
def _access() -> Access:
    return Access.of(os.environ)


@cache
def _sign_in(folder: Path) -> SignIn | None:
    return load(folder)


# --- Who looks ---


def person() -> Person | None:
    """Return the signed-in user of this session who may view the dashboard, or None before or without sign-in."""
    sign_in = _sign_in(data.home())
    email = email_of(st.user.to_dict()) if sign_in is not None and st.user.is_logged_in else None
    if sign_in is None or email is None or not sign_in.may_read(email):
        return None
    return Person(email, sign_in.may_act(email))


def admitted() -> bool:
    """Return true if this session may view the dashboard. Otherwise, draw the sign-in."""
    sign_in = _sign_in(data.home())
    if sign_in is None or person() is not None:
        return True
    if st.user.is_logged_in:
        who = email_of(st.user.to_dict()) or "An account without a verified e-mail address"
        ui.write(
            f"{who} has no access to this dashboard. Access is granted in secrets.toml of the data directory.",
            "warning",
        )
        st.button("Sign out", on_click=st.logout)
        return False
    st.title("logprobe")
    for provider in sign_in.providers:
        name = "Sign in" if provider is None else f"Sign in with {ui.unmarked(provider)}"
        st.button(name, key=f"sign in {provider}", type="primary", on_click=st.login, args=(provider,))
    return False


def signed_in() -> None:
    """Draw the user's name with a way to sign out, if sign-in is required."""
    someone = person()
    if someone is not None:
        with st.container(horizontal=True, vertical_alignment="center"):
            st.caption(ui.unmarked(f"Signed in as {someone.email}" + ("" if someone.may_act else ", read-only")))
            st.button("Sign out", type="tertiary", on_click=st.logout)


# --- What may be done ---


def granted() -> Permission:
    """Return the permission of this session to act, with the reason of a refusal."""
    someone = person()
    visitor = Visitor(
        may_act=None if someone is None else someone.may_act,
        direct=is_direct(st.context.ip_address, st.context.headers),
        unlocked=_MARK in st.session_state
        and token.same(st.session_state[_MARK], token.mark(token.read(Home(data.home())))),
    )
    return permission(_access(), visitor)


def blocked() -> str:
    """Return the reason why no action is possible from this page, or "" if actions are possible."""
    if data.look().away_since is not None:
        return "the monitor service is not responding"
    return granted().value


def consult(action: str, document: Mapping[str, Any]) -> Any:
    """Request a result from the service without a change. Every reader is permitted to. Raises the errors of
    `Reader.act`.
    """
    with connect(data.home()) as reader:
        return reader.act(action, document)


def ask(action: str, document: Mapping[str, Any]) -> Any:
    """Request an action of the service and return the answer. The signed-in user is always its author.

    Raises `ConfigurationError` if this session may not act, `ServiceUnavailableError` if the service does not answer,
    and the `LogprobeError` of the action.
    """
    allowed = granted()
    if allowed is not Permission.GRANTED:
        raise ConfigurationError(f"nothing was done: {allowed.value}")
    someone = person()
    stated = {} if someone is None else {name: someone.email for name in _AUTHORS if name in document}
    return consult(action, {**document, **stated})


# --- Asking ---


def act(
    label: str,
    words: str,
    do: Callable[[Mapping[str, str]], str],
    *,
    key: str,
    fields: Sequence[Field] = (BY,),
    danger: bool = False,
    why_not: str = "",
) -> None:
    """Draw a button that opens a form. The button of the form performs the action.

    Args:
        label: label of both buttons.
        words: description of the action.
        do: function that performs the action with the values of the form and returns the outcome. Its errors are shown.
        key: key of the form, unique on the page and stable across redraws.
        fields: fields of the form.
        danger: true if the action cannot be undone or stops something. Both buttons are then red.
        why_not: reason why the action is impossible now, or "".
    """
    why = why_not or blocked()
    shown = f":red[⚠ {label}]" if danger else label
    with st.popover(shown, key=f"{key} open"):
        ui.write(words)
        with st.form(f"{key} form", border=False, width=420):
            given = {field.name: _field(f"{key} {field.name}", field) for field in fields}
            sure = st.form_submit_button(
                shown, key=f"{key} do", type="secondary" if danger else "primary", disabled=bool(why)
            )
        if why:
            st.caption(ui.unmarked(f"Not available: {why.replace('`', '')}"))
        if sure:
            _do(key, do, given, [field.label for field in fields if field.required and not given[field.name]])
        _refused(key)


def _refused(key: str) -> None:
    """Show the reason for a refusal until the next attempt or another page."""
    form, words = st.session_state.get(_REFUSED, ("", ""))
    if form == key:
        st.error(words)


def _do(key: str, do: Callable[[Mapping[str, str]], str], given: Mapping[str, str], missing: Sequence[str]) -> None:
    if missing:
        st.session_state[_REFUSED] = (key, f"Missing: {', '.join(missing)}.")
        return
    st.session_state[_WHO] = given.get("by") or st.session_state.get(_WHO, "")
    try:
        st.session_state[_SAID] = do(given)
    except LogprobeError as error:
        st.session_state[_REFUSED] = (key, ui.unmarked(str(error).partition("\n")[0]))
        return
    st.session_state.pop(_REFUSED, None)
    st.rerun()


def _field(key: str, field: Field) -> str:
    value = field.value or (st.session_state.get(_WHO, "") if field.name == "by" else "")
    return (st.text_input(field.label, value, max_chars=_LONGEST, key=key) or "").strip()


def said() -> None:
    """Draw the last action of this session until another action or page."""
    if words := st.session_state.get(_SAID):
        ui.write(words, "info")


def silent() -> None:
    """Forget the last action of this session."""
    st.session_state.pop(_SAID, None)
    st.session_state.pop(_REFUSED, None)


def token_form() -> None:
    """Draw the field for the token if a token would permit this session to act."""
    if granted() is not Permission.LOCKED:
        return
    with st.form("token form", width=560, clear_on_submit=True):
        ui.write("Enter the token to act from this page; it is in the file `token` of the data directory.")
        given = st.text_input("token", type="password", autocomplete="off", key="token field")
        if st.form_submit_button("Unlock"):
            wrong = _opened(str(given or "").strip())
            if not wrong:
                silent()
                st.rerun()
            st.session_state[_REFUSED] = (_MARK, wrong)
        _refused(_MARK)


def _opened(given: str) -> str:
    """Remember a correct token, or draw the reason for its refusal."""
    where, now = st.context.ip_address or "this machine", time.monotonic()
    wait = _TRIES.wait(where, now)
    if wait:
        return f"Too many failed attempts: wait {duration(wait)} and try again."
    expected = token.read(Home(data.home()))
    if not token.same(given, expected):
        wrong = _TRIES.failed(where, now)
        _LOGGER.warning("wrong token entered from %s, %d in a row", where, wrong)
        return "Wrong token. It is in the file `token` of the data directory."
    wrong = _TRIES.passed(where)
    _LOGGER.info("correct token entered from %s, after %d failed attempts", where, wrong)
    st.session_state[_MARK] = token.mark(expected)
    return ""
