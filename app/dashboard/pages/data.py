"""Data: what is stored of which run, what is missing, lost or quarantined, who is at work; and SQL over all of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from typing import Any, Final

import pyarrow as pa
import streamlit as st

from logprobe.app import doctor
from logprobe.app.dashboard import acting, data, ui
from logprobe.app.dashboard.access.settings import Permission
from logprobe.app.dashboard.data import Look
from logprobe.app.dashboard.reading.query import ROWS, RunningQuery, csv_of, examples, frame_of, lines_of_schema
from logprobe.app.dashboard.ui import Line
from logprobe.app.runs import Run
from logprobe.app.text import nodes
from logprobe.app.text.files import store_of
from logprobe.app.text.gaps import doubled, faults_of, gaps_of, measured, raw_sampled, sent
from logprobe.app.text.lost_records import about_event, about_file
from logprobe.app.text.numbers import counted, data_size, duration, number, when
from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.plain_text import harmless
from logprobe.monitor import queries
from logprobe.monitor.analysis import identity
from logprobe.monitor.live.quarantine_actions import DROP, RETRY
from logprobe.monitor.reader import connect
from logprobe.monitor.store.queries import MORE

Row = Mapping[str, Any]

FILES: Final = 100  # of the quarantine, the newest
_PACE: Final = 1.0
_LOW: Final = 20  # rows that are shown without scrolling
_QUICK: Final = 0.4  # seconds within which most queries end; longer ones are looked after by the page
_TWICE: Final = "totals of these steps are too large, means hardly change; record into another run name, and report it as a bug in logprobe"
_OUTCOMES: Final = {
    "returned": "moved back to the spool",
    "dropped": "deleted",
    "gone": "no change, no longer in quarantine",
}
_QUIET: Final = frozenset(
    {"seconds", "problems", "incomplete", "max_bytes", "max_run_bytes", "max_age_seconds", "place", "waiting_seconds"}
)  # said elsewhere
_UNITS: Final = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


@dataclass(frozen=True)
class Stored:
    """What is known of the home's store: rows of the queries `app_data_runs`, `…_kept`, `…_quarantine`, `…_store`."""

    runs: Sequence[Row]
    kept: Sequence[Row]
    quarantine: Sequence[Row]
    store: Row


def draw(look: Look, run: Run | None) -> None:
    """Draw the page."""
    view = ui.choice("view", ("records", "SQL"), "of the data")
    if view == "SQL":
        with ui.guarded("SQL box"):
            _sql(None if run is None else run.name)
        return
    with ui.guarded("account of the home"):
        version = tuple(map(data.version_of, (look.runs or {}).values()))
        stored = data.kept("stored", (version, st.session_state.get("quarantine")), _stored, pace=_PACE)
        room = data.kept(
            "room",
            None,
            lambda: "; ".join(each.text.partition(": ")[2] or each.text for each in doctor.place(data.home())),
        )
        ui.facts(ingest_facts(look.status, stored, room))
        ui.title("Runs", "newest first; times are UTC")
        head = ("run", "state", "steps", "trained on", "recorded", "raw tokens", "lost or quarantined")
        whole = store_bytes(stored.store["database_size"])
        lines = [
            run_line(
                each,
                (look.runs or {}).get(each["run"]),
                whole,
                tone="info" if run is not None and each["run"] == run.name else "",
            )
            for each in stored.runs
        ]
        ui.table(
            "runs", head, lines, empty="Nothing has been recorded here yet; see the Overview to get started.", fold=True
        )
        if run is not None:
            with ui.guarded("account of the run"):
                _run(run)
        _quarantine(look, stored)
        _retention(look, stored)
        ui.title("Jobs of the service", "each is retried at its next turn")
        lines = [job_line(name, job) for name, job in _jobs(look.status).items()]
        ui.table(
            "jobs",
            ("job", "last run", "runs", "last result"),
            lines,
            empty="The service does not answer, so nothing is ingested, computed or sent.",
        )
        _installed()


def _stored() -> Stored:
    return Stored(
        runs=queries.app_data_runs(data.reader()).to_pylist(),
        kept=queries.app_data_kept(data.reader()).to_pylist(),
        quarantine=queries.app_data_quarantine(data.reader(), limit=FILES).to_pylist(),
        store=queries.app_data_store(data.reader()).to_pylist()[0],
    )


