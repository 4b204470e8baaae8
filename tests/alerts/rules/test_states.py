"""The state machine of one alert, move by move, with the reason of each."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from logprobe.alerts.rules.judging.observation import Observation
from logprobe.alerts.rules.judging.states import Phase, Reason, State, advance
from logprobe.alerts.rules.rule import Rule

NOW = datetime(2026, 3, 1, tzinfo=UTC)
RULE = Rule.model_validate(
    {"name": "r", "metric": "k3_kl", "for": 2, "keep_firing": 2, "when": {"kind": "threshold", "above": 1}}
)
NORMAL = State()
PENDING = State(Phase.PENDING, streak=1, started_step=4)
FIRING = State(Phase.FIRING, started_step=4)
RECOVERING = State(Phase.RECOVERING, streak=1, started_step=4)
NO_DATA = State(Phase.NO_DATA)
ERROR = State(Phase.ERROR)

MOVES = [
    # before, verdict, after, reason
    (NORMAL, "good", Phase.NORMAL, Reason.FINE),
    (NORMAL, "between", Phase.NORMAL, Reason.FINE),
    (NORMAL, "bad", Phase.PENDING, Reason.CONDITION_HOLDS),
    (NORMAL, "missing", Phase.NO_DATA, Reason.NOTHING_MEASURED),
    (NORMAL, "error", Phase.ERROR, Reason.CANNOT_EVALUATE),
    (PENDING, "good", Phase.NORMAL, Reason.SUBSIDED),
    (PENDING, "between", Phase.NORMAL, Reason.SUBSIDED),
    (PENDING, "bad", Phase.FIRING, Reason.HELD_LONG_ENOUGH),
    (PENDING, "missing", Phase.NO_DATA, Reason.NOTHING_MEASURED),
    (PENDING, "error", Phase.ERROR, Reason.CANNOT_EVALUATE),
    (FIRING, "good", Phase.RECOVERING, Reason.CLEARED),
    (FIRING, "between", Phase.FIRING, Reason.STILL_BETWEEN),
    (FIRING, "bad", Phase.FIRING, Reason.STILL_BAD),
    (FIRING, "missing", Phase.FIRING, Reason.BLIND),
    (FIRING, "error", Phase.FIRING, Reason.CANNOT_EVALUATE),
    (RECOVERING, "good", Phase.NORMAL, Reason.STAYED_CLEAR),
    (RECOVERING, "between", Phase.RECOVERING, Reason.STILL_BETWEEN),
    (RECOVERING, "bad", Phase.FIRING, Reason.BAD_AGAIN),
    (RECOVERING, "missing", Phase.RECOVERING, Reason.BLIND),
    (RECOVERING, "error", Phase.RECOVERING, Reason.CANNOT_EVALUATE),
    (NO_DATA, "good", Phase.NORMAL, Reason.FINE),
    (NO_DATA, "bad", Phase.PENDING, Reason.CONDITION_HOLDS),
    (NO_DATA, "missing", Phase.NO_DATA, Reason.NOTHING_MEASURED),
    (ERROR, "good", Phase.NORMAL, Reason.FINE),
    (ERROR, "bad", Phase.PENDING, Reason.CONDITION_HOLDS),
    (ERROR, "error", Phase.ERROR, Reason.CANNOT_EVALUATE),
]


@pytest.mark.parametrize(("before", "verdict", "phase", "reason"), MOVES)
def test_move(before: State, verdict, phase: Phase, reason: Reason) -> None:
    after = advance(before, Observation(verdict, "words"), RULE, step=9, now=NOW)
    assert (after.phase, after.reason) == (phase, reason)
    assert after.changed_at == (NOW if phase is not before.phase else before.changed_at)


def test_every_phase_meets_every_verdict_without_losing_an_episode() -> None:
    """Whatever is seen, an episode ends only by being cleared."""
    for before in (FIRING, RECOVERING):
        for verdict in ("between", "bad", "missing", "error"):
            after = advance(before, Observation(verdict, ""), RULE, step=9, now=NOW)
            assert after.phase.active
            assert after.started_step == before.started_step


def test_an_episode_is_named_by_the_step_in_which_its_condition_began() -> None:
    state = NORMAL
    for step in (7, 8):
        state = advance(state, Observation("bad", ""), RULE, step=step, now=NOW + timedelta(minutes=step))
    assert (state.phase, state.started_step, state.started_at) == (Phase.FIRING, 7, NOW + timedelta(minutes=7))


def test_without_waiting_it_fires_at_once_and_is_over_at_once() -> None:
    rule = RULE.model_copy(update={"for_": 0, "keep_firing": 0})
    firing = advance(NORMAL, Observation("bad", ""), rule, step=1, now=NOW)
    assert firing.phase is Phase.FIRING
    assert advance(firing, Observation("good", ""), rule, step=2, now=NOW).phase is Phase.NORMAL
