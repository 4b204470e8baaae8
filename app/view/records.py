"""Records of a run (stored, lost or pending), and the state of the service."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, NotRequired, TypedDict

from logprobe.app.runs import run_of
from logprobe.app.text import gaps, nodes
from logprobe.app.text.lost_records import (
    SPOOL_REMEDY,
    about_event,
    dropped,
    gone,
    reused,
    unannounced,
    waiting_segments,
)
from logprobe.monitor import queries
from logprobe.monitor.judgement import FIRING, JUDGEMENT, Judgement
from logprobe.monitor.judging import bit_equality
from logprobe.monitor.service.status import Backlog, Status, StuckFile

_LEVELS: Final = ("problem", "note", "ok")
_COLLECTOR: Final = ("writer", "component", "closed", "last_sign", "tokens")  # what fits a terminal


class Firing(TypedDict):
    """A firing alert."""

    rule: str
    severity: str
    started_step: int | None
    value: float | None
    words: str
    acknowledged_by: str | None
    muted: str | None


class ServiceState(TypedDict):
    """State of the service, its backlog (None without a service), and its failing jobs with their errors."""

    running: bool
    backlog: Backlog | None
    jobs: dict[str, str]


class RecordsDocument(TypedDict):
    """JSON form of the command's answer. Unknown and missing values are None."""

    run: str
    state: str
    reason: str
    judgement: Judgement
    last_step: int | None
    steps: int
    tokens: int
    sequences: int
    last_record_at: datetime | None
    step_seconds: float | None
    measured: queries.CliGaps | None
    sent: queries.CliSent
    attempts: queries.CliAttempts | None
    bit_equality: Mapping[str, object]
    alerts: list[Firing]
    alerts_seen_step: int | None  # None: the alerts have not looked, so that no firing one means nothing
    kept: queries.FreezeSpan
    sudden_ends: list[queries.CliEnds]
    name_clashes: list[queries.CliNameClashes]
    stray_marks: list[queries.CliStrayMarks]
    version_conflicts: list[queries.VersionConflicts]
    quarantined: int
    quarantine_reasons: list[str]
    problems: list[queries.CliProblems]
    collectors: list[queries.CliCollectors]
    nodes: list[queries.NodesOf]
    stuck: list[StuckFile] | None
    service: ServiceState
    gone: NotRequired[str | None]


def describe(reader: Any, run: str, *, now: datetime) -> RecordsDocument:
    """Return the records of a run as one document. Raises `ConfigurationError` for an unknown run."""
    facts = run_of(reader, run, now)
    aside = queries.quarantine_list(reader, run=run)
    service = reader.status()
    alerts = queries.alert_list(reader, run=run).to_pylist()
    complete = bit_equality.complete_until(now, ended=facts.liveness.state.over)
    equal = bit_equality.read(reader, [run], until=complete)[run]
    return {
        "run": run,
        "state": facts.liveness.state.value,
        "reason": facts.liveness.reason,
        "judgement": facts.judgement,
        "last_step": facts.last_step,
        "steps": facts.steps,
        "tokens": facts.tokens,
        "sequences": facts.sequences,
        "last_record_at": facts.last_record,
        "step_seconds": facts.step_seconds,
        "measured": next(iter(queries.cli_gaps(reader, run=run).to_pylist()), None),
        "sent": queries.cli_sent(reader, run=run).to_pylist()[0],
        "attempts": next(iter(queries.cli_attempts(reader, run=run).to_pylist()), None),
        "bit_equality": asdict(bit_equality.explained(reader, run, equal)),
        "alerts": _firing(alerts),
        "alerts_seen_step": next((row["step"] for row in alerts if row["rule"] == JUDGEMENT), None),
        "kept": queries.freeze_span(reader, run=run, first=None, last=None).to_pylist()[0],
        "sudden_ends": queries.cli_ends(reader, run=run, now=now, silent=gaps.SILENT_SECONDS).to_pylist(),
        "name_clashes": queries.cli_name_clashes(reader, run=run).to_pylist(),
        "stray_marks": queries.cli_stray_marks(reader, run=run).to_pylist(),
        "version_conflicts": queries.version_conflicts(reader, run=run, first=None, last=None).to_pylist(),
        "quarantined": aside.num_rows,
        "quarantine_reasons": sorted(set(aside["reason"].to_pylist())),
        "problems": queries.cli_problems(reader, run=run).to_pylist(),
        "collectors": queries.cli_collectors(reader, run=run).to_pylist(),
        "nodes": queries.nodes_of(reader, run=run, now=now).to_pylist(),
        "stuck": _stuck(service, run),
        "service": {"running": service["running"], "backlog": service.get("backlog"), "jobs": _failing(service)},
    }


def read(reader: Any, home: Path, run: str, *, now: datetime) -> RecordsDocument:
    """Return `describe` with the segments that are missing from the spool of `home`."""
    document = describe(reader, run, now=now)
    missing = gone(document["sent"], waiting_segments(home, run), document["quarantined"])
    return {**document, "gone": None if missing is None else missing[0]}


def _firing(alerts: Sequence[Mapping[str, Any]]) -> list[Firing]:
    """Return the firing alerts, including silenced ones."""
    firing: Any = [{name: row[name] for name in Firing.__annotations__} for row in alerts if row["phase"] in FIRING]
    return list[Firing](firing)


def _stuck(service: Status, run: str) -> list[StuckFile] | None:
    """Return unreadable files and folders in the spool, of this run or of unknown runs, or None without a service."""
    if "stuck" not in service:
        return None
    return [file for file in service["stuck"]["files"] if file["run"] in {None, run}]


