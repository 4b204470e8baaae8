"""The rule editor of the Alerts page: a list, trying one out, and saving it through the service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypedDict

import numpy as np
import streamlit as st

from logprobe.alerts.rules.editing.editor import DELETE, ENABLE, RULES, SAVE, TRY, Listed, OtherTrial, Tried
from logprobe.alerts.rules.editing.trying import TrialDocument
from logprobe.alerts.rules.rule_file import OVERLAY
from logprobe.app.dashboard.charts.downsample import thin
from logprobe.app.dashboard.charts.scales import DECADES, floor_of
from logprobe.app.dashboard.views.acting import ask, attempt, blocked, said
from logprobe.app.dashboard.views.page import show
from logprobe.app.dashboard.views.session import home, kept
from logprobe.app.text.numbers import number
from logprobe.collectors.errors import ServiceUnavailableError
from logprobe.monitor.analysis.slices import DIMENSIONS
from logprobe.monitor.metrics.catalog import KEYS, metric
from logprobe.monitor.reader import connect

OTHERS: Final = 5  # newest other runs that a rule is tried on
_POINTS: Final = 600  # of a line: the chart is a few hundred pixels wide
_EPISODES: Final = 6  # that are named by their steps


def rules_data(listed: Listed, trial: TrialData | None, *, run: str, blocked: str) -> dict[str, object]:
    """Data of `browser/rules.js`, without what was said.

    Args:
        listed: as the service lists the rules.
        trial: what came of the last one that was tried out, see `trial_data`; None: none was.
        run: that is open.
        blocked: why nothing can be saved from this page; "": it can.
    """
    return {
        **listed,
        "run": run,
        "blocked": blocked,
        "trial": trial,
        "metrics": [_metric(key) for key in KEYS],
        "slices": list(DIMENSIONS),
    }


class TrialData(TypedDict):
    """What `browser/rules.js` shows of a trial. `at`: names the question; `answered`: whether the service answered
    it."""

    at: Any
    answered: bool
    problems: list[str]
    form: Mapping[str, object] | None
    lost: str
    words: list[str]
    chart: Mapping[str, object] | None


def trial_data(tried: Tried, at: Any) -> TrialData:
    """Of a trial that the service made. `at`: names the question."""
    trial = tried["trial"]
    return {
        "at": at,
        "answered": True,
        "problems": tried["problems"],
        "form": tried["form"],
        "lost": tried.get("lost", ""),
        "words": [] if tried["problems"] else [*_here(tried, trial), *_elsewhere(tried["others"])],
        "chart": None if trial is None or not trial["parts"] else chart(trial),
    }


def untried(why: str, at: Any) -> TrialData:
    """As `trial_data`, when nothing came back."""
    words = [f"Trial failed: {why}. Edit the text to try again."]
    return {"at": at, "answered": False, "problems": [], "form": None, "lost": "", "words": words, "chart": None}


def _metric(key: str) -> dict[str, str]:
    declared = metric(key)
    return {"key": key, "label": declared.label, "unit": declared.unit, "words": declared.words}


def _here(tried: Tried, trial: TrialDocument | None) -> list[str]:
    if tried["untestable"]:
        return [f"This rule cannot be tried: {tried['untestable']}."]
    if trial is None:
        return ["There is no run to try it on."]
    looked = (
        f"the first {trial['steps']:,} steps of this run"
        if trial["cut"]
        else f"the {trial['steps']:,} steps of this run"
    )
    fired = trial["fired"]
    if not fired:
        return [f"It would not have fired in {looked}."]
    return [f"It would have fired {_times(len(fired))} in {looked}: {_episodes(fired)}."]


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _episodes(fired: Sequence[Sequence[Any]]) -> str:
    named = [f"{'–'.join(_ends(first, last))}{f' ({part})' if part else ''}" for part, first, last in fired[:_EPISODES]]
    more = len(fired) - _EPISODES
    return f"steps {', '.join(named)}" + (f" and {more:,} more" if more > 0 else "")


def _ends(first: int, last: int) -> list[str]:
    return [f"{first:,}"] if first == last else [f"{first:,}", f"{last:,}"]


def _elsewhere(others: Sequence[OtherTrial]) -> list[str]:
    if not others:
        return []
    total = sum(other["fired"] for other in others)
    often = _times(total) if total else "never"
    where = "the other run" if len(others) == 1 else f"the {len(others)} other newest runs"
    named = ", ".join(f"`{other['run']}` {other['fired']:,}{_cut(other)}" for other in others)
    return [
        f"Fired {often} in {where}: {named}."
        if total or any(other["cut"] for other in others)
        else f"Never fired in {where}."
    ]


def _cut(other: OtherTrial) -> str:
    return f" in its first {other['steps']:,} steps" if other["cut"] else ""


def chart(trial: TrialDocument) -> Mapping[str, object]:
    """Lines, limits and phases of a trial, for `browser/rule_chart.js`."""
    points = [_points(part["values"]) for part in trial["parts"]]
    measured = [value for line in points for _, value in line if value is not None]
    limits = [value for _, value in trial["limits"]]
    log = _logarithmic([*measured, *limits])
    floor = floor_of(measured, limits) if log else None
    return {
        "lines": [{"slice": part["slice"], "points": line} for part, line in zip(trial["parts"], points, strict=True)],
        "spans": [
            {"phase": phase, "first": first, "last": last}
            for part in trial["parts"]
            for phase, first, last in part["spans"]
        ],
        "limits": [{"word": word, "value": value} for word, value in trial["limits"]],
        "log": log,
        "floor": floor,
        "below": 0 if floor is None else sum(value < floor for value in measured),
        "more": trial["more_parts"],
        "alt": _in_words(trial, measured),
    }


def _points(values: Sequence[Sequence[Any]]) -> list[list[Any]]:
    x = np.array([step for step, _ in values], dtype=np.float64)
    y = np.array([np.nan if value is None else value for _, value in values], dtype=np.float64)
    steps, thinned = thin(x, y, max_points=_POINTS)
    return [[int(step), None if np.isnan(value) else float(value)] for step, value in zip(steps, thinned, strict=True)]


def _logarithmic(values: Sequence[float]) -> bool:
    return bool(values) and min(values) > 0 and max(values) / min(values) > DECADES


def _in_words(trial: TrialDocument, measured: Sequence[float]) -> str:
    between = f"between {number(min(measured))} and {number(max(measured))}" if measured else "never measured"
    compared = ", ".join(f"{word} {number(value)}" for word, value in trial["limits"])
    return f"The rule's input over {trial['steps']:,} steps, {between}{f'; {compared}' if compared else ''}."


_KEY: Final = "rules"
_TRIAL: Final = "rule tried"
_SAVED: Final = "rule saved"


def rules(run: str) -> None:
    """Draws the list and the editor."""
    listed = rules_of(run)
    if listed is None:
        return
    data = rules_data(listed, _trial_of(run), run=run, blocked=blocked(run))
    data |= {"said": said(_KEY), "saved": st.session_state.get(_SAVED)}
    wanted = show("rules", _KEY, data)
    if wanted is not None and wanted.get("id") == "try":
        _try(run, wanted)
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


def _trial_of(run: str) -> TrialData | None:
    of, trial = st.session_state.get(_TRIAL, (None, None))
    return trial if of == run else None


def _try(run: str, wanted: Mapping[str, Any]) -> None:
    """Tries a draft out, once, and redraws the page with what came of it."""
    shown = _trial_of(run)
    if shown is not None and shown["at"] == wanted.get("at"):
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
