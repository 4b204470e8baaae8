"""Data page: stored, missing, lost and quarantined records, collectors, and SQL queries."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import polars as pl
import pyarrow as pa
import streamlit as st

from logprobe.app import doctor
from logprobe.app.dashboard import acting, data, ui
from logprobe.app.dashboard.access.settings import Permission
from logprobe.app.dashboard.data import Look
from logprobe.app.dashboard.reading.query import ROWS, RunningQuery
from logprobe.app.dashboard.told import tell
from logprobe.app.dashboard.ui import Line
from logprobe.app.runs import Run
from logprobe.app.text.files import store_of
from logprobe.app.text.lost_records import about_file
from logprobe.app.text.numbers import counted, data_size, duration, number, when
from logprobe.app.view import records
from logprobe.app.view.story import of_records
from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.plain_text import harmless
from logprobe.monitor import queries
from logprobe.monitor.live.quarantine_actions import DROP, RETRY
from logprobe.monitor.reader import connect

Row = Mapping[str, Any]

FILES: Final = 100  # of the quarantine, the newest
_PACE: Final = 1.0
_LOW: Final = 20  # rows that are shown without scrolling
_QUICK: Final = 0.4  # seconds within which most queries end; longer ones are looked after by the page
_RUNS: Final[dict[str, Any]] = {
    "run": "run",
    "lost_tokens": "lost tokens",
    "lost_sequences": "lost sequences",
    "quarantined": "quarantined files",
    "sequences": "sequences",
    "with_raw": "of these with raw tokens",
    "raw_bytes": st.column_config.NumberColumn("raw bytes", format="bytes"),
    "last_time": st.column_config.DatetimeColumn("last record", format="YYYY-MM-DD HH:mm", timezone="UTC"),
}
_OUTCOMES: Final = {
    "returned": "moved back to the spool",
    "dropped": "deleted",
    "gone": "no change, no longer in quarantine",
}


@dataclass(frozen=True)
class Stored:
    """Content of the store: rows of the queries `app_data_runs` and `app_data_quarantine`."""

    runs: pa.Table
    quarantine: Sequence[Row]


def draw(look: Look, run: Run | None) -> None:
    """Draw the page."""
    view = ui.choice("view", ("records", "SQL"), "of the data")
    if view == "SQL":
        with ui.guarded("SQL box"):
            _sql()
        return
    with ui.guarded("account of the data directory"):
        runs = look.runs or {}
        version = tuple(map(data.version_of, runs.values()))
        stored = data.kept("stored", (version, st.session_state.get("quarantine")), _stored, pace=_PACE)
        room = data.kept(
            "room",
            None,
            lambda: "; ".join(each.text.partition(": ")[2] or each.text for each in doctor.place(data.home())),
        )
        ui.facts(ingest_facts(look.status, room))
        ui.title("Runs", "newest first; times are UTC")
        if stored.runs.num_rows:
            _table("runs", stored.runs, column_order=list(_RUNS), column_config=_RUNS)
        else:
            st.caption("Nothing has been recorded here yet; see the Overview to get started.")
        if run is not None:
            with ui.guarded("account of the run"):
                _run(run)
        _quarantine(stored)
        _retention(look)
        ui.title("Jobs of the service", "each is retried at its next turn")
        if jobs := _jobs(look.status):
            _table("jobs", jobs_of(jobs))
        else:
            st.caption("The service does not answer, so nothing is ingested, computed or sent.")


def _stored() -> Stored:
    return Stored(
        runs=queries.app_data_runs(data.reader()),
        quarantine=queries.app_data_quarantine(data.reader(), limit=FILES).to_pylist(),
    )


def _table(name: str, rows: pl.DataFrame | pa.Table, **more: Any) -> None:
    st.dataframe(rows, hide_index=True, placeholder="–", alt=name, key=f"table {name}", **more)


# --- The home ---


def ingest_facts(status: Row, room: str) -> list[tuple[str, str]]:
    """Return backlog and place of the service, by its status. `room`: free space on the disk."""
    service = (
        "not running" if not status.get("running") else f"process {status['pid']}, since {when(status['started'])}"
    )
    return [
        ("waiting in spool", waiting(status.get("backlog"))),
        ("service", service),
        ("data directory", f"{status.get('home', '–')}: {room}"),
    ]


def waiting(backlog: Row | None) -> str:
    """Return the pending records in the spool."""
    if backlog is None:
        return "–"
    hidden = backlog.get("unreadable")
    unseen = f"; {counted(hidden, 'file or folder')} cannot be inspected" if hidden else ""
    if not backlog["segments"]:
        return f"nothing{unseen}"
    oldest = duration(backlog["oldest_seconds"] or 0.0)
    return f"{backlog['segments']:,} files, {data_size(backlog['bytes'])}, the oldest {oldest} old{unseen}"


def _jobs(status: Row) -> Mapping[str, Any]:
    return status.get("jobs") or {}


def jobs_of(jobs: Mapping[str, Row]) -> pl.DataFrame:
    """Return a row per job of the service."""
    rows = [
        {
            "job": name.replace("_", " "),
            "last run": when(job["finished_at"]),
            "runs": job["runs"],
            "failures": job["failures"],
            "last error": harmless(job["last_error"] or ""),
            "last result": harmless(", ".join(f"{key} {value}" for key, value in job["progress"].items() if value)),
        }
        for name, job in jobs.items()
    ]
    return pl.DataFrame(rows, infer_schema_length=None)


# --- Files ---


def _quarantine(stored: Stored) -> None:
    total = stored.quarantine[0]["total"] if stored.quarantine else 0
    more = f"; the newest {len(stored.quarantine):,} of {total:,}" if total > len(stored.quarantine) else ""
    ui.title("Quarantine", f"files that cannot be trusted; their rows are not counted{more}")
    head = ("file", "of run", "what happened", "what to do", "moved aside")
    ui.table("quarantine", head, list(map(file_line, stored.quarantine)), empty="No files in quarantine.")
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


def _retention(look: Look) -> None:
    done = (_jobs(look.status).get("retention") or {}).get("progress") or {}
    ui.title("Retention", "of single tokens and of sequences; metrics and events are never removed")
    store = store_of((_jobs(look.status).get("store_budget") or {}).get("progress") or {})
    ui.facts([("limits", limits(done)), ("kept now", kept_now(done)), ("last look", _removed(done)), ("store", store)])


def limits(done: Row) -> str:
    """Return the limits of retention."""
    if "max_bytes" not in done:
        return "unknown: the service has not checked yet"
    stated = [
        f"{data_size(done['max_bytes'])} in all" if done["max_bytes"] is not None else "",
        f"no older than {duration(done['max_age_seconds'])}" if done["max_age_seconds"] is not None else "",
    ]
    return ", ".join(filter(None, stated)) + "; oldest removed first" if any(stated) else "none: everything is kept"


def kept_now(done: Row) -> str:
    """Return the retained amounts."""
    if "raw_bytes" not in done:
        return "–"
    share = f", {done['raw_bytes'] / done['max_bytes']:.0%} of the limit" if done.get("max_bytes") else ""
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


# --- The run ---


def _run(run: Run) -> None:
    """Draw the sections of `logprobe show` about the records of a run."""
    name = run.name
    version = (data.version_of(run), data.look().status.get("backlog"))
    now = datetime.now(UTC)
    account = data.kept(("account", name), version, lambda: records.describe(data.reader(), name, now=now), pace=_PACE)
    ui.title(harmless(name), account["reason"])
    tell(of_records(account))


# --- SQL ---


def _sql() -> None:
    """Draw the form for one read-only statement. A statement from a link runs only after the user presses Run."""
    ui.title("SQL", f"one read-only statement over all runs; at most {ROWS:,} rows are shown, `logprobe sql` gives all")
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
        st.session_state["query"] = query = RunningQuery(_asking(sql, acting.granted()))
        query.wait(_QUICK)
    if query is not None:
        if query.running:
            st.fragment(_await, run_every=0.5)()
        else:
            _answer(query)
    with st.expander("Views and tables", key="schema"):
        schema = data.kept("schema", None, lambda: queries.app_data_schema(data.reader()))
        st.dataframe(schema, hide_index=True, alt="schema", key="schema table")


def _asking(sql: str, allowed: Permission) -> Callable[[], pa.Table]:
    """Return the function that runs a statement in another thread, with a connection of its own.

    SQL takes time and memory from the service. A user who may not act sees the reason for the refusal.
    """

    def ask() -> pa.Table:
        if allowed is not Permission.GRANTED:
            raise ConfigurationError(f"nothing was run: {allowed.value}")
        with connect(home) as reader:
            return reader.query(sql, first=ROWS)

    home = data.home()
    return ask


def _await() -> None:
    query: RunningQuery = st.session_state["query"]
    if not query.running:
        st.rerun()
    st.caption(f"runs for {time.monotonic() - query.begun:.1f} s")


def _answer(query: RunningQuery) -> None:
    took, rows = f"{number(query.seconds)} s", query.rows
    if rows is None:
        ui.write(f"No result, after {took}: {harmless(query.refusal)}", "warning")
        return
    count = (
        f"the first {len(rows):,} rows; there are more: add a LIMIT, an aggregate or a condition"
        if query.more
        else counted(len(rows), "row")
    )
    st.caption(f"{count}, {counted(rows.width, 'column')}, in {took}")
    st.dataframe(
        rows,
        hide_index=True,
        placeholder="null",
        alt="answer",
        key="answer",
        height="content" if len(rows) <= _LOW else 560,
    )
