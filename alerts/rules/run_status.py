"""How a run is doing right now, for the rules that look at no single step: diagnosis, acknowledgements, heartbeats."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeAlias

from logprobe.alerts.liveness import Writer
from logprobe.alerts.rules.judging import deadman
from logprobe.alerts.rules.judging.deadman import Pulse
from logprobe.alerts.rules.judging.observation import Observation
from logprobe.alerts.rules.rule import DeadMan, Diagnosed, Doubled, Rule, Unacknowledged
from logprobe.monitor.analysis.slices import Source
from logprobe.monitor.diagnosis.leading import leading
from logprobe.monitor.diagnosis.named import told
from logprobe.monitor.diagnosis.result import Verdict

_MOST: Final = 0.75  # of the gap
_NEVER: Final = (None,)  # the mark of what was not read yet

Fields: TypeAlias = Mapping[str, Any]  # some of those of `Present`
Part: TypeAlias = Callable[[Source, Sequence[str]], Mapping[str, Fields]]  # of each run


@dataclass(frozen=True, slots=True)
class RunStatus:
    """What is known of a run apart from its steps.

    Attributes:
        pulse: its heartbeats.
        findings: of the newest diagnosis, as `Finding.document` has them; None: there was none yet.
        diagnosed: newest step that the diagnosis has seen; None: there was none yet.
        control: what the correction's controller remembers of the run; None: nothing.
        verdict: of the newest diagnosis.
        leading: its finding that people read first; None: none alarms.
        since_step: where the trouble began, as it says; None: not known.
    """

    pulse: Pulse
    findings: Sequence[Mapping[str, Any]] | None = None
    control: Mapping[str, Any] | None = None
    diagnosed: int | None = None
    verdict: Verdict | None = None
    leading: Mapping[str, Any] | None = None
    since_step: int | None = None


class RunStatuses:
    """The present of each run, read again only where it may be another: reading it costs more than all else that a quiet second does."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._known: dict[tuple[str, Part], tuple[Hashable, Fields]] = {}

    def of(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, RunStatus]:
        """Those of the runs of `rows`, which are of `alert_runs`."""
        for part, names in _MARKS.items():
            marks = {row["run"]: tuple(row[name] for name in names) for row in rows}
            changed = [run for run, mark in marks.items() if self._known.get((run, part), _NEVER)[0] != mark]
            found = part(self._source, changed) if changed else {}
            self._known.update({(run, part): (marks[run], found.get(run, {})) for run in changed})
        return {row["run"]: _status(self._known[row["run"], part][1] for part in _MARKS) for row in rows}


def read(source: Source, run: str) -> RunStatus:
    """The present of a run, from a service or a store."""
    return _status(part(source, [run]).get(run, {}) for part in _MARKS)


def _status(parts: Iterable[Fields]) -> RunStatus:
    return RunStatus(**{name: value for fields in parts for name, value in fields.items()})


def _pulse(source: Source, runs: Sequence[str]) -> dict[str, Fields]:
    rows = {row.pop("run"): row for row in source.read("alert_pulse", runs=list(runs)).to_pylist()}
    return {run: {"pulse": _pulse_of(row)} for run, row in rows.items()}


def _pulse_of(row: dict[str, Any]) -> Pulse:
    row["rollouts"] = row.pop("rollout_segments") > 0
    return Pulse(**{**row, "writers": [Writer(**writer) for writer in row["writers"] or ()]})


def _diagnosis(source: Source, runs: Sequence[str]) -> dict[str, Fields]:
    rows = source.read("alert_diagnoses", runs=list(runs)).to_pylist()
    return {row["run"]: {**_told(json.loads(row["document"])), "diagnosed": row["step"]} for row in rows}


def _told(document: Mapping[str, Any]) -> Fields:
    same = {name: document[name] for name in ("findings", "verdict", "since_step")}
    return {**same, "leading": leading(document)}


def _control(source: Source, runs: Sequence[str]) -> dict[str, Fields]:
    rows = source.read("controller_read", runs=list(runs)).to_pylist()
    return {row["run"]: {"control": json.loads(row["control"])} for row in rows}


# What reads a part of the present, and the columns of `alert_runs` without whose change the part is the same.
_MARKS: Final[Mapping[Part, Sequence[str]]] = {
    _pulse: ("last_arrival", "revision"),
    _diagnosis: ("diagnosed_at",),
    _control: ("controlled_at",),
}