# --- The home ---


def ingest_facts(status: Row, stored: Stored, room: str) -> list[tuple[str, str]]:
    """Return how far the store is behind what was recorded. `status`: of the service; `room`: what there is on the
    disk."""
    service = (
        "not running" if not status.get("running") else f"process {status['pid']}, since {when(status['started'])}"
    )
    return [
        ("waiting in spool", waiting(status.get("backlog"))),
        ("service", service),
        ("store", f"{stored.store['database_size']}, and {stored.store['wal_size']} not merged yet"),
        ("home", f"{status.get('home', '–')}: {room}"),
    ]


def waiting(backlog: Row | None) -> str:
    """Return what waits in the spool."""
    if backlog is None:
        return "–"
    hidden = backlog.get("unreadable")
    unseen = f"; {counted(hidden, 'file or folder')} cannot be inspected" if hidden else ""
    if not backlog["segments"]:
        return f"nothing{unseen}"
    oldest = duration(backlog["oldest_seconds"] or 0.0)
    return f"{backlog['segments']:,} files, {data_size(backlog['bytes'])}, the oldest {oldest} old{unseen}"


def run_line(of_run: Row, run: Run | None, whole: float | None, *, tone: str = "") -> Line:
    """Return a run as a line of the table; `whole`: bytes of the store."""
    state = "no data" if run is None else f"{run.liveness.state.value.replace('_', ' ')}: {run.liveness.reason}"
    first, last, share = of_run["first_step"], of_run["last_step"], of_run["store_share"]
    statistics = "–" if whole is None or share is None else f"about {data_size(whole * share)}"
    losses = _losses(of_run)
    cells = [
        f"{harmless(of_run['run'])}{', imported' if of_run['imported'] else ''}",
        state,
        "–" if first is None else f"{of_run['steps']:,} ({first:,} to {last:,})",
        f"{of_run['tokens']:,} tokens in {of_run['sequences']:,} sequences; {of_run['rollouts']:,} rollouts",
        _span(of_run["first_time"], of_run["last_time"]),
        f"raw {data_size(of_run['raw_bytes'])} in {counted(of_run['raw_files'], 'file')}; statistics {statistics}",
        losses or "nothing",
    ]
    return Line(cells, "warning" if losses else tone)


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


def store_bytes(size: str) -> float | None:
    """Return DuckDB's words for a size as bytes.

    >>> store_bytes("45.5 KiB"), store_bytes("many")
    (46592.0, None)
    """
    value, _, unit = size.partition(" ")
    try:
        return float(value) * _UNITS[unit]
    except (ValueError, KeyError):
        return None


def _jobs(status: Row) -> Mapping[str, Any]:
    return status.get("jobs") or {}


def job_line(name: str, job: Row) -> Line:
    """Return a job of the service as a line of the table."""
    progress = job.get("progress") or {}
    seconds, problems = progress.get("seconds"), progress.get("problems") or []
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
    return Line(cells, "critical" if job["last_error"] else "warning" if problems else "")


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return number(value) if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


@cache
def _findings() -> Sequence[tuple[str, str, str]]:
    """Packages and hooks; they do not change while this process runs."""
    return tuple(
        (line.level, line.text, line.remedy) for line in doctor.examine(None) if line.section in {"installed", "hooks"}
    )


def _installed() -> None:
    ui.title("Installed here", "as `logprobe doctor` finds it on this machine, which may not be the engine's")
    ui.write("; ".join(harmless(words) for level, words, _ in _findings() if level == "ok") + ".")
    lines = [
        Line([harmless(words), harmless(remedy) or "–"], "critical" if level == "problem" else "")
        for level, words, remedy in _findings()
        if level != "ok"
    ]
    ui.table("installed", ("besides", "what to do"), lines, empty="Nothing is missing.")


# --- Files ---


