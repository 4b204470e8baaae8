"""The rule editor of the Alerts page: a list, and checking and saving a rule through the service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import streamlit as st

from logprobe.alerts.rules.editing.editor import CHECK, DELETE, ENABLE, RULES, SAVE, Checked, Listed
from logprobe.alerts.rules.rule_file import OVERLAY
from logprobe.app.dashboard.views.acting import ask, attempt, blocked, said
from logprobe.app.dashboard.views.page import show
from logprobe.app.dashboard.views.session import home, kept
from logprobe.collectors.errors import ServiceUnavailableError
from logprobe.monitor.analysis.slices import DIMENSIONS
from logprobe.monitor.metrics.catalog import KEYS, metric
from logprobe.monitor.reader import connect


def rules_data(listed: Listed, checked: Mapping[str, Any] | None, *, run: str, blocked: str) -> dict[str, object]:
    """Data of `browser/rules.js`, without what was said.

    Args:
        listed: as the service lists the rules.
        checked: see `checked_data`, or None if no text was checked.
        run: that is open.
        blocked: why nothing can be saved from this page; "": it can.
    """
    return {
        **listed,
        "run": run,
        "blocked": blocked,
        "checked": checked,
        "metrics": [_metric(key) for key in KEYS],
        "slices": list(DIMENSIONS),
    }


def checked_data(checked: Checked, at: Any) -> dict[str, object]:
    """Return what `browser/rules.js` shows of a checked text. `at`: names the question."""
    return {"at": at, "answered": True, **checked}


def unchecked(why: str, at: Any) -> dict[str, object]:
    """Return the same for a service that did not answer."""
    problem = f"Not checked: {why}. Edit the text to check it again."
    return {"at": at, "answered": False, "problems": [problem], "form": None, "lost": ""}


def _metric(key: str) -> dict[str, str]:
    declared = metric(key)
    return {"key": key, "label": declared.label, "unit": declared.unit, "words": declared.words}


_KEY: Final = "rules"
_CHECKED: Final = "rule checked"
_SAVED: Final = "rule saved"


def rules(run: str) -> None:
    """Draws the list and the editor."""
    listed = rules_of(run)
    if listed is None:
        return
    data = rules_data(listed, _checked_of(run), run=run, blocked=blocked(run))
    data |= {"said": said(_KEY), "saved": st.session_state.get(_SAVED)}
    wanted = show("rules", _KEY, data)
    if wanted is not None and wanted.get("id") == "check":
        _check(run, wanted)
    else:
        attempt(_KEY, wanted, _change)


def rules_of(run: str) -> Listed | None:
    """The rules as the service lists them for a run; None: it does not answer, and never did."""
    listed: Listed | None = kept(f"{_KEY} {run}", lambda: consult(RULES, {"run": run}))
    return listed


def consult(action: str, document: Mapping[str, Any]) -> Any:
    """Asks the service for something that changes nothing; anyone who sees the page may. Raises as `Reader.act`
    does."""
    with connect(home()) as reader:
        return reader.act(action, document)


def _checked_of(run: str) -> Mapping[str, Any] | None:
    of, checked = st.session_state.get(_CHECKED, (None, None))
    return checked if of == run else None


def _check(run: str, wanted: Mapping[str, Any]) -> None:
    """Check a draft once, and redraw the page with the result."""
    shown = _checked_of(run)
    if shown is not None and shown["at"] == wanted.get("at"):
        return
    draft = {"text": wanted.get("text"), "was": wanted.get("was"), "run": run}
    try:
        checked = checked_data(consult(CHECK, draft), wanted.get("at"))
    except ServiceUnavailableError as error:
        checked = unchecked(str(error).partition("\n")[0], wanted.get("at"))
    st.session_state[_CHECKED] = (run, checked)
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
