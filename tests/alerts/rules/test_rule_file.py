"""Rule files: what is wrong is named with file and line, and what is right comes out whole."""

from __future__ import annotations

import textwrap
from datetime import timedelta

import jsonschema
import pytest
import yaml

from logprobe.alerts.rules import rule_file
from logprobe.alerts.rules.fields import span
from logprobe.alerts.rules.rule import CONDITIONS, Rule
from logprobe.alerts.rules.rule_file import RuleFileError, parse, schema
from logprobe.monitor.home import Home

ONE = "rules:\n  - name: one\n    metric: k3_kl\n    when: {kind: threshold, above: 1}\n"

WRONG = [
    # text, line, words
    ("ruls: []\n", 1, "`ruls`: unknown key; did you mean 'rules'?"),
    (ONE + "    severty: info\n", 5, "`severty`: unknown key; did you mean 'severity'?"),
    (ONE + "    severity: fatal\n", 5, "'info', 'warning' or 'critical'"),
    (ONE + "    for: soon\n", 5, "`for`: Input should be a valid integer"),
    (ONE + "    for: -1\n", 5, "greater than or equal to 0"),
    (ONE + "    slice: replca\n", 5, "did you mean 'replica'?"),
    (ONE + "    annotations: {sumary: x}\n", 5, "`annotations.sumary`: unknown key; did you mean 'summary'?"),
    (ONE + "    name: one\n", 5, "'name' appears twice; first in line 2"),
    (ONE + ONE.removeprefix("rules:\n"), 5, "a rule 'one' stands here twice"),
    (ONE.replace("k3_kl", "k3kl"), 2, "there is no metric 'k3kl'; did you mean 'k3_kl'?"),
    (ONE.replace("k3_kl", "weight_lag_men"), 2, "there is no metric 'weight_lag_men'"),
    (ONE + "    pair: forward\n", 5, "'backend', 'update' or 'total'"),
    (ONE.replace("k3_kl", "reward") + "    pair: backend\n", 2, "has no pair"),
    (ONE.replace("above", "abov"), 4, "`when.abov`: unknown key; did you mean 'above'?"),
    (ONE.replace("threshold", "treshold"), 4, "a condition has a `kind`: threshold, ratio"),
    (ONE.replace("kind: threshold, ", ""), 4, "a condition has a `kind`"),
    (ONE.replace(", above: 1", ""), 4, "give `above`, `below`, or both"),
    (ONE.replace("above: 1", "above: 1, clear: 2"), 4, "`clear` is on the wrong side"),
    (ONE.replace("above: 1", "above: 1, below: 2"), 4, "`below` must be less than `above`"),
    (ONE.replace("above: 1", "above: .nan"), 4, "finite number"),
    (ONE.replace("    metric: k3_kl\n", ""), 2, "needs `metric`"),
    (ONE.replace("threshold, above: 1", "exact"), 2, "takes no `metric`"),
    ("rules:\n  - name: x\n    for: 3\n    when: {kind: dead_man, event: host_failed}\n", 2, "count steps"),
    ("rules:\n  - name: x\n    when: {kind: dead_man, event: no_new_step, floor: 5x}\n", 3, "is not a duration"),
    (
        "rules:\n  - name: gap-growin\n    severity: info\n",
        2,
        "no rule 'gap-growin' to change; did you mean 'gap-growing'?",
    ),
    ("rules:\n  - severity: info\n", 2, "a rule needs a `name`"),
    ("rules: 7\n", 1, "`rules` must be a list"),
    ("rules:\n  - 7\n", 2, "must be a mapping"),
    ("runs:\n  - match: x\n    rules:\n      - {name: nothing, severity: info}\n", 4, "no rule 'nothing' to change"),
    ("rules: [\n", 2, "invalid YAML"),
    ("- 1\n", 1, "expected a mapping"),
    ("rules: &again\n  - name: x\n    when: *again\n", None, "nested too deeply"),
    ("? [1]\n: 2\n", 1, "a key must be a word"),
]


@pytest.mark.parametrize(("text", "line", "words"), WRONG)
def test_what_is_wrong_is_named_with_file_and_line(text: str, line: int | None, words: str) -> None:
    with pytest.raises(RuleFileError) as caught:
        parse(text, "alerts.yaml")
    (problem,) = caught.value.problems
    assert words in problem
    assert problem.startswith("alerts.yaml:" if line is None else f"alerts.yaml:{line}: ")
    assert "\n" not in str(caught.value)


def test_everything_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(RuleFileError, match=r"and 1 more; see `logprobe alerts check`") as caught:
        parse(ONE + "    severty: info\n    for: soon\n", "f")
    assert len(caught.value.problems) == 2


def test_a_home_has_the_shipped_rules_until_it_has_its_own(home) -> None:
    place = Home(home).create()
    shipped = rule_file.for_home(place)
    assert {"gap-growing", "gap-critical", "no-new-step"} <= {rule.name for rule in shipped.rules}
    (home / "logprobe.yaml").write_text(
        "alerts:\n  tell_within: 2h\n  rules:\n  - {name: gap-growing, severity: info}\n" + ONE.removeprefix("rules:\n")
    )
    own = rule_file.for_home(place)
    by_name = {rule.name: rule for rule in own.rules}
    assert len(by_name) == len(shipped.rules) + 1
    assert by_name["gap-growing"].severity == "info"
    assert by_name["gap-growing"].annotations.runbook  # what is not named stays
    assert own.tell_within == timedelta(hours=2)


