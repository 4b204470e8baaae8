"""The Data page as blocks: what is stored of which run, what is missing, lost or set aside, and who is at work. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from logprobe.app.dashboard.pages.bar import ingest_lag
from logprobe.app.dashboard.pages.blocks import Block, facts, heading, row, table, text
from logprobe.app.dashboard.pages.data_words import about_file, counted, when
from logprobe.app.numbers import data_size, duration, number
from logprobe.app.runs import Run
from logprobe.app.tables import harmless

Row = Mapping[str, Any]

_RUNS: Final = ("run", "state", "steps", "trained on", "recorded", "on disk", "lost or set aside")
_JOBS: Final = ("job", "last run", "runs", "what it did last")
_FILES: Final = ("file", "of run", "what happened", "what to do", "moved aside")
_KEPT: Final = ("run", "tokens can be read", "of steps", "on disk", "since")
_QUIET: Final = frozenset({"seconds", "problems", "max_bytes", "max_run_bytes", "max_age_seconds"})  # said elsewhere


@dataclass(frozen=True)
class Stored:
    """What is known of the home's store: rows of the queries `app_data_runs`, `…_kept`, `…_quarantine` and `…_store`."""

    runs: Sequence[Row]
    kept: Sequence[Row]
    quarantine: Sequence[Row]
    store: Row


def ingest_blocks(status: Row, stored: Stored, room: str) -> list[Block]:
    """How far the store is behind what was recorded. `status`: of the service; `room`: what there is on the disk."""
    dirty = sum(each["dirty_steps"] for each in stored.runs)
    service = (
        "does not run" if not status.get("running") else f"process {status['pid']}, since {when(status['started'])}"
    )
    wal = stored.store["wal_size"]
    return [
        facts(
            [
                ("waiting in the spool", _waiting(status.get("backlog"))),
                ("lag of ingest", ingest_lag(status) or "–"),
                ("steps to compute", f"{dirty:,}"),
                ("service", service),
                ("store", f"{stored.store['database_size']}, and {wal} not yet folded in"),
                ("home", f"{status.get('home', '–')}: {room}"),
            ]
        )
    ]


def _waiting(backlog: Row | None) -> str:
    if backlog is None:
        return "–"
    if not backlog["segments"]:
        return "nothing"
    oldest = backlog["oldest_seconds"] or 0.0
    return f"{backlog['segments']:,} files, {data_size(backlog['bytes'])}, the oldest {duration(oldest)} old"


def runs_blocks(stored: Stored, runs: Sequence[Run], shown: str | None) -> list[Block]:
    """The runs of the home; `shown`: the one the page is about."""
    states = {run.name: run for run in runs}
    whole = _store_bytes(stored.store["database_size"])
    rows = [
        _run(each, states.get(each["run"]), whole, tone="info" if each["run"] == shown else "") for each in stored.runs
    ]
    empty = "Nothing was recorded here yet; the Overview says how to begin."
    return [heading("Runs", "newest first; times are UTC"), table("runs", _RUNS, rows, empty=empty)]


def _run(each: Row, run: Run | None, whole: float | None, *, tone: str) -> Block:
    state = "no data" if run is None else f"{run.liveness.state.value.replace('_', ' ')}: {run.liveness.reason}"
    first, last = each["first_step"], each["last_step"]
    steps = "–" if first is None else f"{each['steps']:,} ({first:,} to {last:,})"
    share = each["store_share"]
    statistics = "–" if whole is None or share is None else f"about {data_size(whole * share)}"
    cells = [
        f"{harmless(each['run'])}{', imported' if each['imported'] else ''}",
        state,
        steps,
        f"{each['tokens']:,} tokens in {each['sequences']:,} sequences; {each['rollouts']:,} rollouts",
        _span(each["first_time"], each["last_time"]),
        f"raw {data_size(each['raw_bytes'])} in {counted(each['raw_files'], 'file')}; statistics {statistics}",
        _losses(each) or "nothing",
    ]
    return row(cells, tone="warning" if _losses(each) else tone)


def _span(first: datetime | None, last: datetime | None) -> str:
    """From when to when; the day once where it is the same."""
    if first is None or last is None:
        return "–"
    same = first.date() == last.date()
    return f"{when(first)} to {last.strftime('%H:%M:%S') if same else when(last)}"


def _losses(each: Row) -> str:
    said = [
        f"{each['lost_tokens']:,} tokens" if each["lost_tokens"] else "",
        f"{each['lost_sequences']:,} sequences" if each["lost_sequences"] else "",
        counted(each["quarantined"], "file") + " set aside" if each["quarantined"] else "",
    ]
    return ", ".join(filter(None, said))


_UNITS: Final = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def _store_bytes(said: str) -> float | None:
    """DuckDB's words for a size, as bytes.

    >>> _store_bytes("45.5 KiB"), _store_bytes("many")
    (46592.0, None)
    """
    value, _, unit = said.partition(" ")
    try:
        return float(value) * _UNITS[unit]
    except (ValueError, KeyError):
        return None


def files_blocks(stored: Stored) -> list[Block]:
    """Files in quarantine, and why."""
    total = stored.quarantine[0]["total"] if stored.quarantine else 0
    more = f"; the newest {len(stored.quarantine):,} of {total:,}" if total > len(stored.quarantine) else ""
    return [
        heading("Quarantine", f"files that cannot be trusted; none of their rows counts{more}"),
        table("quarantine", _FILES, [_file(each) for each in stored.quarantine], empty="Every file was sound."),
    ]


