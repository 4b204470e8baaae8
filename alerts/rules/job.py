"""The service's alerts job: looks at every new step in order, and at how things are now; writes down what became of
each alert.

How the alerts stand, their transitions, the incidents and messages that follow, and the cursor are one transaction. A
service that is killed continues where the last transaction left off, and comes to the same alerts.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any, Final

import pyarrow as pa

from logprobe.alerts.incidents import ledger as incidents
from logprobe.alerts.incidents.ledger import Looked
from logprobe.alerts.incidents.lifecycle import advance
from logprobe.alerts.notification import Notification
from logprobe.alerts.reloading import Reloaded
from logprobe.alerts.rules import actions, facts, ledger, notification_builder, run_status
from logprobe.alerts.rules.editing.editor import Editor
from logprobe.alerts.rules.judging import evaluation
from logprobe.alerts.rules.judging.evaluation import Alert, Context, Message, Transition
from logprobe.alerts.rules.judging.observation import StepFacts
from logprobe.alerts.rules.notification_builder import Surroundings
from logprobe.alerts.rules.present_conditions import RunStatus
from logprobe.alerts.rules.rule import PresentCondition, Rule
from logprobe.alerts.rules.rule_file import SECTION, RuleBook, more_files
from logprobe.alerts.sending.outbox import enqueue
from logprobe.monitor import judgement, queries
from logprobe.monitor.home import Home
from logprobe.monitor.judgement import Firing, Judgement, Severity
from logprobe.monitor.service.jobs import Job, Part, PartMaker
from logprobe.monitor.service.turns import Priority, Row, Turns, as_of, priority
from logprobe.monitor.store.courtesy import Rank
from logprobe.monitor.store.store import Store

Alerts = Mapping[tuple[str, str | None], Alert]  # by rule and slice
Known = dict[str, tuple[Sequence[Rule], Alerts]]  # by run: its rules, and the alerts that are stored
Rows = Sequence[tuple[Mapping[str, Any], Sequence[Rule]]]  # of `alert_runs`, each with the rules of its run

SECONDS: Final = 1.0
PATIENCE: Final = 60.0
# What is critical is told on a busy machine too, and telling it takes a tenth of the time at most.
_REST: Final = 9.0  # times as long as a look took
_MOST_REST: Final = 10.0  # seconds
# A step is looked at once nothing came for it for so long: its records come in several segments.
QUIET: Final = timedelta(seconds=2)
_UNCHANGED: Final = timedelta(seconds=3)  # for which a look holds while nothing is written
_SERIES: Final = 60  # steps of a sparkline
_RUNS_PER_BATCH: Final = 128  # of one transaction: bounds memory, and how long other writers wait
_CURSORS: Final = pa.schema([("run", pa.string()), ("step", pa.int64()), ("rules", pa.string())])
_STORED: Final = attrgetter(*(field.name for field in fields(Alert) if field.name != "observation"))


@dataclass(slots=True, eq=False)
class _Work:
    """One run's alerts on the way through one look at it."""

    run: str
    context: Context
    row: Mapping[str, Any]  # of `alert_runs`
    rules: Sequence[Rule]
    cursor: int | None
    alerts: list[Alert]
    kept: Alerts  # as stored
    stored_rules: str | None  # fingerprint of the rules stored with the cursor; None: the cursor is to be written
    looked: int = 0  # steps
    gone: list[Alert] = field(default_factory=list)
    transitions: list[Transition] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    written: Counter[str] = field(default_factory=Counter)
    status: RunStatus | None = None  # None: not looked at yet

    @property
    def firing(self) -> tuple[Firing, ...]:
        """What fires as the alerts stand now."""
        firing = [alert for alert in self.alerts if alert.state.phase.active]
        return tuple(
            Firing(a.rule.name, a.rule.severity, started_step=a.state.started_step, muted=a.muted) for a in firing
        )

    @property
    def critical(self) -> list[Alert]:
        """Critical alerts that fire."""
        return [alert for alert in self.alerts if alert.state.phase.active and alert.rule.severity == "critical"]

    @property
    def critical_since(self) -> int | None:
        """First step of the critical alerts that fire, or that people are about to be told of; None: not known."""
        told = (m.alert.state.started_step for m in self.messages if m.alert.rule.severity == "critical")
        firing = (alert.state.started_step for alert in self.critical)
        return min((step for step in (*told, *firing) if step is not None), default=None)

    @property
    def critical_episodes(self) -> list[str]:
        """Of critical alerts that fire, or that people are about to be told of."""
        told = (message.episode for message in self.messages if message.alert.rule.severity == "critical")
        firing = (alert.notified.episode for alert in self.critical)
        return sorted({episode for episode in (*told, *firing) if episode is not None})

    @property
    def may_be_critical(self) -> bool:
        """Whether the run may be critical, or an incident of it is open."""
        verdict = None if self.status is None else self.status.verdict
        return bool(self.row["incident"] or verdict == "critical" or self.critical or self.was_critical)

    @property
    def was_critical(self) -> bool:
        """Whether people are about to be told of a critical alert, which may be over by now."""
        return any(m.alert.rule.severity == "critical" and m.word == "firing" for m in self.messages)

    @property
    def grouped(self) -> list[str]:
        """The alerts that fire, the worst first."""
        firing = [alert for alert in self.alerts if alert.state.phase.active]
        worst_first = ("critical", "warning", "info")
        firing.sort(key=lambda a: (worst_first.index(a.rule.severity), a.state.started_step or 0, a.rule.name))
        return [_line(alert) for alert in firing]

    @property
    def stepwise(self) -> list[Rule]:
        return [rule for rule in self.rules if not isinstance(rule.when, PresentCondition)]

    def changed(self) -> list[Alert]:
        """Alerts that are not as they are stored."""
        return [alert for alert in self.alerts if _differs(alert, self.kept.get((alert.rule.name, alert.slice)))]


