"""The Actions page as blocks: the correction of a run, what it did, and the switches for it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from logprobe.app.dashboard.pages.blocks import Block, facts, heading, row, table, text

_BY: Final = {"name": "by", "label": "your name", "required": True}
_PHASES: Final = {
    "idle": "never switched on",
    "suggested": "nobody has switched it on",
    "issued": "the trainer was told, and has not said that it applies it",
    "applied": "the trainer says that it applies it",
    "withdrawn": "was on, and was taken back",
}
_ACKNOWLEDGED: Final = frozenset({"acknowledged", "not_acknowledged", "ranks_disagree"})
_SHARES: Final = ("masked_tokens", "masked_sequences", "masked_advantage", "weight_ess")


def actions_blocks(document: Mapping[str, Any], foreseen: Mapping[str, Any] | None, *, blocked: str) -> list[Block]:
    """Blocks of `browser/report.js`.

    Args:
        document: as `logprobe mis` describes the correction of a run.
        foreseen: what it would do to the recorded recent steps; None: nobody has asked.
        blocked: why nothing can be done from this page; "": it can.
    """
    told = [each for each in document["actions"] if each["name"] in _ACKNOWLEDGED]
    effect = next((each for each in reversed(document["actions"]) if each["name"] == "effect"), None)
    return [
        heading("Correction", "masked importance sampling, as the trainer is told to apply it"),
        *_stopped(document),
        facts(_standing(document)),
        {"type": "actions", "actions": list(_switches(document, blocked))},
        *_preview(foreseen),
        heading("Acknowledged", "what the trainer said of it"),
        _audit("acknowledged", told, "The trainer has said nothing: nothing was switched on, or it does not report."),
        heading("Effect", "the run before and after the switch"),
        text("Not judged yet." if effect is None else effect["words"]),
        heading("Audit", "everything that was done, suggested or refused, newest first"),
        _audit("audit", document["actions"], "Nothing yet."),
    ]


def _stopped(document: Mapping[str, Any]) -> Iterator[Block]:
    if document["stopped"]:
        yield text("The kill switch is set: nothing applies until it is released.", "critical")


def _standing(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    stated = [
        f"{name} {value}" for name, value in document["config"].items() if value is not None and value is not False
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
        yield _command("off", "Switch off", "The trainer is told to stop correcting, a few steps from now.", blocked)
    else:
        reason = blocked or ("the kill switch is set" if stopped else "")
        words = (
            "The trainer is told to apply this correction, a few steps from now, unless something speaks against it."
        )
        yield _command("on", "Switch on", words, reason)
    if document["mode"] == "armed":
        yield _command("suggest", "Only suggest", "The controller says when a correction is right, and acts no more.", blocked)  # fmt: skip
    else:
        words = "The controller switches a correction on by itself when the diagnosis says that it is right."
        yield _command("armed", "Arm", words, blocked)
    if stopped:
        yield _command("release", "Release the kill switch", "Directives apply again.", blocked)
    else:
        yield _command("stop", "Kill switch", "No correction applies from the next step on.", blocked, danger=True)


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
    preview, refusal = foreseen["preview"], foreseen["refusal"]
    if preview is None:
        yield text("There are no recorded tokens of both sides to try it on.")
    else:
        first, last = preview["steps"]
        shares = [(name.replace("_", " "), _share(preview[name])) for name in _SHARES]
        yield facts([("tried on", f"steps {first:,} to {last:,}, {preview['tokens']:,} tokens"), *shares])
    if refusal is not None:
        yield text(f"It would be refused: {refusal['words']}", "warning")


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _audit(name: str, actions: Sequence[Mapping[str, Any]], empty: str) -> Block:
    rows = [
        row(
            [each["name"].replace("_", " "), "–" if each["step"] is None else f"{each['step']:,}", each["words"]],
            tone=each["severity"],
        )
        for each in reversed(actions)
    ]
    return table(name, ("action", "step", "why"), rows, empty=empty)