def _failing(service: Status) -> dict[str, str]:
    """Return failing jobs with their error."""
    errors = {
        name: job["progress"].get("problem") or job["last_error"] for name, job in service.get("jobs", {}).items()
    }
    return {name: error for name, error in errors.items() if error}


def words(document: RecordsDocument) -> Iterator[tuple[str, object]]:
    """Yield recorded and pending amounts as names and texts. `lacks` has the missing inputs."""
    yield "last step", document["last_step"]
    yield "recorded", _recorded(document)
    yield "sent", gaps.sent(document["sent"]) or "unknown: none of its collectors has reported"
    yield "measured", gaps.measured(document["measured"]) if document["measured"] else None
    equal = document["bit_equality"]
    yield "bit-equal", bit_equality.in_words(str(equal["verdict"]), str(equal["reason"]))
    yield "kept", _kept(document["kept"])
    yield "behind", _behind(document)
    yield "quarantined", _quarantined(document)


class Lack(NamedTuple):
    """A missing input or a peculiarity of records. `remedy`: action to take, or "" if none is needed."""

    level: Literal["problem", "note", "ok"]
    text: str
    remedy: str


def lacks(document: RecordsDocument) -> list[Lack]:
    """Return the missing inputs and faults of a run's records, problems first."""
    return sorted(_lacks(document), key=lambda lack: _LEVELS.index(lack.level))


def _lacks(document: RecordsDocument) -> Iterator[Lack]:
    if (measured_now := document["measured"]) is None:
        yield Lack("note", "nothing was ingested yet", "")
    else:
        yield from (Lack("problem", *fault) for fault in gaps.faults_of(measured_now))
        yield from (Lack("note", *gap) for gap in gaps.gaps_of(measured_now))
        said = (gaps.raw_sampled(measured_now), gaps.joined_by_tokens(measured_now))
        yield from (Lack("ok", words, "") for words in said if words)
    if document["attempts"] is not None:
        if words := gaps.attempts(document["attempts"]):
            yield Lack("problem", words, gaps.ATTEMPTS_REMEDY)
        if words := gaps.attempts_aside(document["attempts"]):
            yield Lack("ok", words, "")
    for end in document["sudden_ends"]:
        level: Literal["problem", "note"] = "problem" if end["sequences"] or end["absent_steps"] else "note"
        yield Lack(level, gaps.sudden_end(end), gaps.end_remedy(end))
    if missing := document.get("gone"):
        yield Lack("problem", missing, SPOOL_REMEDY)
    yield from (Lack("problem", *loss) for loss in dropped(document["problems"]))
    yield from (Lack("problem", *loss) for loss in unannounced(document["problems"]))
    for clash in document["name_clashes"]:
        yield from (Lack("problem", *each) for each in gaps.name_clashes(clash))
        if words := reused(clash):
            yield Lack("note", words, "")
    yield from (Lack("problem", gaps.stray_mark(row), gaps.STRAY_REMEDY) for row in document["stray_marks"])
    differing = (row for row in document["version_conflicts"] if row["differing"])
    yield from (Lack("problem", gaps.version_conflict(row), gaps.VERSION_REMEDY) for row in differing)
    yield from (
        Lack("problem", f"job {name} fails: {error}", "") for name, error in document["service"]["jobs"].items()
    )


def sections(document: RecordsDocument) -> Iterator[tuple[str, list[str], list[list[object]]]]:
    """Yield title, head and rows of the tables of collectors, nodes, problems and unreadable files that have rows."""
    collectors: Sequence[Mapping[str, object]] = document["collectors"]
    parts: Sequence[tuple[str, Sequence[Mapping[str, object]]]] = (
        ("collectors", [{name: row[name] for name in _COLLECTOR} for row in collectors]),
        ("nodes", [_node(row) for row in document["nodes"]]),
        ("problems", [_problem(row) for row in document["problems"]]),
        ("stuck in the spool", document["stuck"] or []),
    )
    for title, rows in parts:
        if rows:
            yield title, list(rows[0]), [[_short(value) for value in row.values()] for row in rows]


def _problem(row: queries.CliProblems) -> dict[str, object]:
    counts = {"sequences": row["sequences_lost"], "tokens": row["tokens_lost"]}
    lost = [f"{count:,} {what}" for what, count in counts.items() if count]
    return {
        "problem": f"{row['event'].replace('_', ' ')} ({row['component'] or 'unknown'})",
        "times": row["times"],
        "last": row["last_at"],
        "lost": ", ".join(lost) or "nothing",
        "message": row["message"],
        "what to do": about_event(row["event"]),
    }


def _node(row: queries.NodesOf) -> dict[str, object]:
    return {
        "node": row["node"],
        "behind": nodes.behind(row),
        "clock": nodes.clock(row),
        "version": row["version"],
        "problem": row["problem"],
    }


def _short(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict | list) else value


def _recorded(document: RecordsDocument) -> str:
    return "{steps:,} steps, {sequences:,} sequences, {tokens:,} tokens under the mask".format(**document)


def _kept(kept: queries.FreezeSpan) -> str:
    if not kept["frozen"]:
        return "all sequences of every step"
    return "metrics of every step; no sequences of {frozen:,} frozen steps ({first_frozen} to {last_frozen})".format(
        **kept
    )


def _behind(document: RecordsDocument) -> str:
    waiting = document["service"]["backlog"]
    if waiting is None:
        return "no service is running, so the spool is not counted"
    return f"{waiting['segments']} segments ({waiting['bytes']:,} bytes) in the spool"


def _quarantined(document: RecordsDocument) -> str:
    if not document["quarantined"]:
        return "none"
    return f"{document['quarantined']} files ({', '.join(document['quarantine_reasons'])}); see `logprobe store quarantine`"
