"""The verdict banner: is the run healthy, since which step not, which layer, what to do. Pure.

A verdict is an icon, a word and a colour. What is not known is said to be so; a run without a diagnosis is not a
healthy one.
"""

from __future__ import annotations

import re
from typing import Final

from logprobe.alerts.controller.standing import Standing
from logprobe.app.dashboard.data.diagnosis import LatestDiagnosis
from logprobe.app.dashboard.data.feed import RunView
from logprobe.app.dashboard.elements.links import link
from logprobe.app.dashboard.page_table import BY_PATH
from logprobe.app.runs import Run
from logprobe.app.text.correction import advised, remedy, settings, unnamed
from logprobe.app.text.diagnosis import LAYERS, extent, informational, level_words, remembered, share
from logprobe.app.text.judgement import Headline, headline, lateness
from logprobe.app.text.numbers import number
from logprobe.monitor.judgement import Judgement
from logprobe.monitor.judging.document import DiagnosisDocument, FindingDocument
from logprobe.monitor.judging.leading import CREDIBLE, foremost, leading
from logprobe.monitor.judging.named import particulars
from logprobe.monitor.judging.signatures import kind_of

Block = dict[str, object]

LOADING: Final = Headline(
    "…", "Loading", "Recorded steps are still being loaded; the first diagnosis follows.", "unknown"
)
_NEXT: Final = ("diagnosis", "tokens", "alerts", "actions")
_LATE: Final = 5  # steps; a diagnosis is always a little behind


def banner(view: RunView) -> Block:
    """The banner as a block of `views/report.py`."""
    judgement, diagnosis = view.judgement, view.diagnosis
    shown = headline(judgement)
    if diagnosis is None and judgement.severity == "unknown" and view.awaited:
        shown = LOADING
    block = {"type": "verdict", "tone": shown.tone, "icon": shown.icon, "word": shown.word, "words": shown.words}
    if diagnosis is None:
        return {**block, "facts": _firing(judgement), "do": []}
    if judgement.by_growth:  # what the diagnosis says is of before
        return {**block, "facts": [["since step", f"{judgement.since_step:,}"], *_firing(judgement)], "do": []}
    block["words"] = _words(shown, view, diagnosis.document)
    return {**block, "facts": _facts(view, diagnosis), "do": _remedies(diagnosis), "note": _age(view, diagnosis)}


def _words(shown: Headline, view: RunView, document: DiagnosisDocument) -> str:
    """What is wrong, in the words of the finding that leads, unless that only says that K3 grows; what is known of a
    run that was short."""
    first = leading(document)
    if first is not None and kind_of(first["cause"]) != "growth":
        also = "Too few steps for a baseline, but the following finding does not need one. "
        return (also if shown.tone == "calibrating" else "") + _sentence(first["explanation"])
    context = remembered(document)
    if view.judgement.ended_after is not None and document["verdict"] == "calibrating":
        context = context or level_words(document)
    return " ".join(filter(None, (shown.words, context)))


def _sentence(words: str) -> str:
    """The first one; what follows is on the Diagnosis page."""
    return re.split(r"(?<=[.;])\s", words, maxsplit=1)[0].rstrip(";")


def links(view: RunView, run: Run | None, here: str = "") -> list[Block]:
    """Where the verdict leads, for `banner`'s ``links``: to the other pages that explain it; while a correction is on,
    to its effect."""
    on = view.diagnosis is not None and view.diagnosis.standing.on
    return [
        {
            "title": "Effect of the correction" if on and path == "actions" else BY_PATH[path].title,
            "href": link(path, run),
        }
        for path in _NEXT
        if path != here
    ]


def sentence(view: RunView) -> str:
    """The verdict in one line, for those who cannot see the chart; "" while there is none."""
    if view.diagnosis is None:
        return ""
    facts = ", ".join(f"{name} {value}" for name, value in _facts(view, view.diagnosis))
    return f"{headline(view.judgement).word}{': ' if facts else ''}{facts}."