def observe(rules: Sequence[Rule], present: RunStatus, now: datetime) -> dict[str, Observation]:
    """What the rules that look at the present make of it, by rule name."""
    observations = {rule.name: _observe(rule, present, now) for rule in rules}
    return {name: observation for name, observation in observations.items() if observation is not None}


def _observe(rule: Rule, present: RunStatus, now: datetime) -> Observation | None:
    if isinstance(rule.when, DeadMan):
        return deadman.observe(rule.when, present.pulse, now)
    if isinstance(rule.when, Diagnosed):
        return _verdict(rule.when, present) if rule.when.verdicts else _diagnosed(rule.when, present.findings)
    if isinstance(rule.when, Unacknowledged):
        return _unacknowledged(present.control)
    if isinstance(rule.when, Doubled):
        return _doubled(present.pulse)
    return None


def _doubled(pulse: Pulse) -> Observation:
    if not pulse.doubled:
        return Observation("good", "no sequence is in the store twice")
    since = "" if pulse.doubled_since is None else f", from step {pulse.doubled_since} on"
    words = f"{pulse.doubled:,} sequences are in the store twice and count twice{since}"
    return Observation("bad", words, float(pulse.doubled), "sequences", since_step=pulse.doubled_since)


def _diagnosed(when: Diagnosed, findings: Sequence[Mapping[str, Any]] | None) -> Observation:
    if findings is None:
        return Observation("missing", "the run has not been diagnosed yet")
    meant = [finding for finding in findings if finding["cause"] in when.causes or finding["layer"] in when.layers]
    sure = [finding for finding in meant if finding["confidence"] >= when.confidence and _alarms(finding)]
    if not sure:
        return Observation("good", "the diagnosis found no such cause, or only expected ones")
    worst = max(sure, key=lambda finding: float(finding["confidence"]))
    return Observation(
        "bad",
        worst["explanation"],
        since_step=worst["since_step"],
        cause=worst["cause"],
        layer=worst["layer"],
        fix=told(worst),
    )


def _verdict(when: Diagnosed, present: RunStatus) -> Observation:
    if present.verdict is None:
        return Observation("missing", "the run has not been diagnosed yet")
    if present.verdict not in when.verdicts:
        return Observation("good", f"the verdict is {present.verdict.replace('_', ' ')}")
    first = present.leading
    if first is None:
        return Observation("bad", "no finding explains it", since_step=present.since_step)
    return Observation(
        "bad",
        first["explanation"],
        since_step=present.since_step,
        cause=first["cause"],
        layer=first["layer"],
        fix=told(first),
    )


def _alarms(finding: Mapping[str, Any]) -> bool:
    """Whether anybody has to know: what is as expected, or accepted, is on its page."""
    return finding.get("urgency") != "informational" and finding.get("accepted") is None


def lived_with(present: RunStatus) -> dict[str, str]:
    """Causes that alerts on metrics share, of which people accepted what makes the metric so; and what they said.

    A mean ratio other than 1 is accepted with the semantic findings, all of them; a large gap with findings that make most of it.
    """
    accepted = [finding for finding in present.findings or () if finding.get("accepted") is not None]
    semantic = [finding for finding in present.findings or () if finding["layer"] == "semantic"]
    known: dict[str, str] = {}
    if semantic and all(not _alarms(finding) for finding in semantic) and any(each in accepted for each in semantic):
        known["diagnosis-semantic"] = _because(semantic)
    if sum((finding.get("share") or {}).get("now") or 0.0 for finding in accepted) >= _MOST:
        known["gap-large"] = _because(accepted)
    return known


def _because(findings: Sequence[Mapping[str, Any]]) -> str:
    said = (f"{f['cause']}: {f['accepted'].get('because') or 'accepted'}" for f in findings if f.get("accepted"))
    return f"accepted: {'; '.join(said)}"


def _unacknowledged(control: Mapping[str, Any] | None) -> Observation:
    if control is None:
        return Observation("missing", "no correction was ever switched on")
    if control.get("phase") == "issued" and control.get("ack_missed"):
        return Observation("bad", f"the correction from step {control.get('from_step')} on is not acknowledged")
    return Observation("good", "no correction is waiting for an acknowledgement")
