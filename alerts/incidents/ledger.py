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
from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor import queries
from logprobe.monitor.judgement import Severity
from logprobe.monitor.store.store import Store

ITSELF: Final = "logprobe"  # who closed what no person did
RULE: Final = "incident"  # what that notification has in the place of a rule
_KEPT: Final = pa.schema(
    [("id", pa.string()), ("open", pa.bool_()), ("healthy", pa.int64()), ("seen", pa.int64()), ("calm", pa.bool_())]
)


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
    """What people call a run's incident.

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
    return {
        row["run"]: Standing(*(row[name] for name in ("number", "open", "calm", "healthy", "seen"))) for row in rows
    }


def find(source: queries.Source, wanted: str, *, by_id: bool = False) -> queries.IncidentShow:
    """The incident of an id, or the newest of a run. `by_id`: it is an id, and no run's name.

    Raises:
        ConfigurationError: there is none, or, as a run's name may be another's incident, one of either.
        QueryError: as the source does.
    """
    rows = queries.incident_show(source, incident=wanted).to_pylist()
    latest = [] if by_id else queries.incident_newest(source, runs=[wanted]).to_pylist()
    if rows and latest:
        raise ConfigurationError(
            f"{wanted!r} is an incident of run {rows[0]['run']!r}, and a run that has incidents; add --id for that "
            "incident, "
            f"or name the run's newest: {latest[0]['id']!r}"
        )
    rows = rows or [row for entry in latest for row in queries.incident_show(source, incident=entry["id"]).to_pylist()]
    if not rows:
        raise ConfigurationError(f"no incident {wanted!r}; `logprobe incidents` lists them")
    return rows[0]


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
        _row(look.run, look.after)
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
            words = f"the run was healthy for {HEALTHY_STEPS} steps, up to step {look.step:,}"
            end = Closing(ITSELF, words, look.at, look.step, calm=True, severity=look.severity, page=look.page)
            close(store, cursor, look.id, end)


@dataclass(frozen=True, slots=True)
class Closing:
    """The end of an incident.

    Attributes:
        author: who closes it, `ITSELF` where no person does.
        resolution: what became of it.
        at: when.
        step: newest one of the run.
        calm: whether the run is not critical, so that the next critical severity opens another.
        severity: of the run.
        page: address of the dashboard; None: there is none.
    """

    author: str
    resolution: str
    at: datetime
    step: int | None
    calm: bool
    severity: str | None = None
    page: str | None = None


def close(store: Store, cursor: Any, incident: str, end: Closing) -> None:
    """Closes an incident that is open, and tells those who were told of it. Inside a `Store.transaction` whose cursor
    is `cursor`."""
    (row,) = queries.incident_show(store, incident=incident).to_pylist()
    if row["closed_at"] is not None:
        return
    written: dict[str, Any] = {
        "now": end.at,
        "step": end.step,
        "author": end.author,
        "resolution": end.resolution,
        "calm": end.calm,
    }
    store.execute(cursor, "incident_close", id=incident, **written)
    if row["told"]:
        enqueue(store, cursor, _closed(row, end))


def _closed(incident: Mapping[str, Any], end: Closing) -> Notification:
    """That an incident is over; as loud as what opened it, so that the same channels hear of it."""
    by = "by itself" if end.author == ITSELF else f"by {end.author}"
    return Notification(
        key=f"{incident['id']}/{CLOSED}",
        run=incident["run"],
        rule=RULE,
        episode=incident["id"],
        state=CLOSED,
        severity="critical",
        at=end.at,
        summary=f"Closed {by}: {end.resolution.rstrip('.')}.",
        step=end.step,
        since_step=incident["since_step"],
        cause=incident["cause"],
        link=link(end.page, incident["run"], incident["id"]),
        run_severity=end.severity,
        incident=incident["id"],
    )


def _row(run: str, after: Standing) -> dict[str, Any]:
    same = {"healthy": after.healthy, "seen": after.seen, "calm": after.calm}
    return {"id": name(run, after.number), "open": after.open, **same}