def _file(each: Row) -> Block:
    happened, remedy = about_file(each["reason"])
    cells = [
        f"`{harmless(each['path'])}`, {data_size(each['bytes'])}",
        harmless(each["run"] or "–"),
        f"{each['reason'].replace('_', ' ')}: {happened}",
        remedy,
        when(each["moved_at"]),
    ]
    return row(cells, tone="critical" if each["reason"] != "foreign" else "warning")


def kept_blocks(stored: Stored, status: Row) -> list[Block]:
    """Until when raw tokens are kept, and of which steps there are any."""
    done = (_jobs(status).get("retention") or {}).get("progress") or {}
    rows = [_kept(each) for each in stored.kept]
    return [
        heading("Retention", "of single tokens; statistics, metrics and events are never removed"),
        facts([("limits", _limits(done)), ("kept now", _now(done)), ("last look", _removed(done))]),
        table("kept", _KEPT, rows, empty="No run has trained on anything yet."),
    ]


def _limits(done: Row) -> str:
    if "max_bytes" not in done:
        return "not known: the service has not looked yet"
    days = done["max_age_seconds"]
    stated = [
        f"{data_size(done['max_bytes'])} for the home" if done["max_bytes"] is not None else "",
        f"{data_size(done['max_run_bytes'])} for each run" if done["max_run_bytes"] is not None else "",
        f"no older than {duration(days)}" if days is not None else "",
    ]
    return ", ".join(filter(None, stated)) + "; the oldest go first" if any(stated) else "none: everything is kept"


def _now(done: Row) -> str:
    if "raw_bytes" not in done:
        return "–"
    budget = done.get("max_bytes")
    share = f", {done['raw_bytes'] / budget:.0%} of the home's limit" if budget else ""
    return f"{data_size(done['raw_bytes'])} in {counted(done['raw_files'], 'file')}{share}"


def _removed(done: Row) -> str:
    if "removed_files" not in done:
        return "–"
    gone = f"{counted(done['removed_files'], 'file')} removed ({data_size(done['removed_bytes'])})"
    missing = (
        f"; {counted(done['missing_files'], 'file')} had gone from the disk already" if done["missing_files"] else ""
    )
    return f"{gone}, {done['merged_files']:,} merged into {done['merged_into']:,}{missing}"


def _kept(each: Row) -> Block:
    sequences, with_raw = each["sequences"], each["with_raw"]
    if sequences is None:
        return row([harmless(each["run"]), "of rollouts only", "–", data_size(each["bytes"]), when(each["oldest_at"])])
    share = (
        f"all {sequences:,} sequences"
        if with_raw == sequences
        else f"{with_raw:,} of {sequences:,} sequences{_gone(each)}"
    )
    first, last = each["first_step"], each["last_step"]
    span = "none" if first is None else f"{first:,} to {last:,}, {each['steps_with_raw']:,} of {each['steps']:,}"
    size = f"{data_size(each['training_bytes'] or 0)} trainer, {data_size(each['rollout_bytes'] or 0)} engine"
    merged = f"; {counted(each['merged'], 'merged file')}" if each["merged"] else ""
    cells = [harmless(each["run"]), share, span, size + merged, when(each["oldest_at"])]
    return row(cells, tone="" if with_raw == sequences else "warning")


def _gone(each: Row) -> str:
    """Why tokens cannot be read any more, or never could be."""
    removed = each["sequences"] - each["with_raw"] - each["reduced"]
    reasons = [
        f"{each['reduced']:,} came as statistics only" if each["reduced"] else "",
        f"{removed:,} were removed by the limits" if removed > 0 else "",
    ]
    return f"; {', '.join(filter(None, reasons))}"


def jobs_blocks(status: Row) -> list[Block]:
    """What the service does in the background."""
    rows = [_job(name, job) for name, job in _jobs(status).items()]
    empty = "The service does not answer, so nothing is ingested, computed or sent."
    return [
        heading("Jobs of the service", "each is tried again at its next turn"),
        table("jobs", _JOBS, rows, empty=empty),
    ]


def _jobs(status: Row) -> Mapping[str, Any]:
    return status.get("jobs") or {}


def _job(name: str, job: Row) -> Block:
    progress = job.get("progress") or {}
    seconds = progress.get("seconds")
    problems = progress.get("problems") or []
    said = [
        f"{key.replace('_', ' ')} {_value(value)}" for key, value in progress.items() if key not in _QUIET and value
    ]
    cells = [
        name.replace("_", " "),
        when(job["finished_at"]) + ("" if seconds is None else f", took {number(seconds)} s"),
        f"{job['runs']:,}, {job['failures']:,} failed"
        + (f": {harmless(job['last_error'])}" if job["last_error"] else ""),
        harmless(", ".join([*said, *map(str, problems)])) or "nothing to do",
    ]
    return row(cells, tone="critical" if job["last_error"] else "warning" if problems else "")


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return number(value) if isinstance(value, float) else f"{value:,}"
    return str(value)


def environment_blocks(findings: Sequence[tuple[str, str, str]]) -> list[Block]:
    """What `logprobe doctor` finds where the dashboard runs: level, text, remedy."""
    rows = [
        row([harmless(words), harmless(remedy) or "–"], tone="critical" if level == "problem" else "")
        for level, words, remedy in findings
        if level != "ok"
    ]
    return [
        heading("Installed here", "as the doctor finds it on this machine, which need not be the engine's"),
        text("; ".join(harmless(words) for level, words, _ in findings if level == "ok") + "."),
        table("installed", ("besides", "what to do"), rows, empty="Nothing is missing."),
    ]


def nothing_read() -> list[Block]:
    """Nothing has been read yet."""
    return [text("Nothing of the home was read yet; the page tries again.", "unknown")]
