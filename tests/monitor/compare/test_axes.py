"""Steps of two runs on one axis."""

from __future__ import annotations

import pytest

from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.compare.comparison import cell_width, pair, placed, positions
from logprobe.monitor.compare.history import History
from logprobe.monitor.judging.judgement import Growth
from logprobe.monitor.judging.parity import recipe as parity_recipe

STEPS = tuple(range(400))


def run(label: str, *, tokens: float = 100.0, onset: int | None = None, seconds: bool = True) -> History:
    """Reward is a function of the tokens trained."""
    counted = {step: tokens * (step + 1) for step in STEPS}
    return History(
        label=label,
        steps=STEPS,
        tokens=counted,
        seconds={step: 2.0 * step for step in STEPS} if seconds else {},
        trends={"reward": {step: counted[step] / 4e4 for step in STEPS}},
        growth=Growth("growing" if onset else "healthy", since_step=onset),
    )


def reward(ours: History, theirs: History, axis: str, width: float) -> str:
    found = pair(ours, theirs, axis=axis, width=width, metrics=["reward"], recipe=parity_recipe.shipped())
    return found.metrics[0].verdict


def test_a_run_with_larger_batches_is_ahead_by_step_and_not_by_token() -> None:
    large, small = run("large", tokens=200.0), run("small")
    assert reward(large, small, "step", 1.0) == "better"
    width = cell_width(large.tokens, small.tokens)
    assert width == 200
    assert reward(large, small, "tokens", width) == "same"


def test_by_onset_the_step_of_the_onset_is_zero() -> None:
    assert positions(run("late", onset=150), "onset")[150] == 0
    early = pair(
        run("late", onset=150),
        run("later", onset=160),
        axis="onset",
        width=1.0,
        metrics=[],
        recipe=parity_recipe.shipped(),
    )
    assert early.common == 390


def test_what_cannot_be_aligned_is_said() -> None:
    with pytest.raises(ConfigurationError, match="flat has no onset"):
        positions(run("flat"), "onset")
    with pytest.raises(ConfigurationError, match="timeless has no times"):
        positions(run("timeless", seconds=False), "time")


def test_steps_without_a_position_are_left_out() -> None:
    assert placed({0: 1.0, 1: 2.0}, {1: 0.0}) == {0: 2.0}
    assert cell_width({0: 5.0}, {}) == 1.0
