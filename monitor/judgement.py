"""Judgement of a run: verdict of the diagnosis, firing alerts, and combined severity. Pure except for `read`.

This module is the only source of a severity for display, messages and counts.

The verdict is the worse one of the newest diagnosis and the growth judged since. Growth is judged at every step.

| verdict | worst alert that fires | verdict as of | severity |
|---|---|---|---|
| any | critical | any step | critical |
| critical | any, or none | any step | critical |
| any | warning | any step | warning |
| growing, watch | info, or none | any step | warning |
| healthy | info, or none | a step before that alert, or overdue | unknown |
| healthy | info, or none | in time | ok |
| unknown, calibrating, no data, or none yet | info, or none | any step | unknown |

A silenced or acknowledged alert still counts. The alert that reports the verdict adds nothing to it.
A live run should be judged at most ten steps, or two seconds if that is longer, after its newest step; else its verdict
is overdue. Records in the spool belong to steps that the store does not have yet: where they have been for longer, the
verdict is overdue, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, Self

from logprobe.monitor import queries
from logprobe.monitor.judging.document import Advice, Urgency, Verdict
from logprobe.monitor.queries import Source

Severity = Literal["critical", "warning", "unknown", "ok"]
SEVERITIES: Final[tuple[Severity, ...]] = ("critical", "warning", "unknown", "ok")  # the worst first
FIRING: Final = frozenset({"firing", "recovering"})  # phases of an alert with an episode that people should know of
JUDGEMENT: Final = "judgement"  # rule of the alert that tells the verdict
STEPS: Final = 10  # behind the newest one, as promised above
SECONDS: Final = 2.0  # likewise


@dataclass(frozen=True, slots=True)
class Firing:
    """Firing alert.

    Attributes:
        rule: name of the rule.
        severity: severity of the rule: critical, warning or info.
        started_step: first step, or None for an alert that concerns no step.
        started_at: time of its start.
        acknowledged_by: user who acknowledged it, or None.
        muted: reason for a suppressed notification, or None.
    """

    rule: str
    severity: str
    started_step: int | None = None
    started_at: datetime | None = None
    acknowledged_by: str | None = None
    muted: str | None = None

    @property
    def counts(self) -> bool:
        """Return whether the alert adds to the verdict instead of reporting it."""
        return self.rule != JUDGEMENT


@dataclass(frozen=True, slots=True)
class Judgement:
    """Verdict on a run, with its firing alerts.

    Attributes:
        verdict: verdict of the newest diagnosis or of later growth, or None without either.
        since_step: first step of the fault according to the diagnosis.
        cause: cause of the first finding shown, or None without an alarming one.
        share: share of K3 that this cause explains.
        urgency: urgency of that finding.
        advice: advice of the diagnosis on switching a correction on, unless the controller objects.
        step: newest step covered by the verdict.
        diagnosed_at: time of the diagnosis.
        newest: newest step of the run.
        behind: number of steps after the judged ones.
        waiting: seconds since the arrival of the first unjudged step, or None without one.
        spooled: seconds that unread records have waited in the spool, or None if none has waited long.
        alerts: firing alerts, the worst first.
        ended_after: number of steps of an ended run, or None while it continues.
        level: status of K3 relative to the expected level of the setup, for a run without a baseline, or None if
            unknown.
    """

    verdict: Verdict | None = None
    since_step: int | None = None
    cause: str | None = None
    share: float | None = None
    urgency: Urgency | None = None
    advice: Advice | None = None
    step: int | None = None
    diagnosed_at: datetime | None = None
    newest: int | None = None
    behind: int = 0
    waiting: float | None = field(default=None, compare=False)  # grows while nothing happens
    spooled: float | None = field(default=None, compare=False)
    alerts: tuple[Firing, ...] = ()
    ended_after: int | None = None
    level: str | None = None

    @classmethod
    def of(cls, row: Mapping[str, Any] | None, now: datetime, *, ended_after: int | None = None) -> Self:
        """Build a judgement from a row of the view ``judgements``, or an unknown one from None."""
        if row is None:
            return cls(ended_after=ended_after)
        same = {name: row[name] for name in _SAME} | {"level": row.get("level")}
        waiting, spooled = (_seconds(since, now) for since in (row["unjudged_at"], row.get("spooled_at")))
        alerts = tuple(Firing(**alert) for alert in row["alerts"] or ())
        steps = {"step": row["judged_step"], "newest": row["newest_step"], "behind": row["steps_behind"] or 0}
        return cls(**same, **steps, ended_after=ended_after, waiting=waiting, spooled=spooled, alerts=alerts)

    @property
    def overdue(self) -> bool:
        """Return whether the verdict is overdue."""
        return self._lags or (self.spooled or 0.0) > SECONDS

    @property
    def _lags(self) -> bool:
        return self.behind > STEPS and (self.waiting or 0.0) > SECONDS

    @property
    def late(self) -> str | None:
        """Return since which step the run is not judged, in words, or None if it is in time."""
        if not self.overdue:
            return None
        since = "not judged yet" if self.step is None else f"not judged since step {self.step}"
        if not self._lags:
            return f"{since}: newer records have waited in the spool for {self.spooled:,.0f} s"
        return f"{since}: {self.behind:,} steps and {self.waiting:,.0f} s behind step {self.newest}"

    @property
    def outdated(self) -> bool:
        """Return whether the verdict is overdue or older than a firing alert."""
        return self.overdue or any(self._precedes(alert) for alert in self.alerts if alert.counts)

    def _precedes(self, alert: Firing) -> bool:
        if alert.started_step is not None:
            return self.step is None or self.step < alert.started_step
        return alert.started_at is not None and self.diagnosed_at is not None and self.diagnosed_at < alert.started_at

    @property
    def worst(self) -> str | None:
        """Severity of the worst firing alert other than the judgement's own, or None."""
        if not self.alerts:  # as of nearly all runs
            return None
        severities = {alert.severity for alert in self.alerts if alert.counts}
        return next((severity for severity in ("critical", "warning", "info") if severity in severities), None)

    @property
    def severity(self) -> Severity:
        """Return the severity according to the table of this module."""
        worst = self.worst
        if worst == "critical" or self.verdict == "critical":
            return "critical"
        if worst == "warning" or self.verdict in {"growing", "watch"}:
            return "warning"
        return "ok" if self.verdict == "healthy" and not self.outdated else "unknown"

    @property
    def by_alert(self) -> bool:
        """Return whether an alert raises the severity above that of the verdict alone."""
        own = {"critical": "critical", "growing": "warning", "watch": "warning"}.get(self.verdict or "")
        return self.severity in {"critical", "warning"} and own != self.severity

    @property
    def since(self) -> int | None:
        """First step of the reason for the severity, or None without a fault or a known step."""
        if self.severity not in {"critical", "warning"}:
            return None
        if not self.by_alert:
            return self.since_step
        steps = [a.started_step for a in self.alerts if a.severity == self.worst and a.counts]
        return min((step for step in steps if step is not None), default=None)

    def document(self) -> dict[str, object]:
        """Return the JSON-ready form, except for times."""
        return {
            "severity": self.severity,
            "since": self.since,
            "overdue": self.overdue,
            "late": self.late,
            **asdict(self),
        }


def _seconds(since: datetime | None, now: datetime) -> float | None:
    return None if since is None else max(0.0, (now - since).total_seconds())


_SAME: Final = ("verdict", "since_step", "cause", "share", "urgency", "advice", "diagnosed_at")


def read(source: Source, runs: Sequence[str], now: datetime) -> dict[str, Judgement]:
    """Return the judgements of `runs`. Raises `QueryError` as the source does."""
    rows = {row["run"]: row for row in queries.judgements(source, runs=list(runs)).to_pylist()}
    return {run: Judgement.of(rows.get(run), now) for run in runs}
