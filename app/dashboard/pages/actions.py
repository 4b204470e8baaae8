"""The Actions page as blocks: the correction of a run, what it did, and the switches for it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

from logprobe.alerts.rules.notification_builder import steps_around
from logprobe.app.dashboard.elements.blocks import Block, facts, heading, place, row, table, text
from logprobe.app.text.numbers import number, quantity
from logprobe.collectors.correction import CorrectionConfig

_BY: Final = {"name": "by", "label": "your name", "required": True}
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
    """Blocks of `browser/report.js`.

    Args:
        document: as `logprobe mis` describes the correction of a run.
        foreseen: what it would do to the recorded recent steps; None: nobody has asked.
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
    """What came of it, below the trend: effect, what the trainer said, everything that was decided. `document`: see `actions_blocks`."""
    run = document["run"]
    told = [each for each in document["actions"] if each["name"] in _ACKNOWLEDGED]
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
        f"up to {window} uncorrected steps before the switch and as many corrected ones; means of ten block medians and their 97 % intervals",
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
    return {"label": "Chart of these steps", "href": f"./?{query}", "path": f"?steps={steps}"}


def _changed(figure: Mapping[str, Any]) -> Block:
    unit = figure["unit"]
    new = figure["name"] in _OF_CORRECTION
    before = "no correction" if new and figure["before"] is None else _estimate(figure["name"], figure["before"], unit)
    change = "–" if new and figure["before"] is None else _change(figure)
    return row([figure["words"], before, _estimate(figure["name"], figure["after"], unit), change])


def _estimate(name: str, found: Mapping[str, Any] | None, unit: str) -> str:
    if found is None:
        return "–"
    low, high = (_possible(name, found[end]) for end in ("low", "high"))
    return f"{quantity(found['value'], unit)} ({number(low)} to {number(high)})"


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
    args = {"command": command}
    return {
        "id": "command", "label": label, "words": words, "args": args, "fields": [_BY], "disabled": blocked, "danger": danger,
    }  # fmt: skip


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
                each["name"].replace("_", " "),
                f"{each['time']:%Y-%m-%d %H:%M} UTC",
                _step(each["step"], run),
                (each["details"] or {}).get("by") or _BY_ITSELF.get(each["name"], "the controller"),
                each["words"],
            ],
            tone=each["severity"] if each["severity"] != "info" else "",
        )
        for each in reversed(actions)
    ]
    return table(name, ("action", "when", "step", "who", "why"), rows, empty=empty, fold=True)


def _step(step: int | None, run: str) -> str | Block:
    if step is None:
        return "–"
    steps = steps_around(step)
    query = urlencode({"run": run, "steps": steps}, safe=":")
    return place(
        f"{step:,}", href=f"./?{query}", path=f"?steps={steps}", help=f"the chart of steps {steps.replace(':', ' to ')}"
    )
