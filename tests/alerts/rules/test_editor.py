"""Editing rules through the service's actions: on a store, and taken over by the evaluator that runs."""

from __future__ import annotations

import json
import textwrap
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from alert_homes import K3, put, series

from logprobe.alerts.rules import rule_file
from logprobe.alerts.rules.editing.editor import CHECK, DELETE, ENABLE, RULES, SAVE, Editor
from logprobe.alerts.rules.job import alerts_part
from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor import settings_file
from logprobe.monitor.store.store import Store

OWN = """\
defaults: false   # ours alone
rules:
  # the gap
  - name: high
    metric: k3_kl
    when: {kind: threshold, above: 1}
"""
RULE = "name: high\nmetric: k3_kl\nfor: 2\nwhen: {kind: threshold, above: 0.5}\n"


def section(rules: str) -> str:
    """Settings with these rules between other sections."""
    return f"tokenizers: {{}}\nalerts:\n{textwrap.indent(rules, '  ')}channels: []\n"


class Client:
    """The actions of an editor, as a page asks for them."""

    def __init__(self, store: Store) -> None:
        self.theirs = store.home.path / settings_file.FILE
        self.file = store.home.path / rule_file.OVERLAY
        self._actions = Editor(store, lambda: None, lambda: datetime.now(UTC)).actions()

    def __call__(self, action: str, **document: Any) -> Mapping[str, Any]:
        return json.loads(json.dumps(self._actions[action].run(document)))

    def fingerprint(self) -> str:
        return str(self(RULES)["fingerprint"])


@pytest.fixture
def client(store: Store) -> Client:
    made = Client(store)
    made.file.parent.mkdir()
    made.file.write_text(OWN)
    return made


@pytest.fixture
def beside(store: Store) -> Client:
    """The same, with the rule in people's own file and none of the editor's."""
    made = Client(store)
    made.theirs.write_text(section(OWN))
    return made


def find(client: Client, name: str) -> Mapping[str, Any]:
    return next(rule for rule in client(RULES)["rules"] if rule["name"] == name)


def test_rules_say_where_they_stand(client: Client) -> None:
    (high,) = client(RULES)["rules"]
    assert (high["name"], high["where"], high["kind"], high["metric"]) == (
        "high", "alerts.d/dashboard.yaml", "threshold", K3
    )  # fmt: skip
    assert (high["own"], high["below"]) == (True, [])
    assert high["text"] == "name: high\nmetric: k3_kl\nwhen: {kind: threshold, above: 1}\n"
    assert high["form"]["limit"] == 1
    client.file.unlink()
    client.theirs.write_text(section("rules:\n  - {name: gap-growing, severity: info}\n"))
    found = {rule["name"]: rule for rule in client(RULES)["rules"]}
    assert found["gap-growing"]["where"] == "built in, changed in logprobe.yaml"
    assert (found["gap-critical"]["where"], found["gap-critical"]["own"]) == ("built in", False)
    (shipped,) = found["gap-growing"]["below"]
    assert shipped["text"].startswith("name: gap-growing\n")
    assert found["gap-growing"]["form"] is None  # growth has no limit of its own to fill in


def test_a_rule_of_peoples_own_file_is_changed_beside_it_and_given_back(beside: Client) -> None:
    def high() -> Mapping[str, Any]:
        return find(beside, "high")

    based_on = beside.fingerprint()
    beside(SAVE, text=RULE.replace("0.5", "0.7"), was="high", author="ann", based_on=based_on)
    assert beside.theirs.read_text() == section(OWN)
    assert (high()["where"], high()["own"], high()["form"]["limit"]) == (
        "logprobe.yaml, changed in alerts.d/dashboard.yaml", True, 0.7
    )  # fmt: skip
    assert [layer["file"] for layer in high()["below"]] == ["logprobe.yaml"]
    beside(DELETE, name="high", author="ann", based_on=beside.fingerprint())
    assert (high()["where"], high()["own"], high()["form"]["limit"]) == ("logprobe.yaml", False, 1)
    with pytest.raises(ConfigurationError, match="those of other files can be disabled here, not removed"):
        beside(DELETE, name="high", author="ann", based_on=beside.fingerprint())
    assert beside.theirs.read_text() == section(OWN)


