"""The rule editor of the Alerts page: lists, tries out and saves through the service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import streamlit as st

from logprobe.alerts.rules.editing.editor import DELETE, ENABLE, RULES, SAVE, TRY
from logprobe.alerts.rules.rule_file import OVERLAY
from logprobe.app.dashboard.pages.rules import OTHERS, rules_data, trial_data, untried
from logprobe.app.dashboard.views.acting import ask, attempt, blocked, said
from logprobe.app.dashboard.views.page import show
from logprobe.app.dashboard.views.session import home, kept
from logprobe.collectors.errors import ServiceUnavailableError
from logprobe.monitor.reader import connect

_KEY: Final = "rules"
_TRIAL: Final = "rule tried"
_SAVED: Final = "rule saved"


def rules(run: str) -> None:
    """Draws the list and the editor."""
    listed = kept(f"{_KEY} {run}", lambda: consult(RULES, {"run": run}))
    if listed is None:
        return
    data = rules_data(listed, _trial_of(run), run=run, blocked=blocked(run))
    data |= {"said": said(_KEY), "saved": st.session_state.get(_SAVED)}
    wanted = show("rules", _KEY, data)
    if wanted is not None and wanted.get("id") == "try":
        _try(run, wanted)
    else:
        attempt(_KEY, wanted, _change)


def consult(action: str, document: Mapping[str, Any]) -> dict[str, Any]:
    """Asks the service for something that changes nothing; whoever sees the page may. Raises as `Reader.act` does."""
    with connect(home()) as reader:
        return reader.act(action, document)


def _trial_of(run: str) -> dict[str, Any] | None:
    of, trial = st.session_state.get(_TRIAL, (None, None))
    return trial if of == run else None


def _try(run: str, wanted: Mapping[str, Any]) -> None:
    """Tries a draft out, once, and redraws the page with what came of it."""
    known = _trial_of(run)
    if known is not None and known["at"] == wanted.get("at"):
        return
    draft = {"text": wanted.get("text"), "was": wanted.get("was"), "run": run, "runs": OTHERS}
    try:
        trial = trial_data(consult(TRY, draft), wanted.get("at"))
    except ServiceUnavailableError as error:
        trial = untried(str(error).partition("\n")[0], wanted.get("at"))
    st.session_state[_TRIAL] = (run, trial)
    st.rerun(scope="fragment")


def _change(asked: Mapping[str, Any]) -> str:
    """Does what was confirmed; says what was done. Raises `LogprobeError`."""
    named = {"author": asked.get("by"), "based_on": asked.get("based_on"), "at": asked.get("at")}
    name = str(asked.get("name"))
    if asked.get("id") == "save":
        done = ask(SAVE, {**named, "text": asked.get("text"), "was": asked.get("was")})
        words = f"Saved; `{name}` is active."
    elif asked.get("id") == "enable":
        done = ask(ENABLE, {**named, "name": name, "on": asked.get("on")})
        words = f"`{name}` is {'enabled' if asked.get('on') else 'disabled'}."
    else:
        done = ask(DELETE, {**named, "name": name})
        words = f"The entry for `{name}` was removed from `{OVERLAY}`."
    st.session_state[_SAVED] = {"at": asked.get("at"), "name": name, "fingerprint": done["fingerprint"]}
    return f"{words} Lost: {done['lost']}." if done["lost"] else words
