"""`logprobe diagnose RUN [--steps A:B]`: is the run healthy, since which step not, which layer is at fault, what to do.

Exit code 0 whatever the verdict is: it is in the document. The JSON form is public API, one document, unknown is null:

    {"run", "verdict": "healthy|growing|critical|calibrating|no_data", "since_step", "doubling_steps",
     "layer": "semantic|inference_path|objective|none|unknown",
     "findings": [{"cause", "layer", "confidence", "evidence": {…}, "explanation", "fix", "settings": [{…}],
                   "since_step", "share": {…}, "urgency", "vetoes"}],
     "not_measured": [{"what", "why", "how"}],
     "judgement": {"severity", "words", …} of the run as a whole, alerts included; null with --steps,
     "correction": {"advice": "enable|do_not_enable|not_needed", "why"}}
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from logprobe.alerts.controller.standing import Standing
from logprobe.app.parsers.arguments import home_path
from logprobe.app.runs import run_of
from logprobe.app.text import tables
from logprobe.app.text.correction import OFF, advised, in_force, remedy, settings, unnamed
from logprobe.app.text.diagnosis import ADVICE, LAYERS, evidence_name, extent, qualities, remembered, sure, verdict_line
from logprobe.app.text.judgement import as_document, line
from logprobe.collectors.plain_text import harmless
from logprobe.monitor.judgement import Judgement
from logprobe.monitor.judging import Diagnosis, diagnose
from logprobe.monitor.judging.accepted import accepted
from logprobe.monitor.judging.document import DiagnosisDocument, FindingDocument
from logprobe.monitor.judging.leading import in_reading_order
from logprobe.monitor.judging.named import in_words
from logprobe.monitor.reader import open_reader

_WIDEST: Final = 200


def run(arguments: argparse.Namespace) -> int:
    """Prints the diagnosis of one run."""
    with open_reader(home_path(arguments)) as reader:
        as_a_whole = run_of(reader, arguments.name, datetime.now(UTC)).judgement
        diagnosed = diagnose(reader, arguments.name, steps=arguments.steps, accepted=accepted(reader, arguments.name))
        standing = Standing.read(reader, arguments.name)
    judgement = as_a_whole if arguments.steps == (None, None) else None
    diagnosis = diagnosed.document()
    document = diagnosis | {
        "judgement": None if judgement is None else as_document(judgement),
        "correction": in_force(diagnosis, standing),
    }
    tables.show(document, lambda: text(diagnosed, standing, judgement), as_json=arguments.json)
    return 0


def text(diagnosis: Diagnosis, standing: Standing = OFF, judgement: Judgement | None = None) -> str:
    """The diagnosis for people: the verdict first, then the remedies, the cause that leads first, then what they stand
    on."""
    lines = [
        verdict_line(diagnosis.document()),
        *_judged(judgement),
        *(f"{name:<11} {fact}" for name, fact in _facts(diagnosis, standing) if fact),
    ]
    document = diagnosis.document()
    for number, finding in enumerate(in_reading_order(document), 1):
        lines += ["", *_finding(number, finding, document, standing)]
    if diagnosis.findings:
        rows = [row for finding in in_reading_order(document) for row in _evidence(finding)]
        lines += ["", tables.aligned(["cause", "evidence", "value"], rows, widest=_WIDEST)]
    if diagnosis.not_measured:
        lines += ["", "not measured"]
        lines += [f"  - {item.what}: {item.why}; to measure it, {item.how}" for item in diagnosis.not_measured]
    return "\n".join(lines) + "\n"


def _judged(judgement: Judgement | None) -> list[str]:
    """How the run stands, alerts included; nothing where no service has judged it: the diagnosis above is the first."""
    if judgement is None or (judgement.verdict is None and not judgement.alerts):
        return []
    return [f"{'severity':<11} {judgement.severity}: {harmless(line(judgement))}"]


def _facts(diagnosis: Diagnosis, standing: Standing) -> Iterator[tuple[str, str]]:
    document, advice = diagnosis.document(), diagnosis.correction
    yield "layer", LAYERS[diagnosis.layer]
    yield "K3", extent(document, diagnosis.growth)
    yield "setup", harmless(remembered(document))
    yield "why", "" if diagnosis.why_it_grew is None else diagnosis.why_it_grew.words
    sentence = advised(document, standing) or f"{ADVICE[advice.advice]}: {advice.why}"
    yield "correction", sentence
    if standing.on:
        yield "", f"`logprobe mis {harmless(diagnosis.run)}` shows what it did"


def _finding(number: int, finding: FindingDocument, document: DiagnosisDocument, standing: Standing) -> Iterator[str]:
    since = "" if finding["since_step"] is None else f", since step {finding['since_step']}"
    layer = finding["layer"].replace("_", " ")
    stated = "".join(f"; {harmless(words)}" for words in qualities(finding, document))
    sureness = f"{sure(finding['confidence'])}, {finding['confidence']:.0%}"
    yield f"{number}. {finding['cause']} ({layer}; {sureness}{since}{stated})"
    yield f"   {harmless(finding['explanation'])}"
    yield f"   Fix: {harmless(remedy(finding, standing))}"
    for setting in settings(finding, standing):
        yield f"   Set: {harmless(in_words(setting))}"
    if why := unnamed(finding, document):
        yield f"   Set: {why}"


def _evidence(finding: Mapping[str, Any]) -> Iterator[tuple[str, str, object]]:
    measured = {name: value for name, value in finding["evidence"].items() if value is not None}
    for number, (name, value) in enumerate(measured.items()):
        yield ("" if number else finding["cause"], evidence_name(name), value)
