"""The verdict banner: is the run healthy, since when not, which layer, what to do. Pure.

A verdict is an icon, a word and a colour. What is not known is said to be so; a run without a diagnosis is not a healthy one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from logprobe.app.dashboard.data.feed import RunView
from logprobe.app.dashboard.data.judgement import Judgement
from logprobe.app.diagnosis_words import ADVICE, LAYERS
from logprobe.app.numbers import number

Block = dict[str, Any]

WAITING: Final = ("…", "Not diagnosed yet", "The service diagnoses a run soon after its first steps.")
VERDICTS: Final[Mapping[str, tuple[str, str, str]]] = {
    "healthy": ("✓", "Healthy", "Engine and trainer agree as far as they should."),
    "growing": ("▲", "Growing", "Engine and trainer drift apart."),
    "critical": ("✕", "Critical", "The mismatch endangers training."),
    "calibrating": ("…", "Calibrating", "Too few steps yet to know what is normal for this run."),
    "no_data": ("?", "No data", "There is nothing to compare."),
}
_CREDIBLE: Final = 0.5
_LATE: Final = 5  # steps; a diagnosis is always a little behind


def banner(view: RunView) -> Block:
    """The banner as a block of `browser/report.js`."""
    judgement = view.judgement
    if judgement is None:
        icon, word, words = WAITING
        return {"type": "verdict", "tone": "unknown", "icon": icon, "word": word, "words": words, "facts": [], "do": []}
    document = judgement.document
    icon, word, words = VERDICTS[document["verdict"]]
    if document["verdict"] == "calibrating" and _credible(document):
        words = "Too few steps yet to know what is normal for this run, but what follows needs no baseline to be seen."
    return {
        "type": "verdict",
        "tone": document["verdict"],
        "icon": icon,
        "word": word,
        "words": words,
        "facts": _facts(view, judgement),
        "do": _remedies(document),
        "note": _age(view, judgement),
    }


def sentence(view: RunView) -> str:
    """The verdict in one line, for those who cannot see the chart; "" while there is none."""
    if view.judgement is None:
        return ""
    facts = ", ".join(f"{name} {value}" for name, value in _facts(view, view.judgement))
    return f"{VERDICTS[view.judgement.document['verdict']][1]}{': ' if facts else ''}{facts}."


def _facts(view: RunView, judgement: Judgement) -> list[list[str]]:
    """Since when, how much, how fast, which layer."""
    document, growth = judgement.document, judgement.growth
    wrong = document["verdict"] in {"growing", "critical"}
    facts = []
    if document["since_step"] is not None:
        first = document["since_step"] <= int(view.series.steps[0])
        facts.append(["since step", f"{document['since_step']:,}{', its first' if first else ''}"])
    if growth.ratio is not None and growth.baseline is not None:
        facts.append(["KL (k3)", f"{number(growth.ratio)}× its baseline of {number(growth.baseline)}"])
    elif wrong:
        facts.append(["KL (k3)", "no baseline yet"])
    if document["doubling_steps"] is not None:
        facts.append(["doubles every", f"{number(document['doubling_steps'])} steps"])
    if document["layer"] != "none":
        facts.append(["layer", LAYERS[document["layer"]]])
    if judgement.firing:
        facts.append(["alerts firing", ", ".join(judgement.firing)])
    return facts


def _remedies(document: Mapping[str, Any]) -> list[list[str]]:
    """What to do, the most credible cause first; then whether a correction is the right medicine."""
    first = _credible(document)
    lines = [] if first is None else [[first["cause"].replace("_", " "), first["fix"]]]
    correction = document["correction"]
    if correction["advice"] != "not_needed":
        lines.append(["correction", f"{ADVICE[correction['advice']]}: {correction['why']}"])
    return lines


def _credible(document: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The finding that comes first, where one is credible."""
    return next((each for each in document["findings"] if each["confidence"] >= _CREDIBLE), None)


def _age(view: RunView, judgement: Judgement) -> str:
    steps = view.series.steps
    behind = int((steps > judgement.step).sum())
    return f"as of step {judgement.step:,}, {behind:,} steps ago" if behind > _LATE else ""
