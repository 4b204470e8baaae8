"""What the parts of a diagnosis and of an experiment are called, wherever people read them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from logprobe.app.text.numbers import number

LAYERS: Final = {
    "semantic": "semantic: the engine's log-probs do not mean what the trainer expects",
    "inference_path": "inference path: the engine computes a different function from the trainer",
    "objective": "objective: sampling policy and trained policy have drifted apart",
    "none": "none",
    "unknown": "unknown: the measurements do not show it",
}
ADVICE: Final = {"enable": "enable one", "do_not_enable": "do not enable one", "not_needed": "not needed"}
_SURE: Final = ((0.9, "certain"), (0.7, "very likely"), (0.5, "likely"), (0.0, "possible"))
HEAD: Final = ("knob", "setting", "K3", "removed", "95 %", "speed", "verdict")  # of a table of an experiment's arms


def sure(confidence: float) -> str:
    """A confidence in words.

    >>> sure(0.95), sure(0.5), sure(0.1)
    ('certain', 'likely', 'possible')
    """
    return next(word for least, word in _SURE if confidence >= least)


def headline(document: Mapping[str, Any]) -> str:
    """Who departs and what to change, in a sentence or two."""
    departs = ", ".join(document["departs_all"]) or document["departs"]
    words = f"Departs: {departs.replace('_', ' ')}: {document['why']}."
    if document["smallest_set"]:
        parity = "restores parity" if document["parity"] else "removes some, not all, of the gap"
        return f"{words} Changing {', '.join(document['smallest_set'])} {parity}."
    if document["departs"] == "none":
        return words
    return f"{words} No setting that was tried removes the gap."


def arm_cells(arm: Mapping[str, Any], baseline: Mapping[str, Any]) -> list[str]:
    """The cells of an arm's row, under `HEAD`."""
    speed, whole = arm["tokens_per_s"], baseline["tokens_per_s"]
    return [
        arm["knob"],
        arm["setting"],
        number(arm["k3"]),
        "–" if arm["removed"] is None else f"{arm['removed']:.1%}",
        _interval(arm["interval"]),
        "–" if speed is None or not whole else f"×{speed / whole:.2f}",
        arm["verdict"] + (f" ({arm['note']})" if arm["note"] else ""),
    ]


def _interval(interval: Sequence[float] | None) -> str:
    return "–" if interval is None else f"{interval[0]:.0%} … {interval[1]:.0%}"
