"""State of one alert, and the one function that moves it on. Pure.

An alert has a level: 0 (quiet), 1 (info), 2 (warning) or 3 (critical). It rises once the level was exceeded for `needs`
steps in a row, and falls once it was not reached for `keeps` steps in a row:

    normal ── higher ──▶ pending ── for `needs` steps ──▶ firing ── lower ──▶ recovering ── for `keeps` steps ──▶ normal
                            └─ not higher ─▶ normal          ▲ └──────── as high again ─────────┘

What is not measured changes nothing: missing data neither raises an alert nor resolves one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final, Literal

Severity = Literal["info", "warning", "critical"]
LEVELS: Final[tuple[str, ...]] = ("", "info", "warning", "critical")
INFO, WARNING, CRITICAL = 1, 2, 3


@dataclass(frozen=True, slots=True)
class Seen:
    """Result of looking at a step, or at the run as it is now. Unknown is None.

    Attributes:
        level: how bad it is; None if it was not measured.
        words: fragment of a sentence that says what was seen.
        value: measured value, in `unit`.
        unit: unit of `value`.
        since_step: first step of what was seen.
        cause: leading cause.
        layer: layer at fault.
        fix: what to do about it.
    """

    level: int | None
    words: str
    value: float | None = None
    unit: str | None = None
    since_step: int | None = None
    cause: str | None = None
    layer: str | None = None
    fix: str | None = None


@dataclass(frozen=True, slots=True)
class State:
    """State of one alert.

    Attributes:
        level: as above.
        toward: level that it moves to, or None if the last look found the present one.
        streak: steps in a row that speak for `toward`.
        since_step: first step of the episode, or None outside of one and where no step is known.
        since_at: time of that step.
        changed_at: when `level` became what it is.
    """

    level: int = 0
    toward: int | None = None
    streak: int = 0
    since_step: int | None = None
    since_at: datetime | None = None
    changed_at: datetime | None = None

    @property
    def phase(self) -> str:
        """normal, pending, firing or recovering."""
        if not self.level:
            return "pending" if self.toward else "normal"
        return "recovering" if self.toward is not None and self.toward < self.level else "firing"


@dataclass(frozen=True, slots=True)
class Told:
    """Messages sent about an alert.

    Attributes:
        episode: last one that a message was sent of, or None.
        level: as of the last message; 0 if that said that the episode is over.
        peak: highest level of the episode, which decides who hears of it.
        cause: likewise.
        count: messages so far, of all episodes.
        acknowledged: whether users were told that it is acknowledged.
        since_step: first step of the episode, or None if none is known.
    """

    episode: str | None = None
    level: int = 0
    peak: int = 0
    cause: str | None = None
    count: int = 0
    acknowledged: bool = False
    since_step: int | None = None


@dataclass(frozen=True, slots=True)
class Alert:
    """One rule of one run, with everything that is remembered of it.

    Attributes:
        rule: name of the rule.
        fingerprint: of what decides when it fires.
        needs: steps in a row to rise.
        keeps: steps in a row to fall.
        state: as of `step`.
        told: what was sent.
        step: newest step that was looked at, or None.
        seen: result of the last look, or None.
        cause: leading cause of the last looks, and for how many steps it has been that one.
        muted: why no message is sent, or None.
    """

    rule: str
    fingerprint: str = ""
    needs: int = 1
    keeps: int = 1
    state: State = field(default_factory=State)
    told: Told = field(default_factory=Told)
    step: int | None = None
    seen: Seen | None = None
    cause: tuple[str, int] | None = None
    muted: str | None = None

    @property
    def level(self) -> int:
        """Level of the state."""
        return self.state.level

    @property
    def severity(self) -> str:
        """Severity of the level, or of the one that it moves to while it is quiet."""
        return LEVELS[self.level or self.state.toward or WARNING]

    def look(self, seen: Seen, *, step: int | None, at: datetime, steps: int = 1) -> Alert:
        """Return the alert after one more look.

        Args:
            seen: result of the look.
            step: step that was looked at, or None.
            at: its time.
            steps: steps for which the result speaks.
        """
        if seen.level is None:
            return replace(self, seen=seen, step=step)
        state = _moved(self.state, seen.level, self, steps)
        if state.level or state.toward:
            begins = not self.state.level and not self.state.toward
            since = (seen.since_step if seen.since_step is not None else step, at)
            step_, at_ = since if begins else (self.state.since_step, self.state.since_at)
            state = replace(state, since_step=step_, since_at=at_)
        else:
            state = replace(state, since_step=None, since_at=None)
        changed = at if state.level != self.state.level else self.state.changed_at
        cause = _lasting(self.cause, seen.cause, steps) if state.level or state.toward else None
        return replace(self, state=replace(state, changed_at=changed), seen=seen, step=step, cause=cause)


def _moved(state: State, level: int, alert: Alert, steps: int) -> State:
    if level == state.level:
        return replace(state, toward=None, streak=0)
    rises = level > state.level
    same_way = state.toward is not None and (state.toward > state.level) == rises
    # A candidate is the level that all looks of the streak have passed.
    nearest = min if rises else max
    toward = nearest(state.toward, level) if same_way and state.toward is not None else level
    streak = (state.streak if same_way else 0) + steps
    if streak >= (alert.needs if rises else alert.keeps):
        return replace(state, level=toward, toward=None, streak=0)
    return replace(state, toward=toward, streak=streak)


def _lasting(before: tuple[str, int] | None, cause: str | None, steps: int) -> tuple[str, int] | None:
    if cause is None:
        return before
    return (cause, before[1] + steps) if before is not None and before[0] == cause else (cause, min(steps, 1))
