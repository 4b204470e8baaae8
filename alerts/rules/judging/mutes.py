"""What keeps an alert that fires from being told: silences, acknowledgements, a worse alert of the same cause."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Final

from logprobe.alerts.rules.judging.states import Phase
from logprobe.alerts.rules.rule import SEVERITIES, Rule

FIELDS: Final = ("run", "rule", "severity", "cause", "slice", "metric", "layer")  # besides the rule's labels


@dataclass(frozen=True, slots=True)
class Silence:
    """Nothing is told of alerts that match all of `matchers` (field or label → pattern with ``*`` and ``?``) until it
    expires."""

    id: str
    matchers: Mapping[str, str]
    author: str
    reason: str
    created_at: datetime
    expires_at: datetime

    def mutes(self, facts: Mapping[str, str], now: datetime) -> bool:
        """Whether it is in effect, and means an alert with these `facts`."""
        in_force = self.created_at <= now < self.expires_at
        return in_force and all(fnmatchcase(facts.get(name, ""), pattern) for name, pattern in self.matchers.items())


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """An episode is acknowledged. `until`: a snooze, after which people are notified again; None: as long as it
    lasts."""

    episode: str
    author: str
    reason: str
    at: datetime
    until: datetime | None = None

    def in_force(self, now: datetime) -> bool:
        """Whether it still holds."""
        return self.until is None or now < self.until


@dataclass(frozen=True, slots=True)
class AlertStatus:
    """One alert as others see it."""

    rule: Rule
    slice: str | None
    phase: Phase
    notified: bool  # people know that it fires

    def inhibits(self, other: AlertStatus) -> bool:
        """Whether `other` should keep quiet: this one fires for the same cause, is worse, or is as bad and was told
        before.

        An alert on the verdict as a whole is of the same cause as any other.
        """
        same = self.rule.shared_cause == other.rule.shared_cause or other.rule.sums_up
        same = same and self.rule.name != other.rule.name
        if not same or not self.phase.active or self.slice not in {None, other.slice}:
            return False
        rank, of_other = SEVERITIES.index(self.rule.severity), SEVERITIES.index(other.rule.severity)
        return rank > of_other or (rank == of_other and self.notified and not other.notified)


def facts_of(run: str, rule: Rule, part: str | None) -> dict[str, str]:
    """What a silence's matchers are compared with."""
    fields = {
        "run": run,
        "rule": rule.name,
        "severity": rule.severity,
        "cause": rule.shared_cause,
        "slice": part or "",
        "metric": rule.key or "",
        "layer": rule.layer or "",
    }
    return {**rule.labels, **fields}


def muted_by(
    run: str, status: AlertStatus, others: Iterable[AlertStatus], silences: Iterable[Silence], now: datetime
) -> str | None:
    """Why an alert that fires must not be told now: ``silenced by …`` or ``inhibited by …``; None: it may."""
    facts = facts_of(run, status.rule, status.slice)
    for silence in silences:
        if silence.mutes(facts, now):
            return f"silenced by {silence.author}: {silence.reason}"
    for other in others:
        if other.inhibits(status):
            return f"inhibited by {other.rule.name}"
    return None
