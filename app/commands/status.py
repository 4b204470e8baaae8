"""`logprobe status RUN`: how a run is doing, from its records and from the service. Exit code 2 when a critical alert fires."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final

from logprobe.app import tables
from logprobe.app.arguments import home_path, require_run
from logprobe.app.gaps import measured, raw_sampled
from logprobe.app.runs import runs_of
from logprobe.monitor import identity
from logprobe.monitor.reader import open_reader

_CRITICAL: Final = 2
_MESSAGE: Final = 300  # characters; what went wrong stands in the last column and is to be read to its end


def run(arguments: argparse.Namespace) -> int:
    """Prints the state of one run."""
    with open_reader(home_path(arguments)) as reader:
        document = describe(reader, arguments.name, now=datetime.now(UTC))
    if arguments.json:
        print(tables.dump(document))
    else:
        sys.stdout.write(words(document))
    return _CRITICAL if any(alert["severity"] == "critical" for alert in document["alerts"]) else 0


def describe(reader: Any, run: str, *, now: datetime) -> dict[str, Any]:
    """Everything the command says, as one document. Raises `ConfigurationError` for an unknown run."""
    runs = {known.name: known for known in runs_of(reader.read("app_runs"), now)}
    require_run(run, list(runs))
    facts = runs[run]
    behind = reader.read("cli_behind", run=run).to_pylist()[0]
    service = reader.status()
    return {
        "run": run,
        "state": facts.liveness.state.value,
        "reason": facts.liveness.reason,
        "last_step": facts.last_step,
        "steps": facts.steps,
        "tokens": facts.tokens,
        "sequences": facts.sequences,
        "last_record_at": facts.last_record,
        "measured": next(iter(reader.read("cli_gaps", run=run).to_pylist()), None),
        "on_policy": asdict(
            identity.judge(identity.facts_of(reader.read("slice_identity", run=run, first=None, last=None)))
        ),
        "alerts": _firing(reader, run),
        "alerts_seen_step": _seen_step(reader, run),
        "steps_to_compute": behind["dirty_steps"],
        "quarantined": behind["quarantined"],
        "quarantine_reasons": behind["quarantine_reasons"],
        "problems": reader.read("cli_problems", run=run).to_pylist(),
        "collectors": reader.read("cli_collectors", run=run).to_pylist(),
        "service": {"running": service["running"], "backlog": service.get("backlog"), "jobs": _failing(service)},
    }


def _firing(reader: Any, run: str) -> list[dict[str, Any]]:
    """Alerts that fire, silenced ones included: a silence makes nothing better."""
    rows = reader.read("alert_list", run=run).to_pylist()
    names = ("rule", "slice", "severity", "started_step", "value", "words", "acknowledged_by", "muted")
    return [{name: row[name] for name in names} for row in rows if row["phase"] in {"firing", "recovering"}]


def _seen_step(reader: Any, run: str) -> int | None:
    """The newest step that the alert rules have looked at; None: nobody has, so that nothing fires means nothing."""
    return next((row["cursor"] for row in reader.read("alert_runs").to_pylist() if row["run"] == run), None)


def _failing(service: dict[str, Any]) -> dict[str, str]:
    """Jobs whose failures somebody should look at."""
    found = {
        name: (job["progress"] or {}).get("problem") or job["last_error"]
        for name, job in service.get("jobs", {}).items()
    }
    return {name: error for name, error in found.items() if error}


def words(document: dict[str, Any]) -> str:
    """The document for people."""
    facts = [
        ("run", document["run"]),
        ("state", f"{document['state']}: {document['reason']}"),
        ("last step", document["last_step"]),
        ("recorded", _recorded(document)),
        ("measured", measured(document["measured"]) if document["measured"] else None),
        ("on-policy", "{verdict}: {reason}".format(**document["on_policy"])),
        ("behind", _behind(document)),
        ("quarantined", _quarantined(document)),
    ]
    if document["measured"] and (words_on_raw := raw_sampled(document["measured"])):
        facts.append(("sampling", words_on_raw))
    facts += [("job", f"{name} fails: {error}") for name, error in document["service"]["jobs"].items()]
    lines = [f"{name:<12} {_fact(value)}" for name, value in facts]
    for title, rows in (
        ("alerts", document["alerts"]),
        ("collectors", document["collectors"]),
        ("problems", document["problems"]),
    ):
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


def _none(title: str, document: dict[str, Any]) -> str:
    if title != "alerts":
        return "none reported"
    seen = document["alerts_seen_step"]
    return "the rules have not looked at this run yet" if seen is None else f"none fires, as of step {seen}"


def _fact(value: Any) -> str:
    return tables.harmless(value) if isinstance(value, str) else tables.cell(value)


def _short(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict | list) else value


def _recorded(document: dict[str, Any]) -> str:
    return "{steps:,} steps, {sequences:,} sequences, {tokens:,} tokens under the mask".format(**document)


def _behind(document: dict[str, Any]) -> str:
    dirty = f"{document['steps_to_compute']} steps to compute"
    service = document["service"]
    if not service["running"]:
        return f"{dirty}; no service runs, so what lies in the spool is not seen"
    waiting = service["backlog"]
    return f"{dirty}; {waiting['segments']} segments ({waiting['bytes']:,} bytes) in the spool"


def _quarantined(document: dict[str, Any]) -> str:
    if not document["quarantined"]:
        return "none"
    return f"{document['quarantined']} files ({', '.join(document['quarantine_reasons'])}); see the table quarantine"