def _facts(view: RunView, diagnosis: LatestDiagnosis) -> list[list[str]]:
    """Since which step, how much, how fast, which layer, what explains it; then what is expected or accepted, which
    needs no action."""
    document, growth = diagnosis.document, diagnosis.growth
    wrong = document["verdict"] in {"growing", "critical"}
    since, layer, cause = _since(document), _layer(document), _cause(document)
    facts = []
    if since is not None:
        facts.append(["since step", f"{since:,}{', its first' if since <= int(view.series.steps[0]) else ''}"])
    if how_much := extent(document, growth):
        facts.append(["K3", how_much])
    elif wrong:
        facts.append(["K3", "no baseline yet"])
    if document["doubling_steps"] is not None:
        facts.append(["doubles every", f"{number(document['doubling_steps'])} steps"])
    if layer != "none":
        facts.append(["layer", LAYERS[layer]])
    if cause:
        facts.append(["cause", cause])
    facts += [[word, ", ".join(causes)] for word, causes in _beside(document).items() if causes]
    return facts + _firing(view.judgement)


def _firing(judgement: Judgement) -> list[list[str]]:
    rules = [alert.rule for alert in judgement.alerts]
    return [["alerts firing", ", ".join(rules)]] if rules else []


def _since(document: DiagnosisDocument) -> int | None:
    """Of the finding that the verdict is about; where that does not say, of the growth."""
    first = foremost(document)
    step = None if first is None else first["since_step"]
    if step is not None or document["verdict"] == "healthy":
        return step
    return document["since_step"]


def _layer(document: DiagnosisDocument) -> str:
    """Of the finding that the verdict is about; without one nothing is at fault, or it is not known what."""
    first = foremost(document)
    if first is not None:
        return str(first["layer"])
    return "unknown" if document["verdict"] in {"growing", "critical"} or document["layer"] == "unknown" else "none"


def _cause(document: DiagnosisDocument) -> str:
    """What explains K3, and how much of it; "": no share is known."""
    first = leading(document)
    part = "" if first is None else share(first)
    return part and f"{_named(first)}, {part}"


def _named(finding: FindingDocument | None) -> str:
    return "" if finding is None else str(finding["cause"]).replace("_", " ")


def _beside(document: DiagnosisDocument) -> dict[str, list[str]]:
    """What else is credible, in words: why it is harmless, accepted, or worth a look; none of it decides anything
    here."""
    notes: dict[str, list[str]] = {"normal for this setup": [], "accepted": [], "also found": []}  # in this order
    first = leading(document)
    for finding in document["findings"]:
        name = _named(finding)
        if finding["confidence"] < CREDIBLE or (first is not None and finding["cause"] == first["cause"]):
            continue
        if (accepted := finding.get("accepted")) is not None:
            notes["accepted"].append(f"{name} ({accepted['because']})")
        else:
            normal, part = finding.get("urgency") == "informational", share(finding)
            word = informational(finding, document) if normal else "also found"
            notes.setdefault(word, []).append(name if normal or not part else f"{name} ({part})")
    return notes


def setting_lines(finding: FindingDocument, standing: Standing) -> list[list[str]]:
    """The settings that a remedy names: whose, name with value, what to copy."""
    return [
        [setting["framework"], f"`{setting['copy']}` {'; '.join(particulars(setting))}", setting["copy"]]
        for setting in settings(finding, standing)
    ]


def _remedies(diagnosis: LatestDiagnosis) -> list[list[str]]:
    """What to do about the leading finding; then what is said of a correction: to switch it on or not, or what came of
    it."""
    document, standing = diagnosis.document, diagnosis.standing
    first = leading(document)
    lines = [] if first is None else [[_named(first), remedy(first, standing)], *setting_lines(first, standing)]
    if first is not None and (why := unnamed(first, document)):
        lines.append(["setting", why])
    advice = advised(document, standing)
    if advice and (document["verdict"] != "healthy" or standing.on):
        lines.append(["correction", advice])
    return lines


def _age(view: RunView, diagnosis: LatestDiagnosis) -> str:
    if late := lateness(view.judgement):
        return late
    steps = view.series.steps
    behind = int((steps > diagnosis.step).sum())
    return f"as of step {diagnosis.step:,}, {behind:,} steps ago" if behind > _LATE else ""
