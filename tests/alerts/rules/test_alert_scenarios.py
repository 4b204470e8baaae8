"""Series in, transitions and messages out: the scenarios of tests/scenarios/alerts, whole and cut up in any way."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from alert_scenario import context_of, named, outcome, play, rules_of, steps
from hypothesis import given, settings
from hypothesis import strategies as st

from logprobe.alerts.rules import ledger
from logprobe.alerts.rules.judging import evaluation
from logprobe.alerts.rules.judging.evaluation import Alert

FOLDER = Path(__file__).resolve().parents[2] / "scenarios" / "alerts"
SCENARIOS = [
    pytest.param(document, id=f"{file.stem}: {document['name']}")
    for file in sorted(FOLDER.glob("*.yaml"))
    for document in yaml.safe_load_all(file.read_text(encoding="utf-8"))
]


def of(document: dict, lines: list[str]) -> list[str]:
    """The lines about the rules that the scenario is about."""
    only = document.get("only")
    return lines if only is None else [line for line in lines if line.split()[1].partition("{")[0] in only]


def test_there_are_enough() -> None:
    assert len(SCENARIOS) >= 30


@pytest.mark.parametrize("document", SCENARIOS)
def test_scenario(document: dict) -> None:
    found = outcome(document)
    assert of(document, found["transitions"]) == document["transitions"]
    assert of(document, found["messages"]) == document["messages"]


def restarted(alert: Alert) -> Alert:
    """The alert as a service finds it that was killed: everything it knows went through JSON."""
    document = json.loads(json.dumps(ledger.document(alert)))
    kept = ledger.Kept(alert.rule.name, alert.slice, alert.rule.fingerprint, document)
    return kept.alert(alert.rule)


# A diagnosis is looked at when it is there, and not step by step.
SHORT = [
    document
    for (document,) in (param.values for param in SCENARIOS)
    if len(steps(document["series"])) < 320 and "diagnoses" not in document
]


@given(data=st.data(), document=st.sampled_from(SHORT))
@settings(max_examples=40, deadline=None)
def test_any_cut_with_a_restart_at_each_cut_comes_to_the_same(data: st.DataObject, document: dict) -> None:
    """A missed tick is a long batch, a restart a short one; a step that is looked at twice changes nothing."""
    facts = steps(document["series"])
    rules = rules_of(document)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(facts)), max_size=4)) | {0, len(facts)})
    alerts = evaluation.begin(rules)
    transitions, messages = [], []
    for start, end in pairwise(cuts):
        batch = facts[max(start - data.draw(st.integers(0, 2)), 0) : end]  # some steps come again
        alerts = [restarted(alert) for alert in alerts]
        for step in batch:
            if step.step < start:
                alerts, moved = evaluation.evaluate_step(alerts, step)
                assert not moved
                continue
            for after, moved, told in evaluation.through_steps(alerts, rules, [step], context_of(document, step.step)):
                alerts = after
                transitions += [(t.key, t.before, t.alert.state.reason) for t in moved]
                messages += [(m.key, m.word, m.step) for m in told]
    whole = list(play(document))
    assert transitions == [(t.key, t.before, t.alert.state.reason) for _, moved, _ in whole for t in moved]
    assert messages == [(m.key, m.word, m.step) for _, _, told in whole for m in told]


@pytest.mark.parametrize("document", SCENARIOS)
def test_keys_are_unique_and_an_episode_opens_and_closes_once(document: dict) -> None:
    messages = [message for _, _, told in play(document) for message in told]
    assert len({message.key for message in messages}) == len(messages)
    for episode in {message.episode for message in messages}:
        words = [message.word for message in messages if message.episode == episode]
        assert words[0] == "firing"
        assert words.count("resolved") <= 1
        assert "resolved" not in words[:-1]


def test_a_rule_that_cannot_be_evaluated_says_so_and_others_go_on() -> None:
    document = next(param.values[0] for param in SCENARIOS if "first step above" in param.values[0]["name"])
    (rule,) = rules_of(document)
    broken = Alert(rule, memory={"recent": 7})
    other = Alert(rule.model_copy(update={"name": "other"}))
    facts = steps(document["series"])
    alerts, moved = evaluation.evaluate_step([broken, other], facts[3])
    assert [(named(t.alert), t.alert.state.phase.value) for t in moved] == [("high", "error"), ("other", "firing")]
    assert "cannot be evaluated" in alerts[0].observation.words
    alerts, _ = evaluation.evaluate_step([replace(alerts[0], memory={}), alerts[1]], facts[4])
    assert [alert.state.phase.value for alert in alerts] == ["firing", "firing"]
