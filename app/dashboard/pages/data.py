"""Data: what is stored of which run, what is missing, lost or quarantined, who is at work; and SQL over all of it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, lru_cache
from typing import Any, Final

import streamlit as st

from logprobe.app import doctor
from logprobe.app.dashboard.access.settings import Permission
from logprobe.app.dashboard.browser import panel
from logprobe.app.dashboard.data.feed import Snapshot
from logprobe.app.dashboard.elements.blocks import Block, facts, heading, row, table
from logprobe.app.dashboard.pages import data_home as words
from logprobe.app.dashboard.pages.sql_box import ROWS, RunningQuery, answer, examples, schema_of
from logprobe.app.dashboard.views.acting import ask, attempt, blocked, granted, said
from logprobe.app.dashboard.views.page import show
from logprobe.app.dashboard.views.report import report
from logprobe.app.dashboard.views.session import feed, guarded, home, is_new, kept, made
from logprobe.app.runs import Run
from logprobe.app.text import nodes
from logprobe.app.text.gaps import doubled, faults_of, gaps_of, measured, raw_sampled, sent
from logprobe.app.text.lost_records import about_event
from logprobe.app.text.numbers import counted, data_size, number, when
from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.plain_text import harmless
from logprobe.monitor import queries
from logprobe.monitor.analysis import identity
from logprobe.monitor.ingest.quarantine_actions import DROP, RETRY
from logprobe.monitor.reader import connect

Row = Mapping[str, Any]

_COLLECTORS: Final = ("collector", "process", "state", "self-test", "recorded", "lost", "queue and cost")
_NODES: Final = ("node", "behind", "clock", "logprobe", "problem")
_PROBLEMS: Final = ("complaint", "times", "lost", "last", "message", "what to do")
_TWICE: Final = (
    "totals of these steps are too large, means hardly change; record into another run name, and report it as a bug in "
    "logprobe"
)


@dataclass(frozen=True)
class Account:
    """What is known of one run's records: rows of stored queries, and the on-policy verdict.

    Attributes:
        gaps: None: nothing was ingested.
        on_policy: in words.
        doubled: None: nothing is in the store twice.
        sent: None: not asked.
        nodes: none: the run shares a disk with the service.
    """

    gaps: queries.CliGaps | None
    problems: Sequence[queries.CliProblems]
    collectors: Sequence[queries.AppDataCollectors]
    on_policy: str
    doubled: queries.CliDoubled | None = None
    sent: queries.CliSent | None = None
    nodes: Sequence[queries.NodesOf] = ()


def run_blocks(run: str, account: Account, alerts: Sequence[str] | None) -> list[Block]:
    """What a run's records allow to be measured, and what of them was lost. `alerts`: that fire; None: not evaluated
    yet."""
    firing = "the alerts have not looked yet" if alerts is None else ", ".join(alerts) or "none fires"
    stated = [("on-policy", account.on_policy), ("alerts", firing)]
    if account.gaps is not None:
        sampled = raw_sampled(account.gaps)
        stated = [("measured", measured(account.gaps)), *([("sampling", sampled)] if sampled else []), *stated]
    if account.sent is not None and (words_on_sent := sent(account.sent)):
        stated = [("sent", words_on_sent), *stated]
    problems = [_problem(problem) for problem in account.problems]
    return [
        heading(f"Missing inputs of {harmless(run)}", "and the metrics they affect"),
        facts(stated),
        table("lacks", ("what", "what to do"), _lacks(account), empty="None: everything can be measured."),
        heading("Drops and problems", "as reported by the run's collectors and ingest"),
        table("problems", _PROBLEMS, problems, empty="Nothing dropped, no problems reported."),
    ]


def _lacks(account: Account) -> list[Block]:
    gaps = account.gaps
    if gaps is None:
        return [row(["none of it has been ingested yet", "check the spool"])]
    twice = [] if account.doubled is None else [row([harmless(doubled(account.doubled)), _TWICE], tone="critical")]
    faults = [row([words, remedy], tone="critical") for words, remedy in faults_of(gaps)]
    return [*twice, *faults, *(row([words, remedy], tone="warning") for words, remedy in gaps_of(gaps))]


def _problem(problem: queries.CliProblems) -> Block:
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
    return row(cells, tone="critical" if problem["severity"] == "error" else "warning")


def collectors_blocks(run: str, collectors: Sequence[queries.AppDataCollectors]) -> list[Block]:
    """Who records a run, and how each of them is."""
    rows = [_collector(collector) for collector in collectors]
    empty = "No collector has reported."
    note = "most recent first; engines with the plugin have a self-test"
    return [heading(f"Collectors of {harmless(run)}", note), table("collectors", _COLLECTORS, rows, empty=empty)]


def nodes_blocks(run: str, sending: Sequence[queries.NodesOf]) -> list[Block]:
    """How far the nodes that ship are behind; nothing where none does."""
    if not sending:
        return []
    rows = [
        row(
            [
                harmless(node["node"]),
                nodes.behind(node),
                nodes.clock(node) or "right",
                harmless(node["version"] or "–"),
                harmless(node["problem"] or "none"),
            ],
            tone="warning" if nodes.is_late(node) else "",
        )
        for node in sending
    ]
    return [
        heading(f"Nodes of {harmless(run)}", "that ship to this service; the one furthest behind first"),
        table("nodes", _NODES, rows, empty=""),
    ]


def _collector(collector: queries.AppDataCollectors) -> Block:
    started, counters = _document(collector["started"]), _document(collector["counters"])
    dropped = counters.get("dropped") or {}
    failed = collector["failed"] or (collector["self_test"] if collector["self_test_severity"] == "error" else None)
    return row(
        [
            f"{collector['component'] or '–'} {harmless(collector['writer'])}",
            _process(started),
            _heard(collector),
            harmless(collector["self_test"] or "none"),
            _recorded(collector, counters),
            _dropped(dropped, counters),
            _load(counters),
        ],
        tone="critical" if failed else "warning" if dropped else "",
    )


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
    pairs = versions.items() if isinstance(versions, dict) else ()
    parts = [
        f"pid {started.get('pid', '–')} on {started.get('host', '–')}",
        "" if started.get("rank") is None else f"rank {started['rank']}",
        "" if started.get("replica") is None else f"replica {started['replica']}",
        ", ".join(f"{name} {version}" for name, version in pairs if version and name in {"logprobe", "torch", "vllm"}),
    ]
    return harmless("; ".join(filter(None, parts)))


def _heard(collector: queries.AppDataCollectors) -> str:
    if collector["failed"]:
        return harmless(collector["failed"])
    word = "closed cleanly" if collector["closed"] else "last heard"
    return f"{word} {when(collector['last_sign'] or collector['last_segment'])}"


def _recorded(collector: queries.AppDataCollectors, counters: Row) -> str:
    written = counters.get("written") or {}
    if not written and collector["segments"] is None:
        return "–"
    amounts = (
        [f"{_whole(written.get('tokens'))} tokens in {_whole(written.get('sequences'))} sequences"] if written else []
    )
    arrived = [] if collector["segments"] is None else [f"{counted(collector['segments'], 'file')} arrived"]
    return "; ".join([*amounts, *arrived])


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
    return (
        ", ".join(
            counted(count, str(noun).removesuffix("s"))
            for noun, count in loss.items()
            if isinstance(count, int) and count
        )
        or "0"
    )


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


_FILES: Final = 100  # of the quarantine, the newest
_HOME_SECONDS: Final = 10.0  # what costs more to read than it changes in the meantime
_RUN_SECONDS: Final = 5.0
_QUICK: Final = 0.4  # seconds within which most queries end; longer ones are looked after by the page
_ASKED, _ANSWERED, _DRAWN = "sql asked", "sql answered", "sql drawn"
_QUARANTINE: Final = "quarantine"
_OUTCOMES: Final = {
    "returned": "moved back to the spool",
    "dropped": "deleted",
    "gone": "no change, no longer in quarantine",
}
_PARTS: Final = (
    ("runs", "Runs"),
    ("run", "Missing and lost"),
    ("collectors", "Collectors"),
    ("quarantine", "Quarantine"),
    ("retention", "Retention"),
    ("jobs", "Jobs"),
    ("installed", "Installed"),
    ("SQL", "SQL"),
)


def draw(snapshot: Snapshot, run: Run | None) -> None:
    """Draws the page."""
    stored = None
    with guarded("account of the home"):
        panel("data", "parts", {"version": "1", "parts": _PARTS})
        stored = kept("data home", lambda: _stored(_tick(_HOME_SECONDS)))
        if stored is None:
            _blocks("ingest", words.nothing_read())
        else:
            _blocks("ingest", words.ingest_blocks(snapshot.status, stored, _room(_tick(_HOME_SECONDS))))
            _blocks("runs", words.runs_blocks(stored, snapshot.runs or (), None if run is None else run.name))
    if run is not None:
        _about(run)
    if stored is not None:
        with guarded("quarantine, retention and jobs"):
            _quarantine(snapshot, run, stored)
            _blocks("retention", words.kept_blocks(stored, snapshot.status))
            _blocks("jobs", words.jobs_blocks(snapshot.status))
            _blocks("installed", words.environment_blocks(_installed()))
    with guarded("SQL box"):
        _sql(None if run is None else run.name)


def _about(run: Run) -> None:
    with guarded("account of the run"):
        at = (run.revision, run.news, _tick(_RUN_SECONDS))
        account = kept(f"data {run.name}", lambda: _account(run.name, at))
        if account is not None:
            firing = None if run.judgement.verdict is None else tuple(alert.rule for alert in run.judgement.alerts)
            _blocks("run", run_blocks(run.name, account, firing))
            nodes = nodes_blocks(run.name, account.nodes)
            _blocks("collectors", [*collectors_blocks(run.name, account.collectors), *nodes])


def _quarantine(snapshot: Snapshot, run: Run | None, stored: words.Stored) -> None:
    may_not = blocked("" if run is None else run.name)
    blocks = [*said(_QUARANTINE), *words.files_blocks(stored, snapshot.status, blocked=may_not)]
    attempt(_QUARANTINE, _blocks(_QUARANTINE, blocks), _handle)


def _handle(asked: Mapping[str, Any]) -> str:
    """Does what was confirmed about a file in quarantine; says what came of it. Raises `LogprobeError`."""
    action = RETRY if asked.get("id") == "retry" else DROP
    done = ask(action, {"file": asked.get("file"), "author": asked.get("by")})
    _stored.cache_clear()  # the file must not be offered again
    return f"{done['file']}: {_OUTCOMES[done['status']]}."


def _blocks(key: str, blocks: Sequence[Block]) -> Mapping[str, Any] | None:
    return report(f"data {key}", key, blocks)


def _tick(seconds: float) -> int:
    """Another number every so many seconds: what is cached by it is read so often, however many look."""
    return int(time.monotonic() // seconds)


@lru_cache(maxsize=2)
def _stored(_: int) -> words.Stored:
    return words.Stored(
        runs=queries.app_data_runs(feed()).to_pylist(),
        kept=queries.app_data_kept(feed()).to_pylist(),
        quarantine=queries.app_data_quarantine(feed(), limit=_FILES).to_pylist(),
        store=queries.app_data_store(feed()).to_pylist()[0],
    )


@lru_cache(maxsize=16)
def _account(run: str, _: Hashable) -> Account:
    judged = identity.judge(identity.facts_of(queries.slice_identity(feed(), runs=[run], first=[None], last=[None])))
    return Account(
        gaps=next(iter(queries.cli_gaps(feed(), run=run).to_pylist()), None),
        problems=queries.cli_problems(feed(), run=run).to_pylist(),
        doubled=next(iter(queries.cli_doubled(feed(), run=run).to_pylist()), None),
        sent=next(iter(queries.cli_sent(feed(), run=run).to_pylist()), None),
        collectors=queries.app_data_collectors(feed(), run=run).to_pylist(),
        nodes=queries.nodes_of(feed(), run=run, now=datetime.now(UTC)).to_pylist(),
        on_policy=f"{judged.verdict}: {judged.reason}",
    )


@lru_cache(maxsize=2)
def _room(_: int) -> str:
    """What there is on the disk, as far as this process can see it."""
    return "; ".join(finding.text.partition(": ")[2] or finding.text for finding in doctor.place(home()))


@cache
def _installed() -> tuple[tuple[str, str, str], ...]:
    """Packages and hooks; they do not change while this process runs."""
    sections = {"installed", "hooks"}
    return tuple((line.level, line.text, line.remedy) for line in doctor.examine(None) if line.section in sections)


@lru_cache(maxsize=2)
def _schema(_: int) -> list[Block]:
    return schema_of(queries.app_data_schema(feed()).to_pylist())


def _sql(run: str | None) -> None:
    """The box. A separate fragment would be cheaper, but the browser may send news for two fragments at once, and
    complains."""
    query: RunningQuery | None = st.session_state.get(_ASKED)
    schema = kept("sql schema", lambda: _schema(_tick(_HOME_SECONDS))) or []
    drawn = _answer(query)
    state = (drawn["state"], drawn.get("seconds"), None if query is None else query.label, run, len(schema))
    data = {"answer": drawn, "examples": examples(run), "schema": schema, "limit": ROWS}
    wanted = show("sql", "sql", {"version": str(state), **data})
    if not is_new(wanted, _ANSWERED):
        return
    if wanted.get("id") == "run" and (query is None or not query.running):
        st.session_state[_ASKED] = query = RunningQuery(str(wanted.get("sql", "")), _asking(granted()))
    elif wanted.get("id") == "stop" and query is not None:
        with connect(home()) as reader:
            reader.stop(query.label)
    if query is not None:
        query.wait(_QUICK)
    st.rerun(scope="fragment")


def _answer(query: RunningQuery | None) -> dict[str, object]:
    """What became of the query; a thousand rows are made into text once."""
    if query is None or query.running:
        return answer(query)
    return made(_DRAWN, query.label, lambda: answer(query))


def _asking(allowed: Permission) -> Callable[[str, str], Any]:
    """Return what runs a statement for this session: SQL takes time and memory from the service, so who may not act is
    told why not."""

    def refuse(_sql: str, _label: str) -> Any:
        raise ConfigurationError(f"nothing was run: {allowed.value}")

    return _ask if allowed is Permission.GRANTED else refuse


def _ask(sql: str, label: str) -> Any:
    """In a thread of the query's own, over its own connection."""
    with connect(home()) as reader:
        return reader.query(sql, first=ROWS, label=label)
