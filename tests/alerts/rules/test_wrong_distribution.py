"""`wrong-distribution` on policies that are really drawn from: heavy tails of pure lag keep it quiet, another distribution does not."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from diagnosis_simulation import Logits, Simulation, log_softmax, nucleus, rounded, tempered

from logprobe.alerts.rules import backtest, rule_file
from logprobe.alerts.rules.judging.observation import StepFacts
from logprobe.monitor.judging.explain import diagnosed
from logprobe.monitor.metrics.pair_metrics import PAIR_METRICS
from logprobe.monitor.metrics.sums import Groups, PairSums

RULE = next(rule for rule in rule_file.load().rules if rule.name == "wrong-distribution")
METRICS = ("ratio_mean", "calibration_z", "k3_kl", "ess")
STEPS = 40
Change = Callable[[Logits], Logits]


def lagging(size: float, tail: float, seed: int) -> Change:
    """Logits of older weights: the scale of what changed varies from context to context, log-normally."""
    rng = np.random.default_rng(seed + 1)
    return lambda z: log_softmax(
        z + size * np.exp(tail * rng.standard_normal((len(z), 1))) * rng.standard_normal(z.shape)
    )


def cauchy(size: float, seed: int) -> Change:
    rng = np.random.default_rng(seed + 1)
    return lambda z: log_softmax(z + size * rng.standard_t(1, z.shape))


def drawn(seed: int, spread: float, **sides: Change) -> Simulation:
    return Simulation(steps=STEPS, prompts=4, length=16, spread=spread, seed=seed, **sides)  # type: ignore[arg-type]


def told(run: Simulation) -> list[str]:
    """What the rule sends of a run's steps, whose metrics are those of the catalog."""
    columns = run.columns()
    pair = PairSums(columns.statistics(), Groups(columns.step, STEPS), None)  # type: ignore[arg-type]
    values = {metric.key: metric.value(pair) for metric in PAIR_METRICS if metric.key in METRICS}
    at = datetime(2026, 3, 1, tzinfo=UTC)
    facts = [
        StepFacts(step, at + timedelta(minutes=step), {(f"backend.{name}", None): float(v[step]) for name, v in values.items()})
        for step in range(STEPS)
    ]  # fmt: skip
    return [message.word for message in backtest.over("run", iter([facts]), [RULE]).messages]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("spread", [3.0, 8.0])
def test_heavy_tails_of_pure_lag_never_fire(seed: int, spread: float) -> None:
    for trained in (lagging(0.6, 1, seed), lagging(1, 1.5, seed), lagging(2, 1.5, seed), cauchy(0.1, seed)):
        assert told(drawn(seed, spread, trained=trained)) == []


@pytest.mark.parametrize(
    "sides",
    [
        {"sampled": nucleus(0.9), "trained": lambda z: log_softmax(rounded(z))},
        {"sampled": nucleus(0.8), "trained": lagging(0.5, 0.5, 0)},
        {"sampled": tempered(0.6), "reported": log_softmax, "trained": lambda z: tempered(0.6)(rounded(z))},
        {"sampled": tempered(1.5), "reported": log_softmax, "trained": tempered(1.5)},
        {"sampled": nucleus(0.9), "reported": log_softmax, "trained": nucleus(0.9)},
    ],
    ids=["top-p", "top-p of a lagging policy", "raw below 1", "raw above 1", "raw, the trainer cuts"],
)
def test_another_distribution_still_fires(sides: dict[str, Change]) -> None:
    assert told(drawn(0, 3.0, **sides)) == ["firing"]


def test_few_effective_tokens_are_unknown_and_not_a_fault() -> None:
    columns = dict.fromkeys(RULE.reads, 0.0) | {
        "backend.ratio_mean": 0.7,
        "backend.k3_kl": 0.5,
        "backend.calibration_z": -9.0,
        "backend.ess": 0.02,
    }
    at = datetime(2026, 3, 1, tzinfo=UTC)
    facts = [StepFacts(step, at, {(key, None): value for key, value in columns.items()}) for step in range(STEPS)]
    assert backtest.over("run", iter([facts]), [RULE]).messages == ()
    known = [StepFacts(f.step, at, {**f.values, ("backend.ess", None): 0.5}) for f in facts]
    assert [message.word for message in backtest.over("run", iter([known]), [RULE]).messages] == ["firing"]


@pytest.mark.parametrize("seed", range(3))
def test_the_diagnosis_does_not_call_a_heavy_tail_another_distribution(seed: int) -> None:
    """Of peaked policies, where float32 gives many tokens all probability."""
    found = {finding.cause for finding in diagnosed(drawn(seed, 20.0, trained=cauchy(0.1, seed)).frame()).findings}
    assert not found & {"truncated_support", "miscalibrated_logprobs", "raw_logprobs", "temperature_mismatch"}
