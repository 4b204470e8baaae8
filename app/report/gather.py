"""Reads what a report is made of: of a run as it stands, or of one of its incidents."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from logprobe.alerts.controller.standing import Standing
from logprobe.app.report.incident import BEFORE, CHARTS, Incident, alert_line, newest_first
from logprobe.app.text.diagnosis import verdict_line
from logprobe.monitor import queries, worst
from logprobe.monitor.compare import Place
from logprobe.monitor.compare.history import history
from logprobe.monitor.judgement import FIRING
from logprobe.monitor.judging import culprit
from logprobe.monitor.judging.accepted import accepted
from logprobe.monitor.judging.diagnosing import diagnose
from logprobe.monitor.judging.document import DiagnosisDocument
from logprobe.monitor.judging.growth_rule import K3
from logprobe.monitor.judging.judgement import Growth
from logprobe.monitor.judging.proven import latest

_SEQUENCES: Final = 10
_DEEDS: Final = 10_000  # the newest
_SOON: Final = 5  # steps after the onset in which what came up may still be its cause
_BEFORE_IT: Final = timedelta(hours=1)  # where no step says when to begin
Row = Mapping[str, Any]


def read(place: Place, opened: Row | None = None) -> Incident:
    """Everything that is reported of one run. Raises `QueryError` as the source does.

    Args:
        place: the run.
        opened: row of `incident_show`, to report on that incident; None: the run as it stands.
    """
    source, run = place.source, place.run
    whole = history(place, CHARTS)
    document = _kept(opened)
    if document is None:
        document = diagnose(source, run, accepted=accepted(source, run))
    else:
        whole = replace(whole, growth=Growth.of(document["growth"]))
    gap = whole.trend(K3)
    step = max(gap, key=lambda step: gap[step], default=None)
    sequences = [] if step is None else worst.sequences(source, run, steps=(step, step), count=_SEQUENCES).to_pylist()
    incident = Incident(
        document=document,
        headline=verdict_line(document),
        history=whole,
        current=queries.alert_list(source, run=run).to_pylist(),
        alerts=newest_first(queries.alert_history(source, run=run).to_pylist()),
        actions=newest_first(queries.controller_actions(source, run=run).to_pylist()),
        sequences=sequences,
        step=step,
        experiment=latest(source, run, "bisect"),
        standing=Standing.read(source, run),
        deeds=[row for row in queries.alert_audit(source, run=run, count=_DEEDS).to_pylist() if _about(place, row)],
        events=queries.app_events(source, run=run).to_pylist(),
        proof=culprit.read(source, run, document, whole.steps),
        opened=opened,
    )
    incident = replace(incident, **_before(place, incident.since))
    return incident if opened is None else _of(incident, place, opened)


def _kept(opened: Row | None) -> DiagnosisDocument | None:
    """The diagnosis that an incident holds; None: it holds none."""
    text = None if opened is None else opened["document"]
    document: DiagnosisDocument | None = None if text is None else json.loads(text)
    return document


def _about(place: Place, row: Row) -> bool:
    """Return true if an entry is about the run: its alerts begin with its name, as may other names."""
    subject, run = row["subject"], place.run
    if not (subject == run or subject.startswith(f"{run}/")):
        return False
    longer = (name for name in place.run_names() if len(name) > len(run))
    return not any(subject == name or subject.startswith(f"{name}/") for name in longer)


def _before(place: Place, since: int | None) -> dict[str, Any]:
    """Read what is known of the steps before the onset."""
    if since is None:
        return {}
    source, run = place.source, place.run
    saved = queries.incident_checkpoints(source, run=run, before=since).to_pylist()[0]
    return {
        "configs": queries.incident_configs(source, run=run).to_pylist(),
        "parts": queries.incident_parts(source, run=run, first=since - BEFORE, last=since + _SOON).to_pylist(),
        "saved": saved,
    }


def _of(incident: Incident, place: Place, opened: Row) -> Incident:
    """The report on one incident: what happened from shortly before its onset until it was closed."""
    source = place.source
    begins, ends = _begins(incident, opened), opened["closed_at"]

    def during(row: Row) -> bool:
        time: datetime | None = row["time"]
        return time is None or (time >= begins and (ends is None or time <= ends))

    alerts = [row for row in incident.alerts if during(row)]
    critical = queries.incident_critical(source, incident=opened["id"]).to_pylist()
    if not critical:  # silenced, so that there is no message
        fired = (r["rule"] for r in incident.current if r["severity"] == "critical" and r["phase"] in FIRING)
        critical = [{"rule": rule, "words": ""} for rule in dict.fromkeys(fired)]
    incident = replace(
        incident,
        critical=critical,
        alerts=alerts,
        actions=[row for row in incident.actions if during(row)],
        deeds=[row for row in incident.deeds if during(row)],
    )
    return replace(incident, headline=alert_line(incident)) if incident.by_alert else incident


def _begins(incident: Incident, opened: Row) -> datetime:
    """Return the begin of the account: 50 steps before the onset, or an hour before the incident was opened where that
    has no time."""
    earliest: datetime = opened["opened_at"] - _BEFORE_IT
    if incident.since is None:
        return earliest
    steps = [step for step in incident.history.steps if step >= incident.since - BEFORE]
    return min(earliest, incident.history.at(steps[0]) or earliest) if steps else earliest
