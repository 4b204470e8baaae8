"""Actions: the correction of a run, what it did over steps, and the switches for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final
from urllib.parse import urlencode

import numpy as np
import pyarrow as pa
import streamlit as st

from logprobe.alerts.controller.job import ACTION
from logprobe.alerts.rules.notices import steps_around
from logprobe.app.dashboard.charts.curves import Curve, CurveRow, Happened, Span, curves_chart
from logprobe.app.dashboard.charts.downsample import Window, thin
from logprobe.app.dashboard.charts.look import Look
from logprobe.app.dashboard.charts.scales import floor_of
from logprobe.app.dashboard.data.feed import RunView
from logprobe.app.dashboard.elements.blocks import Block, action, facts, heading, place, row, table, text
from logprobe.app.dashboard.theme import Theme
from logprobe.app.dashboard.views.acting import ask, attempt, blocked, said
from logprobe.app.dashboard.views.report import report
from logprobe.app.dashboard.views.session import asked, feed, guarded, home, kept, read_once, theme
from logprobe.app.runs import Run
from logprobe.app.text.numbers import number, quantity
from logprobe.app.view.correction import CorrectionState, describe, foresee
from logprobe.collectors.correction import CorrectionConfig
from logprobe.collectors.errors import ServiceUnavailableError
from logprobe.monitor import queries
from logprobe.monitor.home import Home
from logprobe.monitor.ragged import floats

_POINTS: Final = 800
_ROWS: Final = (
    ("k3", "K3", "nats", True),
    ("masked", "share of tokens masked by the trainer", "", False),
    ("weight_ess", "ESS of the weights", "", False),
    ("reward", "reward", "", False),
)
_OVER: Final = frozenset({"switched_off", "rolled_back"})


def trend_chart(
    trend: pa.Table, document: Mapping[str, Any], theme: Theme, window: Window | None = None
) -> dict[str, object] | None:
    """Data of `browser/chart.js`; None: nothing was measured.

    Args:
        trend: rows of `controller_trend` of the whole run.
        document: as `logprobe show` describes the correction.
        theme: colours.
        window: steps in view.
    """
    rows = [row for row in (_row(trend, row, theme) for row in _ROWS) if row is not None] if trend.num_rows else []
    if not rows:
        return None
    spans = spans_of(document["actions"], document["from_step"], trend["step"][-1].as_py())
    deeds = [deed for deed in document["actions"] if deed["step"] is not None]
    colors = {"on": theme.accent, "announced": theme.neutral}
    return curves_chart(
        f"{document['run']}-correction",
        rows,
        theme,
        alt=_in_words(spans, document),
        marks=[Happened(deed["step"], _deed(deed), _tone(deed["severity"], theme)) for deed in deeds],
        spans=[Span(span["first"], span["last"], colors[span["phase"]]) for span in spans],
        window=window,
    )


def _deed(deed: Mapping[str, Any]) -> str:
    return f"{deed['name'].replace('_', ' ')}: {deed['words']}"


def _tone(severity: str, theme: Theme) -> str:
    return {"critical": theme.alarm, "warning": theme.update}.get(severity, theme.muted)


def spans_of(actions: Sequence[Mapping[str, Any]], since: int | None, last: int) -> list[dict[str, Any]]:
    """When a correction was announced and when it was on, by its audit: ``{"phase", "first", "last"}``.

    `since`: first step of the newest correction, for an audit that does not say it. It is on from the step that the
    directive names, until one that takes it back begins; announced from the decision up to then.
    """
    spans: list[dict[str, Any]] = []
    begun: int | None = None
    for deed in actions:
        if deed["name"] == "switched_on":
            before, begun = begun, (deed["details"] or {}).get("from_step") or since or deed["step"]
            if before is not None:  # another correction takes over
                spans.append({"phase": "on", "first": before, "last": begun})
            spans.append({"phase": "announced", "first": deed["step"], "last": begun})
        elif deed["name"] in _OVER and begun is not None:
            spans.append({"phase": "on", "first": begun, "last": deed["step"]})
            begun = None
    if begun is not None:
        spans.append({"phase": "on", "first": begun, "last": max(begun, last)})
    return [span for span in spans if span["last"] is not None and span["first"] is not None]


def _row(trend: pa.Table, row: tuple[str, str, str, bool], theme: Theme) -> CurveRow | None:
    name, title, unit, log = row
    steps = trend["step"].to_numpy().astype(np.float64)
    values = floats(trend[name])
    values = np.where(values > 0, values, np.nan) if log else values
    measured = values[np.isfinite(values)]
    if not len(measured):
        return None
    floor = floor_of(measured.tolist(), []) if log else None
    below = 0 if floor is None else int(np.count_nonzero(measured < floor))
    curve = Curve(title, *thin(steps, values, max_points=_POINTS), theme.accent)
    return CurveRow(title, [curve], unit=unit, note=f"{below} below the axis" if below else "", log=log, floor=floor)


def _in_words(spans: Sequence[Mapping[str, Any]], document: Mapping[str, Any]) -> str:
    on = [f"{number(span['first'])} to {number(span['last'])}" for span in spans if span["phase"] == "on"]
    state = f"The correction was on in steps {', '.join(on)}." if on else "No correction was on."
    return f"Trend of run {document['run']}. {state} {len(document['actions']):,} decisions."


_PHASES: Final = {
    "idle": "never switched on",
    "suggested": "not switched on",
    "issued": "the directive was issued, and the trainer has not acknowledged it",
    "applied": "acknowledged by the trainer",
    "withdrawn": "was on, and is off",
}
_OF_CORRECTION: Final = frozenset({"masked", "weight_ess"})  # that there is none of without one
_WITHIN_ONE: Final = frozenset({"masked", "ess", "weight_ess"})
_BY_ITSELF: Final = {"acknowledged": "the trainer", "stopped": "someone", "released": "someone"}
_EFFECT_TONES: Final = {"helped": "info", "harmed": "critical"}
_ACKNOWLEDGED: Final = frozenset({"acknowledged", "not_acknowledged", "ranks_disagree"})
_SHARES: Final = {
    "masked_tokens": "tokens masked",
    "masked_sequences": "sequences masked in full",
    "masked_advantage": "share of |advantage| masked",
    "weight_ess": "ESS of the weights",
}


def actions_blocks(document: Mapping[str, Any], foreseen: Mapping[str, Any] | None, *, blocked: str) -> list[Block]:
    """Blocks of `views/report.py`.

    Args:
        document: as `logprobe show` describes the correction of a run.
        foreseen: what it would do to the recorded recent steps; None: not asked for.
        blocked: why nothing can be done from this page; "": it can.
    """
    return [
        heading("Correction", "masked importance sampling, as set for the trainer"),
        *_stopped(document),
        *_waiting(document),
        facts(_state(document)),
        {"type": "actions", "actions": list(_switches(document, blocked))},
        *_preview(foreseen),
    ]


def outcome_blocks(document: Mapping[str, Any]) -> list[Block]:
    """What came of it, below the trend: effect, what the trainer said, everything that was decided. `document`: see
    `actions_blocks`."""
    run = document["run"]
    told = [deed for deed in document["actions"] if deed["name"] in _ACKNOWLEDGED]
    return [
        *_effect(document),
        heading("Acknowledged", "acknowledged by the trainer, with its report"),
        _audit(
            "acknowledged", told, "No acknowledgement: nothing was switched on, or the trainer does not report.", run
        ),
        heading("Audit", "every action, suggestion and refusal, newest first"),
        _audit("audit", document["actions"], "Nothing yet.", run),
    ]


def _effect(document: Mapping[str, Any]) -> Iterator[Block]:
    """Whether it helped, in a word, and the numbers that say so."""
    effect, window = document["effect"], document["effect_steps"]
    if effect is None:
        yield heading("Effect", "the run before and after the switch")
        yield text("No correction was switched on.")
        return
    since, run = document["from_step"], document["run"]
    yield heading(
        "Effect",
        f"up to {window} uncorrected steps before the switch and as many corrected ones; means of ten block medians "
        "and their 97 % intervals",
    )
    as_of = "" if effect["step"] is None else f", as of step {effect['step']:,}"
    yield text(f"{effect['words'][:1].upper()}{effect['words'][1:]}{as_of}", _EFFECT_TONES.get(effect["judgement"], ""))
    rows = [_changed(figure) for figure in document["figures"]]
    yield table(
        "effect",
        ("metric", "before", "after", "change"),
        rows,
        empty="None of these metrics was measured around that step.",
    )
    yield {"type": "actions", "actions": [_chart(run, f"{max(0, since - window)}:{since + window}")]}


def _chart(run: str, steps: str) -> Block:
    query = urlencode({"run": run, "steps": steps}, safe=":")
    return {"label": "Chart of these steps", "href": f"./?{query}"}


def _changed(figure: Mapping[str, Any]) -> Block:
    unit = figure["unit"]
    new = figure["name"] in _OF_CORRECTION
    before = "no correction" if new and figure["before"] is None else _estimate(figure["name"], figure["before"], unit)
    change = "–" if new and figure["before"] is None else _change(figure)
    return row([figure["words"], before, _estimate(figure["name"], figure["after"], unit), change])


def _estimate(name: str, estimate: Mapping[str, Any] | None, unit: str) -> str:
    if estimate is None:
        return "–"
    low, high = (_possible(name, estimate[end]) for end in ("low", "high"))
    return f"{quantity(estimate['value'], unit)} ({number(low)} to {number(high)})"


def _possible(name: str, end: float) -> float:
    """An interval of a share ends where shares do."""
    return min(max(end, 0.0), 1.0) if name in _WITHIN_ONE else end


def _change(figure: Mapping[str, Any]) -> str:
    """How much it changed, and whether that is more than the noise."""
    change = figure["change"]
    if change is None:
        return "– (one side is not measured)"
    ends = [change[name] for name in ("value", "low", "high")]
    if figure["factor"]:
        value, low, high = (f"×{number(end)}" for end in ends)
    else:
        value, low, high = (f"{'+' if end > 0 else ''}{number(end)}" for end in ends)
    return f"{value} ({low} to {high})" if figure["sure"] else f"{value} ({low} to {high}): no significant change"


def _stopped(document: Mapping[str, Any]) -> Iterator[Block]:
    if document["problem"]:
        yield text(document["problem"], "warning")
    if document["stopped"]:
        yield text("The kill switch is set: no correction applies until it is released.", "critical")


def _waiting(document: Mapping[str, Any]) -> Iterator[Block]:
    """Why a bad verdict has led to no correction, as of the controller's last look."""
    if document["waiting"]:
        yield text(f"No correction: {document['waiting'].rstrip('.')}.", "warning")


