"""The view of a run as parts, in the same order for every rendering.

`terminal` renders them as lines that fit the terminal, `logprobe.app.view.html` as a document,
`logprobe.app.dashboard.told` on a page.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from logprobe.alerts.controller.standing import Standing
from logprobe.app.text import tables
from logprobe.app.text.correction import OFF, advice_words, remedy, settings, unnamed
from logprobe.app.text.diagnosis import (
    LAYERS,
    discarded,
    evidence_name,
    extent,
    outlook,
    pace,
    remembered,
    safe_lag,
    standing_of,
    unmeasured,
    verdict_line,
)
from logprobe.app.text.judgement import line
from logprobe.app.text.numbers import number
from logprobe.app.view import account as accounts
from logprobe.app.view import correction as corrections
from logprobe.app.view import records as recorded
from logprobe.app.view.account import BEFORE, Account
from logprobe.app.view.run_view import RunView
from logprobe.monitor.judging.document import DiagnosisDocument
from logprobe.monitor.judging.judgement import GROWS, Acceptance
from logprobe.monitor.judging.level import compared
from logprobe.monitor.judging.named import in_words

_NAME: Final = 12  # characters of the longest name of a fact
_SHOWN: Final = 5  # rows of what happened in a terminal, the newest
_EVIDENCE: Final = ("cause", "evidence", "value")


@dataclass(frozen=True, slots=True)
class Facts:
    """Names with values. Pairs without a value are omitted."""

    pairs: Sequence[tuple[str, object]]


@dataclass(frozen=True, slots=True)
class Table:
    """A table. `long`: true if a terminal shows only its last rows."""

    head: Sequence[str]
    rows: Sequence[Sequence[Any]]
    caption: str = ""
    long: bool = False


@dataclass(frozen=True, slots=True)
class Points:
    """A list of sentences."""

    lines: Sequence[str]


@dataclass(frozen=True, slots=True)
class Item:
    """A numbered paragraph: a title, then labelled texts. The label "" marks a continuation."""

    number: int
    title: str
    lines: Sequence[tuple[str, str]]


Part = Facts | Table | Points | Item


@dataclass(frozen=True, slots=True)
class Section:
    """Parts under a title, which is "" for the first section."""

    title: str
    parts: Sequence[Part]


def headline(view: RunView) -> str:
    """Return the judgement of a run, or of the requested steps, in one line."""
    return verdict_line(view.diagnosis) if view.judgement is None else f"{view.run}: {line(view.judgement)}"


def of_view(view: RunView) -> Iterator[Section]:
    """Yield the sections about a run."""
    late = "" if view.judgement is None else view.judgement.late
    state = f"{view.records['state']}: {view.records['reason']}"
    soon = outlook(view.diagnosis, view.records["step_seconds"])
    told = [*_diagnosed(view.diagnosis, view.standing), ("outlook", soon), *(_accepted(each) for each in view.accepted)]
    facts = [*told, ("judged", late), ("run", state)]
    yield Section("", [Facts(facts)])
    yield from findings(view.diagnosis, view.standing)
    yield _alerts(view.records)
    if view.account is not None and view.account.opened is not None:
        yield from _told(view.account, f"incident {view.account.opened['id']}")
    if view.standing.control.from_step is not None or view.correction["stopped"]:
        yield Section("correction", [Facts(list(corrections.words(view.correction)))])
    yield from not_measured(view.diagnosis)
    yield from of_records(view.records)


def of_records(records: recorded.RecordsDocument) -> Iterator[Section]:
    """Yield the sections about the records of a run and their faults."""
    listed = [Table(head, rows, title) for title, head, rows in recorded.sections(records)]
    yield Section("records", [Facts(list(recorded.words(records))), *listed])
    lacks = [f"{text}{remedy and f'; to mend it, {remedy}'}" for _, text, remedy in recorded.lacks(records)]
    if lacks:
        yield Section("what the records lack", [Points(lacks)])


def of_account(account: Account) -> Iterator[Section]:
    """Yield the sections about an incident."""
    document, standing = account.document, account.standing
    yield Section("", [Facts([*accounts.facts(account), *_diagnosed(document, standing)])])
    yield from _told(account, "")
    yield from findings(document, standing)
    yield from not_measured(document)


def of_diagnosis(diagnosis: DiagnosisDocument) -> Iterator[Section]:
    """Yield the sections about a diagnosis."""
    yield Section("", [Facts(list(_diagnosed(diagnosis, OFF)))])
    yield from findings(diagnosis, OFF)
    yield from not_measured(diagnosis)


def _accepted(acceptance: Acceptance) -> tuple[str, str]:
    by = "" if acceptance.by is None else f" ({acceptance.by})"
    return "accepted", f"{acceptance.cause} up to K3 {number(acceptance.up_to)}: {acceptance.because}{by}"


def _diagnosed(diagnosis: DiagnosisDocument, standing: Standing) -> Iterator[tuple[str, object]]:
    why, doubles = diagnosis["why_it_grew"], pace(diagnosis)
    yield "layer", LAYERS[diagnosis["layer"]]
    yield "K3", extent(diagnosis) + (doubles and f"; doubles every {doubles}")
    yield "compared with", compared(diagnosis["level"])
    yield "setup", remembered(diagnosis)
    yield "why", why["words"] if why is not None and diagnosis["growth"]["verdict"] in GROWS else ""
    yield "safe lag", safe_lag(diagnosis)
    yield "discarded", discarded(diagnosis)
    yield "correction", advice_words(diagnosis, standing)


def findings(document: DiagnosisDocument, standing: Standing) -> Iterator[Section]:
    """Yield the findings, each with its remedy, and their evidence."""
    parts: list[Part] = []
    for place, finding in enumerate(document["findings"], 1):
        lines = [("", finding["explanation"]), ("Fix", remedy(finding, standing))]
        lines += [("Set", in_words(setting)) for setting in settings(finding, standing)]
        lines += [("Set", why)] if (why := unnamed(finding, document)) else []
        layer = finding["layer"].replace("_", " ")
        parts.append(Item(place, f"{finding['cause']} ({layer}; {standing_of(finding, document)})", lines))
    rows = [row for finding in document["findings"] for row in _evidence(finding)]
    if rows:
        parts.append(Table(_EVIDENCE, rows))
    if parts:
        yield Section("findings", parts)


def _evidence(finding: Mapping[str, Any]) -> Iterator[list[object]]:
    """Yield the numbers of a finding."""
    measured = {name: value for name, value in finding["evidence"].items() if value is not None}
    for place, (name, value) in enumerate(measured.items()):
        yield ["" if place else finding["cause"], evidence_name(name), value]


def _alerts(records: recorded.RecordsDocument) -> Section:
    if not records["alerts"]:
        seen = records["alerts_seen_step"]
        words = "the alerts have not looked at this run yet" if seen is None else f"none fires as of step {seen}"
        return Section("", [Facts([("alerts", words)])])
    columns = ("rule", "severity", "started_step", "acknowledged_by", "words")
    rows = [[alert[name] for name in columns] for alert in records["alerts"]]  # type: ignore[literal-required]
    return Section("alerts", [Table(["rule", "severity", "since", "acknowledged by", "message"], rows)])


def _told(account: Account, title: str) -> Iterator[Section]:
    """Yield the events and the preceding changes. With a title, also yield the dates."""
    if title:
        yield Section(title, [Facts(accounts.facts(account))])
    if rows := accounts.happened(account):
        yield Section("what happened", [Table(["UTC", "step", "what", "words"], rows, long=True)])
    if account.since is None:
        return
    changes = accounts.changes(account)
    nothing = (
        f"No setting, replica or tag changed and nothing restarted, as far as recorded (steps to {account.since:,})."
    )
    parts = [Table(["UTC", "step", "what", "change"], changes, long=True)] if changes else [Points([nothing])]
    yield Section(f"what changed in the {BEFORE} steps before", parts)


def not_measured(diagnosis: DiagnosisDocument) -> Iterator[Section]:
    """Yield the missing inputs of a diagnosis, each with the way to measure it."""
    if diagnosis["not_measured"]:
        yield Section("not measured", [Points(list(map(unmeasured, diagnosis["not_measured"])))])


def terminal(title: str, sections: Iterable[Section]) -> str:
    """Return the parts as text in lines that fit the terminal."""
    blocks = [tables.paragraph(title, then="  ")]
    for section in sections:
        indent = "  " if section.title and not isinstance(section.parts[0], Item | Table) else ""
        blocks += ["\n".join(lines) for lines in _blocks(section, indent)]
    return "\n\n".join(blocks) + "\n"


def _blocks(section: Section, indent: str) -> Iterator[list[str]]:
    title = [section.title] if section.title and not isinstance(section.parts[0], Item) else []
    for place, part in enumerate(section.parts):
        lines = _lines(part, indent)
        if lines:
            yield [*(title if place == 0 else []), *lines]


def _lines(part: Part, indent: str) -> list[str]:
    if isinstance(part, Facts):
        said = [(name, value) for name, value in part.pairs if value]
        return [tables.paragraph(tables.fact(value), first=f"{indent}{name:<{_NAME}} ") for name, value in said]
    if isinstance(part, Points):
        return [tables.paragraph(words, first="  - ") for words in part.lines]
    if isinstance(part, Table):
        rows = part.rows[-_SHOWN:] if part.long else part.rows
        more = f"the newest {_SHOWN} of {len(part.rows)}" if len(rows) < len(part.rows) else part.caption
        return [*([more] if more else []), tables.fitted(part.head, rows)]
    titled = [tables.paragraph(part.title, first=f"{part.number}. ")]
    return [*titled, *(tables.paragraph(words, first=f"   {label}{label and ': '}") for label, words in part.lines)]
