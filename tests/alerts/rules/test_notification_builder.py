"""What a notification says of an episode, from its first message to its last."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from logprobe.alerts.notification import Notification
from logprobe.alerts.rules import backtest, notification_builder, rule_file
from logprobe.alerts.rules.judging.observation import StepFacts
from logprobe.alerts.rules.notification_builder import Surroundings

NOW = datetime(2026, 3, 1, tzinfo=UTC)
RULES = """
defaults: false
rules:
  - name: high
    metric: k3_kl
    for: 3
    keep_firing: 4
    when: {kind: threshold, above: 1}
    annotations:
      description: It is high.
      runbook: "`logprobe status RUN`; LOGPROBE_RUN and RUNS stay."
      fix: make it low
"""


def told(values: list[float]) -> list[Notification]:
    facts = [
        StepFacts(step, NOW + timedelta(minutes=step), {("backend.k3_kl", None): value})
        for step, value in enumerate(values)
    ]
    outcome = backtest.over("exp-17", iter([facts]), rule_file.parse(RULES, "alerts.yaml").rules)
    return [
        notification_builder.build("exp-17", message, Surroundings(page="http://h")) for message in outcome.messages
    ]


def test_a_message_says_since_when_and_one_can_paste_its_commands() -> None:
    first = told([0.0] * 5 + [2.0] * 3)[0]
    assert (first.state, first.step, first.since_step, first.fix) == ("firing", 7, 5, "make it low")
    assert first.description == "It is high. `logprobe status exp-17`; LOGPROBE_RUN and RUNS stay."
    assert first.runbook == "http://h/?page=alerts&run=exp-17&runbook=high"


def test_what_is_over_says_how_long_it_was_and_asks_for_nothing() -> None:
    last = told([0.0] * 5 + [2.0] * 3 + [0.5] * 4)[-1]
    assert (last.state, last.step, last.since_step) == ("resolved", 11, 5)
    assert last.summary == "Resolved. K3 is 0.5; it should be at most 1."
    assert (last.description, last.fix, last.runbook) == ("", None, None)
