"""Alerts job of the service: compares the present and earlier state of each run and writes the messages for users.

Alerts, critical periods and their messages are written in one transaction. A killed service continues after the last
transaction and reaches the same alerts.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any, Final

from logprobe.alerts.notification import Notification
from logprobe.alerts.reloading import Reloaded
from logprobe.alerts.rules import actions, equality, judged, ledger, liveness, notices, periods
from logprobe.alerts.rules.alert import CRITICAL, LEVELS, Alert, Context, Message, ended, messages
from logprobe.alerts.rules.ledger import Known
from logprobe.alerts.rules.liveness import Pulse
from logprobe.alerts.rules.periods import Look
from logprobe.alerts.rules.steps import STEPS_PER_BATCH, Step, next_steps
from logprobe.alerts.rules.thresholds import BIT_EQUALITY, LIVENESS, SECTION, Threshold, for_run, of_home
from logprobe.alerts.sending.outbox import enqueue
from logprobe.collectors.errors import QueryError
from logprobe.monitor import judgement, queries
from logprobe.monitor.judgement import JUDGEMENT, Firing, Judgement, Severity
from logprobe.monitor.judging import bit_equality
from logprobe.monitor.judging.bit_equality import QUIET, Certificate
from logprobe.monitor.judging.document import DiagnosisDocument
from logprobe.monitor.judging.judgement import GROWS
from logprobe.monitor.liveness import Writer
from logprobe.monitor.service.jobs import Job, Part, PartMaker
from logprobe.monitor.service.turns import Priority, Row, Turns, as_of, priority
from logprobe.monitor.store.courtesy import Rank
from logprobe.monitor.store.store import Store

SECONDS: Final = 1.0
PATIENCE: Final = 60.0
# What is critical is told on a busy machine too, and telling it takes a twentieth of a core at most.
_REST: Final = 19.0  # times the processor time of a look
_MOST_REST: Final = 10.0  # seconds
TELL_WITHIN: Final = timedelta(hours=24)  # what happened before is history, and not told
_UNCHANGED: Final = timedelta(seconds=3)  # for which a look at a run holds that is as it was
_RUNS_PER_BATCH: Final = 256  # of one transaction: bounds memory, and how long other writers wait
_STORED: Final = attrgetter(*(f.name for f in fields(Alert) if f.name != "seen"))


@dataclass(frozen=True, slots=True)
class _Facts:
    """State of a run at its last evaluation. `mark`: value that changes with the state, None to read it again.

    `certificate`: None for a run that never was bit-equal.
    """

    mark: object
    pulse: Pulse
    judgement: Judgement
    document: DiagnosisDocument | None
    certificate: Certificate | None


@dataclass(slots=True, eq=False)
class _Work:
    """Alerts of one run during one evaluation."""

    row: Row  # of `runs_now` and `alert_runs`, with its thresholds
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
        """Thresholds that apply to the run."""
        of_run: Sequence[Threshold] = self.row["of"]
        return of_run

    @property
    def firing(self) -> list[Alert]:
        """Firing alerts, the worst first."""
        firing = [alert for alert in self.alerts.values() if alert.level]
        return sorted(firing, key=lambda a: (-a.level, a.since_step or 0, a.rule))

    @property
    def critical(self) -> list[Alert]:
        """Critical alerts that fire or have a message due."""
        told = [message.alert for message in self.messages if message.word == "firing"]
        return [alert for alert in (*told, *self.firing) if alert.level == CRITICAL]

    @property
    def matters(self) -> bool:
        """Return whether the severity of the run is needed, because of a due message or a critical period."""
        return bool(self.messages or self.critical or self.row["incident"])

    def tell(self, rules: Iterable[str], *, step: int | None, at: datetime) -> None:
        """Add the due messages about some rules."""
        told, due = messages([self.alerts[rule] for rule in rules], self.context, step=step, at=at)
        self.alerts.update({alert.rule: alert for alert in told})
        self.messages += due

    def changed(self) -> list[Alert]:
        """Return alerts that differ from the stored ones. Ignore words that name spans of time."""
        return [
            alert
            for rule, alert in self.alerts.items()
            if rule not in self.kept
            or _STORED(alert) != _STORED(self.kept[rule])
            or (rule == BIT_EQUALITY and alert.level and alert.seen != self.kept[rule].seen)
        ]


class Watch:
    """Stage that evaluates all runs of a store. Only one thread at a time may use it."""

    name = "alerts"
    together = _RUNS_PER_BATCH

    def __init__(
        self,
        store: Store,
        thresholds: Callable[[], Sequence[Threshold]],
        stopping: threading.Event,
        *,
        page: str | None = None,
        clock: Callable[[], datetime] | None = None,
        quiet: timedelta = QUIET,
    ) -> None:
        """Set up the evaluation of a store.

        Args:
            store: store to read and write.
            thresholds: present thresholds of users.
            stopping: event that ends work after the current steps.
            page: URL of the dashboard, or None.
            clock: time source, or None for the store's.
            quiet: time without records after which a step is complete.
        """
        self._store = store
        self._thresholds = thresholds
        self._stopping = stopping
        self._page = page
        self._clock = clock or store.time.now
        self._quiet = quiet
        self._known: dict[str, Known] = {}  # alerts as this job has written them
        self._facts: dict[str, _Facts] = {}
        self._diagnosed: dict[str, datetime | None] = {}  # by run: the diagnosis that its critical period has seen
        self._now = self._clock()
        self._turned: dict[str, tuple[Row, datetime]] = {}  # by run: what was known of it at its last turn, and when
        self._turns = Turns(self, stopping)

    def run_once(self) -> dict[str, object]:
        """Evaluate every run that may have changed (see `Turns.run_once`)."""
        return self._turns.run_once()

    def rows(self) -> Sequence[Row]:
        """Return all runs with records, each with its thresholds."""
        self._now = self._clock()
        thresholds = self._thresholds()
        now = as_of(queries.runs_now(self._store.kept_records), self._now)
        standing = {row["run"]: row for row in queries.alert_runs(self._store.kept).to_pylist()}
        rows = [{**row, **standing[row["run"]]} for row in now if row["run"] in standing]
        return [{**row, "of": for_run(thresholds, row["run"])} for row in rows]

    def due(self, row: Row) -> Priority | None:
        """Choose changed runs and runs with a completed step. Choose the others periodically, since time and users'
        actions also matter.
        """
        rules = [rule for rule in row["rules"] or () if rule != f"{BIT_EQUALITY}/"]  # only some runs have that one
        is_new = rules != _rules(row["of"])
        if not (self._now - row["last_arrival"] <= TELL_WITHIN or row["open"] or is_new):
            return None
        before, looked = self._turned.get(row["run"], (None, self._now))
        rests = timedelta(0) <= self._now - looked < _UNCHANGED  # a clock that was set back would make it hours
        if before == row and rests and not is_new and not self._is_complete_since(row, looked):
            return None
        return priority(live=row["live"], armed=False, first=row["rules"] is None)

    def _is_complete_since(self, row: Row, looked: datetime) -> bool:
        """Return whether the newest step received data at the last evaluation but is complete now."""
        computed = row["newest_computed_at"]
        return bool(row["of"]) and computed is not None and looked < computed + self._quiet <= self._now

    def run(self, rows: Sequence[Row]) -> Mapping[str, int]:
        """Evaluate some runs, write the changes of their alerts, and return counts of the changes.

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
        self._read(works)
        self._steps(works)
        if self._stopping.is_set():  # nothing is written of steps that were looked at in part
            return counts
        self._present(works)
        self._commit(works, counts)
        self._known.update({work.run: Known(work.alerts) for work in works})
        self._turned.update({row["run"]: (row, self._now) for row in rows})
        return counts

    def _steps(self, works: Sequence[_Work]) -> None:
        """Evaluate all complete steps of some runs."""
        quiet_since = self._clock() - self._quiet
        metrics = {threshold.metric for work in works for threshold in work.thresholds}
        while works and not self._stopping.is_set():
            after = {work.run: seen for work in works for seen, due in (_seen_by_all(work, quiet_since),) if due}
            found = next_steps(self._store, after, metrics, quiet_since=quiet_since) if after else {}
            for work in works:
                for step in found.get(work.run, ()):
                    _look_at(work, step, self._facts[work.run].judgement)
                    work.looked += 1
            works = [work for work in works if len(found.get(work.run, ())) == STEPS_PER_BATCH]

    def _present(self, works: Sequence[_Work]) -> None:
        """Evaluate the present state of runs."""
        for work in works:
            row, facts = work.row, self._facts[work.run]
            at = work.context.now if work.context.now - row["last_arrival"] <= TELL_WITHIN else row["last_arrival"]
            if facts.judgement.step is not None:
                alert, seen = work.alerts[JUDGEMENT], judged.look(facts.judgement, facts.document)
                steps = judged.steps_of(alert, seen, facts.judgement.step)
                work.alerts[JUDGEMENT] = alert.look(seen, step=facts.judgement.step, at=at, steps=steps)
            alive = liveness.look(facts.pulse, at)
            work.alerts[LIVENESS] = work.alerts[LIVENESS].look(alive, step=None, at=at)
            equal = facts.certificate
            if equal is not None and (BIT_EQUALITY in work.alerts or equal.verdict in {"zero", "broken"}):
                alert = work.alerts.get(BIT_EQUALITY, Alert(BIT_EQUALITY))
                work.alerts[BIT_EQUALITY] = alert.look(equality.look(equal), step=equal.since_step, at=at)
            work.tell(list(work.alerts), step=row["step"], at=at)

    def _read(self, works: Sequence[_Work]) -> None:
        """Read heartbeats, judgements and diagnoses of the runs where they may have changed."""
        quiet_since = self._now - self._quiet
        marks = {work.run: _mark(work.row, quiet_since) for work in works}
        changed = [run for run, mark in marks.items() if run not in self._facts or self._facts[run].mark != mark]
        if not changed:
            return
        pulses = {found["run"]: _pulse(**found) for found in queries.alert_pulse(self._store, runs=changed).to_pylist()}
        documents = queries.diagnosis_kept(self._store, runs=changed).to_pylist()
        told = {kept["run"]: json.loads(kept["document"]) for kept in documents}
        equal = bit_equality.candidates(self._store, changed)
        equal |= {work.run for work in works if BIT_EQUALITY in work.alerts}.intersection(changed)
        found = bit_equality.read(self._store, sorted(equal), until=quiet_since) if equal else {}
        for run, now in judgement.read(self._store, changed, self._clock()).items():
            mark, certificate = marks[run], found.get(run)
            before = self._facts.get(run)
            kept = None if before is None or before.mark is None else before.certificate
            if certificate is not None and (kept is None or not _is_same(kept, certificate)):
                try:
                    certificate = bit_equality.explained(self._store, run, certificate)
                except QueryError:  # the alerts of the run do not wait for its tokens, which are looked at again
                    mark = None
            elif certificate is not None and certificate.verdict == "broken":
                certificate = kept  # its details are read once
            self._facts[run] = _Facts(mark, pulses[run], now, told.get(run), certificate)

    def _commit(self, works: Sequence[_Work], counts: Counter[str]) -> None:
        """Write the changes since the last evaluation, in one transaction."""
        asked = {work.run: work for work in works if work.matters}
        fresh = judgement.read(self._store, list(asked), self._clock()) if asked else {}
        stands = {run: replace(now, alerts=_firing(asked[run])) for run, now in fresh.items()}
        looks = self._looks(works, stands)
        news = {
            work.run: (work, changed)
            for work in works
            if (changed := work.changed())
            or work.gone
            or work.messages
            or (work.run in looks and looks[work.run].is_news)
        }
        if news:
            notes = [
                note for run, (work, _) in news.items() for note in self._notes(work, stands.get(run), looks.get(run))
            ]
            with self._store.transaction(records=False) as cursor:
                ledger.save(self._store, cursor, [(run, alert) for run, (_, new) in news.items() for alert in new])
                for run, (work, _) in news.items():
                    if work.gone:
                        self._store.execute(cursor, "alert_forget", run=run, rules=work.gone)
                for note in notes:
                    enqueue(self._store, cursor, note)
                periods.keep(self._store, cursor, [look for look in looks.values() if look.is_news])
        self._diagnosed.update({run: work.row["diagnosed_at"] for run, (work, _) in news.items()})
        counts.update(steps=sum(work.looked for work in works), messages=sum(len(work.messages) for work in works))

    def _looks(self, works: Sequence[_Work], stands: Mapping[str, Judgement]) -> dict[str, Look]:
        """Return the looks at critical periods, for runs that have a period or became critical."""
        asked = [work for work in works if work.critical or (work.run in stands and work.row["incident"])]
        newest = periods.newest(self._store, [work.run for work in asked]) if asked else {}
        looks = {}
        for work in asked:
            now, before, critical = stands.get(work.run), newest.get(work.run), work.critical
            severity: Severity = "critical" if critical or now is None else now.severity
            after, change = periods.advance(before, severity, work.row["step"])
            since = [alert.since_step for alert in critical if alert.since_step is not None]
            looks[work.run] = Look(
                work.run,
                before,
                after,
                change,
                step=work.row["step"],
                at=work.context.now,
                since=min(since, default=None),
                episodes=sorted({alert.told.episode for alert in critical if alert.told.episode is not None}),
                severity=None if now is None else now.severity,
                page=self._page,
                diagnosed=self._diagnosed.get(work.run) != work.row["diagnosed_at"],
            )
        return looks

    def _notes(self, work: _Work, stands: Judgement | None, look: Look | None) -> Iterator[Notification]:
        """Return the notifications of a run. An episode stays in the critical period of its first message."""
        current = None if look is None else look.id
        begun: dict[str, str | None] = {}
        if look is not None and look.change == "opened":
            begun = dict.fromkeys(look.episodes, current)
        by_name = {threshold.name: threshold for threshold in work.thresholds}
        last = work.row["step"]
        rows = queries.alert_changes(self._store, run=work.run, last=last).to_pylist() if work.messages else []
        for message in work.messages:
            if message.episode not in begun:
                known = queries.incident_of(self._store, run=work.run, episode=message.episode).to_pylist()
                begun[message.episode] = known[0]["incident"] if known else current
            yield notices.build(
                work.run,
                message,
                by_name.get(message.alert.rule),
                newest=last,
                changes=[(row["what"], row["time"]) for row in rows],
                page=self._page,
                severity=None if stands is None else stands.severity,
                incident=begun[message.episode],
                grouped=[_line(alert) for alert in work.firing],
            )


