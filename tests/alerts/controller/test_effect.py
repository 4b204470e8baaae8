"""Before and after a correction: what is said of the growth of K3, and when nothing can be said."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from logprobe.alerts.controller import before_after, effect

STEPS = np.arange(100, 200)
MASKED = (STEPS, np.where(STEPS < 150, np.nan, 0.031))  # as the trainer reports it, from the first corrected step on


def k3(before: float, after: float) -> np.ndarray:
    """K3 that doubles every `before` steps up to step 150 and every `after` steps from there (inf: it does not), with noise."""
    rng = np.random.default_rng(0)
    rise = np.where(STEPS < 150, (STEPS - 150) / before, (STEPS - 150) / after)
    return 1e-3 * np.exp2(rise) * np.exp(rng.normal(0, 0.1, STEPS.size))


@pytest.mark.parametrize(
    ("before", "after", "judgement"),
    [(20, 20, "still_growing"), (np.inf, 20, "still_growing"), (20, np.inf, "halted"), (np.inf, np.inf, "steady")],
)
def test_growth_is_judged_on_both_sides(before: float, after: float, judgement: str) -> None:
    found = effect.judge({effect.K3: (STEPS, k3(before, after)), effect.MASKED: MASKED}, 150, 50)
    assert found is not None
    assert (found["judgement"], found["before"]["steps"]) == (judgement, 50)
    assert found["masked"] == pytest.approx(0.031)
    for side, doubling in (("before", before), ("after", after)):
        if np.isinf(doubling):
            assert found[side]["doubling_steps"] is None
        else:
            assert found[side]["doubling_steps"] == pytest.approx(doubling, rel=0.1)
    assert ("lower the learning rate" in found["words"]) is (judgement == "still_growing")


@pytest.mark.parametrize(("urgency", "first"), [("act", "bound the weight lag, "), ("informational", "")])
def test_growth_that_old_weights_explain_asks_for_less_lag_first(urgency: str, first: str) -> None:
    stale = {"cause": "staleness", "layer": "objective", "confidence": 0.9, "urgency": urgency}
    found = effect.judge({effect.K3: (STEPS, k3(20, 20))}, 150, 50, [stale])
    assert found is not None
    assert f"steps: {first}lower the learning rate" in found["words"]


def test_scalars_are_medians_and_what_is_unknown_is_null() -> None:
    reward = np.where(STEPS < 150, 0.25, 0.5)
    found = effect.judge({effect.K3: (STEPS, k3(20, 20)), "reward": (STEPS, reward)}, 150, 50)
    assert found is not None
    assert (found["before"]["reward"], found["after"]["reward"]) == (0.25, 0.5)
    assert found["after"]["grad_norm"] is None
    assert found["masked"] is None


@pytest.mark.parametrize(
    ("name", "after", "worse"),
    [("reward", 0.35, []), ("reward", 0.2, ["reward"]), ("grad_norm", 0.9, []), ("grad_norm", 1.1, ["grad_norm"])],
)
def test_a_lost_reward_and_a_doubled_gradient_are_named(name: str, after: float, worse: list[str]) -> None:
    values = np.where(STEPS < 150, np.where(STEPS % 4, 0.5, 0.25), after)
    found = effect.judge({effect.K3: (STEPS, k3(20, np.inf)), name: (STEPS, values), effect.MASKED: MASKED}, 150, 50)
    assert found is not None
    assert found["worse"] == worse
    assert f"0.5 → {after}" in found["words"]
    assert "3.1% of the tokens are masked" in found["words"]


def test_the_words_have_the_numbers_of_the_table() -> None:
    rng = np.random.default_rng(1)
    columns = {
        "grad_norm": rng.lognormal(1, 0.5, 100),
        "reward": rng.normal(0.8, 0.1, 100),
        "masked": rng.uniform(0, 0.05, 100),
    }
    columns["masked"][:50] = np.nan
    columns["reward"][60:70] = np.nan
    unknown = np.full(100, np.nan)
    rows = {"step": STEPS, "k3": k3(20, 20), "ess": unknown, "weight_ess": unknown, **columns}
    shown = {each.name: each for each in before_after.figures(pa.table(rows), 150, 50)}
    given = {effect.K3: (STEPS, k3(20, 20)), **{name: (STEPS, values) for name, values in columns.items()}}
    found = effect.judge(given, 150, 50)
    assert found is not None
    for name, words in (("grad_norm", "gradient norm"), ("reward", "reward")):
        figure = shown[name]
        assert figure.before is not None
        assert figure.after is not None
        assert f"{words} {figure.before.value:.3g} → {figure.after.value:.3g}" in found["words"]
    masked = shown["masked"].after
    assert masked is not None
    assert f"{masked.value:.1%} of the tokens are masked" in found["words"]


@pytest.mark.parametrize("from_step", [105, 195, 500])
def test_too_few_steps_on_a_side_are_no_judgement(from_step: int) -> None:
    assert effect.judge({effect.K3: (STEPS, k3(20, 20))}, from_step, 50) is None


def test_broken_and_identical_values_are_no_growth() -> None:
    values = k3(20, 20)
    values[59:] = np.nan
    assert effect.judge({effect.K3: (STEPS, values)}, 150, 50) is None
    assert effect.judge({effect.K3: (STEPS, np.zeros(STEPS.size))}, 150, 50)["judgement"] == "steady"
    assert effect.judge({}, 150, 50) is None
