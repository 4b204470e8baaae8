"""Taking over the runs of a service whose home is lost for good: from the copies of their segments in the object store.

The copies are what its receiver told relays is safe (`storage.segments`); what it did not acknowledge, relays send to
the new service, and weight marks, which nodes keep, as well. From the same records the same numbers are computed. What
was made in the lost home and came from no record, such as acceptances, notes and the state of a correction, is gone
with it.

The copies are of all records only if every collector of a run sends through a relay; so each service looks for those
that do not.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final, TypedDict

from logprobe.collectors.errors import ConfigurationError, ObjectStoreError, StoreError
from logprobe.monitor import queries
from logprobe.monitor.deletion.tombstones import Tombstones
from logprobe.monitor.fleet import handover
from logprobe.monitor.fleet.moved import Moved, MovedRuns
from logprobe.monitor.fleet.table import Fleet, Row, Standing
from logprobe.monitor.home import Home, utc_now
from logprobe.monitor.objects.segments import PARTIAL, SegmentCopies
from logprobe.monitor.service import actions
from logprobe.monitor.service.jobs import Job, Part
from logprobe.monitor.store.store import Store

COPIED: Final = "fleet.copied"
FETCH: Final = "fleet.fetch"
REDIRECT: Final = "fleet.redirect"
_SECONDS: Final = 10.0
_ANSWER_SECONDS: Final = 3600.0


class TakenOver(TypedDict):
    """A run of a lost service. `segments`: put into the new one's spool, None: none were needed; `missing`: numbers
    between them without a copy.

    `to` None: no service has it now, for the reason that `problem` says.
    """

    run: str
    to: str | None
    segments: int | None
    missing: int
    problem: str | None


def part(store: Store, _: threading.Event) -> Part:
    """What the service offers, and its look at what is not copied."""
    return Part(jobs=[Job("copies", _SECONDS, Uncopied(store).run_once)], actions=actions.offered(_ACTIONS, store))


def take_over(fleet: Fleet, lost: str, standings: Mapping[str, Standing], author: str) -> Iterator[TakenOver]:
    """Gives every run of a service whose home is gone to the others; repeatable after a kill anywhere. `standings`: of
    all services.

    Raises `ConfigurationError` while its home can be seen or another one cannot, and as the services' actions do.
    """
    if lost in fleet.services and (home := Home(fleet.services[lost].home)).database.exists():
        raise ConfigurationError(
            f"{home.path}, the home of {lost!r}, is there: logprobe fleet takeover {lost}, without --lost"
        )
    others = {name: standing for name, standing in standings.items() if name != lost}
    unread = [f"{name}: {standing.problem}" for name, standing in others.items() if standing.runs is None]
    usable = [name for name, standing in others.items() if standing.problem is None]
    if unread or not usable:
        raise ConfigurationError(
            f"which runs {lost!r} had is unknown while another service cannot be read, and none goes on "
            f"({'; '.join(unread) or 'none runs'})"
        )
    held = {run for standing in others.values() for run in (*(standing.runs or ()), *standing.moved)}
    copied = set(_ask(fleet.home(usable[0]), COPIED, {})["runs"]) - held
    with fleet.changing() as rows:
        rows.update((run, Row(lost, utc_now())) for run in copied - rows.keys())
    for run in sorted(run for run, row in fleet.rows().items() if lost in {row.service, row.to}):
        try:
            yield _taken_over(fleet, run, lost, others, author)
        except (ConfigurationError, StoreError, ObjectStoreError) as error:  # of this run; the others go on
            yield {"run": run, "to": None, "segments": None, "missing": 0, "problem": str(error)}


def _taken_over(fleet: Fleet, run: str, lost: str, others: Mapping[str, Standing], author: str) -> TakenOver:
    to, fetched = _whole_at(fleet, run, lost, author), None
    if to is None:
        # One that has records of it already was killed while it took it over.
        holders = [name for name, holder in others.items() if run in (holder.runs or ())]
        to = holders[0] if holders else fleet.least(run, others, fleet.rows())
        fetched = _ask(fleet.home(to), FETCH, {"run": run, "author": author, "from": lost})
    home = fleet.home(to)
    for name, standing in others.items():
        if run in standing.moved and name != to:
            _ask(fleet.home(name), REDIRECT, {"run": run, "to": to, "home": str(home.path)})
    with fleet.changing() as rows:
        rows[run] = Row(to, utc_now())
    missing = 0 if fetched is None else int(fetched["missing"])
    return {
        "run": run,
        "to": to,
        "segments": None if fetched is None else int(fetched["segments"]),
        "missing": missing,
        "problem": None,
    }


def _whole_at(fleet: Fleet, run: str, lost: str, author: str) -> str | None:
    """The other service that has all of a run that was being moved; None: the lost one had it."""
    row = fleet.rows()[run]
    asked = {"run": run, "move": row.move, "author": author}
    if row.to == lost:
        source = fleet.home(row.service)
        moved = MovedRuns(source).find(run)
        if moved is None or moved.home is None:  # its package is still there
            handover.perform(source, handover.TAKE_BACK, asked)
            return row.service
    elif row.to is not None and handover.perform(fleet.home(row.to), handover.REFUSE, asked)["arrived"]:
        return row.to
    return None


def _ask(home: Home, name: str, document: Mapping[str, Any]) -> Any:
    return actions.perform(_ACTIONS, home, name, document, seconds=_ANSWER_SECONDS)


def _copies(store: Store) -> SegmentCopies:
    copies = SegmentCopies.of(store.objects.settings, store.objects)
    if copies is None:
        raise ConfigurationError(
            f"{store.home.path} knows of no copies: set `segments` of `storage` in its logprobe.yaml to where the lost "
            "service had them"
        )
    return copies


def _copied(store: Store, _: Mapping[str, Any], __: datetime) -> dict[str, Any]:
    """``{}`` → ``{"runs"}``: those of which there are copies."""
    return {"runs": sorted(_copies(store).names())}


def _fetch(store: Store, document: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """``{"run", "from", "author"}`` → ``{"segments", "missing"}``."""
    run, lost, author = actions.run_of(document), actions.text(document, "from"), actions.text(document, "author")
    deleted = Tombstones(store.home).find(run)
    if deleted is not None and deleted.released_at is None:
        return {"segments": 0, "missing": 0}
    fetched = _copies(store).fetch(run, store.home)
    store.moved.remove(run)  # of a move from here to the lost one
    summary = f"from {lost}, whose home is lost: {fetched['segments']:,} copied segments"
    with store.transaction() as cursor:
        store.execute(
            cursor, "alert_audit_write", time=now, author=author, action="run taken over", subject=run, words=summary
        )
    return dict(fetched)


def _redirect(store: Store, document: Mapping[str, Any], _: datetime) -> dict[str, Any]:
    """``{"run", "to", "home"}`` → ``{"run"}``: what arrives here of a run that was moved from here goes there from now
    on."""
    run, to, home = (actions.text(document, name) for name in ("run", "to", "home"))
    departure = store.moved.find(run)
    if departure is not None and departure.home is not None:
        store.moved.write(Moved(run, departure.move, to, home, departure.at))
    return {"run": run}


class Uncopied:
    """Says of runs that not all of their records have copies. For one thread at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._seen: set[tuple[str, str]] = set()

    def run_once(self) -> dict[str, Any]:
        """``{"partial_runs"}``: those found now. Raises `ObjectStoreError`, `StoreError` or `ConfigurationError`."""
        copies = SegmentCopies.of(self._store.objects.settings, self._store.objects)
        partial: set[str] = set()
        if copies is None:
            return {"partial_runs": 0}
        by_run: dict[str, list[tuple[str, str]]] = {}
        for row in queries.fleet_writers(self._store).to_pylist():
            if (row["run"], row["writer"]) not in self._seen:
                by_run.setdefault(row["run"], []).append((row["writer"], row["first"].partition("/")[2]))
        for run, writers in by_run.items():
            names = set(copies.names(run).get(run, ()))
            lacking = [writer for writer, first in writers if first not in names]
            if lacking and PARTIAL not in names:
                copies.mark_partial(run, lacking[0])
                partial.add(run)
            self._seen.update((run, writer) for writer, _ in writers)
        return {"partial_runs": len(partial)}


_ACTIONS: Final[actions.Actions] = {
    COPIED: ("list runs of which there are copies of segments", _copied),
    FETCH: ("put the copies of a run's segments into the spool", _fetch),
    REDIRECT: ("forward what arrives of a moved run to another home", _redirect),
}
