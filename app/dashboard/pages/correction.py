"""Correction page: state of the correction, its effect over steps, and its switches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import streamlit as st

from logprobe.alerts.controller.effect import STEPS
from logprobe.alerts.controller.job import ACTION
from logprobe.alerts.controller.standing import Standing
from logprobe.alerts.rules.notices import steps_around
from logprobe.app.dashboard import acting, data, ui
from logprobe.app.dashboard.figures import Chart, Curve, Mark, Row, rows_chart
from logprobe.app.dashboard.theme import Theme
from logprobe.app.dashboard.ui import Line
from logprobe.app.runs import Run
from logprobe.app.view.correction import CorrectionState, changed, effect_words, foresee, foreseen, in_short, state_of
from logprobe.monitor import queries
from logprobe.monitor.home import Home
from logprobe.monitor.ragged import floats

_ROWS: Final = (
    ("k3", "K3", "nats", True),
    ("masked", "share of tokens masked by the trainer", "", False),
    ("weight_ess", "ESS of the weights", "", False),
    ("reward", "reward", "", False),
)
_BY_ITSELF: Final = {"acknowledged": "the trainer", "stopped": "someone", "released": "someone"}
_EFFECT_TONES: Final = {"helped": "info", "harmed": "critical"}
_LAST_STEP: Final = 2**62


def draw(run: Run) -> None:
    """Draw the page."""
    stopped = st.session_state.get(f"commanded {run.name}")
    document: CorrectionState = data.kept(
        ("correction", run.name), (data.version_of(run), stopped), lambda: _read(run.name)
    )
    ui.title("Correction", "masked importance sampling, as set for the trainer")
    with st.container():  # however many there are: what is typed below keeps its place
        for said, tone in notices(document):
            ui.write(said, tone)
    ui.facts(in_short(document))
    _switches(run.name, document)
    _preview(run.name)
    with ui.guarded("trend"):
        _trend(run, document)
    _effect(document)
    ui.title("Audit", "every action, suggestion, refusal and acknowledgement, newest first")
    ui.table("audit", _HEAD, audit(document["actions"], run.name), empty="Nothing yet.")


def _read(run: str) -> CorrectionState:
    return state_of(data.reader(), Home(data.home()), run, Standing.read(data.reader(), run))


def notices(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield problems: an unreadable policy, the kill switch, or the reason for a missing correction after a bad
    verdict.
    """
    if document["problem"]:
        yield document["problem"], "warning"
    if document["stopped"]:
        yield "The kill switch is set: no correction applies until it is released.", "critical"
    if document["waiting"]:
        yield f"No correction: {document['waiting'].rstrip('.')}.", "warning"


# --- What one can do ---


def switches(document: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str, bool]]:
    """Yield the available commands, each with label, description, obstacle and a flag for danger."""
    if document["phase"] in {"issued", "applied"}:
        yield "off", "Switch off", "The trainer stops correcting a few steps from now.", "", False
    else:
        words = "The trainer applies this correction a few steps from now, unless it is refused."
        yield "on", "Switch on", words, "the kill switch is set" if document["stopped"] else "", False
    if document["mode"] == "armed":
        yield (
            "suggest",
            "Only suggest",
            "The controller reports when a correction is advised, and no longer acts.",
            "",
            False,
        )
    else:
        yield (
            "armed",
            "Arm",
            "The controller switches a correction on by itself when the diagnosis advises it.",
            "",
            False,
        )
    if document["stopped"]:
        yield "release", "Release the kill switch", "Directives apply again.", "", False
    else:
        yield "stop", "Kill switch", "No correction from the next step on.", "", True


def _switches(run: str, document: Mapping[str, Any]) -> None:
    with st.container(horizontal=True, gap="small"):
        if st.button(
            "Preview",
            help="The correction is computed for recorded tokens of recent steps; nothing is switched.",
            disabled=bool(acting.blocked()),
        ):
            with ui.guarded("preview"):
                st.session_state[f"preview {run}"] = foresee(Home(data.home()), run)
        for command, label, words, why_not, danger in switches(document):

            def do(given: Mapping[str, str], command: str = command) -> str:
                done = acting.ask(ACTION, {"run": run, "command": command, "by": given["by"], "force": False})
                st.session_state[f"commanded {run}"] = (command, st.session_state.get(f"commanded {run}"))
                return " ".join(action["words"] for action in done["actions"]) or "No change: already in that state."

            acting.act(label, words, do, key=f"correction {command}", danger=danger, why_not=why_not)