def _quarantine(look: Look, stored: Stored) -> None:
    total = stored.quarantine[0]["total"] if stored.quarantine else 0
    more = f"; the newest {len(stored.quarantine):,} of {total:,}" if total > len(stored.quarantine) else ""
    ui.title("Quarantine", f"files that cannot be trusted; their rows are not counted{more}")
    head = ("file", "of run", "what happened", "what to do", "moved aside")
    ui.table("quarantine", head, list(map(file_line, stored.quarantine)), empty="No files in quarantine.", fold=True)
    if stored.quarantine:
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            path = stored.quarantine[
                ui.pick("file", [harmless(file["path"]) for file in stored.quarantine], "quarantined file")
            ]["path"]
            retry = (
                "The file moves back to the spool and is read again. If it still cannot be trusted, it returns here."
            )
            acting.act("Retry", retry, partial(_handle, RETRY, path), key="retry file")
            acting.act(
                "Drop",
                "The file and its rows are deleted. This cannot be undone.",
                partial(_handle, DROP, path),
                key="drop file",
                danger=True,
            )
    stuck = (look.status.get("stuck") or {}).get("files") or ()
    if stuck:
        ui.title("Cannot be read now", "files and folders waiting in spool; each is retried, and nothing is lost")
        ui.table("stuck", ("file", "of run", "error", "since", "attempts"), list(map(_stuck, stuck)))


def file_line(file: Row) -> Line:
    """Return a file in quarantine as a line of the table."""
    happened, remedy = about_file(file["reason"])
    cells = [
        f"`{harmless(file['path'])}`, {data_size(file['bytes'])}",
        harmless(file["run"] or "–"),
        f"{file['reason'].replace('_', ' ')}: {happened}",
        remedy,
        when(file["moved_at"]),
    ]
    return Line(cells, "critical" if file["reason"] != "foreign" else "warning")


def _handle(action: str, path: str, given: Mapping[str, str]) -> str:
    done = acting.ask(action, {"file": path, "author": given["by"]})
    st.session_state["quarantine"] = (path, action)  # the file must not be offered again
    return f"{done['file']}: {_OUTCOMES[done['status']]}."


def _stuck(file: Row) -> Line:
    attempts = f"{file['attempts']:,}; the next in {duration(file['retry_seconds'])}"
    cells = [
        f"`{harmless(file['path'])}`",
        harmless(file["run"] or "–"),
        harmless(file["error"]),
        when(datetime.fromtimestamp(file["since"], UTC)),
        attempts,
    ]
    return Line(cells, "warning")


def _retention(look: Look, stored: Stored) -> None:
    done = (_jobs(look.status).get("retention") or {}).get("progress") or {}
    ui.title("Retention", "of single tokens and of sequences; metrics and events are never removed")
    store = store_of((_jobs(look.status).get("store_budget") or {}).get("progress") or {})
    ui.facts([("limits", limits(done)), ("kept now", kept_now(done)), ("last look", _removed(done)), ("store", store)])
    head = ("run", "tokens can be read", "of steps", "raw tokens", "since")
    ui.table("kept", head, list(map(kept_line, stored.kept)), empty="No run has trained on anything yet.", fold=True)


def limits(done: Row) -> str:
    """Return the limits of retention."""
    if "max_bytes" not in done:
        return "unknown: the service has not checked yet"
    stated = [
        f"{data_size(done['max_bytes'])} for the home" if done["max_bytes"] is not None else "",
        f"{data_size(done['max_run_bytes'])} for each run" if done["max_run_bytes"] is not None else "",
        f"no older than {duration(done['max_age_seconds'])}" if done["max_age_seconds"] is not None else "",
    ]
    return ", ".join(filter(None, stated)) + "; oldest removed first" if any(stated) else "none: everything is kept"


def kept_now(done: Row) -> str:
    """Return how much is kept."""
    if "raw_bytes" not in done:
        return "–"
    share = f", {done['raw_bytes'] / done['max_bytes']:.0%} of the home's limit" if done.get("max_bytes") else ""
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
    return f"{gone}, {done['merged_files']:,} merged{missing}"