class Evaluator:
    """Looks at all runs of a store: a stage. One thread at a time."""

    name = "alerts"
    reads = ("step_summaries", "step_metrics", "segments", "diagnoses", "controllers")
    writes = ("alert_states", "alert_cursors", "alert_transitions", "step_growth", "growth_states", "incidents")
    together = _RUNS_PER_BATCH

    def __init__(
        self,
        store: Store,
        book: Callable[[], RuleBook],
        stopping: threading.Event,
        *,
        page: str | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        quiet: timedelta = QUIET,
    ) -> None:
        """`book`: the rules as they are now. `stopping`: when set, work ends after the steps in hand. `page`: address
        of the dashboard."""
        self._store = store
        self._book = book
        self._stopping = stopping
        self._page = page
        self._clock = clock
        self._quiet = quiet
        self._presents = run_status.RunStatuses(store)
        self._known: Known = {}  # of the runs that were looked at last
        self._diagnosed: dict[str, datetime | None] = {}  # by run: the diagnosis that its incident has seen
        self._now = clock()
        self._written = 0  # of the store, when the runs were looked up
        self._turned: dict[str, tuple[int, datetime]] = {}  # by run: the same, and when, as of its last turn
        self._turns = Turns(self, stopping)

    def run_once(self) -> dict[str, object]:
        """One look at every run that may have news; counts of what it found. See `Turns.run_once`."""
        return self._turns.run_once()

    def rows(self) -> Sequence[Row]:
        """All runs that records have arrived of, each with the rules that are in effect for it."""
        self._now, self._written = self._clock(), self._store.written
        book = self._book()
        rows = as_of(queries.alert_runs(self._store.kept), self._now)
        return [{**row, "of": book.for_run(row["run"]), "tell_within": book.tell_within} for row in rows]

    def due(self, row: Row) -> Priority | None:
        """Runs that may have news; those of which only time can bring any now and then."""
        if not _may_have_changed(row, row["of"], self._now, row["tell_within"]):
            return None
        written, looked = self._turned.get(row["run"], (None, self._now))
        rests = timedelta(0) <= self._now - looked < _UNCHANGED  # a clock that was set back would make it hours
        if written == self._written and rests and not _is_new(row, row["of"]):
            return None
        return priority(live=row["live"], armed=False, first=row["cursor"] is None)

    def run(self, rows: Sequence[Row]) -> Mapping[str, int]:
        """Looks at some runs, and writes down what became of their alerts; counts of that. Raises `StoreError`,
        `QueryError`."""
        counts: Counter[str] = Counter()
        now, news = self._now, rows[0]["tell_within"]
        runs = [row["run"] for row in rows]
        cached = {run: self._known.pop(run) for run in runs if run in self._known}  # after a failure it is read again
        # Of many runs at once: a small statement takes milliseconds, whatever it reads.
        kept = self._kept([(row, row["of"]) for row in rows], cached)
        silences = ledger.silences(self._store, now) if rows[0]["silenced"] else []
        acknowledged = ledger.acknowledgements(self._store, runs) if rows[0]["acknowledged"] else {}
        works = []
        for row in rows:
            context = Context(
                row["run"],
                now,
                silences,
                acknowledged,
                notify_from=now - news,
                returned_to=row["returned_to"] or (),
            )
            works.append(self._begin(context, row, row["of"], kept[row["run"]]))
        self._evaluate(works, news)
        self._known.update({work.run: (work.rules, work.kept) for work in works})
        self._turned.update(dict.fromkeys(runs, (self._written, now)))
        counts.update(steps=sum(work.looked for work in works))
        for work in works:
            counts.update(work.written)
        return counts

    def _kept(self, rows: Rows, cached: Known) -> dict[str, Alerts]:
        """The alerts of each run as they are stored: read only where this job has not written them itself, under the
        same rules."""
        rules = {row["run"]: of_run for row, of_run in rows}
        kept = {run: alerts for run, (since, alerts) in cached.items() if since == rules.get(run)}
        unknown = [run for run in rules if run not in kept]
        for run, stored in (ledger.load(self._store, unknown) if unknown else {}).items():
            by_name = {rule.name: rule for rule in rules[run]}
            kept[run] = {(entry.rule, entry.slice): entry.alert(by_name.get(entry.rule)) for entry in stored}
        return kept

    def _evaluate(self, works: Sequence[_Work], news: timedelta) -> None:
        """Looks at what is new of some runs. Each is written down as soon as it is through; one that lags holds up no
        other."""
        while works:
            lagging = self._through_steps(works)
            self._evaluate_status([work for work in works if work not in lagging], news)
            self._commit(works)
            works = lagging

    def _evaluate_status(self, works: Sequence[_Work], news: timedelta) -> None:
        statuses = self._presents.of([work.row for work in works])
        for work in works:
            young = work.context.now - work.row["last_arrival"] <= news
            at = work.context.now if young else work.row["last_arrival"]
            now = work.status = statuses[work.run]
            observations = run_status.observe(work.rules, now, at)
            work.alerts, transitions = evaluation.evaluate_status(
                work.alerts, observations, at, diagnosed=now.diagnosed
            )
            work.transitions += transitions
            work.context = replace(work.context, accepted=run_status.lived_with(now))
            if not _lags(work):  # half-way through the past a rule that was changed does not know yet how things are
                self._notify(work, step=work.cursor, at=at)

    def _begin(self, context: Context, row: Mapping[str, Any], rules: Sequence[Rule], kept: Alerts) -> _Work:
        names = {rule.name for rule in rules}
        ongoing = {name: _back_to(row["cursor"], alert) for name, alert in kept.items() if alert.rule.name in names}
        new = evaluation.begin(rules, besides=ongoing)
        alerts = [*ongoing.values(), *new]
        work = _Work(context.run, context, row, rules, row["cursor"], alerts, ongoing, stored_rules=row["rules"] or "")
        for name in kept.keys() - ongoing.keys():
            self._end(work, kept[name])
        return work

    def _end(self, work: _Work, alert: Alert) -> None:
        """A rule that was removed: what people believe to be firing ends."""
        ended, transitions = evaluation.end(alert, work.context.now)
        _, messages = evaluation.notify([ended], work.context, step=work.cursor, at=work.context.now)
        work.gone.append(ended)
        work.transitions += transitions
        work.messages += messages

    def _through_steps(self, works: Sequence[_Work]) -> list[_Work]:
        """Looks at the next steps of some runs; → those of which there may be more."""
        if self._stopping.is_set():
            return []
        quiet_since = self._clock() - self._quiet
        asked = {}
        for work in works:
            seen = _seen_by_all(work.alerts)
            if work.stepwise and seen != work.row["newest_step"] and not _too_young(work.row, seen, quiet_since):
                asked[work.run] = facts.Asked(work.stepwise, seen)
        if not asked:
            return []
        by_run = facts.next_steps(self._store, asked, quiet_since=quiet_since, keep=self._store)
        for work in works:
            self._through(work, by_run.get(work.run, ()))
        return [work for work in works if len(by_run.get(work.run, ())) == facts.STEPS_PER_BATCH]

    def _through(self, work: _Work, steps: Sequence[StepFacts]) -> None:
        rules = work.stepwise
        for step in steps:
            alerts = evaluation.with_new_slices(work.alerts, rules, step)
            work.alerts, transitions = evaluation.evaluate_step(alerts, step)
            work.transitions += transitions
            work.stored_rules = None
            # A rule that is new, or was changed, looks at the whole run once more; what that brings up is told at the
            # end of it.
            if work.cursor is None or step.step > work.cursor:
                work.cursor = step.step
                self._notify(work, step=step.step, at=step.at - timedelta(seconds=work.row["dated_ahead"]))
        work.looked += len(steps)

    def _notify(self, work: _Work, *, step: int | None, at: datetime) -> None:
        work.alerts, messages = evaluation.notify(work.alerts, work.context, step=step, at=at)
        work.messages += messages

    def _commit(self, works: Sequence[_Work]) -> None:
        """Writes down what changed since the last time, in one transaction; nothing when nothing did."""
        judged = self._judged(works)
        looks = self._looks(works, judged)
        news = [(work, work.changed()) for work in works]
        news = [
            (work, changed)
            for work, changed in news
            if changed
            or work.gone
            or work.messages
            or work.transitions
            or work.stored_rules != _fingerprint(work.rules)
            or (work.run in looks and looks[work.run].is_news)
        ]
        if not news:
            return
        notifications = [
            notification
            for work, _ in news
            for notification in self._told(work, judged.get(work.run), looks.get(work.run))
        ]
        cursors = [{"run": work.run, "step": work.cursor, "rules": _fingerprint(work.rules)} for work, _ in news]
        with self._store.transaction() as cursor:
            ledger.save(self._store, cursor, [(work.run, alert) for work, changed in news for alert in changed])
            for work, _ in news:
                ledger.forget(self._store, cursor, work.run, work.gone)
            ledger.append(
                self._store, cursor, [(work.run, transition) for work, _ in news for transition in work.transitions]
            )
            for notification in notifications:
                enqueue(self._store, cursor, notification)
            incidents.keep(self._store, cursor, [look for look in looks.values() if look.is_news])
            self._store.execute(cursor, "alert_advance", pa.Table.from_pylist(cursors, _CURSORS))
        self._diagnosed.update({work.run: work.row["diagnosed_at"] for work, _ in news})
        for work, _ in news:
            work.kept = {(alert.rule.name, alert.slice): alert for alert in work.alerts}
            work.stored_rules = _fingerprint(work.rules)
            work.written += Counter(transitions=len(work.transitions), messages=len(work.messages))
            work.gone, work.transitions, work.messages = [], [], []

    def _judged(self, works: Sequence[_Work]) -> dict[str, Judgement]:
        """How runs stand with the alerts that are about to be written: those with something to tell, and those whose
        incident it may touch.

        Runs whose past is being looked at are left out.
        """
        asked = {
            work.run: work for work in works if work.status is not None and (work.messages or work.may_be_critical)
        }
        judged = judgement.read(self._store, list(asked), self._clock()) if asked else {}
        return {run: replace(stored, alerts=asked[run].firing) for run, stored in judged.items()}

    def _looks(self, works: Sequence[_Work], judged: Mapping[str, Judgement]) -> dict[str, Looked]:
        """What became of the incidents of runs that have one, or have become critical."""
        asked = [work for work in works if work.was_critical or (work.run in judged and work.may_be_critical)]
        newest = incidents.newest(self._store, [work.run for work in asked]) if asked else {}
        looks = {}
        for work in asked:
            now, before = judged.get(work.run), newest.get(work.run)
            step = work.cursor if work.cursor is not None else work.row["newest_step"]
            severity: Severity = "critical" if now is None or work.was_critical else now.severity
            after, change = advance(before, severity, step)
            looks[work.run] = Looked(
                work.run,
                before,
                after,
                change,
                step=step,
                at=work.context.now,
                since=work.critical_since if now is None or now.since is None else now.since,
                episodes=work.critical_episodes,
                severity=None if now is None else now.severity,
                page=self._page,
                diagnosed=self._diagnosed.get(work.run) != work.row["diagnosed_at"],
            )
        return looks

    def _told(self, work: _Work, judged: Judgement | None, look: Looked | None) -> Iterator[Notification]:
        """The notifications of a run. An episode belongs for good to the incident that went on when people were first
        told of it."""
        current = None if look is None else look.id
        begun: dict[str, str | None] = {}
        if look is not None and look.change == "opened":
            begun = dict.fromkeys(look.episodes, current)
        for message in work.messages:
            if message.episode not in begun:
                rows = queries.incident_of(self._store, run=work.run, episode=message.episode).to_pylist()
                begun[message.episode] = rows[0]["incident"] if rows else current
            severity = None if judged is None else judged.severity
            around = self._around(work, message, severity=severity, incident=begun[message.episode])
            yield notification_builder.build(work.run, message, around)

    def _around(self, work: _Work, message: Message, *, severity: str | None, incident: str | None) -> Surroundings:
        last = message.step if message.step is not None else work.cursor
        surroundings = Surroundings(page=self._page, severity=severity, incident=incident, grouped=work.grouped)
        if last is None:
            return surroundings
        rule = message.alert.rule
        changes = queries.alert_changes(self._store, run=work.run, last=last).to_pylist()
        points: list[queries.AlertSeries] = []
        if rule.key is not None and message.alert.slice is None:
            points = queries.alert_series(
                self._store, run=work.run, metric=rule.key, last=last, count=_SERIES
            ).to_pylist()
        return replace(
            surroundings,
            step=last,
            series=[(point["step"], point["value"]) for point in points],
            changes=[(change["what"], change["time"]) for change in changes],
        )


