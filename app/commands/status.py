"""`logprobe status [RUN]`: how a run is doing, from its records and from the service. Exit code 2 when its severity is
critical.

Without RUN: the runs there are, as `logprobe runs` lists them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NotRequired, TypedDict

from logprobe.app.commands import runs
from logprobe.app.parsers.arguments import home_path
from logprobe.app.runs import run_of
from logprobe.app.text import nodes, tables
from logprobe.app.text.files import store_of
from logprobe.app.text.gaps import (
    SILENT_SECONDS,
    attempts,
    attempts_aside,
    doubled,
    joined_by_tokens,
    measured,
    name_clashes,
    raw_sampled,
    sent,
    stray_mark,
    sudden_end,
    version_conflict,
)
from logprobe.app.text.judgement import as_document
from logprobe.app.text.lost_records import dropped, gone, reused, waiting_segments
from logprobe.monitor import queries
from logprobe.monitor.analysis import identity
from logprobe.monitor.judgement import FIRING, JUDGEMENT
from logprobe.monitor.judging.judged import JudgedDocument, judged_as_of
from logprobe.monitor.reader import open_reader
from logprobe.monitor.service.status import Backlog, Status, StuckFile

_CRITICAL: Final = 2
_MESSAGE: Final = 300  # characters; what went wrong is in the last column and is to be read to its end


def run(arguments: argparse.Namespace) -> int:
    """Prints the state of one run, or which runs there are."""
    home = Path(home_path(arguments))
    with open_reader(home) as reader:
        if arguments.name is None:
            runs.show(runs.lines_of(reader), as_json=arguments.json)
            return 0
        document = describe(reader, arguments.name, now=datetime.now(UTC))
    missing = gone(document["sent"], waiting_segments(home, arguments.name), document["quarantined"])
    document["gone"] = None if missing is None else missing[0]
    tables.show(document, lambda: words(document), as_json=arguments.json)
    return _CRITICAL if document["judgement"]["severity"] == "critical" else 0


class Firing(TypedDict):
    """An alert that fires."""

    rule: str
    severity: str
    started_step: int | None
    value: float | None
    words: str
    acknowledged_by: str | None
    muted: str | None


class ServiceState(TypedDict):
    """Whether a service runs, what waits for it (None: no service looks), and the jobs that fail, with why."""

    running: bool
    backlog: Backlog | None
    jobs: dict[str, str]


class StatusDocument(TypedDict):
    """Everything that the command says of a run; what is None is not known, or there is none."""

    run: str
    state: str
    reason: str
    judgement: Mapping[str, object]
    last_step: int | None
    steps: int
    tokens: int
    sequences: int
    last_record_at: datetime | None
    measured: queries.CliGaps | None
    sent: queries.CliSent
    doubled: queries.CliDoubled | None
    attempts: queries.CliAttempts | None
    on_policy: Mapping[str, object]
    alerts: list[Firing]
    alerts_seen_step: int | None
    judged: JudgedDocument | None
    kept: queries.FoldKept
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
    raw: Mapping[str, Any]  # a row of `cli_raw`
    store: Mapping[str, Any]
    service: ServiceState
    gone: NotRequired[str | None]


def describe(reader: Any, run: str, *, now: datetime) -> StatusDocument:
    """Everything the command says, as one document. Raises `ConfigurationError` for an unknown run."""
    facts = run_of(reader, run, now)
    behind = queries.cli_behind(reader, run=run).to_pylist()[0]
    service = reader.status()
    judged = judged_as_of(reader, run)
    return {
        "run": run,
        "state": facts.liveness.state.value,
        "reason": facts.liveness.reason,
        "judgement": as_document(facts.judgement),
        "last_step": facts.last_step,
        "steps": facts.steps,
        "tokens": facts.tokens,
        "sequences": facts.sequences,
        "last_record_at": facts.last_record,
        "measured": next(iter(queries.cli_gaps(reader, run=run).to_pylist()), None),
        "sent": queries.cli_sent(reader, run=run).to_pylist()[0],
        "doubled": next(iter(queries.cli_doubled(reader, run=run).to_pylist()), None),
        "attempts": next(iter(queries.cli_attempts(reader, run=run).to_pylist()), None),
        "on_policy": asdict(
            identity.judge(identity.facts_of(queries.slice_identity(reader, runs=[run], first=[None], last=[None])))
        ),
        "alerts": _firing(reader, run),
        "alerts_seen_step": _seen_step(reader, run),
        "judged": None if judged is None else judged.document(),
        "kept": queries.fold_kept(reader, run=run, first=None, last=None).to_pylist()[0],
        "sudden_ends": queries.cli_ends(reader, run=run, now=now, silent=SILENT_SECONDS).to_pylist(),
        "name_clashes": queries.cli_name_clashes(reader, run=run).to_pylist(),
        "stray_marks": queries.cli_stray_marks(reader, run=run).to_pylist(),
        "version_conflicts": queries.version_conflicts(reader, run=run, first=None, last=None).to_pylist(),
        "quarantined": behind["quarantined"],
        "quarantine_reasons": behind["quarantine_reasons"],
        "problems": queries.cli_problems(reader, run=run).to_pylist(),
        "collectors": queries.cli_collectors(reader, run=run).to_pylist(),
        "nodes": queries.nodes_of(reader, run=run, now=now).to_pylist(),
        "stuck": _stuck(service, run),
        "raw": queries.cli_raw(reader, run=run).to_pylist()[0],
        "store": _progress(service, "store_budget"),
        "service": {"running": service["running"], "backlog": service.get("backlog"), "jobs": _failing(service)},
    }


def _firing(reader: queries.Source, run: str) -> list[Firing]:
    """Alerts that fire, silenced ones included: a silence makes nothing better."""
    rows = queries.alert_list(reader, run=run).to_pylist()
    return [
        {
            "rule": row["rule"],
            "severity": row["severity"],
            "started_step": row["started_step"],
            "value": row["value"],
            "words": row["words"],
            "acknowledged_by": row["acknowledged_by"],
            "muted": row["muted"],
        }
        for row in rows
        if row["phase"] in FIRING
    ]


def _seen_step(reader: queries.Source, run: str) -> int | None:
    """The newest step that the alerts have looked at; None: no one has, so that nothing fires means nothing."""
    rows = queries.alert_list(reader, run=run).to_pylist()
    return next((row["step"] for row in rows if row["rule"] == JUDGEMENT), None)


def _stuck(service: Status, run: str) -> list[StuckFile] | None:
    """Files and folders in the spool that cannot be read now, of this run or of none; None: no service looks."""
    if "stuck" not in service:
        return None
    return [file for file in service["stuck"]["files"] if file["run"] in {None, run}]


def _progress(service: Status, name: str) -> Mapping[str, Any]:
    """What a job did last; empty without a service, or before its first run."""
    job = service.get("jobs", {}).get(name)
    return {} if job is None else job["progress"]


def _failing(service: Status) -> dict[str, str]:
    """Jobs whose failures someone should look at."""
    errors = {
        name: job["progress"].get("problem") or job["last_error"] for name, job in service.get("jobs", {}).items()
    }
    return {name: error for name, error in errors.items() if error}


def words(document: StatusDocument) -> str:
    """The document for people."""
    facts = [
        ("run", document["run"]),
        ("severity", "{severity}: {words}".format(**document["judgement"])),
        ("state", f"{document['state']}: {document['reason']}"),
        ("last step", document["last_step"]),
        ("recorded", _recorded(document)),
        ("sent", sent(document["sent"]) or "unknown: none of its collectors has reported"),
        ("measured", measured(document["measured"]) if document["measured"] else None),
        ("on-policy", "{verdict}: {reason}".format(**document["on_policy"])),
        ("kept", _kept(document["kept"])),
        *([("judged", _judged(document["judged"]))] if document["judged"] else []),
        *([("store", store_of(document["store"]))] if document["service"]["running"] else []),
        ("behind", _behind(document)),
        ("quarantined", _quarantined(document)),
    ]
    if document["doubled"]:
        facts.append(("doubled", doubled(document["doubled"])))
    if document["attempts"]:
        facts += [("attempts", text) for say in (attempts, attempts_aside) if (text := say(document["attempts"]))]
    if document["measured"] and (words_on_raw := raw_sampled(document["measured"])):
        facts.append(("sampling", words_on_raw))
    if document["measured"] and (by_tokens := joined_by_tokens(document["measured"])):
        facts.append(("joined", by_tokens))
    if document["measured"] and document["measured"]["ambiguous"]:
        facts.append(
            ("not joined", f"{document['measured']['ambiguous']:,} sequences, whose tokens fit several records")
        )
    facts += [("ended", sudden_end(row)) for row in document["sudden_ends"]]
    if document.get("gone"):
        facts.append(("lost", document["gone"]))
    facts += [("lost", text) for text, _ in dropped(document["problems"])]
    facts += [("sample ids", text) for row in document["name_clashes"] if (text := reused(row))]
    facts += [("sample ids", text) for row in document["name_clashes"] for text, _ in name_clashes(row)]
    facts += [("marks", stray_mark(row)) for row in document["stray_marks"]]
    facts += [("versions", version_conflict(row)) for row in document["version_conflicts"] if row["differing"]]
    facts += [("job", f"{name} fails: {error}") for name, error in document["service"]["jobs"].items()]
    lines = [f"{name:<12} {tables.fact(value)}" for name, value in facts]
    sections: Sequence[tuple[str, Sequence[Mapping[str, object]]]] = (
        ("alerts", document["alerts"]),
        ("collectors", document["collectors"]),
        *([("nodes", [_node(row) for row in document["nodes"]])] if document["nodes"] else []),
        ("problems", document["problems"]),
        ("stuck", document["stuck"] or []),
    )
    for title, rows in sections:
        if rows:
            lines += [
                "",
                title,
                tables.aligned(
                    list(rows[0]), [[_short(value) for value in row.values()] for row in rows], widest=_MESSAGE
                ),
            ]
        else:
            lines += [f"{title:<12} {_none(title, document)}"]
    return "\n".join(lines) + "\n"


def _node(row: queries.NodesOf) -> dict[str, object]:
    return {
        "node": row["node"],
        "behind": nodes.behind(row),
        "clock": nodes.clock(row),
        "version": row["version"],
        "problem": row["problem"],
    }


def _none(title: str, document: StatusDocument) -> str:
    if title == "stuck":
        return "unknown, no service is running" if document["stuck"] is None else "no file in the spool"
    if title != "alerts":
        return "none reported"
    seen = document["alerts_seen_step"]
    return "the alerts have not looked at this run yet" if seen is None else f"no alerts firing as of step {seen}"


def _short(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict | list) else value


def _recorded(document: StatusDocument) -> str:
    return "{steps:,} steps, {sequences:,} sequences, {tokens:,} tokens under the mask".format(**document)


def _kept(kept: queries.FoldKept) -> str:
    if not kept["folded"]:
        return "all sequences of every step"
    sample = (
        "no sequences"
        if not kept["sampled"]
        else "{sampled:,} sequences from step {sampled_from} on, as a sample".format(**kept)
    )
    return (
        "metrics of every step; of {folded:,} folded steps ({first_folded} to {last_folded}) sums and {sample}".format(
            **kept, sample=sample
        )
    )


def _behind(document: StatusDocument) -> str:
    waiting = document["service"]["backlog"]
    if waiting is None:
        return "no service is running, so the spool is not counted"
    return f"{waiting['segments']} segments ({waiting['bytes']:,} bytes) in the spool"


def _judged(judged: JudgedDocument) -> str:
    if judged["sentence"] is not None:
        return judged["sentence"]
    return "not yet" if judged["judged_step"] is None else f"as of step {judged['judged_step']}"


def _quarantined(document: StatusDocument) -> str:
    if not document["quarantined"]:
        return "none"
    return (
        f"{document['quarantined']} files ({', '.join(document['quarantine_reasons'])}); see `logprobe quarantine list`"
    )
