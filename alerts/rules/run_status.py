"""How a run is doing right now, for the rules that look at no single step: diagnosis, acknowledgements, heartbeats."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypeAlias

from logprobe.alerts.rules.judging.observation import Observation
from logprobe.alerts.rules.present_conditions import OnPresent, Pulse, RunStatus, alarms
from logprobe.alerts.rules.rule import Rule
from logprobe.monitor import queries
from logprobe.monitor.judging.document import DiagnosisDocument, FindingDocument
from logprobe.monitor.judging.leading import leading, share_of
from logprobe.monitor.liveness import Writer
from logprobe.monitor.queries import Source

_MOST: Final = 0.75  # of the gap
_NEVER: Final = (None,)  # the mark of what was not read yet

Fields: TypeAlias = Mapping[str, Any]  # some of those of `Present`
Part: TypeAlias = Callable[[Source, Sequence[str]], Mapping[str, Fields]]  # of each run


class RunStatuses:
    """The present of each run, read again only where it may be another: reading it costs more than all else that a
    quiet second does."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._known: dict[tuple[str, Part], tuple[Hashable, Fields]] = {}

    def of(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, RunStatus]:
        """Those of the runs of `rows`, which are of `alert_runs`."""
        for part, names in _MARKS.items():
            marks = {row["run"]: tuple(row[name] for name in names) for row in rows}
            changed = [run for run, mark in marks.items() if self._known.get((run, part), _NEVER)[0] != mark]
            answers = part(self._source, changed) if changed else {}
            self._known.update({(run, part): (marks[run], answers.get(run, {})) for run in changed})
        return {row["run"]: _status(self._known[row["run"], part][1] for part in _MARKS) for row in rows}


def read(source: Source, run: str) -> RunStatus:
    """The present of a run, from a service or a store."""
    return _status(part(source, [run]).get(run, {}) for part in _MARKS)


def _status(parts: Iterable[Fields]) -> RunStatus:
    return RunStatus(**{name: value for fields in parts for name, value in fields.items()})


def _pulse(source: Source, runs: Sequence[str]) -> dict[str, Fields]:
    rows = queries.alert_pulse(source, runs=list(runs)).to_pylist()
    return {row["run"]: {"pulse": _pulse_of(**row)} for row in rows}


def _pulse_of(*, run: str, rollout_segments: int, writers: Any, **facts: Any) -> Pulse:  # noqa: ARG001 - columns of a row
    return Pulse(rollouts=rollout_segments > 0, writers=[Writer(**writer) for writer in writers or ()], **facts)


def _diagnosis(source: Source, runs: Sequence[str]) -> dict[str, Fields]:
    rows = queries.alert_diagnoses(source, runs=list(runs)).to_pylist()
    return {row["run"]: {**_told(json.loads(row["document"])), "diagnosed": row["step"]} for row in rows}


def _told(document: DiagnosisDocument) -> Fields:
    return {
        "findings": document["findings"],
        "verdict": document["verdict"],
        "since_step": document["since_step"],
        "leading": leading(document),
    }


def _control(source: Source, runs: Sequence[str]) -> dict[str, Fields]:
    rows = queries.controller_read(source, runs=list(runs)).to_pylist()
    return {row["run"]: {"control": json.loads(row["control"])} for row in rows}


# What reads a part of the present, and the columns of `alert_runs` without whose change the part is the same.
_MARKS: Final[Mapping[Part, Sequence[str]]] = {
    _pulse: ("last_arrival", "revision"),
    _diagnosis: ("diagnosed_at",),
    _control: ("controlled_at",),
}


def observe(rules: Sequence[Rule], present: RunStatus, now: datetime) -> dict[str, Observation]:
    """What the rules that look at the present make of it, by rule name."""
    return {rule.name: rule.when.observe(present, now) for rule in rules if isinstance(rule.when, OnPresent)}


def lived_with(present: RunStatus) -> dict[str, str]:
    """Causes that alerts on metrics share, of which people accepted what makes the metric so; and what they said.

    A mean ratio other than 1 is accepted with the semantic findings, all of them; a large gap with findings that make
    most of it.
    """
    accepted = [finding for finding in present.findings or () if finding.get("accepted") is not None]
    semantic = [finding for finding in present.findings or () if finding["layer"] == "semantic"]
    reasons: dict[str, str] = {}
    if semantic and all(not alarms(finding) for finding in semantic) and any(entry in accepted for entry in semantic):
        reasons["diagnosis-semantic"] = _because(semantic)
    if sum(share_of(finding) or 0.0 for finding in accepted) >= _MOST:
        reasons["gap-large"] = _because(accepted)
    return reasons


def _because(findings: Sequence[FindingDocument]) -> str:
    accepted = ((finding["cause"], finding.get("accepted")) for finding in findings)
    reasons = (f"{cause}: {acceptance.get('because') or 'accepted'}" for cause, acceptance in accepted if acceptance)
    return f"accepted: {'; '.join(reasons)}"
