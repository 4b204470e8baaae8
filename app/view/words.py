"""The view of a run in words, in lines that fit the terminal: what is wrong, why, and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from logprobe.alerts.controller.standing import Standing
from logprobe.app.text import tables
from logprobe.app.text.correction import OFF, advice_words, remedy, settings, unnamed
from logprobe.app.text.diagnosis import (
    LAYERS,
    evidence_name,
    extent,
    remembered,
    standing_of,
    unmeasured,
    verdict_line,
)
from logprobe.app.text.judgement import line
from logprobe.app.text.numbers import when
from logprobe.app.view import correction as corrections
from logprobe.app.view import records as recorded
from logprobe.app.view.run_view import RunView
from logprobe.monitor.judging.document import DiagnosisDocument, FindingDocument
from logprobe.monitor.judging.judged import JudgedDocument
from logprobe.monitor.judging.named import in_words

_NAME: Final = 12  # characters of the longest name of a fact
_SHOWN: Final = 5  # of what changed before an incident, the newest


def text(view: RunView) -> str:
    """Return the view for people."""
    judgement = view.judgement
    head = verdict_line(view.diagnosis) if judgement is None else f"{view.run}: {line(judgement)}"
    parts = [
        [tables.paragraph(head, then="  ")],
        facts(_standing(view)),
        *(_findings(view.diagnosis, view.standing)),
        _alerts(view.records),
        _incident(view.incident),
        _correction(view),
        _not_measured(view.diagnosis),
        ["records", *facts(recorded.words(view.records), "  ")],
        *recorded.sections(view.records),
    ]
    return "\n\n".join("\n".join(part) for part in map(list, parts) if part) + "\n"


def of_diagnosis(diagnosis: DiagnosisDocument) -> str:
    """Return the words of a diagnosis alone."""
    parts = [
        [tables.paragraph(verdict_line(diagnosis), then="  ")],
        facts(_diagnosed(diagnosis, OFF)),
        *_findings(diagnosis, OFF),
        _not_measured(diagnosis),
    ]
    return "\n\n".join("\n".join(part) for part in map(list, parts) if part) + "\n"


def facts(pairs: Iterable[tuple[str, object]], indent: str = "") -> list[str]:
    """Return names and values, each from its own line on."""
    return [tables.paragraph(tables.fact(value), first=f"{indent}{name:<{_NAME}} ") for name, value in pairs if value]


def _standing(view: RunView) -> Iterator[tuple[str, str]]:
    yield from _diagnosed(view.diagnosis, view.standing)
    judged = view.records["judged"]
    if view.judgement is not None and judged is not None and not _is_first(judged):
        yield "judged", judged["sentence"] or ""
    yield "run", f"{view.records['state']}: {view.records['reason']}"


def _is_first(judged: JudgedDocument) -> bool:
    """Return whether this diagnosis is the first of the run, so that nothing is late but what waits in the spool."""
    return judged["judged_step"] is None and not judged["spooled_seconds"]


def _diagnosed(diagnosis: DiagnosisDocument, standing: Standing) -> Iterator[tuple[str, str]]:
    why = diagnosis["why_it_grew"]
    yield "layer", LAYERS[diagnosis["layer"]]
    yield "K3", extent(diagnosis)
    yield "setup", remembered(diagnosis)
    yield "why", "" if why is None else why["words"]
    yield "correction", advice_words(diagnosis, standing)


def _findings(diagnosis: DiagnosisDocument, standing: Standing) -> Iterator[list[str]]:
    for number, finding in enumerate(diagnosis["findings"], 1):
        yield list(_finding(number, finding, diagnosis, standing))
    if diagnosis["findings"]:
        rows = [row for finding in diagnosis["findings"] for row in _evidence(finding)]
        yield [tables.fitted(["cause", "evidence", "value"], rows)]


def _finding(number: int, finding: FindingDocument, document: DiagnosisDocument, standing: Standing) -> Iterator[str]:
    layer = finding["layer"].replace("_", " ")
    yield tables.paragraph(f"{finding['cause']} ({layer}; {standing_of(finding, document)})", first=f"{number}. ")
    yield tables.paragraph(finding["explanation"], first="   ")
    yield tables.paragraph(remedy(finding, standing), first="   Fix: ")
    for setting in settings(finding, standing):
        yield tables.paragraph(in_words(setting), first="   Set: ")
    if why := unnamed(finding, document):
        yield tables.paragraph(why, first="   Set: ")


def _evidence(finding: Mapping[str, Any]) -> Iterator[tuple[str, str, object]]:
    measured = {name: value for name, value in finding["evidence"].items() if value is not None}
    for number, (name, value) in enumerate(measured.items()):
        yield ("" if number else finding["cause"], evidence_name(name), value)


def _alerts(records: recorded.RecordsDocument) -> list[str]:
    if not records["alerts"]:
        seen = records["alerts_seen_step"]
        words = "the alerts have not looked at this run yet" if seen is None else f"none fires as of step {seen}"
        return facts([("alerts", words)])
    rows = [
        [row["rule"], row["severity"], row["started_step"], row["acknowledged_by"], row["words"]]
        for row in records["alerts"]
    ]
    return ["alerts", tables.fitted(["rule", "severity", "since", "acknowledged by", "message"], rows)]


def _incident(incident: Mapping[str, Any] | None) -> list[str]:
    """Say when the last incident was, the last good step, and what changed before it."""
    if incident is None:
        return []
    until = "open" if incident["closed_at"] is None else f"closed {when(incident['closed_at'])} UTC"
    named = {"last good step", "done about it"}
    lines = facts(
        [
            ("incident", f"{incident['id']}: opened {when(incident['opened_at'])} UTC, {until}"),
            *((name, words) for name, words in incident["facts"].items() if name in named),
        ]
    )
    rows = [[row["step"], row["what"], row["words"]] for row in incident["changes"][:_SHOWN]]
    return [*lines, *([tables.fitted(["step", "changed before", "change"], rows)] if rows else [])]


def _correction(view: RunView) -> list[str]:
    """Say what became of a correction; nothing where there never was one."""
    if view.standing.from_step is None and not view.correction["stopped"]:
        return []
    return ["correction", *facts(corrections.words(view.correction), "  ")]


def _not_measured(diagnosis: DiagnosisDocument) -> Sequence[str]:
    if not diagnosis["not_measured"]:
        return []
    return [
        "not measured",
        *(tables.paragraph(unmeasured(item), first="  - ") for item in diagnosis["not_measured"]),
    ]