def _preview(run: str) -> None:
    document = st.session_state.get(f"preview {run}")
    if document is not None:
        ui.title("Preview", "on the recorded tokens of recent steps")
        ui.facts(foreseen(document))


# --- What came of it ---


def _trend(run: Run, document: Mapping[str, Any]) -> None:
    """Draw the trend over steps, or nothing if there is no decision."""
    if not document["actions"]:
        return
    trend = data.kept(
        ("trend", run.name),
        run.revision,
        lambda: queries.controller_trend(data.reader(), run=run.name, first=0, last=_LAST_STEP),
    )
    chart = trend_chart(trend, document, ui.theme(), ui.window(trend["step"].to_pylist()))
    if chart is not None:
        ui.title("Trend", "over the steps of the run, with every decision")
        ui.zoom()
        ui.plot("trend", chart)


def trend_chart(
    trend: pa.Table, document: Mapping[str, Any], theme: Theme, window: tuple[int, int] | None = None
) -> Chart | None:
    """Return rows of `controller_trend` as a chart with the decisions as marks, or None if nothing was measured."""
    if not trend.num_rows:
        return None
    steps = trend["step"].to_numpy().astype(np.float64)
    rows = [
        Row(title, [Curve(title, steps, floats(trend[name]), theme.accent)], unit=unit, log=log)
        for name, title, unit, log in _ROWS
        if np.isfinite(floats(trend[name])).any()
    ]
    if not rows:
        return None
    deeds = [deed for deed in document["actions"] if deed["step"] is not None]
    said = " ".join(f"Step {deed['step']:,}: {deed['name'].replace('_', ' ')}." for deed in deeds)
    return rows_chart(
        f"{document['run']} {window}",
        rows,
        theme,
        alt=f"Trend of run {document['run']}. {said}",
        window=window,
        marks=[
            Mark("correction", deed["step"], f"{deed['name'].replace('_', ' ')}: {deed['words']}") for deed in deeds
        ],
    )


def _effect(document: CorrectionState) -> None:
    """Draw the effect in a word, with the supporting numbers."""
    effect, since, run = document["effect"], document["from_step"], document["run"]
    if effect is None or since is None:
        ui.title("Effect", "the run before and after the switch")
        ui.write("No correction was switched on.")
        return
    note = f"up to {STEPS} uncorrected steps before the growth (before the switch if its onset is unknown) and as many corrected ones; means of ten block medians and their 97 % intervals"
    ui.title("Effect", note)
    said = effect_words(document)
    ui.write(f"{said[:1].upper()}{said[1:]}", _EFFECT_TONES.get(effect["judgement"], ""))
    lines = [Line([figure["words"], *changed(figure)]) for figure in document["figures"]]
    ui.table(
        "effect",
        ("metric", "before", "after", "change"),
        lines,
        empty="None of these metrics was measured around that step.",
    )
    steps = f"{max(0, since - STEPS)}:{since + STEPS}"
    ui.links([ui.link("Chart of these steps", "", {"run": run, "steps": steps})])


_HEAD: Final = ("action", "when", "step", "who", "why")


def audit(actions: Sequence[Mapping[str, Any]], run: str) -> list[Line]:
    """Return the decisions, newest first."""
    return [
        Line(
            [
                deed["name"].replace("_", " "),
                f"{deed['time']:%Y-%m-%d %H:%M} UTC",
                "–"
                if deed["step"] is None
                else ui.link(f"{deed['step']:,}", "", {"run": run, "steps": steps_around(deed["step"])}),
                (deed["details"] or {}).get("by") or _BY_ITSELF.get(deed["name"], "the controller"),
                deed["words"],
            ],
            deed["severity"] if deed["severity"] != "info" else "",
        )
        for deed in reversed(actions)
    ]
