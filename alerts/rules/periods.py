"""Critical periods of runs (incidents). Messages of a period share a thread, and its report names its cause.

| newest period | severity of the run | result |
|---|---|---|
| none, or closed | critical | a period opens |
| open | critical, warning | healthy steps count from 0 |
| open | unknown | steps count neither as healthy nor against it |
| open | ok | steps since the last look count, if the run was healthy at that look |
| open | ok for `HEALTHY_STEPS` steps in a row | it closes |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, Literal
from urllib.parse import urlencode

import pyarrow as pa

from logprobe.alerts.notification import CLOSED, Notification
from logprobe.alerts.sending.outbox import enqueue
from logprobe.monitor import queries
from logprobe.monitor.judgement import Severity
from logprobe.monitor.store.store import Store

HEALTHY_STEPS: Final = 100
RULE: Final = "incident"  # of the message that a period is over
Change = Literal["opened", "closed"]
_KEPT: Final = pa.schema([("id", pa.string()), ("healthy", pa.int64()), ("seen", pa.int64())])


@dataclass(frozen=True, slots=True)
class Standing:
    """State of a run's newest period.

    Attributes:
        number: 1 for the first of the run.
        open: true until it ends.
        healthy: consecutive healthy steps of the run.
        seen: last evaluated step if the run was healthy then, else None.
    """

    number: int
    open: bool = True
    healthy: int = 0
    seen: int | None = None


def advance(before: Standing | None, severity: Severity, step: int | None) -> tuple[Standing | None, Change | None]:
    """Return the newest period and the change after one more evaluation. `step`: newest step of the run."""
    if before is None or not before.open:
        opens = severity == "critical"
        return (Standing(1 if before is None else before.number + 1), "opened") if opens else (before, None)
    if severity != "ok":
        return replace(before, healthy=before.healthy if severity == "unknown" else 0, seen=None), None
    passed = 0 if before.seen is None or step is None else max(0, step - before.seen)
    after = replace(before, healthy=before.healthy + passed, seen=step)
    return (replace(after, open=False), "closed") if after.healthy >= HEALTHY_STEPS else (after, None)


@dataclass(frozen=True, slots=True)
class Look:
    """Result of one look at the newest period of a run.

    Attributes:
        run: name of the run.
        before: period before the look, or None.
        after: period after the look.
        change: opening or closing of a period, if any.
        step: newest step of the run.
        at: time of the look.
        since: first step of the fault, or None if unknown.
        episodes: episodes of the firing critical alerts, whose messages belong to a newly opened period.
        severity: severity of the run.
        page: URL of the dashboard, or None.
        diagnosed: true if a new diagnosis exists.
    """

    run: str
    before: Standing | None
    after: Standing | None
    change: Change | None
    step: int | None
    at: datetime
    since: int | None = None
    episodes: Sequence[str] = ()
    severity: Severity | None = None
    page: str | None = None
    diagnosed: bool = False

    @property
    def id(self) -> str | None:
        """Name of the open or newly closed period, such as ``math-4b#2``."""
        known = self.after is not None and (self.after.open or self.change)
        return f"{self.run}#{self.after.number}" if known and self.after else None

    @property
    def is_news(self) -> bool:
        """Return whether this look changed anything that must be written."""
        return self.after is not None and (self.after != self.before or (self.after.open and self.diagnosed))


def link(page: str | None, run: str, incident: str) -> str | None:
    """Return the URL of the period's page, or None without a dashboard."""
    query = {"page": "alerts", "list": "incidents", "run": run, "incident": incident}
    return None if page is None else f"{page}/?{urlencode(query)}"


def newest(source: queries.Source, runs: Sequence[str]) -> dict[str, Standing]:
    """Return the newest period of each of `runs` that has one. Raise `QueryError` as the source does."""
    rows = sorted(queries.incident_list(source, runs=list(runs)).to_pylist(), key=lambda row: row["number"])
    return {row["run"]: Standing(row["number"], row["closed_at"] is None, row["healthy"], row["seen"]) for row in rows}


def keep(store: Store, cursor: Any, looks: Sequence[Look]) -> None:
    """Write the results of looks and their messages through `cursor`, inside a `Store.transaction`."""
    for look in looks:
        if look.change != "opened" or look.after is None:
            continue
        facts: dict[str, Any] = {"number": look.after.number, "now": look.at, "step": look.step, "since": look.since}
        store.execute(cursor, "incident_open", id=look.id, run=look.run, **facts)
        if look.episodes:
            store.execute(cursor, "incident_adopt", id=look.id, run=look.run, episodes=list(look.episodes))
    kept = [(look.id, look.after) for look in looks if look.change is None and look.after != look.before]
    if kept:
        rows = [{"id": name, "healthy": after.healthy, "seen": after.seen} for name, after in kept if after]
        store.execute(cursor, "incident_keep", pa.Table.from_pylist(rows, _KEPT))
    going_on = [look.run for look in looks if look.id is not None and (look.change or look.diagnosed)]
    if going_on:
        store.execute(cursor, "incident_diagnosed", runs=going_on)
    for look in looks:
        if look.change == "closed" and look.id is not None:
            _close(store, cursor, look.id, look)


def _close(store: Store, cursor: Any, incident: str, look: Look) -> None:
    """Close a period and inform its recipients, with the severity of the opening message to reach the same channels."""
    (row,) = queries.incident_show(store, incident=incident).to_pylist()
    store.execute(cursor, "incident_close", id=incident, now=look.at, step=look.step)
    if not row["told"]:
        return
    closed = Notification(
        key=f"{incident}/{CLOSED}",
        run=look.run,
        rule=RULE,
        episode=incident,
        state=CLOSED,
        severity="critical",
        at=look.at,
        summary=f"Closed: the run was healthy for {HEALTHY_STEPS} steps, up to step {look.step:,}.",
        step=look.step,
        since_step=row["since_step"],
        cause=row["cause"],
        link=link(look.page, look.run, incident),
        run_severity=look.severity,
        incident=incident,
    )
    enqueue(store, cursor, closed)