def test_a_rule_of_peoples_own_file_can_be_disabled_and_outlived(beside: Client) -> None:
    beside(ENABLE, name="high", on=False, author="ann", based_on=beside.fingerprint())
    assert beside.file.read_text().endswith("rules:\n  - name: high\n    enabled: false\n")
    assert (find(beside, "high")["enabled"], find(beside, "high")["form"]["limit"]) == (False, 1)
    beside.theirs.write_text(section(OWN.replace("high", "higher")))  # what is left over here stops nobody
    assert [rule["name"] for rule in beside(RULES)["rules"]] == ["higher"]
    beside.theirs.write_text(section(OWN))
    beside(ENABLE, name="high", on=True, author="ann", based_on=beside.fingerprint())
    assert (find(beside, "high")["enabled"], find(beside, "high")["own"]) == (True, False)


def test_what_would_stay_of_another_file_without_being_seen_is_refused(beside: Client) -> None:
    beside.theirs.write_text(section("rules:\n  - {name: gap-growing, severity: info, keep_firing: 3}\n"))
    (problem,) = beside(CHECK, text="name: gap-growing\nkeep_firing: 4\n", was="gap-growing", run="a")["problems"]
    assert problem == "line 1: logprobe.yaml sets `severity` of this rule; to change it, set it here as well"
    (problem,) = beside(CHECK, text="name: gap-growing\nkeep_firing: 4\n", was=None, run="a")["problems"]
    assert problem == "line 1: logprobe.yaml has a rule 'gap-growing'; open that one to change it"
    (beside.file.parent).mkdir()
    (beside.file.parent / "zz.yaml").write_text("rules:\n  - {name: gap-critical, enabled: true}\n")
    with pytest.raises(ConfigurationError, match=r"alerts.d/zz.yaml has the last word on 'gap-critical'"):
        beside(ENABLE, name="gap-critical", on=False, author="ann", based_on=beside.fingerprint())
    assert not beside.file.exists()


def test_a_file_that_is_wrong_is_named_and_what_is_shipped_shown(client: Client) -> None:
    client.file.write_text(OWN.replace("metric", "metrik"))
    listed = client(RULES)
    assert "alerts.d/dashboard.yaml:5: `metrik`: unknown key; did you mean 'metric'?" in listed["problem"]
    assert "gap-growing" in {rule["name"] for rule in listed["rules"]}


def test_what_is_saved_is_in_the_file_and_nothing_else_is_touched(client: Client, store: Store) -> None:
    client.file.chmod(0o640)
    document = {"text": RULE, "was": "high", "author": "ann", "based_on": client.fingerprint()}
    saved = client(SAVE, **document)
    assert client.file.read_text() == OWN.replace(
        "    metric: k3_kl\n    when: {kind: threshold, above: 1}\n",
        "    metric: k3_kl\n    for: 2\n    when: {kind: threshold, above: 0.5}\n",
    )
    assert client.file.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in Path(client.file.parent).iterdir()] == ["dashboard.yaml"]
    assert saved["fingerprint"] == client.fingerprint()
    assert client(SAVE, **document) == saved  # asked again because a connection broke
    (done,) = store.read("alert_audit", run="", count=10).to_pylist()
    assert (done["author"], done["action"], done["subject"]) == ("ann", "rule saved", "high")


def test_two_at_once_the_second_is_refused(client: Client) -> None:
    seen = client.fingerprint()
    client(SAVE, text=RULE, was="high", author="ann", based_on=seen)
    kept = client.file.read_text()
    with pytest.raises(ConfigurationError, match="in the meantime"):
        client(SAVE, text=RULE.replace("0.5", "9"), was="high", author="bob", based_on=seen)
    assert client.file.read_text() == kept


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (RULE.replace("k3_kl", "k3_lk"), "line 1: there is no metric 'k3_lk'; did you mean 'k3_kl'?"),
        (RULE.replace("for: 2", "four: 2"), "line 3: `four`: unknown key; did you mean 'for'?"),
        (RULE.replace("above: 0.5", "above: many"), "line 4: `when.above`: "),
        (RULE.replace("high", "High"), "line 1: `name`: "),
        ("name: [", "line 1: invalid YAML"),
        ("", "a rule needs a `name`"),
        (RULE.replace("0.5", "0.5, clear: 2"), "`clear` is on the wrong side"),
    ],
)
def test_a_bad_rule_is_refused_with_its_own_line(client: Client, store: Store, text: str, words: str) -> None:
    (problem,) = client(CHECK, text=text, was="high", run="a")["problems"]
    assert words in problem
    with pytest.raises(ConfigurationError, match=words.partition("; ")[0].replace("`", ".")):
        client(SAVE, text=text, was="high", author="ann", based_on=client.fingerprint())
    assert client.file.read_text() == OWN
    assert store.read("alert_audit", run="", count=10).num_rows == 0


