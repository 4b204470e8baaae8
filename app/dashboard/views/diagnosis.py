"""Diagnosis: the evidence, layer by layer, what is not measured, and parity with the recipe or a reference run."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from logprobe.app.dashboard.data.comparing import Paced, state_of
from logprobe.app.dashboard.data.feed import RunView
from logprobe.app.dashboard.pages.diagnosis import diagnosis_blocks
from logprobe.app.dashboard.pages.parity import RECIPE, parity_data
from logprobe.app.dashboard.views.page import live, report, show
from logprobe.app.dashboard.views.session import asked, feed, guarded, home, kept
from logprobe.app.runs import Run
from logprobe.monitor.diagnosis.parity import Parity
from logprobe.monitor.diagnosis.parity import compare as parity_of


def diagnosis() -> None:
    """Draws the page."""
    live("diagnosis", _run)


@cache
def _parities() -> Paced[Parity]:
    return Paced(16)


def _run(run: Run, view: RunView) -> None:
    with guarded("diagnosis"):
        report("diagnosis", {"version": view.version, "label": "diagnosis", "blocks": diagnosis_blocks(view)})
    with guarded("parity"):
        _parity(run)


def _parity(run: Run) -> None:
    runs = {each.name: each for each in feed().look(run.name).runs or ()}
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
    show("parity", "parity", data | {"version": f"{hash(str(data)):x}"})


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
