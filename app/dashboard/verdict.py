"""The verdict banner: verdict, onset, layer and remedy. The functions are pure.

A verdict is an icon, a word and a colour. A run without a diagnosis is shown as unknown, not as healthy.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from logprobe.alerts.controller.standing import Standing
from logprobe.app.text.correction import advised, remedy, settings, unnamed
from logprobe.app.text.diagnosis import LAYERS, extent, informational, level_words, pace, remembered, share
from logprobe.app.text.judgement import Headline, headline, lateness
from logprobe.monitor import queries
from logprobe.monitor.judgement import Judgement
from logprobe.monitor.judging.document import CREDIBLE, DiagnosisDocument, FindingDocument, leading
from logprobe.monitor.judging.named import particulars
from logprobe.monitor.judging.signatures import kind_of
from logprobe.monitor.queries import Source

LOADING: Final = Headline(
    "…", "Loading", "Recorded steps are still being loaded; the first diagnosis follows.", "unknown"
)
_LATE: Final = 5  # steps; a diagnosis is always a little behind


@dataclass(frozen=True)
class LatestDiagnosis:
    """The newest diagnosis of a run.

    Attributes:
        document: the diagnosis.
        step: last step that it covers.
        at: time of the diagnosis.
        standing: standing of the run's correction.
    """

    document: DiagnosisDocument
    step: int
    at: datetime
    standing: Standing = field(default_factory=Standing)


def read_latest_diagnosis(source: Source, run: str) -> LatestDiagnosis | None:
    """Return the newest diagnosis, or None if there is none yet."""
    rows = queries.diagnosis_latest(source, run=run).to_pylist()
    if not rows:
        return None
    (row,) = rows
    document: DiagnosisDocument = json.loads(row["document"])
    return LatestDiagnosis(document, row["step"], row["diagnosed_at"], Standing.read(source, run))


@dataclass(frozen=True)
class Verdict:
    """A verdict for the banner. `facts`: names with values. `do`: actions as names with values and the text to copy."""

    tone: str
    icon: str
    word: str
    words: str
    facts: Sequence[Sequence[str]] = ()
    do: Sequence[Sequence[str]] = ()
    note: str = ""


def verdict_of(
    judgement: Judgement, diagnosis: LatestDiagnosis | None, steps: Sequence[int], *, awaited: bool = False
) -> Verdict:
    """Return the verdict on a run.

    Args:
        judgement: present judgement.
        diagnosis: the newest one, or None.
        steps: steps of the run, ascending.
        awaited: true if engine records of its newest step may still arrive.
    """
    shown = headline(judgement)
    if diagnosis is None and judgement.severity == "unknown" and awaited:
        shown = LOADING
    head = (shown.tone, shown.icon, shown.word)
    if diagnosis is None:
        return Verdict(*head, shown.words, _firing(judgement))
    words = _words(shown, judgement, diagnosis.document)
    facts = _facts(judgement, diagnosis, steps)
    return Verdict(*head, words, facts, _remedies(diagnosis), _age(judgement, diagnosis, steps))


def _words(shown: Headline, judgement: Judgement, document: DiagnosisDocument) -> str:
    """Return the words of the leading finding, or the level of a short run.

    Omit a finding that only states the growth of K3.
    """
    first = leading(document)
    if first is not None and kind_of(first["cause"]) != "growth":
        also = "Too few steps for a baseline, but the following finding does not need one. "
        return (also if shown.tone == "calibrating" else "") + _sentence(first["explanation"])
    context = remembered(document)
    if judgement.ended_after is not None and document["verdict"] == "calibrating":
        context = context or level_words(document)
    return " ".join(filter(None, (shown.words, context)))


def _sentence(words: str) -> str:
    """Return the first sentence or clause. The Diagnosis page has the full text."""
    return re.split(r"(?<=[.;])\s", words, maxsplit=1)[0].rstrip(";")


def sentence(verdict: Verdict) -> str:
    """Return a verdict in one line, for users of screen readers."""
    facts = ", ".join(f"{name} {value}" for name, value in verdict.facts)
    return f"{verdict.word}{': ' if facts else ''}{facts}."


def _facts(judgement: Judgement, diagnosis: LatestDiagnosis, steps: Sequence[int]) -> list[list[str]]:
    """Return onset, size and pace of K3, layer and cause, then the findings that need no action."""
    document = diagnosis.document
    wrong = document["verdict"] in {"growing", "critical"}
    since, layer, cause = document["since_step"], document["layer"], _cause(document)
    facts = []
    if since is not None and document["verdict"] != "healthy":
        facts.append(["since step", f"{since:,}{', its first' if len(steps) and since <= int(steps[0]) else ''}"])
    if how_much := extent(document):
        facts.append(["K3", how_much])
    elif wrong:
        facts.append(["K3", "no baseline yet"])
    if doubles := pace(document):
        facts.append(["doubles every", doubles])
    if layer != "none":
        facts.append(["layer", LAYERS[layer]])
    if cause:
        facts.append(["cause", cause])
    facts += [[word, ", ".join(causes)] for word, causes in _beside(document).items() if causes]
    return facts + _firing(judgement)


def _firing(judgement: Judgement) -> list[list[str]]:
    rules = [alert.rule for alert in judgement.alerts]
    return [["alerts firing", ", ".join(rules)]] if rules else []


def _cause(document: DiagnosisDocument) -> str:
    """Return the cause that explains K3 and its share, or "" if no share is known."""
    first = leading(document)
    part = "" if first is None else share(first)
    return part and f"{_named(first)}, {part}"


def _named(finding: FindingDocument | None) -> str:
    return "" if finding is None else str(finding["cause"]).replace("_", " ")


def _beside(document: DiagnosisDocument) -> dict[str, list[str]]:
    """Return the other credible findings by status: harmless, accepted, or to be inspected."""
    notes: dict[str, list[str]] = {"normal for this setup": [], "accepted": [], "also found": []}  # in this order
    first = leading(document)
    for finding in document["findings"]:
        name = _named(finding)
        if finding["confidence"] < CREDIBLE or (first is not None and finding["cause"] == first["cause"]):
            continue
        if (accepted := finding["accepted"]) is not None:
            notes["accepted"].append(f"{name} ({accepted['because']})")
        else:
            normal, part = finding["urgency"] == "informational", share(finding)
            word = informational(finding, document) if normal else "also found"
            notes.setdefault(word, []).append(name if normal or not part else f"{name} ({part})")
    return notes


def setting_lines(finding: FindingDocument, document: DiagnosisDocument, standing: Standing) -> list[list[str]]:
    """Return the settings of a remedy: framework, name with value, and text to copy. Without settings, return the
    reason.
    """
    lines = [
        [setting["framework"], f"`{setting['copy']}` {'; '.join(particulars(setting))}", setting["copy"]]
        for setting in settings(finding, standing)
    ]
    why = unnamed(finding, document)
    return [*lines, ["setting", why]] if why else lines


def _remedies(diagnosis: LatestDiagnosis) -> list[list[str]]:
    """Return the remedy of the leading finding, then the advice on a correction or its effect."""
    document, standing = diagnosis.document, diagnosis.standing
    first = leading(document)
    lines = (
        [] if first is None else [[_named(first), remedy(first, standing)], *setting_lines(first, document, standing)]
    )
    advice = advised(document, standing)
    if advice and (document["verdict"] != "healthy" or standing.on):
        lines.append(["correction", advice])
    return lines


def _age(judgement: Judgement, diagnosis: LatestDiagnosis, steps: Sequence[int]) -> str:
    if late := lateness(judgement):
        return late
    behind = sum(step > diagnosis.step for step in steps[-1000:])
    return f"as of step {diagnosis.step:,}, {behind:,} steps ago" if behind > _LATE else ""
