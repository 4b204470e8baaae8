"""Incidents in the store, written inside the transaction of what they follow from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlencode

import pyarrow as pa

from logprobe.alerts.incidents.lifecycle import HEALTHY_STEPS, Change, Standing
from logprobe.alerts.notification import CLOSED, Notification
from logprobe.alerts.sending.outbox import enqueue
from logprobe.monitor import queries
from logprobe.monitor.judgement import Severity
from logprobe.monitor.store.store import Store

RULE: Final = "incident"  # what that notification has in the place of a rule
_KEPT: Final = pa.schema([("id", pa.string()), ("healthy", pa.int64()), ("seen", pa.int64())])


@dataclass(frozen=True, slots=True)
class Looked:
    """What one look at a run makes of its newest incident.

    Attributes:
        run: name of the run.
        before: how the incident stood; None: there was none.
        after: how it stands.
        change: whether one opened or closed.
        step: newest one of the run.
        at: time of the look.
        since: where the trouble began; None: not known.
        episodes: of the critical alerts that fire, whose messages belong to an incident that opens.
        severity: of the run.
        page: address of the dashboard; None: there is none.
        diagnosed: whether there is a diagnosis that was not looked at yet.
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
        """Of the open incident, or the one that ended with this look; None: neither."""
        state = self.after
        return None if state is None or not (state.open or self.change) else name(self.run, state.number)

    @property
    def is_news(self) -> bool:
        """Whether there is anything to write down."""
        return self.after is not None and (self.after != self.before or (self.after.open and self.diagnosed))


def name(run: str, number: int) -> str:
    """Return the name of a run's incident.

    >>> name("math-4b", 2)
    'math-4b#2'
    """
    return f"{run}#{number}"


def link(page: str | None, run: str, incident: str) -> str | None:
    """Address of its page; None: there is no dashboard."""
    return None if page is None else f"{page}/?{urlencode({'page': 'incidents', 'run': run, 'incident': incident})}"


def newest(source: queries.Source, runs: Sequence[str]) -> dict[str, Standing]:
    """How the newest incident of each of `runs` stands that has had one. Raises `QueryError` as the source does."""
    rows = queries.incident_newest(source, runs=list(runs)).to_pylist()
    return {row["run"]: Standing(*(row[name] for name in ("number", "open", "healthy", "seen"))) for row in rows}


def keep(store: Store, cursor: Any, looks: Iterable[Looked]) -> None:
    """Writes down what looks came to, inside a `Store.transaction` whose cursor is `cursor`, messages included."""
    looked = list(looks)
    for look in looked:
        if look.change == "opened" and look.after is not None:
            opened: dict[str, Any] = {
                "number": look.after.number,
                "now": look.at,
                "step": look.step,
                "since": look.since,
            }
            store.execute(cursor, "incident_open", id=look.id, run=look.run, **opened)
            if look.episodes:
                store.execute(cursor, "incident_adopt", id=look.id, run=look.run, episodes=list(look.episodes))
    rows = [
        {"id": name(look.run, look.after.number), "healthy": look.after.healthy, "seen": look.after.seen}
        for look in looked
        if look.change is None and look.after is not None and look.after != look.before
    ]
    if rows:
        store.execute(cursor, "incident_keep", pa.Table.from_pylist(rows, _KEPT))
    going_on = [look.run for look in looked if look.id is not None and (look.change or look.diagnosed)]
    if going_on:
        store.execute(cursor, "incident_diagnosed", runs=going_on)
    for look in looked:
        if look.change == "closed" and look.id is not None:
            _close(store, cursor, look.id, look)


def _close(store: Store, cursor: Any, incident: str, look: Looked) -> None:
    """Close an incident, and tell those who were told of it."""
    (row,) = queries.incident_show(store, incident=incident).to_pylist()
    store.execute(cursor, "incident_close", id=incident, now=look.at, step=look.step)
    if row["told"]:
        enqueue(store, cursor, _closed(row, look))


def _closed(incident: Mapping[str, Any], look: Looked) -> Notification:
    """Return the notification that an incident is over; as loud as what opened it, so the same channels send it."""
    return Notification(
        key=f"{incident['id']}/{CLOSED}",
        run=incident["run"],
        rule=RULE,
        episode=incident["id"],
        state=CLOSED,
        severity="critical",
        at=look.at,
        summary=f"Closed: the run was healthy for {HEALTHY_STEPS} steps, up to step {look.step:,}.",
        step=look.step,
        since_step=incident["since_step"],
        cause=incident["cause"],
        link=link(look.page, incident["run"], incident["id"]),
        run_severity=look.severity,
        incident=incident["id"],
    )