def _mark(row: Row, quiet_since: datetime) -> object:
    """Return a value that changes with the state of a run, and when its newest step is complete."""
    computed = row["newest_computed_at"]
    return (row["last_arrival"], row["revision"], row["diagnosed_at"], computed is not None and computed <= quiet_since)


def _is_same(one: Certificate, other: Certificate) -> bool:
    return (one.verdict, one.since_step) == (other.verdict, other.since_step)


def _begun(row: Row, context: Context, known: Known) -> _Work:
    alerts = {
        JUDGEMENT: _present(JUDGEMENT, known, judged.NEEDS, judged.KEEPS),
        LIVENESS: _present(LIVENESS, known, 1, 1),
    }
    if BIT_EQUALITY in known.alerts or BIT_EQUALITY in known.told:
        alerts[BIT_EQUALITY] = _present(BIT_EQUALITY, known, 1, 1)
    for threshold in row["of"]:
        alerts[threshold.name] = _of_threshold(threshold, row, known)
    work = _Work(row, context, alerts, known.alerts)
    removed = [alert for rule, alert in known.alerts.items() if rule not in alerts]
    _, work.messages = messages([ended(alert) for alert in removed], context, step=row["step"], at=context.now)
    work.gone = [alert.rule for alert in removed]
    return work