def kept_line(kept: Row) -> Line:
    """Return until when a run's raw tokens are kept."""
    sequences, with_raw = kept["sequences"], kept["with_raw"]
    if sequences is None:
        return Line([harmless(kept["run"]), "of rollouts only", "–", data_size(kept["bytes"]), when(kept["oldest_at"])])
    removed = sequences - with_raw - kept["reduced"] - kept["summed"]
    reasons = [
        f"{kept['summed']:,} in frozen steps" if kept["summed"] else "",
        f"{kept['reduced']:,} recorded as statistics only" if kept["reduced"] else "",
        f"{removed:,} removed by the limits" if removed > 0 else "",
    ]
    part = f"{with_raw:,} of {sequences:,} sequences; {', '.join(filter(None, reasons))}"
    first, last = kept["first_step"], kept["last_step"]
    span = "none" if first is None else f"{first:,} to {last:,}, {kept['steps_with_raw']:,} of {kept['steps']:,}"
    size = f"{data_size(kept['training_bytes'] or 0)} trainer, {data_size(kept['rollout_bytes'] or 0)} engine"
    every = with_raw == sequences
    return Line(
        [
            harmless(kept["run"]),
            f"all {sequences:,} sequences" if every else part,
            span,
            size,
            when(kept["oldest_at"]),
        ],
        "" if every else "warning",
    )


# --- The run ---


@dataclass(frozen=True)
class Account:
    """What is known of one run's records: rows of stored queries, and the on-policy verdict in words.

    `gaps`: None: nothing was ingested; `doubled`: None: nothing is in the store twice; `nodes`: none: the run shares a
    disk with the service.
    """

    gaps: queries.CliGaps | None
    problems: Sequence[queries.CliProblems]
    collectors: Sequence[queries.AppDataCollectors]
    on_policy: str
    doubled: queries.CliDoubled | None = None
    sent: queries.CliSent | None = None
    nodes: Sequence[queries.NodesOf] = ()


def _run(run: Run) -> None:
    name = run.name
    account = data.kept(
        ("account", name), (data.version_of(run), data.look().status.get("backlog")), lambda: _account(name), pace=_PACE
    )
    firing = None if run.judgement.verdict is None else tuple(alert.rule for alert in run.judgement.alerts)
    ui.title(f"Missing inputs of {harmless(name)}", "and the metrics they affect")
    ui.facts(account_facts(account, firing))
    ui.table("lacks", ("what", "what to do"), list(lacks(account)), empty="None: everything can be measured.")
    ui.title("Drops and problems", "as reported by the run's collectors and ingest")
    head = ("complaint", "times", "lost", "last", "message", "what to do")
    ui.table(
        "problems",
        head,
        list(map(problem_line, account.problems)),
        empty="Nothing dropped, no problems reported.",
        fold=True,
    )
    ui.title(f"Collectors of {harmless(name)}", "most recent first; engines with the plugin have a self-test")
    columns = ("collector", "process", "state", "self-test", "recorded", "lost", "queue and cost")
    ui.table(
        "collectors",
        columns,
        list(map(collector_line, account.collectors)),
        empty="No collector has reported.",
        fold=True,
    )
    if account.nodes:
        ui.title(f"Nodes of {harmless(name)}", "that ship to this service; the one furthest behind first")
        ui.table(
            "nodes", ("node", "behind", "clock", "logprobe", "problem"), list(map(_node, account.nodes)), fold=True
        )


def _account(run: str) -> Account:
    judged = identity.judge(
        identity.facts_of(queries.slice_identity(data.reader(), runs=[run], first=[None], last=[None]))
    )
    return Account(
        gaps=next(iter(queries.cli_gaps(data.reader(), run=run).to_pylist()), None),
        problems=queries.cli_problems(data.reader(), run=run).to_pylist(),
        doubled=next(iter(queries.cli_doubled(data.reader(), run=run).to_pylist()), None),
        sent=next(iter(queries.cli_sent(data.reader(), run=run).to_pylist()), None),
        collectors=queries.app_data_collectors(data.reader(), run=run).to_pylist(),
        nodes=queries.nodes_of(data.reader(), run=run, now=datetime.now(UTC)).to_pylist(),
        on_policy=f"{judged.verdict}: {judged.reason}",
    )


def account_facts(account: Account, firing: Sequence[str] | None) -> list[tuple[str, str]]:
    """Return what a run's records allow to be measured. `firing`: alerts, or None while they were not evaluated."""
    alerts = "the alerts have not looked yet" if firing is None else ", ".join(firing) or "none fires"
    stated = [("on-policy", account.on_policy), ("alerts", alerts)]
    if account.gaps is not None:
        sampled = raw_sampled(account.gaps)
        stated = [("measured", measured(account.gaps)), *([("sampling", sampled)] if sampled else []), *stated]
    if account.sent is not None and (words := sent(account.sent)):
        stated = [("sent", words), *stated]
    return stated


