"""The shipped rules together: what goes wrong once is told once, and with what to do about it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from logprobe.alerts.rules import backtest, rule_file
from logprobe.alerts.rules.judging.mutes import AlertStatus, muted_by
from logprobe.alerts.rules.judging.observation import StepFacts
from logprobe.alerts.rules.judging.states import Phase
from logprobe.alerts.rules.rule import PresentCondition, Rule

RULES = rule_file.load().rules
NOW = datetime(2026, 3, 1, tzinfo=UTC)


def named(name: str) -> Rule:
    return next(rule for rule in RULES if rule.name == name)


def firing(name: str, *, notified: bool) -> AlertStatus:
    return AlertStatus(named(name), None, Phase.FIRING, notified)


def steps(*columns: dict[str, float | None]) -> list[StepFacts]:
    return [
        StepFacts(step, NOW + timedelta(minutes=step), {(f"backend.{name}", None): v for name, v in column.items()})
        for step, column in enumerate(columns)
    ]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_rule_says_what_to_do(rule: Rule) -> None:
    assert rule.annotations.runbook
    # Whose words are a sentence of their own
    assert rule.annotations.summary or isinstance(rule.when, PresentCondition)


def test_an_engine_whose_records_stay_away_is_told_once() -> None:
    fine = {"coverage": 1.0, "k3_kl": 1e-3, "ratio_mean": 1.0, "ess": 0.99}
    gone = {"coverage": 0.0}
    outcome = backtest.over("run", iter([steps(*[fine] * 30, *[gone] * 40)]), _on_steps())
    assert [(message.alert.rule.name, message.word) for message in outcome.messages] == [("coverage-low", "firing")]


def test_wrong_log_probs_are_told_once_by_the_diagnosis_that_names_them() -> None:
    known, other = firing("engine-reports-wrong-logprobs", notified=True), firing("wrong-distribution", notified=False)
    assert muted_by("run", other, [known], (), NOW) == "inhibited by engine-reports-wrong-logprobs"
    # Without a diagnosis the mean ratio speaks.
    assert muted_by("run", other, [], (), NOW) is None


def _on_steps() -> list[Rule]:
    return [rule for rule in RULES if not isinstance(rule.when, PresentCondition)]


def test_every_rule_says_in_words_when_it_fires() -> None:
    said = {rule.name: rule.fires_when for rule in RULES}
    assert said["gap-large"] == "K3 above 0.1, median of 20 steps, for 5 steps"
    assert said["wrong-distribution"].endswith(
        "is off 1 by more than 0.05, chance and K3 allow, over 20 steps, for 10 steps"
    )
    assert said["verdict-critical"] == "the verdict is critical, for 3 steps"
    assert len(set(said.values())) == len(said)
    assert not [words for words in said.values() if "_" in words or not words]
