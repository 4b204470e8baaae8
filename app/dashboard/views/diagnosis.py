"""Diagnosis: the evidence, layer by layer, what is not measured, and parity with the recipe or a reference run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Final

import streamlit as st

from logprobe.alerts.acceptance.actions import ACCEPT, WITHDRAW
from logprobe.app.dashboard.data.comparing import Paced, state_of
from logprobe.app.dashboard.data.feed import RunView
from logprobe.app.dashboard.elements.verdict import links
from logprobe.app.dashboard.pages.diagnosis import Acceptances, diagnosis_blocks, experiment_blocks
from logprobe.app.dashboard.pages.parity import RECIPE, parity_data
from logprobe.app.dashboard.views.acting import ask, attempt, blocked, said
from logprobe.app.dashboard.views.page import report, show
from logprobe.app.dashboard.views.session import asked, feed, guarded, home, kept, read_once
from logprobe.app.runs import Run
from logprobe.app.text.numbers import number
from logprobe.monitor.diagnosis import culprit
from logprobe.monitor.diagnosis.accepted import expectation
from logprobe.monitor.diagnosis.culprit import Picture
from logprobe.monitor.diagnosis.parity import Parity
from logprobe.monitor.diagnosis.parity import compare as parity_of
from logprobe.monitor.diagnosis.proven import latest

_KEY: Final = "diagnosis"
_DONE: Final = "accepted at"  # when something was last accepted or withdrawn in this session


def _acceptances(run: Run, view: RunView) -> Acceptances:
    """Read again whenever the run has something new: accepting makes it diagnosed again, and something was just done."""
    version = f"{view.version} {st.session_state.get(_DONE)} {asked('reference')}"
    found = read_once(f"acceptances {run.name}", version, lambda: _read_acceptances(run.name))
    if found is None:
        return Acceptances(blocked=blocked(run.name) or "accepted findings could not be read")
    return replace(found, blocked=blocked(run.name))


def _experiment(run: Run, view: RunView) -> Mapping[str, Any] | None:
    """The newest bisection; read again whenever the run has something new, as finishing one makes it diagnosed again."""
    return read_once(f"experiment {run.name}", view.version, lambda: latest(feed(), run.name, "bisect"))


def _proof(run: Run, view: RunView) -> Picture | None:
    """Read again with every diagnosis, not with every step."""
    diagnosis = view.diagnosis
    if diagnosis is None:
        return None
    steps = view.series.steps[view.series.steps <= diagnosis.step].tolist()
    version = f"{run.name} {diagnosis.at} {diagnosis.step}"
    return read_once(f"proof {run.name}", version, lambda: culprit.read(feed(), run.name, diagnosis.document, steps))


def _read_acceptances(run: str) -> Acceptances:
    reference = asked("reference")
    expected = expectation(feed(), run, None if reference == run else reference)
    return Acceptances(feed().read("acceptances_read", run=run).to_pylist(), expected)


def _do(run: str, wanted: Mapping[str, Any]) -> str:
    """Does what was confirmed; says what came of it. Raises `LogprobeError`."""
    request = {"run": run, "cause": wanted.get("cause"), "author": wanted.get("by")}
    st.session_state[_DONE] = wanted.get("at")
    if wanted.get("id") == "withdraw":
        ask(WITHDRAW, request)
        return f"{wanted.get('cause')} is no longer accepted, from the next diagnosis on."
    because, up_to = wanted.get("because"), wanted.get("up_to")
    done = ask(ACCEPT, {**request, "because": because, "up_to": up_to, "source": "page"})
    return f"{wanted.get('cause')} is accepted up to a K3 of {number(done['up_to'])}, from the next diagnosis on."


@cache
def _parities() -> Paced[Parity]:
    return Paced(16)


def draw(run: Run, view: RunView) -> None:
    """Draws the page."""
    with guarded(_KEY):
        place = f"{_KEY} {run.name}"
        blocks = [
            *said(place),
            *diagnosis_blocks(view, _acceptances(run, view), links(view, run, "diagnosis"), _proof(run, view)),
            *experiment_blocks(_experiment(run, view), run.name),
        ]
        wanted = report(_KEY, "diagnosis", blocks)
        attempt(place, wanted, lambda asked: _do(run.name, asked))
    with guarded("parity"):
        _parity(run)


def _parity(run: Run) -> None:
    runs = {each.name: each for each in feed().snapshot(run.name).runs or ()}
    name = asked("reference")
    reference = runs.get(name or "") if name != run.name else None
    found = kept(f"parity {run.name} {reference and reference.name}", lambda: _read(run, reference))
    if found is None:
        return
    data = parity_data(
        found,
        reference=None if reference is None else reference.name,
        others=[each for each in runs if each != run.name],
        notes=_notes(name, run, runs),
    )
    show("parity", "parity", data)


def _notes(name: str | None, run: Run, runs: Mapping[str, Any]) -> list[str]:
    if name == run.name:
        return ["A run cannot be its own reference."]
    return [] if name is None or name in runs else [f"There is no run called {name} here."]


def _read(run: Run, reference: Run | None) -> Parity:
    other = None if reference is None else reference.name
    states = (state_of(run), None if reference is None else state_of(reference))
    return (
        _parities()
        .of((str(home()), run.name, other), states, lambda: parity_of(feed(), run.name, reference=other, name=RECIPE))
        .value
    )
