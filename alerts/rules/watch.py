"""The alerts job of the service: compares how each run stands with how it stood, and writes what users are told.

Alerts, the critical periods and messages that follow from them are one transaction. A service that is killed continues
where the last transaction left off, and comes to the same alerts.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any, Final

from logprobe.alerts.notification import Notification
from logprobe.alerts.reloading import Reloaded
from logprobe.alerts.rules import actions, judged, ledger, liveness, notices, periods
from logprobe.alerts.rules.alert import CRITICAL, LEVELS, Alert, State
from logprobe.alerts.rules.ledger import Known
from logprobe.alerts.rules.liveness import Pulse
from logprobe.alerts.rules.notices import Surroundings
from logprobe.alerts.rules.periods import Look
from logprobe.alerts.rules.steps import STEPS_PER_BATCH, Step, next_steps
from logprobe.alerts.rules.telling import Context, Message, end, messages
from logprobe.alerts.rules.thresholds import LIVENESS, SECTION, Threshold, for_run, of_home
from logprobe.alerts.sending.outbox import enqueue
from logprobe.monitor import judgement, queries
from logprobe.monitor.judgement import JUDGEMENT, Firing, Judgement, Severity
from logprobe.monitor.judging.document import DiagnosisDocument
from logprobe.monitor.liveness import Writer
from logprobe.monitor.service.jobs import Job, Part, PartMaker
from logprobe.monitor.service.turns import Priority, Row, Turns, as_of, priority
from logprobe.monitor.store.courtesy import Rank
from logprobe.monitor.store.store import Store

SECONDS: Final = 1.0
PATIENCE: Final = 60.0
# What is critical is told on a busy machine too, and telling it takes a tenth of the time at most.
_REST: Final = 9.0  # times as long as a look took
_MOST_REST: Final = 10.0  # seconds
# A step is looked at once nothing came for it for so long: its records come in several segments.
QUIET: Final = timedelta(seconds=2)
TELL_WITHIN: Final = timedelta(hours=24)  # what happened before is history, and not told
_UNCHANGED: Final = timedelta(seconds=3)  # for which a look holds while nothing is written
_RUNS_PER_BATCH: Final = 128  # of one transaction: bounds memory, and how long other writers wait
_STORED: Final = attrgetter(*(f.name for f in fields(Alert) if f.name != "seen"))


@dataclass(slots=True, eq=False)
class _Work:
    """Alerts of one run on their way through one look."""

    row: Row  # of `alert_runs`, with its thresholds
    context: Context
    alerts: dict[str, Alert]  # by rule
    kept: Mapping[str, Alert]  # as stored
    gone: list[str] = field(default_factory=list)  # rules whose alerts are to be forgotten
    messages: list[Message] = field(default_factory=list)
    looked: int = 0  # steps

    @property
    def run(self) -> str:
        """Name of the run."""
        name: str = self.row["run"]
        return name

    @property
    def thresholds(self) -> Sequence[Threshold]:
        """Those that apply to the run."""
        of_run: Sequence[Threshold] = self.row["of"]
        return of_run

    @property
    def firing(self) -> list[Alert]:
        """Alerts that fire, the worst first."""
        firing = [alert for alert in self.alerts.values() if alert.level]
        return sorted(firing, key=lambda a: (-a.level, a.state.since_step or 0, a.rule))

    @property
    def critical(self) -> list[Alert]:
        """Critical alerts that fire, or that users are about to be told of."""
        told = [message.alert for message in self.messages if message.word == "firing"]
        return [alert for alert in (*told, *self.firing) if alert.level == CRITICAL]

    @property
    def matters(self) -> bool:
        """Whether it is of interest how severe the run is: there is something to tell, or a critical period."""
        return bool(self.messages or self.critical or self.row["incident"])

    def tell(self, rules: Iterable[str], *, step: int | None, at: datetime) -> None:
        """Add the messages about some rules that are due."""
        told, due = messages([self.alerts[rule] for rule in rules], self.context, step=step, at=at)
        self.alerts.update({alert.rule: alert for alert in told})
        self.messages += due

    def changed(self) -> list[Alert]:
        """Alerts that are not as they are stored; words alone, which name spans of time, are no change."""
        return [
            alert
            for rule, alert in self.alerts.items()
            if rule not in self.kept or _STORED(alert) != _STORED(self.kept[rule])
        ]


class Watch:
    """Looks at all runs of a store: a stage. One thread at a time."""

    name = "alerts"
    reads = ("step_summaries", "step_metrics", "segments", "diagnoses")
    writes = ("alert_states", "incidents")
    together = _RUNS_PER_BATCH

    def __init__(
        self,
        store: Store,
        thresholds: Callable[[], Sequence[Threshold]],
        stopping: threading.Event,
        *,
        page: str | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        quiet: timedelta = QUIET,
    ) -> None:
        """Begin without any look.

        Args:
            store: what is looked at, and written.
            thresholds: those that users wrote, as they are now.
            stopping: when set, work ends after the steps in hand.
            page: address of the dashboard, or None.
            clock: time now.
            quiet: time without records after which a step is complete.
        """
        self._store = store
        self._thresholds = thresholds
        self._stopping = stopping
        self._page = page
        self._clock = clock
        self._quiet = quiet
        self._known: dict[str, Known] = {}  # alerts as this job has written them
        self._pulses: dict[str, tuple[object, Pulse]] = {}  # by run: the mark of its row, and what was read then
        self._documents: dict[str, tuple[object, DiagnosisDocument]] = {}  # likewise
        self._judged: dict[str, tuple[object, Judgement]] = {}  # likewise
        self._diagnosed: dict[str, datetime | None] = {}  # by run: the diagnosis that its critical period has seen
        self._now = clock()
        self._written = 0  # of the store, when the runs were looked up
        self._turned: dict[str, tuple[int, datetime]] = {}  # by run: the same, and when, as of its last turn
        self._turns = Turns(self, stopping)

    def run_once(self) -> dict[str, object]:
        """Look at every run that may have news; see `Turns.run_once`."""
        return self._turns.run_once()

    def rows(self) -> Sequence[Row]:
        """Return all runs that records have arrived of, each with its thresholds."""
        self._now, self._written = self._clock(), self._store.written
        thresholds = self._thresholds()
        rows = as_of(queries.alert_runs(self._store.kept), self._now)
        return [{**row, "of": for_run(thresholds, row["run"])} for row in rows]

    def due(self, row: Row) -> Priority | None:
        """Choose runs that may have news; those of which only time can bring any now and then."""
        is_new = (row["rules"] or []) != _rules(row["of"])
        if not (self._now - row["last_arrival"] <= TELL_WITHIN or row["open"] or is_new):
            return None
        written, looked = self._turned.get(row["run"], (None, self._now))
        rests = timedelta(0) <= self._now - looked < _UNCHANGED  # a clock that was set back would make it hours
        if written == self._written and rests and not is_new:
            return None
        return priority(live=row["live"], armed=False, first=row["rules"] is None)

    def run(self, rows: Sequence[Row]) -> Mapping[str, int]:
        """Look at some runs, and write what became of their alerts; counts of that.

        Raises:
            QueryError, StoreError: the store refused.
        """
        counts: Counter[str] = Counter()
        runs = [row["run"] for row in rows]
        cached = {run: self._known.pop(run) for run in runs if run in self._known}  # after a failure it is read again
        # Of many runs at once: a small statement takes milliseconds, whatever it reads.
        unknown = [run for run in runs if run not in cached]
        known = cached | (ledger.load(self._store, unknown) if unknown else {})
        silences = ledger.silences(self._store, self._now) if rows[0]["silenced"] else []
        acknowledged = ledger.acknowledgements(self._store, runs) if rows[0]["acknowledged"] else {}
        works = []
        for row in rows:
            since = self._now - TELL_WITHIN
            context = Context(row["run"], self._now, silences, acknowledged, since, row["returned_to"] or ())
            works.append(_begun(row, context, known[row["run"]]))
        self._look(works, counts)
        self._known.update({work.run: Known(work.kept) for work in works})
        self._turned.update(dict.fromkeys(runs, (self._written, self._now)))
        return counts

    def _look(self, works: Sequence[_Work], counts: Counter[str]) -> None:
        """Look at some runs. Each is written as soon as it is through; one that lags holds up no other."""
        while works:
            lagging = self._steps(works)
            self._present([work for work in works if work not in lagging])
            self._commit(works, lagging, counts)
            works = lagging

    def _steps(self, works: Sequence[_Work]) -> list[_Work]:
        """Look at the next steps of some runs; return those of which there may be more."""
        quiet_since = self._clock() - self._quiet
        after = {work.run: seen for work in works for seen, due in (_seen_by_all(work, quiet_since),) if due}
        if self._stopping.is_set() or not after:
            return []
        metrics = {work.run: {threshold.metric for threshold in work.thresholds} for work in works}
        found = next_steps(self._store, after, metrics, quiet_since=quiet_since)
        for work in works:
            steps = found.get(work.run, [])
            for step in steps:
                _look_at(work, step)
            work.looked += len(steps)
        return [work for work in works if len(found.get(work.run, ())) == STEPS_PER_BATCH]

    def _present(self, works: Sequence[_Work]) -> None:
        """Look at how runs stand now."""
        self._read([work.row for work in works])
        for work in works:
            row, now = work.row, self._judged[work.run][1]
            at = work.context.now if work.context.now - row["last_arrival"] <= TELL_WITHIN else row["last_arrival"]
            document = self._documents.get(work.run)
            seen = judged.look(now, None if document is None else document[1])
            if now.step is not None:
                alert = work.alerts[JUDGEMENT]
                steps = judged.steps_of(alert, seen, now.step)
                work.alerts[JUDGEMENT] = alert.look(seen, step=now.step, at=at, steps=steps)
            alive = liveness.look(self._pulses[work.run][1], at)
            work.alerts[LIVENESS] = work.alerts[LIVENESS].look(alive, step=None, at=at)
            work.tell(list(work.alerts), step=row["newest_step"], at=at)

    def _read(self, rows: Sequence[Row]) -> None:
        """Read heartbeats, judgements and diagnoses of the runs where they may be others than were read last."""
        marks = {row["run"]: (row["last_arrival"], row["revision"]) for row in rows}
        changed = [run for run, mark in marks.items() if self._pulses.get(run, (None,))[0] != mark]
        for found in queries.alert_pulse(self._store, runs=changed).to_pylist() if changed else ():
            self._pulses[found["run"]] = (marks[found["run"]], _pulse(**found))
        stands = {row["run"]: (row["revision"], row["diagnosed_at"]) for row in rows}
        changed = [run for run, mark in stands.items() if self._judged.get(run, (None,))[0] != mark]
        for run, now in self._stand(changed).items():
            self._judged[run] = (stands[run], now)
        told = {row["run"]: row["diagnosed_at"] for row in rows if row["diagnosed_at"] is not None}
        changed = [run for run, mark in told.items() if self._documents.get(run, (None,))[0] != mark]
        for kept in queries.alert_diagnoses(self._store, runs=changed).to_pylist() if changed else ():
            self._documents[kept["run"]] = (told[kept["run"]], json.loads(kept["document"]))

    def _stand(self, runs: Sequence[str]) -> dict[str, Judgement]:
        return judgement.read(self._store, runs, self._clock()) if runs else {}

    def _commit(self, works: Sequence[_Work], lagging: Sequence[_Work], counts: Counter[str]) -> None:
        """Write what changed since the last time, in one transaction; nothing if nothing did."""
        asked = {work.run: work for work in works if work not in lagging and work.matters}
        stands = {run: replace(now, alerts=_firing(asked[run])) for run, now in self._stand(list(asked)).items()}
        looks = self._looks(works, stands)
        news = [(work, work.changed()) for work in works]
        news = [
            (work, changed)
            for work, changed in news
            if changed or work.gone or work.messages or (work.run in looks and looks[work.run].is_news)
        ]
        if news:
            notes = [note for work, _ in news for note in self._notes(work, stands.get(work.run), looks.get(work.run))]
            with self._store.transaction() as cursor:
                ledger.save(self._store, cursor, [(work.run, alert) for work, changed in news for alert in changed])
                for work, _ in news:
                    ledger.forget(self._store, cursor, work.run, work.gone)
                for note in notes:
                    enqueue(self._store, cursor, note)
                periods.keep(self._store, cursor, [look for look in looks.values() if look.is_news])
        self._diagnosed.update({work.run: work.row["diagnosed_at"] for work, _ in news})
        for work in works:
            counts.update(steps=work.looked, messages=len(work.messages))
            work.kept, work.gone, work.messages, work.looked = dict(work.alerts), [], [], 0

    def _looks(self, works: Sequence[_Work], stands: Mapping[str, Judgement]) -> dict[str, Look]:
        """Return what became of the critical periods of runs that have one, or have become critical."""
        asked = [work for work in works if work.critical or (work.run in stands and work.row["incident"])]
        newest = periods.newest(self._store, [work.run for work in asked]) if asked else {}
        looks = {}
        for work in asked:
            now, before, critical = stands.get(work.run), newest.get(work.run), work.critical
            severity: Severity = "critical" if critical or now is None else now.severity
            after, change = periods.advance(before, severity, work.row["newest_step"])
            since = [alert.state.since_step for alert in critical if alert.state.since_step is not None]
            looks[work.run] = Look(
                work.run,
                before,
                after,
                change,
                step=work.row["newest_step"],
                at=work.context.now,
                since=min(since, default=None),
                episodes=sorted({alert.told.episode for alert in critical if alert.told.episode is not None}),
                severity=None if now is None else now.severity,
                page=self._page,
                diagnosed=self._diagnosed.get(work.run) != work.row["diagnosed_at"],
            )
        return looks

    def _notes(self, work: _Work, stands: Judgement | None, look: Look | None) -> Iterator[Notification]:
        """Return the notifications of a run. An episode belongs for good to the critical period that went on when users
        were first told of it."""
        current = None if look is None else look.id
        begun: dict[str, str | None] = {}
        if look is not None and look.change == "opened":
            begun = dict.fromkeys(look.episodes, current)
        by_name = {threshold.name: threshold for threshold in work.thresholds}
        last = work.row["newest_step"]
        rows = queries.alert_changes(self._store, run=work.run, last=last).to_pylist() if work.messages else []
        for message in work.messages:
            if message.episode not in begun:
                known = queries.incident_of(self._store, run=work.run, episode=message.episode).to_pylist()
                begun[message.episode] = known[0]["incident"] if known else current
            around = Surroundings(
                step=last,
                changes=[(row["what"], row["time"]) for row in rows],
                page=self._page,
                severity=None if stands is None else stands.severity,
                incident=begun[message.episode],
                grouped=[_line(alert) for alert in work.firing],
            )
            yield notices.build(work.run, message, by_name.get(message.alert.rule), around)


def _begun(row: Row, context: Context, known: Known) -> _Work:
    alerts = {
        JUDGEMENT: _present(JUDGEMENT, known, judged.NEEDS, judged.KEEPS),
        LIVENESS: _present(LIVENESS, known, 1, 1),
    }
    for threshold in row["of"]:
        alerts[threshold.name] = _of_threshold(threshold, row, known)
    work = _Work(row, context, alerts, known.alerts)
    removed = [alert for rule, alert in known.alerts.items() if rule not in alerts]
    _, work.messages = messages([end(alert) for alert in removed], context, step=row["newest_step"], at=context.now)
    work.gone = [alert.rule for alert in removed]
    return work


def _present(rule: str, known: Known, needs: int, keeps: int) -> Alert:
    """Return the alert of what is looked at as it is now. One that users were told of fires until the opposite is
    seen."""
    if rule in known.alerts:
        return known.alerts[rule]
    told, _ = known.told.get(rule, (None, None))
    if told is None:
        return Alert(rule, needs=needs, keeps=keeps)
    state = State(level=told.level, since_step=told.since_step)
    return Alert(rule, needs=needs, keeps=keeps, state=state, told=told)


def _of_threshold(threshold: Threshold, row: Row, known: Known) -> Alert:
    """Return the alert of a threshold: one that is new, or was changed, looks at the whole run."""
    kept = known.alerts.get(threshold.name)
    if kept is not None and kept.fingerprint == threshold.fingerprint:
        return replace(kept, step=_cursor(row, kept.step), quiet_until=_cursor(row, kept.quiet_until))
    told, step = known.told.get(threshold.name, (None, None))
    new = Alert(threshold.name, threshold.fingerprint, threshold.steps, threshold.steps)
    if kept is not None:
        step, told = max((s for s in (kept.step, kept.quiet_until) if s is not None), default=None), kept.told
    return new if told is None else replace(new, told=told, quiet_until=_cursor(row, step))


def _cursor(row: Row, step: int | None) -> int | None:
    """Return a step that was looked at; of a run that went back to a checkpoint, the one before what it trains
    again."""
    ahead = step is not None and row["resumed_step"] is not None and step > (row["newest_step"] or 0)
    return min(step, row["resumed_step"] - 1) if ahead and step is not None else step


def _seen_by_all(work: _Work, quiet_since: datetime) -> tuple[int | None, bool]:
    """Return the newest step that everything has looked at, or None, and whether there may be steps after it."""
    row = work.row
    if row["newest_step"] is None or not work.thresholds:
        return None, False
    steps = [work.alerts[threshold.name].step for threshold in work.thresholds]
    seen = None if any(step is None for step in steps) else min(step for step in steps if step is not None)
    # The only new step may still receive data: asking the store takes as long as all else of a look.
    young = seen is not None and row["newest_step"] == seen + 1 and row["newest_computed_at"] > quiet_since
    return seen, seen != row["newest_step"] and not young


def _look_at(work: _Work, step: Step) -> None:
    """Look at one step with every threshold that has not seen it."""
    for threshold in work.thresholds:
        alert = work.alerts[threshold.name]
        if alert.step is None or alert.step < step.step:
            seen = threshold.look(step.values.get(threshold.metric))
            work.alerts[threshold.name] = alert.look(seen, step=step.step, at=step.at)
    at = step.at - timedelta(seconds=work.row["dated_ahead"])
    work.tell([threshold.name for threshold in work.thresholds], step=step.step, at=at)


def _firing(work: _Work) -> tuple[Firing, ...]:
    """Return what fires beside the judgement."""
    return tuple(
        Firing(alert.rule, LEVELS[alert.level], alert.state.since_step, alert.state.changed_at, muted=alert.muted)
        for alert in work.firing
        if alert.rule != JUDGEMENT
    )


def _line(alert: Alert) -> str:
    """Return an alert that fires, in a line."""
    since = "" if alert.state.since_step is None else f", since step {alert.state.since_step:,}"
    return f"{alert.rule} ({LEVELS[alert.level]}{since})"


def _rules(thresholds: Sequence[Threshold]) -> list[str]:
    """Return rules and fingerprints as `alert_runs` has them."""
    named = {JUDGEMENT: "", LIVENESS: ""} | {threshold.name: threshold.fingerprint for threshold in thresholds}
    return sorted(f"{rule}/{fingerprint}" for rule, fingerprint in named.items())


def _pulse(*, run: str, rollout_segments: int, writers: Any, **facts: Any) -> Pulse:  # noqa: ARG001 - columns of a row
    return Pulse(rollouts=rollout_segments > 0, writers=[Writer(**writer) for writer in writers or ()], **facts)


def alerts_part(*, page: str | None = None) -> PartMaker:
    """Return alerts as a part of the service. `page`: address of the dashboard, or None.

    The settings are read again when they change; wrong, they are not taken over, and the job says so.
    """

    def make(store: Store, stopping: threading.Event) -> Part:
        home = store.home.path
        thresholds = Reloaded(home, SECTION, lambda: of_home(home))
        watch = Watch(store, thresholds.current, stopping, page=page)
        work = Job(
            "alerts",
            SECONDS,
            lambda: {**watch.run_once(), **thresholds.report()},
            patience=PATIENCE,
            rest=_REST,
            most_rest=_MOST_REST,
            rank=Rank.JUDGEMENT,
        )
        return Part(jobs=[work], actions=actions.of(store))

    return make
