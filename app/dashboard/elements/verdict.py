"""The verdict banner: is the run healthy, since which step not, which layer, what to do. Pure.

A verdict is an icon, a word and a colour. What is not known is said to be so; a run without a diagnosis is not a healthy one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from logprobe.app.dashboard.data.diagnosis import LatestDiagnosis
from logprobe.app.dashboard.data.feed import RunView
from logprobe.app.text.diagnosis import ADVICE, LAYERS
from logprobe.app.text.numbers import number
from logprobe.monitor.diagnosis.result import LAYERS as ORDER

Block = dict[str, Any]

WAITING: Final = ("…", "Not diagnosed yet", "The first diagnosis follows shortly.")
LOADING: Final = ("…", "Loading", "Recorded steps are still being loaded; the first diagnosis follows.")
VERDICTS: Final[Mapping[str, tuple[str, str, str]]] = {
    "healthy": ("✓", "Healthy", "Engine and trainer agree as far as they should."),
    "growing": ("▲", "Growing", "Engine and trainer are drifting apart."),
    "critical": ("✕", "Critical", "The mismatch endangers training."),
    "calibrating": ("…", "Calibrating", "Too few steps for a baseline."),
    "no_data": ("?", "No data", "There is nothing to compare."),
}
CREDIBLE: Final = 0.5  # confidence of a finding that counts
_LATE: Final = 5  # steps; a diagnosis is always a little behind


def banner(view: RunView) -> Block:
    """The banner as a block of `browser/report.js`."""
    diagnosis = view.diagnosis
    if diagnosis is None:
        icon, word, words = LOADING if view.awaited else WAITING
        return {"type": "verdict", "tone": "unknown", "icon": icon, "word": word, "words": words, "facts": [], "do": []}
    document = diagnosis.document
    icon, word, words = VERDICTS[document["verdict"]]
    if document["verdict"] == "calibrating" and leading(document):
        words = "Too few steps for a baseline, but the following finding does not need one."
    return {
        "type": "verdict",
        "tone": document["verdict"],
        "icon": icon,
        "word": word,
        "words": words,
        "facts": _facts(view, diagnosis),
        "do": _remedies(document),
        "note": _age(view, diagnosis),
    }


def sentence(view: RunView) -> str:
    """The verdict in one line, for those who cannot see the chart; "" while there is none."""
    if view.diagnosis is None:
        return ""
    facts = ", ".join(f"{name} {value}" for name, value in _facts(view, view.diagnosis))
    return f"{VERDICTS[view.diagnosis.document['verdict']][1]}{': ' if facts else ''}{facts}."


def _facts(view: RunView, diagnosis: LatestDiagnosis) -> list[list[str]]:
    """Since which step, how much, how fast, which layer; then what is expected or accepted, which alarms nobody."""
    document, growth = diagnosis.document, diagnosis.growth
    wrong = document["verdict"] in {"growing", "critical"}
    since, layer = _since(document), _layer(document)
    facts = []
    if since is not None:
        facts.append(["since step", f"{since:,}{', its first' if since <= int(view.series.steps[0]) else ''}"])
    if growth.ratio is not None and growth.baseline is not None:
        facts.append(["KL (k3)", f"{number(growth.ratio)}× its baseline of {number(growth.baseline)}"])
    elif wrong:
        facts.append(["KL (k3)", "no baseline yet"])
    if document["doubling_steps"] is not None:
        facts.append(["doubles every", f"{number(document['doubling_steps'])} steps"])
    if layer != "none":
        facts.append(["layer", LAYERS[layer]])
    facts += [[word, ", ".join(causes)] for word, causes in _beside(document).items() if causes]
    if diagnosis.firing:
        facts.append(["alerts firing", ", ".join(diagnosis.firing)])
    return facts


def leading(document: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The finding that verdict, layer, remedy and advice are about; None: none alarms or forbids a correction.

    What forbids a correction comes first, semantic before inference path; then, where a correction is advised, the objective's; then
    the most credible.
    """
    if document["verdict"] == "healthy":
        return None
    forbidding = [each for each in document["findings"] if each["confidence"] >= CREDIBLE and _forbids(each)]
    if forbidding:
        worst: Mapping[str, Any] = min(forbidding, key=lambda each: ORDER.index(each["layer"]))
        return worst
    alarming = [each for each in document["findings"] if alarms(each)]
    advised = document["correction"]["advice"] == "enable"
    first: Mapping[str, Any] | None = next(iter(alarming), None)
    return next((each for each in alarming if advised and each["layer"] == "objective"), first)


def _forbids(finding: Mapping[str, Any]) -> bool:
    """Whether it forbids a correction; a diagnosis of an earlier version did not say, and went by layers."""
    return bool(finding.get("vetoes", finding["layer"] in ORDER[:2]))


def alarms(finding: Mapping[str, Any]) -> bool:
    """Whether a finding is credible, and neither as expected of the set-up nor accepted."""
    urgent = finding.get("urgency", "act") != "informational" and finding.get("accepted") is None
    return bool(urgent and finding["confidence"] >= CREDIBLE)


def _since(document: Mapping[str, Any]) -> int | None:
    """Of the leading finding; where that does not say, of the growth."""
    first = leading(document)
    step: int | None = None if first is None else first["since_step"]
    if step is not None or document["verdict"] == "healthy":
        return step
    known: int | None = document["since_step"]
    return known


def _layer(document: Mapping[str, Any]) -> str:
    """Of the leading finding; without one nothing is at fault, or it is not known what."""
    first = leading(document)
    if first is not None:
        return str(first["layer"])
    return "unknown" if document["verdict"] in {"growing", "critical"} or document["layer"] == "unknown" else "none"


def _beside(document: Mapping[str, Any]) -> dict[str, list[str]]:
    """What else is credible, in words: as expected, accepted, or worth a look; none of it decides anything here."""
    said: dict[str, list[str]] = {"as expected": [], "accepted": [], "also found": []}
    first = leading(document)
    for each in document["findings"]:
        name = each["cause"].replace("_", " ")
        if each["confidence"] < CREDIBLE or (first is not None and each["cause"] == first["cause"]):
            continue
        if each.get("accepted") is not None:
            said["accepted"].append(f"{name} ({each['accepted']['because']})")
        else:
            said["as expected" if each.get("urgency") == "informational" else "also found"].append(name)
    return said


def _remedies(document: Mapping[str, Any]) -> list[list[str]]:
    """What to do about the leading finding; then whether a correction is the right medicine for it."""
    first, correction = leading(document), document["correction"]
    lines = [] if first is None else [[first["cause"].replace("_", " "), first["fix"]]]
    if correction["advice"] != "not_needed" and document["verdict"] != "healthy":
        lines.append(["correction", f"{ADVICE[correction['advice']]}: {correction['why']}"])
    return lines


def _age(view: RunView, diagnosis: LatestDiagnosis) -> str:
    steps = view.series.steps
    behind = int((steps > diagnosis.step).sum())
    return f"as of step {diagnosis.step:,}, {behind:,} steps ago" if behind > _LATE else ""
