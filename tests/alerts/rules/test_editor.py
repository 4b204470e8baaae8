"""Editing rules through the service's actions: on a store, and taken over by the evaluator that runs."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from alert_homes import K3, put, series

from logprobe.alerts.rules import editor, rule_file
from logprobe.alerts.rules.editor import DELETE, ENABLE, RULES, SAVE, TRY, Editor
from logprobe.alerts.rules.job import alerts_part
from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.store import Store

OWN = """\
defaults: false   # ours alone
rules:
  # the gap
  - name: high
    metric: k3_kl
    when: {kind: threshold, above: 1}
"""
RULE = "name: high\nmetric: k3_kl\nfor: 2\nwhen: {kind: threshold, above: 0.5}\n"


class Desk:
    """The actions of an editor, as a page asks for them."""

    def __init__(self, store: Store) -> None:
        self.file = store.home.path / rule_file.FILE
        self._actions = Editor(store, lambda: None, lambda: datetime.now(UTC)).actions()

    def __call__(self, action: str, **document: Any) -> Mapping[str, Any]:
        return json.loads(json.dumps(self._actions[action].run(document)))

    def fingerprint(self) -> str:
        return str(self(RULES)["fingerprint"])


@pytest.fixture
def desk(store: Store) -> Desk:
    made = Desk(store)
    made.file.write_text(OWN)
    return made


def test_rules_say_where_they_stand(desk: Desk) -> None:
    (high,) = desk(RULES)["rules"]
    assert (high["name"], high["origin"], high["kind"], high["metric"]) == ("high", "home", "threshold", K3)
    assert high["text"] == "name: high\nmetric: k3_kl\nwhen: {kind: threshold, above: 1}\n"
    assert high["form"]["limit"] == 1
    desk.file.write_text("rules:\n  - {name: gap-growing, severity: info}\n")
    found = {rule["name"]: rule for rule in desk(RULES)["rules"]}
    assert (found["gap-growing"]["origin"], found["gap-critical"]["origin"]) == ("changed", "shipped")
    assert found["gap-growing"]["shipped"].startswith("name: gap-growing\n")
    assert found["gap-growing"]["form"] is None  # growth has no limit of its own to fill in


def test_a_file_that_is_wrong_is_named_and_what_is_shipped_shown(desk: Desk) -> None:
    desk.file.write_text(OWN.replace("metric", "metrik"))
    listed = desk(RULES)
    assert "alerts.yaml:5: `metrik`: unknown key; did you mean 'metric'?" in listed["problem"]
    assert "gap-growing" in {rule["name"] for rule in listed["rules"]}


def test_what_is_saved_is_in_the_file_and_nothing_else_is_touched(desk: Desk, store: Store) -> None:
    desk.file.chmod(0o640)
    document = {"text": RULE, "was": "high", "author": "ann", "based_on": desk.fingerprint()}
    saved = desk(SAVE, **document)
    assert desk.file.read_text() == OWN.replace(
        "    metric: k3_kl\n    when: {kind: threshold, above: 1}\n",
        "    metric: k3_kl\n    for: 2\n    when: {kind: threshold, above: 0.5}\n",
    )
    assert desk.file.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in Path(desk.file.parent).glob(".alerts*")] == []
    assert saved["fingerprint"] == desk.fingerprint()
    assert desk(SAVE, **document) == saved  # asked again because a connection broke
    (done,) = store.read("alert_audit", count=10).to_pylist()
    assert (done["author"], done["action"], done["subject"]) == ("ann", "rule saved", "high")


def test_two_at_once_the_second_is_refused(desk: Desk) -> None:
    seen = desk.fingerprint()
    desk(SAVE, text=RULE, was="high", author="ann", based_on=seen)
    kept = desk.file.read_text()
    with pytest.raises(ConfigurationError, match="changed meanwhile"):
        desk(SAVE, text=RULE.replace("0.5", "9"), was="high", author="bob", based_on=seen)
    assert desk.file.read_text() == kept


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (RULE.replace("k3_kl", "k3_lk"), "line 1: there is no metric 'k3_lk'; did you mean 'k3_kl'?"),
        (RULE.replace("for: 2", "four: 2"), "line 3: `four`: unknown key; did you mean 'for'?"),
        (RULE.replace("above: 0.5", "above: many"), "line 4: `when.above`: "),
        (RULE.replace("high", "High"), "line 1: `name`: "),
        ("name: [", "line 1: no YAML"),
        ("", "a rule needs a `name`"),
        (RULE.replace("0.5", "0.5, clear: 2"), "`clear` lies on the wrong side"),
    ],
)
def test_a_bad_rule_is_refused_with_its_own_line(desk: Desk, store: Store, text: str, words: str) -> None:
    (problem,) = desk(TRY, text=text, was="high", run="a")["problems"]
    assert words in problem
    with pytest.raises(ConfigurationError, match=words.partition("; ")[0].replace("`", ".")):
        desk(SAVE, text=text, was="high", author="ann", based_on=desk.fingerprint())
    assert desk.file.read_text() == OWN
    assert store.read("alert_audit", count=10).num_rows == 0


def test_a_name_that_is_taken_is_refused(desk: Desk) -> None:
    (problem,) = desk(TRY, text=RULE, was=None, run="a")["problems"]
    assert problem.endswith("a rule 'high' stands here twice")


def test_what_is_shipped_can_be_disabled_and_enabled_again(desk: Desk) -> None:
    desk.file.write_text("tell_within: 12h\n")
    desk(ENABLE, name="gap-growing", on=False, author="ann", based_on=desk.fingerprint())
    assert desk.file.read_text() == "tell_within: 12h\nrules:\n  - name: gap-growing\n    enabled: false\n"
    assert [rule["name"] for rule in desk(RULES)["rules"] if not rule["enabled"]] == ["gap-growing"]
    desk(ENABLE, name="gap-growing", on=True, author="ann", based_on=desk.fingerprint())
    assert all(rule["enabled"] for rule in desk(RULES)["rules"])
    with pytest.raises(ConfigurationError, match="there is no rule 'gap-grow' to change; did you mean 'gap-growing'"):
        desk(ENABLE, name="gap-grow", on=False, author="ann", based_on=desk.fingerprint())
    with pytest.raises(ConfigurationError, match="can be disabled, not removed"):
        desk(DELETE, name="gap-growing", author="ann", based_on=desk.fingerprint())


def test_a_rule_of_the_home_can_be_deleted(desk: Desk, store: Store) -> None:
    desk(DELETE, name="high", author="ann", based_on=desk.fingerprint())
    assert desk(RULES)["rules"] == []
    assert "# the gap" in desk.file.read_text()
    assert store.read("alert_audit", count=1)["action"].to_pylist() == ["rule deleted"]


def test_trying_says_when_it_would_have_fired(desk: Desk, store: Store) -> None:
    put(store, "a", series([0.1] * 3 + [0.7] * 4 + [0.2, 0.8, 0.1, 0.9, 0.9]))
    put(store, "b", series([2.0] * 5))
    found = desk(TRY, text=RULE, was="high", run="a", runs=5)
    trial = found["trial"]
    assert trial["fired"] == [[None, 4, 7], [None, 11, 11]]
    (part,) = trial["parts"]
    assert part["spans"] == [
        ["pending", 3, 4], ["firing", 4, 7], ["pending", 8, 9], ["pending", 10, 11], ["firing", 11, 11],
    ]  # fmt: skip
    assert part["values"][:2] == [[0, 0.1], [1, 0.1]]
    assert trial["limits"] == [["above", 0.5]]
    assert found["others"] == [{"run": "b", "steps": 5, "fired": 1, "cut": False}]
    higher = desk(TRY, text=RULE.replace("0.5", "3"), was="high", run="a", runs=5)
    assert (higher["trial"]["fired"], higher["others"][0]["fired"]) == ([], 0)


def test_trying_is_bounded_in_steps_and_time(desk: Desk, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    put(store, "a", series([0.7] * 6))
    monkeypatch.setattr(editor.trying, "MOST_STEPS", 4)
    trial = desk(TRY, text=RULE, was="high", run="a")["trial"]
    assert (trial["steps"], trial["cut"]) == (4, True)
    monkeypatch.setattr(editor, "_SECONDS", -1.0)
    found = desk(TRY, text=RULE, was="high", run="a", runs=3)
    assert (found["trial"]["steps"], found["trial"]["cut"], found["others"]) == (0, True, [])


def test_a_rule_about_the_present_says_that_it_cannot_be_tried(desk: Desk) -> None:
    found = desk(TRY, text="name: stop\nwhen: {kind: dead_man, event: no_new_step}\n", was=None, run="a")
    assert "a recording has no now" in found["untestable"]
    assert found["trial"] is None


def test_the_evaluator_that_runs_takes_the_new_rule(store: Store) -> None:
    put(store, "a", series([0.7] * 5))
    (store.home.path / rule_file.FILE).write_text(OWN.replace("defaults", "tell_within: 36500d\ndefaults"))
    made = alerts_part(rule_file.for_home)(store, threading.Event())
    (job,) = made.jobs
    assert job.run_now()["transitions"] == 0
    seen = made.actions[RULES].run({})["fingerprint"]
    made.actions[SAVE].run({"text": RULE, "was": "high", "author": "ann", "based_on": seen})
    job.run_now()
    assert store.read("alert_list", run="a")["phase"].to_pylist() == ["firing"]
    assert store.read("alert_list", run="a")["started_step"].to_pylist() == [0]
    (store.home.path / rule_file.FILE).write_text("rules: 7\n")
    assert "what stood there before stays in force" in job.run_now()["problem"]
    assert store.read("alert_list", run="a")["phase"].to_pylist() == ["firing"]