def _present(rule: str, known: Known, needs: int, keeps: int) -> Alert:
    """Return the alert of a condition on the present run. A reported one fires until the opposite is observed."""
    if rule in known.alerts:
        return known.alerts[rule]
    told, _ = known.told.get(rule, (None, None))
    if told is None:
        return Alert(rule, needs=needs, keeps=keeps)
    return Alert(rule, needs=needs, keeps=keeps, level=told.level, since_step=told.since_step, told=told)


def _of_threshold(threshold: Threshold, row: Row, known: Known) -> Alert:
    """Return the alert of a threshold. A changed threshold re-evaluates the number of steps that it needs."""
    _, step = known.told.get(threshold.name, (None, None))
    alert = _present(threshold.name, known, threshold.steps, threshold.steps)
    step = step if alert.step is None else alert.step
    if alert.fingerprint not in {"", threshold.fingerprint} and step is not None:
        step = max(0, step - threshold.steps)
        alert = replace(alert, toward=None, streak=0)
    steps = threshold.steps
    return replace(alert, fingerprint=threshold.fingerprint, needs=steps, keeps=steps, step=_cursor(row, step))


def _cursor(row: Row, step: int | None) -> int | None:
    """Return the last evaluated step. For a run that returned to a checkpoint, return the step before its new steps."""
    ahead = step is not None and row["resumed_step"] is not None and step > (row["step"] or 0)
    return min(step, row["resumed_step"] - 1) if ahead and step is not None else step