def _may_have_changed(row: Mapping[str, Any], rules: Sequence[Rule], now: datetime, notify_within: timedelta) -> bool:
    """Something that is new, something people should hear of later, or a run that may stop any moment."""
    young = now - row["last_arrival"] <= notify_within
    return bool(young or row["open"] or _is_new(row, rules))


def _is_new(row: Mapping[str, Any], rules: Sequence[Rule]) -> bool:
    """New steps or other rules."""
    unseen = row["newest_step"] is not None and (row["cursor"] is None or row["cursor"] < row["newest_step"])
    return bool(unseen or (row["rules"] or "") != _fingerprint(rules))


def _too_young(row: Mapping[str, Any], seen: int | None, quiet_since: datetime) -> bool:
    """Whether the only step that was not looked at yet may still be receiving data; asking the store takes as long as
    all else of a tick."""
    return seen is not None and row["newest_step"] == seen + 1 and row["newest_computed_at"] > quiet_since


def _line(alert: Alert) -> str:
    """An alert that fires, in a line."""
    since = "" if alert.state.started_step is None else f", since step {alert.state.started_step:,}"
    return f"{' '.join(filter(None, (alert.rule.name, alert.slice)))} ({alert.rule.severity}{since})"


def _fingerprint(rules: Sequence[Rule]) -> str:
    return hashlib.sha256("".join(rule.name + rule.fingerprint for rule in rules).encode()).hexdigest()[:16]


