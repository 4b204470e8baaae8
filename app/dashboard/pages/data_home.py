"""The part of the Data page about the home: runs, ingest, quarantine, retention and jobs, as blocks. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from logprobe.app.dashboard.elements.bar import ingest_lag
from logprobe.app.dashboard.elements.blocks import Block, action, facts, heading, row, table, text
from logprobe.app.runs import Run
from logprobe.app.text.files import store_of
from logprobe.app.text.lost_records import about_file
from logprobe.app.text.numbers import counted, data_size, duration, number, when
from logprobe.collectors.plain_text import harmless

Row = Mapping[str, Any]

_RUNS: Final = ("run", "state", "steps", "trained on", "recorded", "raw tokens", "lost or quarantined")
_JOBS: Final = ("job", "last run", "runs", "last result")
_FILES: Final = ("file", "of run", "what happened", "what to do", "moved aside")
_STUCK: Final = ("file", "of run", "error", "since", "attempts")
_KEPT: Final = ("run", "tokens can be read", "of steps", "raw tokens", "since")
_FOLDED: Final = ("run", "steps folded into sums", "last of them", "sequences kept as a sample", "of folded steps")
_QUIET: Final = frozenset(
    {
        "seconds",
        "problems",
        "incomplete",
        "max_bytes",
        "max_run_bytes",
        "max_age_seconds",
        "place",
        "waiting_seconds",
    }
)  # said elsewhere


@dataclass(frozen=True)
class Stored:
    """What is known of the home's store: rows of the queries `app_data_runs`, `…_kept`, `…_quarantine` and
    `…_store`."""

    runs: Sequence[Row]
    kept: Sequence[Row]
    quarantine: Sequence[Row]
    store: Row


def ingest_blocks(status: Row, stored: Stored, room: str) -> list[Block]:
    """How far the store is behind what was recorded. `status`: of the service; `room`: what there is on the disk."""
    service = (
        "not running" if not status.get("running") else f"process {status['pid']}, since {when(status['started'])}"
    )
    wal = stored.store["wal_size"]
    return [
        facts(
            [
                ("waiting in spool", _waiting(status.get("backlog"))),
                ("ingest lag", ingest_lag(status) or "–"),
                ("service", service),
                ("store", f"{stored.store['database_size']}, and {wal} not merged yet"),
                ("home", f"{status.get('home', '–')}: {room}"),
            ]
        )
    ]


def _waiting(backlog: Row | None) -> str:
    if backlog is None:
        return "–"
    hidden = backlog.get("unreadable")
    unseen = f"; {counted(hidden, 'file or folder')} cannot be inspected" if hidden else ""
    if not backlog["segments"]:
        return f"nothing{unseen}"
    oldest = backlog["oldest_seconds"] or 0.0
    return f"{backlog['segments']:,} files, {data_size(backlog['bytes'])}, the oldest {duration(oldest)} old{unseen}"


def runs_blocks(stored: Stored, runs: Sequence[Run], shown: str | None) -> list[Block]:
    """The runs of the home; `shown`: the one the page is about."""
    states = {run.name: run for run in runs}
    whole = _store_bytes(stored.store["database_size"])
    rows = [
        _run(of_run, states.get(of_run["run"]), whole, tone="info" if of_run["run"] == shown else "")
        for of_run in stored.runs
    ]
    empty = "Nothing has been recorded here yet; see the Overview to get started."
    return [heading("Runs", "newest first; times are UTC"), table("runs", _RUNS, rows, empty=empty)]


def _run(of_run: Row, run: Run | None, whole: float | None, *, tone: str) -> Block:
    state = "no data" if run is None else f"{run.liveness.state.value.replace('_', ' ')}: {run.liveness.reason}"
    first, last = of_run["first_step"], of_run["last_step"]
    steps = "–" if first is None else f"{of_run['steps']:,} ({first:,} to {last:,})"
    share = of_run["store_share"]
    statistics = "–" if whole is None or share is None else f"about {data_size(whole * share)}"
    cells = [
        f"{harmless(of_run['run'])}{', imported' if of_run['imported'] else ''}",
        state,
        steps,
        f"{of_run['tokens']:,} tokens in {of_run['sequences']:,} sequences; {of_run['rollouts']:,} rollouts",
        _span(of_run["first_time"], of_run["last_time"]),
        f"raw {data_size(of_run['raw_bytes'])} in {counted(of_run['raw_files'], 'file')}; statistics {statistics}",
        _losses(of_run) or "nothing",
    ]
    return row(cells, tone="warning" if _losses(of_run) else tone)


def _span(first: datetime | None, last: datetime | None) -> str:
    """From when to when; the day once where it is the same."""
    if first is None or last is None:
        return "–"
    same = first.date() == last.date()
    return f"{when(first)} to {last.strftime('%H:%M:%S') if same else when(last)}"


def _losses(of_run: Row) -> str:
    losses = [
        f"{of_run['lost_tokens']:,} tokens" if of_run["lost_tokens"] else "",
        f"{of_run['lost_sequences']:,} sequences" if of_run["lost_sequences"] else "",
        counted(of_run["quarantined"], "file") + " quarantined" if of_run["quarantined"] else "",
    ]
    return ", ".join(filter(None, losses))


_UNITS: Final = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def _store_bytes(size: str) -> float | None:
    """DuckDB's words for a size, as bytes.

    >>> _store_bytes("45.5 KiB"), _store_bytes("many")
    (46592.0, None)
    """
    value, _, unit = size.partition(" ")
    try:
        return float(value) * _UNITS[unit]
    except (ValueError, KeyError):
        return None


def files_blocks(stored: Stored, status: Row, *, blocked: str) -> list[Block]:
    """Files in quarantine and why, and those in the spool that cannot be read now.

    Args:
        stored: what is known of the store.
        status: of the service.
        blocked: why nothing can be done from this page; "": it can.
    """
    total = stored.quarantine[0]["total"] if stored.quarantine else 0
    more = f"; the newest {len(stored.quarantine):,} of {total:,}" if total > len(stored.quarantine) else ""
    return [
        heading("Quarantine", f"files that cannot be trusted; their rows are not counted{more}"),
        table(
            "quarantine", _FILES, [_file(file, blocked) for file in stored.quarantine], empty="No files in quarantine."
        ),
        heading("Cannot be read now", "files and folders waiting in spool; each is retried, and nothing is lost"),
        table("stuck", _STUCK, [_stuck(file) for file in _waiting_files(status)], empty="None."),
    ]


def _waiting_files(status: Row) -> Sequence[Row]:
    return (status.get("stuck") or {}).get("files") or ()


def _stuck(file: Row) -> Block:
    since = datetime.fromtimestamp(file["since"], UTC)
    cells = [
        f"`{harmless(file['path'])}`",
        harmless(file["run"] or "–"),
        harmless(file["error"]),
        when(since),
        f"{file['attempts']:,}; the next in {duration(file['retry_seconds'])}",
    ]
    return row(cells, tone="warning")


def quarantine_actions(file: Row, blocked: str) -> list[Block]:
    """What can be done about a file in quarantine."""
    args = {"file": file["path"]}
    retry = "The file moves back to the spool and is read again. If it still cannot be trusted, it returns here."
    drop = "The file and its rows are deleted. This cannot be undone."
    return [
        action("retry", "Retry", retry, blocked, args=args),
        action("drop", "Drop", drop, blocked, args=args, danger=True),
    ]


def _file(file: Row, blocked: str) -> Block:
    happened, remedy = about_file(file["reason"])
    cells = [
        f"`{harmless(file['path'])}`, {data_size(file['bytes'])}",
        harmless(file["run"] or "–"),
        f"{file['reason'].replace('_', ' ')}: {happened}",
        remedy,
        when(file["moved_at"]),
    ]
    tone = "critical" if file["reason"] != "foreign" else "warning"
    return row(cells, tone=tone, actions=quarantine_actions(file, blocked))


def kept_blocks(stored: Stored, status: Row) -> list[Block]:
    """Until when raw tokens are kept, and of which steps there are any."""
    done = (_jobs(status).get("retention") or {}).get("progress") or {}
    rows = [_kept(kept) for kept in stored.kept]
    folding = (_jobs(status).get("store_budget") or {}).get("progress") or {}
    folded = [_folded(kept) for kept in stored.kept if kept["folded"]]
    return [
        heading("Retention", "of single tokens and of sequences; metrics and events are never removed"),
        facts(
            [
                ("limits", _limits(done)),
                ("kept now", _now(done)),
                ("last look", _removed(done)),
                ("store", store_of(folding)),
            ]
        ),
        table("kept", _KEPT, rows, empty="No run has trained on anything yet."),
        table("folded", _FOLDED, folded, empty="All sequences of every step are kept."),
    ]


def _folded(kept: Row) -> Block:
    sample = f"{kept['sampled']:,}, from step {kept['sampled_from']:,}" if kept["sampled"] else "none"
    cells = [harmless(kept["run"]), f"{kept['folded']:,} of {kept['steps']:,}", f"{kept['last_folded']:,}", sample]
    return row([*cells, "metrics, lag, joins: exact; profiles: by windows; slices: null"])


def _limits(done: Row) -> str:
    if "max_bytes" not in done:
        return "unknown: the service has not checked yet"
    days = done["max_age_seconds"]
    stated = [
        f"{data_size(done['max_bytes'])} for the home" if done["max_bytes"] is not None else "",
        f"{data_size(done['max_run_bytes'])} for each run" if done["max_run_bytes"] is not None else "",
        f"no older than {duration(days)}" if days is not None else "",
    ]
    return ", ".join(filter(None, stated)) + "; oldest removed first" if any(stated) else "none: everything is kept"


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
        f"; {counted(done['missing_files'], 'file')} were already missing from the disk"
        if done["missing_files"]
        else ""
    )
    return f"{gone}, {done['merged_files']:,} merged into {done['merged_into']:,}{missing}"


def _kept(kept: Row) -> Block:
    sequences, with_raw = kept["sequences"], kept["with_raw"]
    if sequences is None:
        return row([harmless(kept["run"]), "of rollouts only", "–", data_size(kept["bytes"]), when(kept["oldest_at"])])
    share = (
        f"all {sequences:,} sequences"
        if with_raw == sequences
        else f"{with_raw:,} of {sequences:,} sequences{_gone(kept)}"
    )
    first, last = kept["first_step"], kept["last_step"]
    span = "none" if first is None else f"{first:,} to {last:,}, {kept['steps_with_raw']:,} of {kept['steps']:,}"
    size = f"{data_size(kept['training_bytes'] or 0)} trainer, {data_size(kept['rollout_bytes'] or 0)} engine"
    merged = f"; {counted(kept['merged'], 'merged file')}" if kept["merged"] else ""
    cells = [harmless(kept["run"]), share, span, size + merged, when(kept["oldest_at"])]
    return row(cells, tone="" if with_raw == sequences else "warning")


def _gone(kept: Row) -> str:
    """Why tokens cannot be read any more, or never could be."""
    removed = kept["sequences"] - kept["with_raw"] - kept["reduced"] - kept["summed"]
    reasons = [
        f"{kept['summed']:,} in folded steps" if kept["summed"] else "",
        f"{kept['reduced']:,} recorded as statistics only" if kept["reduced"] else "",
        f"{removed:,} removed by the limits" if removed > 0 else "",
    ]
    return f"; {', '.join(filter(None, reasons))}"


def jobs_blocks(status: Row) -> list[Block]:
    """What the service does in the background."""
    rows = [_job(name, job) for name, job in _jobs(status).items()]
    empty = "The service does not answer, so nothing is ingested, computed or sent."
    return [
        heading("Jobs of the service", "each is retried at its next turn"),
        table("jobs", _JOBS, rows, empty=empty),
    ]


def _jobs(status: Row) -> Mapping[str, Any]:
    return status.get("jobs") or {}


def _job(name: str, job: Row) -> Block:
    progress = job.get("progress") or {}
    seconds = progress.get("seconds")
    problems = progress.get("problems") or []
    figures = [
        f"{key.replace('_', ' ')} {_value(value)}" for key, value in progress.items() if key not in _QUIET and value
    ]
    cells = [
        name.replace("_", " "),
        when(job["finished_at"]) + ("" if seconds is None else f", took {number(seconds)} s"),
        f"{job['runs']:,}, {job['failures']:,} failed"
        + (f": {harmless(job['last_error'])}" if job["last_error"] else ""),
        harmless(", ".join([*figures, *map(str, problems)])) or "nothing to do",
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
        heading("Installed here", "as `logprobe doctor` finds it on this machine, which may not be the engine's"),
        text("; ".join(harmless(words) for level, words, _ in findings if level == "ok") + "."),
        table("installed", ("besides", "what to do"), rows, empty="Nothing is missing."),
    ]


def nothing_read() -> list[Block]:
    """Nothing has been read yet."""
    return [text("The home has not been read yet; retrying.", "unknown")]