def _seen_by_all(work: _Work, quiet_since: datetime) -> tuple[int | None, bool]:
    """Return the newest step that all thresholds evaluated, or None, and whether later steps may exist."""
    row = work.row
    if row["step"] is None or not work.thresholds:
        return None, False
    steps = [work.alerts[threshold.name].step for threshold in work.thresholds]
    seen = None if any(step is None for step in steps) else min(step for step in steps if step is not None)
    # The only new step may still receive data: asking the store takes as long as all else of a look.
    young = seen is not None and row["step"] == seen + 1 and row["newest_computed_at"] > quiet_since
    return seen, seen != row["step"] and not young


def _look_at(work: _Work, step: Step, now: Judgement) -> None:
    """Evaluate one step with every threshold that has not evaluated it yet. `now`: present judgement of the run."""
    grows = now.verdict in GROWS and step.step >= (now.since_step or 0)
    for threshold in work.thresholds:
        alert = work.alerts[threshold.name]
        if alert.step is None or alert.step < step.step:
            seen = threshold.look(step.values.get(threshold.metric), grows=grows)
            work.alerts[threshold.name] = alert.look(seen, step=step.step, at=step.at)
    at = step.at - timedelta(seconds=work.row["dated_ahead"])
    work.tell([threshold.name for threshold in work.thresholds], step=step.step, at=at)


