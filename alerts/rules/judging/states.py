"""The state of one alert as plain data, and the one function that moves it on.

    normal ── bad ──▶ pending ── bad for `for` steps ──▶ firing ── cleared ──▶ recovering ── for `keep_firing` steps ──▶
    normal
                         └─ not bad ─▶ normal              ▲ └──────── bad again ───────────────┘

Without data a quiet alert is in state no_data, and a firing one keeps firing: missing data never resolves an alert. The
same holds for a rule that cannot be evaluated (error).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from logprobe.alerts.rules.judging.observation import Observation
from logprobe.alerts.rules.rule import Rule
from logprobe.monitor.judgement import FIRING


class Phase(StrEnum):
    """Where an alert stands."""

    NORMAL = "normal"
    PENDING = "pending"
    FIRING = "firing"
    RECOVERING = "recovering"
    NO_DATA = "no_data"
    ERROR = "error"

    @property
    def active(self) -> bool:
        """Whether there is an episode that people should know of."""
        return self in FIRING


class Reason(StrEnum):
    """Why an alert is where it is now."""

    FINE = "fine"
    CONDITION_HOLDS = "condition_holds"  # pending
    HELD_LONG_ENOUGH = "held_long_enough"  # firing
    STILL_BAD = "still_bad"
    STILL_BETWEEN = "still_between"  # not bad, and not cleared either
    CLEARED = "cleared"  # recovering
    BAD_AGAIN = "bad_again"  # firing, the same episode
    STAYED_CLEAR = "stayed_clear"  # resolved
    SUBSIDED = "subsided"  # pending, and then it was nothing
    NOTHING_MEASURED = "nothing_measured"  # no_data
    BLIND = "blind"  # nothing is measured, so it keeps firing
    CANNOT_EVALUATE = "cannot_evaluate"  # error
    RULE_GONE = "rule_gone"  # resolved: the rule was removed, disabled, or no longer says so


@dataclass(frozen=True, slots=True)
class State:
    """Of one rule, run and slice.

    Attributes:
        phase: where it stands.
        reason: why.
        streak: steps in a row that speak for leaving `phase`.
        started_step: first step of the episode's condition; None outside of one, and where no step is known.
        started_at: its time; with the step what names the episode.
        changed_at: when the phase began.
    """

    phase: Phase = Phase.NORMAL
    reason: Reason = Reason.FINE
    streak: int = 0
    started_step: int | None = None
    started_at: datetime | None = None
    changed_at: datetime | None = None


def advance(
    state: State, observation: Observation, rule: Rule, *, step: int | None, now: datetime, steps: int = 1
) -> State:
    """The state after one more observation.

    Args:
        state: before it.
        observation: what the rule's condition made of the step.
        rule: gives `for` and `keep_firing`.
        step: that was observed; None: the observation belongs to none.
        now: time of what was observed, so that looking at it again later gives the same.
        steps: for which the observation speaks, towards `for` and `keep_firing`.
    """
    after = _advanced(state, observation, rule, (step, now), steps)
    return after if after.phase is state.phase else replace(after, changed_at=now)


def _advanced(
    state: State, observation: Observation, rule: Rule, begins: tuple[int | None, datetime], steps: int
) -> State:
    if observation.verdict in {"missing", "error"}:
        return _blind(state, observation)
    if state.phase.active:
        return _episode_goes_on(state, observation, rule, steps)
    if observation.verdict != "bad":
        reason = Reason.SUBSIDED if state.phase is Phase.PENDING else Reason.FINE
        return State(Phase.NORMAL, reason, changed_at=state.changed_at)
    step, now = begins
    begun = state if state.phase is Phase.PENDING else replace(state, streak=0, started_step=step, started_at=now)
    return _condition_holds(begun, rule, steps)


def _blind(state: State, observation: Observation) -> State:
    broken = observation.verdict == "error"
    if state.phase.active:
        return replace(state, reason=Reason.CANNOT_EVALUATE if broken else Reason.BLIND)
    if broken:
        return State(Phase.ERROR, Reason.CANNOT_EVALUATE, changed_at=state.changed_at)
    return State(Phase.NO_DATA, Reason.NOTHING_MEASURED, changed_at=state.changed_at)


def _condition_holds(state: State, rule: Rule, steps: int) -> State:
    streak = state.streak + steps
    if streak >= rule.for_:
        return replace(state, phase=Phase.FIRING, reason=Reason.HELD_LONG_ENOUGH, streak=0)
    return replace(state, phase=Phase.PENDING, reason=Reason.CONDITION_HOLDS, streak=streak)


def _episode_goes_on(state: State, observation: Observation, rule: Rule, steps: int) -> State:
    if observation.verdict == "good":
        streak = state.streak + steps
        if streak >= rule.keep_firing:
            return State(Phase.NORMAL, Reason.STAYED_CLEAR, changed_at=state.changed_at)
        return replace(state, phase=Phase.RECOVERING, reason=Reason.CLEARED, streak=streak)
    if observation.verdict == "between":
        # On the way back it does not count as clear, and on the way out not as bad.
        return replace(state, reason=Reason.STILL_BETWEEN, streak=0)
    again = state.phase is Phase.RECOVERING
    return replace(state, phase=Phase.FIRING, reason=Reason.BAD_AGAIN if again else Reason.STILL_BAD, streak=0)
