"""Changing one rule leaves everything else of the file as somebody wrote it."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from logprobe.alerts.rules.editing import rule_text
from logprobe.collectors.errors import ConfigurationError

FILE = """\
# ours
tell_within: 24h   # not older
rules:
  # about a
  - name: a            # shipped
    severity: info
    annotations:
      runbook: |
        # first
        then

  # about b
  - {name: b, metric: k3_kl, when: {kind: threshold, above: 1}}

# for some
runs:
  - match: "x-*"
    rules:
      - {name: a, enabled: false}
"""
NEW = "name: z\nwhen: {kind: exact}   # why\n"


def test_an_editor_shows_the_entry_as_it_stands() -> None:
    a, b = rule_text.entries(FILE)
    assert a.text == FILE[FILE.index("name: a") : FILE.index("\n  # about b")].replace("\n    ", "\n")
    assert b.text == "{name: b, metric: k3_kl, when: {kind: threshold, above: 1}}\n"


@pytest.mark.parametrize("name", ["a", "b"])
def test_putting_back_what_was_there_changes_nothing(name: str) -> None:
    (entry,) = [each for each in rule_text.entries(FILE) if each.name == name]
    edited = rule_text.put(FILE, entry.text, name)
    assert edited.text == FILE
    assert FILE.splitlines()[edited.first_line - 1].strip().startswith("- ")


def test_one_entry_is_replaced_added_and_taken_out_between_the_others() -> None:
    replaced = rule_text.put(FILE, NEW, "b")
    assert replaced.text == FILE.replace(
        "  - {name: b, metric: k3_kl, when: {kind: threshold, above: 1}}\n",
        "  - name: z\n    when: {kind: exact}   # why\n",
    )
    added = rule_text.put(FILE, NEW, None)
    assert added.text == FILE.replace("above: 1}}\n", "above: 1}}\n  - name: z\n    when: {kind: exact}   # why\n")
    assert added.text.splitlines()[added.first_line - 1] == "  - name: z"
    assert rule_text.without(added.text, "z").text == FILE
    assert replaced.lost == added.lost == ""


def test_the_last_one_leaves_an_empty_list_that_can_be_filled_again() -> None:
    emptied = rule_text.without(rule_text.without(FILE, "a").text, "b").text
    assert yaml.safe_load(emptied)["rules"] == []
    assert "# about a" in emptied
    assert yaml.safe_load(rule_text.put(emptied, NEW, None).text)["rules"] == [{"name": "z", "when": {"kind": "exact"}}]


@pytest.mark.parametrize("file", ["", "defaults: false", "rules:\n", "rules: []\ndefaults: false\n", "# only words\n"])
def test_the_first_rule_of_a_file(file: str) -> None:
    edited = rule_text.put(file, NEW, None)
    assert yaml.safe_load(edited.text)["rules"] == [{"name": "z", "when": {"kind": "exact"}}]
    assert yaml.safe_load(edited.text).get("defaults", True) is ("defaults" not in file)
    assert edited.text.splitlines()[edited.first_line - 1].strip() == "- name: z"


def test_what_a_list_in_one_line_loses_is_said() -> None:
    file = "rules: [{name: q, when: {kind: exact}}, {name: r, # hm\n when: {kind: exact}}]\ndefaults: false\n"
    edited = rule_text.put(file, NEW, "q")
    assert [rule["name"] for rule in yaml.safe_load(edited.text)["rules"]] == ["z", "r"]
    assert edited.lost == "comments within `rules: […]`"


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("- name: x", "line:1: expected a mapping"),
        ("name: x\n---\nname: y", "line:2: invalid YAML"),
        ("name: [", "line:1: invalid YAML"),
        ("name: x\nname: y", "line:2: 'name' appears twice"),
        ("name: x\n...\nrules: []", "invalid YAML"),
        ("a: &a [x, x]\nb: [*a, *a]\nname: x", "line:2: an alias"),
    ],
)
def test_what_is_not_one_rule_is_refused_with_its_line(entry: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words.replace("[", r"\[")):
        rule_text.put(FILE, entry, None)


def test_a_rule_that_is_not_there_cannot_be_taken_out() -> None:
    with pytest.raises(ConfigurationError, match="no rule 'gap-growing'"):
        rule_text.without(FILE, "gap-growing")


@pytest.mark.parametrize("entry", ["name: a\nseverity: info\n", "{name: a, enabled: true}", "{name: a}", "name: a"])
@pytest.mark.parametrize("on", [True, False])
def test_enabling_changes_one_word(entry: str, on: bool) -> None:
    after = rule_text.enabled(entry, on=on)
    assert yaml.safe_load(after) == yaml.safe_load(entry) | {"enabled": on}


WORDS = st.text("ab#: -'\"{}[]\n|é\t", max_size=12)


@settings(deadline=None)
@given(
    st.dictionaries(st.sampled_from(["severity", "summary", "a b", "#c"]), WORDS, max_size=3), st.sampled_from("abq")
)
def test_whatever_a_rule_says_only_that_rule_changes(values: dict[str, str], was: str) -> None:
    rule = {"name": "n", **values}
    entry = yaml.safe_dump(rule, allow_unicode=True, sort_keys=False)
    before, after = yaml.safe_load(FILE), yaml.safe_load(rule_text.put(FILE, entry, was).text)
    rules = [rule if known["name"] == was else known for known in before.pop("rules")]
    assert after.pop("rules") == (rules if was in "ab" else [*rules, rule])
    assert after == before