def _firing(work: _Work) -> tuple[Firing, ...]:
    """Return the firing alerts other than the judgement."""
    return tuple(
        Firing(alert.rule, LEVELS[alert.level], alert.since_step, alert.changed_at, muted=alert.muted)
        for alert in work.firing
        if alert.rule != JUDGEMENT
    )


def _line(alert: Alert) -> str:
    """Return a one-line description of a firing alert."""
    since = "" if alert.since_step is None else f", since step {alert.since_step:,}"
    return f"{alert.rule} ({LEVELS[alert.level]}{since})"


def _rules(thresholds: Sequence[Threshold]) -> list[str]:
    """Return rules and fingerprints in the format of `alert_runs`."""
    named = {JUDGEMENT: "", LIVENESS: ""} | {threshold.name: threshold.fingerprint for threshold in thresholds}
    return sorted(f"{rule}/{fingerprint}" for rule, fingerprint in named.items())


def _pulse(*, run: str, rollout_segments: int, writers: Any, **facts: Any) -> Pulse:  # noqa: ARG001 - columns of a row
    return Pulse(rollouts=rollout_segments > 0, writers=[Writer(**writer) for writer in writers or ()], **facts)


def alerts_part(*, page: str | None = None) -> PartMaker:
    """Return alerts as a part of the service. `page`: URL of the dashboard, or None.

    Changed settings are read again. Invalid settings are not applied, and the job reports them.
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