def test_a_name_that_is_taken_is_refused(client: Client) -> None:
    (problem,) = client(CHECK, text=RULE, was=None, run="a")["problems"]
    assert problem.endswith("a rule 'high' stands here twice")


def test_what_is_shipped_can_be_disabled_and_enabled_again(client: Client) -> None:
    client.file.write_text("tell_within: 12h\n")
    client(ENABLE, name="gap-growing", on=False, author="ann", based_on=client.fingerprint())
    assert client.file.read_text() == "tell_within: 12h\nrules:\n  - name: gap-growing\n    enabled: false\n"
    assert [rule["name"] for rule in client(RULES)["rules"] if not rule["enabled"]] == ["gap-growing"]
    client(ENABLE, name="gap-growing", on=True, author="ann", based_on=client.fingerprint())
    assert all(rule["enabled"] for rule in client(RULES)["rules"])
    with pytest.raises(ConfigurationError, match="there is no rule 'gap-grow' to change; did you mean 'gap-growing'"):
        client(ENABLE, name="gap-grow", on=False, author="ann", based_on=client.fingerprint())
    with pytest.raises(ConfigurationError, match="can be disabled here, not removed"):
        client(DELETE, name="gap-growing", author="ann", based_on=client.fingerprint())


def test_a_rule_of_the_home_can_be_deleted(client: Client, store: Store) -> None:
    client(DELETE, name="high", author="ann", based_on=client.fingerprint())
    assert client(RULES)["rules"] == []
    assert "# the gap" in client.file.read_text()
    assert store.read("alert_audit", run="", count=1)["action"].to_pylist() == ["rule deleted"]


def test_checking_says_how_a_form_shows_the_text_and_what_a_save_would_lose(client: Client) -> None:
    found = client(CHECK, text=RULE, was="high", run="a")
    assert (found["problems"], found["form"]["limit"], found["form"]["for"], found["lost"]) == ([], 0.5, 2, "")
    found = client(CHECK, text="name: stop\nwhen: {kind: dead_man, event: no_new_step}\n", was=None, run="a")
    assert (found["problems"], found["form"]) == ([], None)  # the form has no room for it
    client.file.write_text("rules: [  # mine\n  {name: high, metric: k3_kl, when: {kind: threshold, above: 1}}]\n")
    assert client(CHECK, text=RULE, was="high", run="a")["lost"] == "comments within `rules: […]`"


def test_the_evaluator_that_runs_takes_the_new_rule(store: Store) -> None:
    put(store, "a", series([0.7] * 5))
    (store.home.path / settings_file.FILE).write_text(section(OWN.replace("defaults", "tell_within: 36500d\ndefaults")))
    made = alerts_part(rule_file.for_home)(store, threading.Event())
    (job,) = made.jobs
    assert not job.run_now().get("transitions")
    seen = made.actions[RULES].run({})["fingerprint"]
    made.actions[SAVE].run({"text": RULE, "was": "high", "author": "ann", "based_on": seen})
    job.run_now()
    assert store.read("alert_list", run="a")["phase"].to_pylist() == ["firing"]
    assert store.read("alert_list", run="a")["started_step"].to_pylist() == [0]
    assert store.read("alert_list", run="a")["rule"].to_pylist() == ["high"]
    (store.home.path / settings_file.FILE).write_text("rules: 7\n")
    assert "the previous version stays active" in job.run_now()["problem"]
    assert store.read("alert_list", run="a")["phase"].to_pylist() == ["firing"]
