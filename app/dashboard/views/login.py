"""Signing in with OpenID Connect, where the home's ``secrets.toml`` asks for it: until then a page shows a way in and
nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import streamlit as st

from logprobe.app.dashboard.access.sign_in import SignIn, email_of, load
from logprobe.app.dashboard.browser import panel
from logprobe.app.dashboard.views.session import home


@dataclass(frozen=True, slots=True)
class Person:
    """Who signed in, and may look."""

    email: str
    may_act: bool


@cache
def _sign_in(folder: Path) -> SignIn | None:
    return load(folder)


def person() -> Person | None:
    """Who signed in to this session and may look; None where no one has to, or no one did."""
    sign_in = _sign_in(home())
    email = email_of(st.user.to_dict()) if sign_in is not None and st.user.is_logged_in else None
    if sign_in is None or email is None or not sign_in.may_read(email):
        return None
    return Person(email, sign_in.may_act(email))


def admitted() -> bool:
    """Whether this session may see anything; if not, draws the way in."""
    sign_in = _sign_in(home())
    if sign_in is None or person() is not None:
        return True
    if st.user.is_logged_in:
        who = email_of(st.user.to_dict()) or "An account without a verified e-mail address"
        _bar("refused", f"{who} has no access to this dashboard. Access is granted in the home's secrets.toml.")
        return False
    sent = panel("login", "login", {"providers": list(sign_in.providers)}, triggers=("do",))
    if sent.do and sent.do.get("provider") in sign_in.providers:
        st.login(sent.do.get("provider"))
    return False


def signed_in() -> None:
    """Says who looks, with a way out; nothing where no sign-in is needed."""
    someone = person()
    if someone is not None:
        _bar(
            "signed-in", f"Signed in as {someone.email}" + ("" if someone.may_act else ", read-only"), by=someone.email
        )


def _bar(key: str, words: str, *, by: str | None = None) -> None:
    if panel("login", key, {"words": words, "by": by}, triggers=("do",)).do:
        st.logout()