def lacks(account: Account) -> Iterator[Line]:
    """Yield what is missing, and what to do."""
    if account.gaps is None:
        yield Line(["none of it has been ingested yet", "check the spool"])
        return
    if account.doubled is not None:
        yield Line([harmless(doubled(account.doubled)), _TWICE], "critical")
    yield from (Line([words, remedy], "critical") for words, remedy in faults_of(account.gaps))
    yield from (Line([words, remedy], "warning") for words, remedy in gaps_of(account.gaps))


def problem_line(problem: queries.CliProblems) -> Line:
    """Return a complaint of a collector or of ingest as a line of the table."""
    lost = [
        f"{problem['sequences_lost']:,} sequences" if problem["sequences_lost"] else "",
        f"{problem['tokens_lost']:,} tokens" if problem["tokens_lost"] else "",
    ]
    cells = [
        f"{problem['event'].replace('_', ' ')} ({harmless(problem['component'] or '–')})",
        f"{problem['times']:,}",
        ", ".join(filter(None, lost)) or "nothing",
        when(problem["last_at"]),
        harmless(problem["message"] or "–"),
        about_event(problem["event"]) or "–",
    ]
    return Line(cells, "critical" if problem["severity"] == "error" else "warning")


def collector_line(collector: queries.AppDataCollectors) -> Line:
    """Return who records a run, and how it is."""
    started, counters = _document(collector["started"]), _document(collector["counters"])
    dropped = counters.get("dropped") or {}
    failed = collector["failed"] or (collector["self_test"] if collector["self_test_severity"] == "error" else None)
    word = "closed cleanly" if collector["closed"] else "last heard"
    heard = (
        harmless(collector["failed"])
        if collector["failed"]
        else f"{word} {when(collector['last_sign'] or collector['last_segment'])}"
    )
    cells = [
        f"{collector['component'] or '–'} {harmless(collector['writer'])}",
        _process(started),
        heard,
        harmless(collector["self_test"] or "none"),
        _recorded(collector, counters),
        _dropped(dropped, counters),
        _load(counters),
    ]
    return Line(cells, "critical" if failed else "warning" if dropped else "")


def _document(content: str | None) -> Mapping[str, Any]:
    """What a collector says of itself; it comes from outside, and may be anything."""
    try:
        parsed = json.loads(content or "{}")
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _process(started: Row) -> str:
    if not started:
        return "–"
    versions = started.get("versions")
    known = versions.items() if isinstance(versions, dict) else ()
    parts = [
        f"pid {started.get('pid', '–')} on {started.get('host', '–')}",
        "" if started.get("rank") is None else f"rank {started['rank']}",
        "" if started.get("replica") is None else f"replica {started['replica']}",
        ", ".join(f"{name} {version}" for name, version in known if version and name in {"logprobe", "torch", "vllm"}),
    ]
    return harmless("; ".join(filter(None, parts)))


def _recorded(collector: queries.AppDataCollectors, counters: Row) -> str:
    written = counters.get("written") or {}
    amounts = (
        [f"{_whole(written.get('tokens'))} tokens in {_whole(written.get('sequences'))} sequences"] if written else []
    )
    arrived = [] if collector["segments"] is None else [f"{counted(collector['segments'], 'file')} arrived"]
    return "; ".join([*amounts, *arrived]) or "–"