def _seen_by_all(alerts: Sequence[Alert]) -> int | None:
    """The newest step that every rule on steps has looked at; None: some rule has seen none."""
    steps = [alert.step for alert in alerts if not isinstance(alert.rule.when, PresentCondition)]
    seen = [step for step in steps if step is not None]
    return min(seen) if seen and len(seen) == len(steps) else None


def _back_to(cursor: int | None, alert: Alert) -> Alert:
    """The alert of a run that went back to a checkpoint: it looks again at the steps that are trained again."""
    ahead = cursor is not None and alert.step is not None and alert.step > cursor
    return replace(alert, step=cursor) if ahead and not isinstance(alert.rule.when, PresentCondition) else alert


def _lags(work: _Work) -> bool:
    """Whether some rule on steps has not looked yet at all that others have."""
    steps = [alert.step for alert in work.alerts if not isinstance(alert.rule.when, PresentCondition)]
    return work.cursor is not None and any(step is None or step < work.cursor for step in steps)


def _differs(alert: Alert, kept: Alert | None) -> bool:
    """Whether there is something to keep; the words of an observation alone, which name spans of time, are not."""
    return kept is None or _STORED(alert) != _STORED(kept)


def alerts_part(rules: Callable[[Home], RuleBook], *, page: str | None = None) -> PartMaker:
    """Alerts as a part of the service. `rules`: reads those of a home, and raises `RuleFileError` when they are wrong.

    The home's files are read again when one changes; wrong, they are not taken over, and the job says so.
    """

    def make(store: Store, stopping: threading.Event) -> Part:
        home = store.home.path
        book = Reloaded(home, SECTION, lambda: rules(store.home), lambda: more_files(home))
        evaluator = Evaluator(store, book.current, stopping, page=page)
        work = Job(
            "alerts",
            SECONDS,
            lambda: {**evaluator.run_once(), **book.report()},
            patience=PATIENCE,
            rest=_REST,
            most_rest=_MOST_REST,
            rank=Rank.JUDGEMENT,
        )
        rules_of_home = Editor(store, lambda: book.problem, lambda: datetime.now(UTC))
        return Part(jobs=[work], actions=actions.of(store) | rules_of_home.actions())

    return make