def _state(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    stated = [
        f"{name}={value}" for name, value in document["config"].items() if value is not None and value is not False
    ]
    first = document["from_step"]
    return [
        ("mode", document["mode"]),
        ("phase", f"{document['phase']}: {_PHASES.get(document['phase'], 'see the audit')}"),
        ("from step", "–" if first is None else f"{first:,}"),
        ("correction", ", ".join(stated)),
    ]


def _switches(document: Mapping[str, Any], blocked: str) -> Iterator[Block]:
    on, stopped = document["phase"] in {"issued", "applied"}, document["stopped"]
    yield _preview_button(blocked)
    if on:
        yield _command("off", "Switch off", "The trainer stops correcting a few steps from now.", blocked)
    else:
        reason = blocked or ("the kill switch is set" if stopped else "")
        words = "The trainer applies this correction a few steps from now, unless it is refused."
        yield _command("on", "Switch on", words, reason)
    if document["mode"] == "armed":
        yield _command("suggest", "Only suggest", "The controller reports when a correction is advised, and no longer acts.", blocked)  # fmt: skip
    else:
        words = "The controller switches a correction on by itself when the diagnosis advises it."
        yield _command("armed", "Arm", words, blocked)
    if stopped:
        yield _command("release", "Release the kill switch", "Directives apply again.", blocked)
    else:
        yield _command("stop", "Kill switch", "No correction from the next step on.", blocked, danger=True)


def _command(command: str, label: str, words: str, blocked: str, *, danger: bool = False) -> Block:
    return action("command", label, words, blocked, args={"command": command}, danger=danger)


def _preview_button(blocked: str) -> Block:
    words = "The correction is computed for recorded tokens of recent steps; nothing is switched."
    return {"id": "preview", "label": "Preview", "words": words, "disabled": blocked}


def _preview(foreseen: Mapping[str, Any] | None) -> Iterator[Block]:
    if foreseen is None:
        return
    yield heading("Preview", f"as of step {foreseen['step']:,}")
    preview, refusal, instead = foreseen["preview"], foreseen["refusal"], foreseen["instead"]
    if preview is None:
        yield text("No recorded tokens with both log-probs to preview it on.")
    else:
        first, last = preview["steps"]
        shares = [(words, _share(preview[name])) for name, words in _SHARES.items()]
        yield facts([("tried on", f"steps {first:,} to {last:,}, {preview['tokens']:,} tokens"), *shares])
    if refusal is not None:
        yield text(f"It would be refused: {refusal['words']}", "warning")
    if instead is not None:
        yield text(f"Switched on instead: {CorrectionConfig.from_dict(instead)}")


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _audit(name: str, actions: Sequence[Mapping[str, Any]], empty: str, run: str) -> Block:
    rows = [
        row(
            [
                deed["name"].replace("_", " "),
                f"{deed['time']:%Y-%m-%d %H:%M} UTC",
                _step(deed["step"], run),
                (deed["details"] or {}).get("by") or _BY_ITSELF.get(deed["name"], "the controller"),
                deed["words"],
            ],
            tone=deed["severity"] if deed["severity"] != "info" else "",
        )
        for deed in reversed(actions)
    ]
    return table(name, ("action", "when", "step", "who", "why"), rows, empty=empty, fold=True)


def _step(step: int | None, run: str) -> str | Block:
    if step is None:
        return "–"
    steps = steps_around(step)
    query = urlencode({"run": run, "steps": steps}, safe=":")
    return place(f"{step:,}", href=f"./?{query}", help=f"the chart of steps {steps.replace(':', ' to ')}")


_KEY: Final = "actions"
_LAST_STEP: Final = 2**62


def draw(run: Run, view: RunView) -> None:
    """Draws the page."""
    place = f"{_KEY} {run.name}"
    with guarded(_KEY):
        document = kept(place, lambda: _read(run.name))
        if document is not None:
            foreseen = st.session_state.get(_foreseen(run.name))
            blocks = [*said(place), *actions_blocks(document, foreseen, blocked=blocked(run.name))]
            wanted = report(_KEY, "actions", blocks)
            attempt(place, wanted, lambda asked: _do(run.name, asked))
            _trend(run, view, document)
            below = outcome_blocks(document)
            report("outcome", "what came of it", below)


def _trend(run: Run, view: RunView, document: Mapping[str, Any]) -> None:
    """Over steps; read again when the run has something new. Without a decision there is nothing to show."""
    if not document["actions"]:
        return
    colors, window = theme(), Look.of(asked, view.series.steps).window
    version = f"{view.version} {colors.mode} {window}"
    read = partial(queries.controller_trend, feed(), run=run.name, first=0, last=_LAST_STEP)
    chart = read_once(f"trend {run.name}", version, lambda: trend_chart(read(), document, colors, window))
    if chart is not None:
        note = "over the steps of the run; shaded: a correction was announced (grey), or on (blue)"
        report(
            "trend", "trend of the correction", [{"type": "figure", "heading": heading("Trend", note), "chart": chart}]
        )


def _read(run: str) -> CorrectionState:
    """Only through the service: a file held open by a page would keep the service from starting again."""
    if feed().snapshot(run).away_since is not None:
        raise ServiceUnavailableError("the monitor service is not responding")
    return describe(Home(home()), run)


def _foreseen(run: str) -> str:
    return f"preview {run}"


def _do(run: str, asked: Mapping[str, Any]) -> str:
    """Does what was confirmed; says what came of it. Raises `LogprobeError`."""
    if asked.get("id") == "preview":
        st.session_state[_foreseen(run)] = foresee(Home(home()), run)
        return "Computed; nothing was switched."
    done = ask(ACTION, {"run": run, "command": asked.get("command"), "by": asked.get("by"), "force": False})
    return " ".join(action["words"] for action in done["actions"]) or "No change: already in that state."