def _whole(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else "–"


def _dropped(dropped: Row, counters: Row) -> str:
    if not counters:
        return "–"
    losses = [f"{reason.replace('_', ' ')}: {_loss(loss)}" for reason, loss in dropped.items()]
    last = counters.get("last_error")
    return harmless("; ".join([*losses, *([str(last)] if last and not losses else [])]) or "nothing")


def _loss(loss: object) -> str:
    if not isinstance(loss, dict):
        return str(loss)
    parts = [
        counted(count, str(noun).removesuffix("s")) for noun, count in loss.items() if isinstance(count, int) and count
    ]
    return ", ".join(parts) or "0"


def _load(counters: Row) -> str:
    """How full its queue is, what its disk says, and what it costs the host per call."""
    if not counters:
        return "–"
    queue, cost = counters.get("queue") or {}, counters.get("cost") or {}
    parts = []
    if isinstance(queue.get("limit_bytes"), int) and queue["limit_bytes"]:
        parts.append(f"queue {queue.get('bytes', 0) / queue['limit_bytes']:.0%} of {data_size(queue['limit_bytes'])}")
    parts.append(f"disk {counters.get('disk', '–')}")
    if cost.get("calls"):
        parts.append(f"{number(1e6 * cost.get('caller_seconds', 0.0) / cost['calls'])} µs a call")
    return harmless("; ".join(parts))


def _node(node: queries.NodesOf) -> Line:
    cells = [
        harmless(node["node"]),
        nodes.behind(node),
        nodes.clock(node) or "right",
        harmless(node["version"] or "–"),
        harmless(node["problem"] or "none"),
    ]
    return Line(cells, "warning" if nodes.is_late(node) else "")


# --- SQL ---


def _sql(run: str | None) -> None:
    """One statement that reads; one that came with a link only runs when Run is pressed."""
    ui.title("SQL", f"one read-only statement over all runs; at most {ROWS:,} rows are shown")
    known = dict(examples(run))
    st.selectbox(
        "example",
        list(known),
        index=None,
        key="example",
        placeholder="an example",
        width=330,
        on_change=lambda: _fill(known),
        label_visibility="collapsed",
    )
    query: RunningQuery | None = st.session_state.get("query")
    with st.form("sql form", border=False):
        sql = st.text_area(
            "statement",
            key="sql",
            bind="query-params",
            persist_state="session",
            height=150,
            label_visibility="collapsed",
            placeholder="SELECT run, count(*) FROM steps GROUP BY run",
        )
        run_it = st.form_submit_button(
            "Run", type="primary", disabled=query is not None and query.running, shortcut="ctrl+enter"
        )
    if run_it and sql and (query is None or not query.running):
        st.session_state["query"] = query = RunningQuery(sql, _asking(acting.granted()))
        query.wait(_QUICK)
    if query is not None:
        if query.running:
            st.fragment(_await, run_every=0.5)()
        else:
            _answer(query)
    with st.expander("Views and tables", key="schema"):
        rows = data.kept("schema", None, lambda: queries.app_data_schema(data.reader()).to_pylist())
        ui.table("schema", ("name", "columns"), [Line(cells) for cells in lines_of_schema(rows)])


def _fill(known: Mapping[str, str]) -> None:
    if chosen := st.session_state.get("example"):
        st.session_state["sql"] = known[chosen]


def _asking(allowed: Permission) -> Callable[[str, str], pa.Table]:
    """Return what runs a statement for this session: SQL takes time and memory from the service, so who may not act is
    told why not."""

    def refuse(_sql: str, _label: str) -> pa.Table:
        raise ConfigurationError(f"nothing was run: {allowed.value}")

    return _ask if allowed is Permission.GRANTED else refuse


def _ask(sql: str, label: str) -> pa.Table:
    """In a thread of the query's own, over its own connection."""
    with connect(data.home()) as reader:
        return reader.query(sql, first=ROWS, label=label)


def _await() -> None:
    query: RunningQuery = st.session_state["query"]
    if not query.running:
        st.rerun()
    with st.container(horizontal=True, vertical_alignment="center"):
        st.caption(f"runs for {query.elapsed:.1f} s")
        if st.button("Stop"):
            with connect(data.home()) as reader:
                reader.stop(query.label)


def _answer(query: RunningQuery) -> None:
    took = f"{number(query.elapsed)} s"
    if query.table is None:
        ui.write(f"No result, after {took}: {harmless(query.refusal)}", "warning")
        return
    table = query.table
    more = MORE in (table.schema.metadata or {})
    count = (
        f"the first {table.num_rows:,} rows; there are more: add a LIMIT, an aggregate or a condition"
        if more
        else counted(table.num_rows, "row")
    )
    st.caption(f"{count}, {counted(len(table.column_names), 'column')}, in {took}")
    frame = ui.made("answer", query.label, lambda: frame_of(table))
    st.dataframe(
        frame,
        hide_index=True,
        placeholder="null",
        alt="answer",
        key="answer",
        height="content" if len(frame) <= _LOW else 560,
    )
    text = ui.made("answer as CSV", query.label, lambda: csv_of(table))
    if text is None:
        st.caption("Too large to download here: use `logprobe sql … --csv`.")
    else:
        ui.download("CSV", lambda: text, "answer.csv")
