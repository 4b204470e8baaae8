"""Limits of what is counted: the last number within each, and the first past it."""

from __future__ import annotations

import numpy as np
import pytest
from run_columns import Columns

from logprobe.monitor.judging.judge import judge
from logprobe.monitor.judging.judgement import Finding
from logprobe.monitor.judging.tokens import Tokens, spread_of

STEPS, ROWS, LENGTH = 25, 4, 10  # 1,000 tokens


def run(*, negated: int = 0, repeated: int = 0, placed: tuple[float, ...] = ()) -> Columns:
    """A run whose trainer differs from the engine by noise; of the last tokens some are negated, of the first some repeat.

    `placed`: r of the first tokens of so many sequences, where t is −40.
    """
    rng = np.random.default_rng(4)
    shape = (STEPS * ROWS, LENGTH)
    r = -rng.gamma(1.0, 1.0, shape) - 0.01
    t = r + 0.01 * rng.standard_normal(shape)
    t.ravel()[len(t.ravel()) - negated :] *= -1
    token = np.arange(t.size).reshape(shape)
    again = np.arange(repeated) * LENGTH + 1  # one of a sequence
    token.ravel()[again] = token.ravel()[again - 1]
    r.ravel()[again] = t.ravel()[again] = np.log(0.0099)
    r[: len(placed), 0], t[: len(placed), 0] = placed, -40.0
    step = np.repeat(np.arange(STEPS), ROWS)
    version = np.repeat(step[:, None].astype(float), LENGTH, 1)
    return Columns(step, token, r, t, np.ones(shape, bool), np.arange(len(step)), version, step)


def named(columns: Columns) -> dict[str, Finding]:
    return {finding.cause: finding for finding in judge(columns.frame()).findings if finding.named}


@pytest.mark.parametrize(
    ("negated", "cause"), [(1, "nonfinite_logprobs"), (10, "nonfinite_logprobs"), (11, "unnormalized_trainer")]
)
def test_trainer_values_above_0(negated: int, cause: str) -> None:
    found = named(run(negated=negated))
    assert set(found) & {"nonfinite_logprobs", "unnormalized_trainer"} == {cause}
    assert found[cause].since == STEPS - 1
    counted = {"positive": negated} if cause == "nonfinite_logprobs" else {"positive_share": negated / 1000}
    assert counted.items() <= dict(found[cause].evidence).items()


def test_tokens_that_repeat() -> None:
    """Of tokens rarer than 1 %, 1 % can be the one before; sure is what 5 standard errors leave."""
    assert "miscalibrated_logprobs" not in named(run(repeated=32))
    found = named(run(repeated=34))["miscalibrated_logprobs"]
    assert found.evidence["repeats"] == pytest.approx(34 / 900)  # of those that have one before


@pytest.mark.parametrize(
    ("placed", "unfilled"), [((-0.5, -0.6, -0.7), True), ((-0.5, -0.6), False), ((-0.5,) * 7, False)]
)
def test_one_value_in_place_of_several(placed: tuple[float, ...], unfilled: bool) -> None:
    """Answers that share a context repeat what both sides say of it."""
    assert ("unfilled_trainer" in named(run(placed=placed))) is unfilled


@pytest.mark.parametrize(("value", "padding"), [(-0.00099, False), (-0.0011, True)])
def test_answers_that_end_in_one_repeated_token(value: float, padding: bool) -> None:
    """A policy that repeats itself is nearly certain, and rounds to one value there."""
    columns = run()
    columns.token[:, -4:], columns.r[:, -4:] = 7, value
    columns.t[:, -4:] = value - 0.0001 * np.random.default_rng(6).random((STEPS * ROWS, 4))
    assert ("padding_under_mask" in named(columns)) is padding


def test_lag_that_begins_in_a_short_run_may_pass() -> None:
    """An asynchronous run begins without lag: what its first lag adds is a rise that more steps decide about."""
    columns = run()
    late = columns.step >= 2
    columns.version[late] -= 1
    noise = 0.05 * np.random.default_rng(7).standard_normal((int(late.sum()), LENGTH))
    columns.t[late] = np.minimum(columns.t[late] + noise, -0.001)
    judged = judge(columns.frame())
    assert [(f.cause, f.urgency) for f in judged.findings] == [("staleness", "watch")]
    assert judged.verdict == "calibrating"


def test_a_trainer_varies_by_itself_in_most_tokens() -> None:
    """Few values that are far off, as zeros are, are another fault's."""
    rng, n = np.random.default_rng(5), 400
    pair, column = np.arange(n) // 2, lambda value: np.full(n, value, np.intp)
    r = np.repeat(-1 - rng.random(n // 2), 2)
    noise = 0.01 * np.repeat(rng.standard_normal(n // 2), 2)

    def spread(t: np.ndarray) -> bool:
        some = {
            "step": column(0),
            "sequence": np.arange(n),
            "place": column(0),
            "last": np.ones(n, bool),
            "token_id": pair * 0 + 3,
        }
        rest = {
            "broken": np.zeros(n, bool),
            "entropy": np.full(n, np.nan),
            "lag": np.zeros(n),
            "version": column(0),
            "replica": column(0),
            "cached": column(0),
        }
        found = spread_of(Tokens(**some, r=r, t=t, d=t - r, **rest, context=pair))
        assert found is not None
        return found.alone

    zeros = r + noise
    zeros[::100] = 0
    assert not spread(zeros)
    assert spread(r + noise + 0.05 * rng.standard_normal(n))