def test_the_files_of_the_folder_come_after_the_homes_own_by_name(home) -> None:
    place = Home(home).create()
    folder = home / "alerts.d"
    folder.mkdir()
    (home / "logprobe.yaml").write_text(textwrap.indent("tell_within: 2h\n" + ONE, "  ").join(["alerts:\n", ""]))
    (folder / "20.yaml").write_text("rules:\n  - {name: one, severity: critical}\n")
    (folder / "10.yaml").write_text(
        "tell_within: 3h\nrules:\n  - {name: one, severity: info, for: 7}\n  - {name: gap-growing, for: 9}\n"
    )
    (folder / ".swap.yaml").write_text("rules: 7\n")
    (folder / "notes.txt").write_text("rules: 7\n")
    book = rule_file.for_home(place)
    one = next(rule for rule in book.rules if rule.name == "one")
    assert (one.severity, one.for_, book.tell_within) == ("critical", 7, timedelta(hours=3))
    assert (book.files["one"], book.files["gap-growing"], book.files["gap-critical"]) == (
        str(folder / "20.yaml"), str(folder / "10.yaml"), rule_file.SHIPPED
    )  # fmt: skip
    (folder / "20.yaml").write_text("rules:\n  - {name: one, severty: critical}\n")
    with pytest.raises(RuleFileError, match=r"alerts\.d/20\.yaml:2: `severty`: unknown key"):
        rule_file.for_home(place)
    (folder / "20.yaml").write_text("rules:\n  - {name: b, severity: critical}\n")
    with pytest.raises(RuleFileError, match=r"alerts\.d/20\.yaml:2: there is no rule 'b' to change"):
        rule_file.for_home(place)


def test_a_later_entry_with_a_condition_leaves_nothing_of_an_earlier_one() -> None:
    first = "rules:\n  - {name: one, metric: k3_kl, for: 7, when: {kind: threshold, above: 1}}\n"
    last = "rules:\n  - {name: one, metric: k3_kl, when: {kind: threshold, above: 2}}\n"
    book = rule_file.merge({"1": first, "2": last})
    one = next(rule for rule in book.rules if rule.name == "one")
    assert (one.for_, one.when.above) == (0, 2)


def test_parts_for_single_runs_go_over_the_rules_of_all_files() -> None:
    first = ONE + "runs:\n  - match: 'x-*'\n    rules:\n      - {name: one, severity: info}\n"
    book = rule_file.merge({"1": first, "2": "rules:\n  - {name: one, for: 4}\n"})
    one = next(rule for rule in book.for_run("x-1") if rule.name == "one")
    assert (one.severity, one.for_) == ("info", 4)


def test_a_folder_with_too_many_files_is_refused(home) -> None:
    place = Home(home).create()
    (home / "alerts.d").mkdir()
    for number in range(101):
        (home / "alerts.d" / f"{number}.yaml").touch()
    with pytest.raises(RuleFileError, match="101 rule files"):
        rule_file.for_home(place)


def test_labels_and_annotations_of_an_override_are_added() -> None:
    text = "rules:\n  - name: gap-growing\n    labels: {team: rl}\n    annotations: {runbook: ask Ann}\n"
    rule = next(rule for rule in parse(text, "f").rules if rule.name == "gap-growing")
    assert rule.labels == {"team": "rl"}
    assert rule.annotations.runbook == "ask Ann"
    assert rule.annotations.summary


def test_the_schema_accepts_the_shipped_file_and_refuses_what_is_unknown() -> None:
    shipped = yaml.safe_load((rule_file.resources.files("logprobe.alerts.rules") / rule_file.SHIPPED).read_text())
    validator = jsonschema.Draft202012Validator(schema())
    validator.check_schema(schema())
    validator.validate(shipped)
    assert list(validator.iter_errors({"rules": [{"name": "x", "severty": "info"}]}))


def test_every_shipped_rule_tells_what_to_do() -> None:
    for rule in rule_file.load().rules:
        told = rule.annotations
        assert told.summary or rule.when.kind == "dead_man", rule.name  # those describe themselves
        assert told.runbook or told.description or told.fix or rule.when.kind in {"diagnosis", "dead_man"}, rule.name


def test_a_fingerprint_changes_with_what_is_judged_only() -> None:
    (rule,) = parse("defaults: false\n" + ONE, "f").rules
    words = rule.model_copy(update={"severity": "critical", "labels": {"a": "b"}})
    assert words.fingerprint == rule.fingerprint
    assert rule.model_copy(update={"for_": 3}).fingerprint != rule.fingerprint


def test_every_kind_of_condition_can_be_written_and_read_back() -> None:
    for kind in CONDITIONS:
        assert kind in {rule.when.kind for rule in rule_file.load().rules} | {"ratio", "trend"}
    for rule in rule_file.load().rules:
        assert Rule.model_validate(rule.model_dump(mode="json", by_alias=True)) == rule


@pytest.mark.parametrize("text", ["", "5", "s", "x5s", "nans", "1e99d"])
def test_what_is_no_span_of_time(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        span(text)
