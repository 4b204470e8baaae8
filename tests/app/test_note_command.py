"""`logprobe note`: tags, owner and notes of a run, where they show, and that each change is audited."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from alert_homes import put, series

from logprobe.app.cli import main
from logprobe.app.dashboard.data.events import marks_of
from logprobe.app.runs import run_of
from logprobe.app.text.runs import matching
from logprobe.monitor import queries
from logprobe.monitor.home import Home
from logprobe.monitor.store.store import Store


@pytest.fixture
def noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    with Store.open(Home(tmp_path)) as store:
        for run in ("a", "b"):
            put(store, run, series([0.1] * 5))
    for words in (
        ("--tag", "sweep", "--tag", "7B", "--owner", "Ada"),
        ("--owner", "Bob"),
        ("halved <b>", "--step", "3"),
    ):
        for _ in range(2):  # noted again, nothing changes
            assert main(["note", "a", *words, "--author", "Eve", "--home", str(tmp_path)]) == 0
    assert main(["note", "a", "--untag", "7B", "--author", "Eve", "--home", str(tmp_path)]) == 0
    capsys.readouterr()
    return tmp_path


def test_what_holds_is_listed_and_shown(noted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["note", "a", "--json", "--home", str(noted)]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["kind"], row["step"], row["words"], row["author"]) for row in rows] == [
        ("tag", None, "sweep", "Eve"), ("owner", None, "Bob", "Eve"), ("note", 3, "halved <b>", "Eve"),
    ]  # fmt: skip
    assert main(["runs", "--json", "--home", str(noted)]) == 0
    runs = {row["run"]: row for row in json.loads(capsys.readouterr().out)}
    assert (runs["a"]["owner"], runs["a"]["tags"], runs["b"]["owner"], runs["b"]["tags"]) == (
        "Bob",
        ["sweep"],
        None,
        [],
    )


def test_marks_search_and_audit_know_it(noted: Path) -> None:
    with Store.open(Home(noted)) as store:
        assert [(mark.kind, mark.step, mark.words) for mark in marks_of(queries.app_marks(store, run="a"))] == [
            ("note", 3, "note: halved <b>")
        ]
        runs = [run_of(store, name, datetime.now(UTC)) for name in ("a", "b")]
        assert [run.name for words in ("sweep", "bob", "7b") for run in matching(runs, words)] == ["a", "a"]
        done = [
            (row["author"], row["action"], row["words"])
            for row in queries.alert_audit(store, run=None, count=9).to_pylist()
        ]
    assert done[0] == ("Eve", "tag removed", "7B")
    assert ("Eve", "noted at step 3", "halved <b>") in done


def test_a_note_is_taken_back_and_mistakes_are_named(noted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = ("--home", str(noted))
    assert main(["note", "a", "halved <b>", "--remove", *home]) == 0
    with Store.open(Home(noted)) as store:
        assert queries.app_marks(store, run="a").num_rows == 0
    assert main(["note", "a", "halved <b>", "--remove", *home]) == 1  # again: there is none
    assert "a has no note 'halved <b>'; `logprobe note a` lists" in capsys.readouterr().err
    assert main(["note", "a", "--untag", "swep", *home]) == 1
    assert "a has no tag 'swep'" in capsys.readouterr().err
    assert main(["note", "a", "--remove", *home]) == 1
    assert "--remove takes a note back: give its WORDS" in capsys.readouterr().err
    with Store.open(Home(noted)) as store:
        done = [row["action"] for row in queries.alert_audit(store, run=None, count=99).to_pylist()]
    assert (done.count("note removed"), done.count("tag removed")) == (1, 1)
    assert main(["note", "a", "--step", "3", *home]) == 1
    assert "--step is for a note" in capsys.readouterr().err
    assert main(["note", "c", "--tag", "x", *home]) == 1
    assert "no run 'c'" in capsys.readouterr().err
    assert main(["note", "a", "--tag", "x" * 61, *home]) == 1
    assert "the longest has 60" in capsys.readouterr().err
    assert main(["note", "a", "--tag", "x" * 60, *home]) == 0


def test_a_note_is_taken_back_at_the_step_that_is_named(noted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = ("--home", str(noted))
    for step in ((), ("--step", "1"), ("--step", "2")):
        assert main(["note", "a", "restarted", *step, *home]) == 0
    assert main(["note", "a", "restarted", "--step", "4", "--remove", *home]) == 1
    assert "a has no note 'restarted' at step 4" in capsys.readouterr().err
    assert main(["note", "a", "restarted", "--step", "1", "--remove", *home]) == 0
    with Store.open(Home(noted)) as store:
        rows = queries.annotation_list(store, run="a").to_pylist()
    assert [row["step"] for row in rows if row["words"] == "restarted"] == [None, 2]
