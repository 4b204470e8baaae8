"""The parts of `make rescue` that need no training."""

from __future__ import annotations

import torch
from rescue import run
from rescue.policy import rewards, solution


def test_answers_are_checked_by_a_program() -> None:
    asked = torch.tensor([[1, 2, 3], [9, 9, 9]])
    assert solution(asked).tolist() == [[1, 2, 3, 3, 5, 4], [9, 9, 9, 8, 8, 8]]
    assert rewards(asked, solution(asked)).tolist() == [1.0, 1.0]


def test_lag_grows_from_the_onset_on() -> None:
    lags = [run.lag_of(step) for step in range(run.ONSET - 1, run.ONSET + 2 * run.EVERY + 1)]
    assert lags == [1, *[2] * run.EVERY, *[3] * run.EVERY, 4]


def test_the_table_has_a_row_for_each_arm() -> None:
    rewards = [0.5] * run.STEPS
    outcomes = [run.Outcome("none", 0, rewards, masked=[None]), run.Outcome("mis", 0, rewards, masked=[0.0])]
    assert run.table(outcomes)[2:] == ["| none | 1 | 0.50 | 0.50 | never |", "| mis | 1 | 0.50 | 0.50 | 0 |"]
