"""Data: what is stored of which run, what is missing, lost or quarantined, who is at work; and SQL over all of it."""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache, lru_cache
from typing import Any, Final

import streamlit as st

from logprobe.app import doctor
from logprobe.app.dashboard.browser import panel
from logprobe.app.dashboard.data.feed import Snapshot
from logprobe.app.dashboard.data.query import RunningQuery
from logprobe.app.dashboard.elements.blocks import Block
from logprobe.app.dashboard.pages import data as words
from logprobe.app.dashboard.pages import data_run
from logprobe.app.dashboard.pages.sql_box import ROWS, answer, examples, schema_of
from logprobe.app.dashboard.views.acting import ask, attempt, blocked, said
from logprobe.app.dashboard.views.page import report, show
from logprobe.app.dashboard.views.session import feed, guarded, home, is_new, kept, made, rows_of
from logprobe.app.runs import Run
from logprobe.monitor.analysis import identity
from logprobe.monitor.ingest.quarantine_actions import DROP, RETRY
from logprobe.monitor.reader import connect

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
    ("imports", "Imports"),
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
            _blocks("imports", words.imports_blocks(snapshot.status))
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
            firing = None if run.judgement.verdict is None else tuple(each.rule for each in run.judgement.alerts)
            _blocks("run", data_run.run_blocks(run.name, account, firing))
            nodes = data_run.nodes_blocks(run.name, account.nodes)
            _blocks("collectors", [*data_run.collectors_blocks(run.name, account.collectors), *nodes])


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
    """Another number every so many seconds: what is cached by it is read so often, whoever looks."""
    return int(time.monotonic() // seconds)


@lru_cache(maxsize=2)
def _stored(_: int) -> words.Stored:
    return words.Stored(
        runs=rows_of("app_data_runs"),
        kept=rows_of("app_data_kept"),
        quarantine=rows_of("app_data_quarantine", limit=_FILES),
        store=rows_of("app_data_store")[0],
    )


@lru_cache(maxsize=16)
def _account(run: str, _: Hashable) -> data_run.Account:
    judged = identity.judge(identity.facts_of(feed().read("slice_identity", runs=[run], first=[None], last=[None])))
    return data_run.Account(
        gaps=next(iter(rows_of("cli_gaps", run=run)), None),
        problems=rows_of("cli_problems", run=run),
        doubled=next(iter(rows_of("cli_doubled", run=run)), None),
        sent=next(iter(rows_of("cli_sent", run=run)), None),
        collectors=rows_of("app_data_collectors", run=run),
        nodes=rows_of("relay_nodes", run=run, now=datetime.now(UTC)),
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
    return tuple((each.level, each.text, each.remedy) for each in doctor.examine(None) if each.section in sections)


@lru_cache(maxsize=2)
def _schema(_: int) -> list[Block]:
    return schema_of(rows_of("app_data_schema"))


def _sql(run: str | None) -> None:
    """The box. A fragment of its own would be cheaper, but the browser may send news for two fragments at once, and complains."""
    query: RunningQuery | None = st.session_state.get(_ASKED)
    schema = kept("sql schema", lambda: _schema(_tick(_HOME_SECONDS))) or []
    drawn = _answer(query)
    state = (drawn["state"], drawn.get("seconds"), None if query is None else query.label, run, len(schema))
    data = {"answer": drawn, "examples": examples(run), "schema": schema, "limit": ROWS}
    wanted = show("sql", "sql", {"version": str(state), **data})
    if not is_new(wanted, _ANSWERED):
        return
    if wanted.get("id") == "run" and (query is None or not query.running):
        st.session_state[_ASKED] = query = RunningQuery(str(wanted.get("sql", "")), _ask)
    elif wanted.get("id") == "stop" and query is not None:
        with connect(home()) as reader:
            reader.stop(query.label)
    if query is not None:
        query.wait(_QUICK)
    st.rerun(scope="fragment")


def _answer(query: RunningQuery | None) -> dict[str, Any]:
    """What became of the query; a thousand rows are made into text once."""
    if query is None or query.running:
        return answer(query)
    return made(_DRAWN, query.label, lambda: answer(query))


def _ask(sql: str, label: str) -> Any:
    """In a thread of the query's own, over a connection of its own."""
    with connect(home()) as reader:
        return reader.query(sql, first=ROWS, label=label)
