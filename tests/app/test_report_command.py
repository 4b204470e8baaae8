"""`logprobe show --html`: the view of a run as one file, and that names are never markup."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from logprobe.app.cli import main
from logprobe.app.text.html import Markup
from logprobe.app.view import run_view, story
from logprobe.app.view.account import changes, happened
from logprobe.app.view.chart import Chart, Line, figure
from logprobe.app.view.html import document, report
from logprobe.app.view.run_view import RunView
from logprobe.monitor.reader import open_reader

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
EVIL = '<script>alert("x")</script>'


@pytest.fixture(scope="module")
def view(recorded_runs: Path) -> RunView:
    with open_reader(recorded_runs) as reader:
        return run_view.read(reader, recorded_runs, "v1-initial", account=True)


def later(seconds: int) -> datetime:
    return NOON + timedelta(seconds=seconds)


def words(view: RunView) -> Iterator[str]:
    """Yield every text that the walk over a view gives."""
    for section in story.of_view(view):
        for part in section.parts:
            match part:
                case story.Facts(pairs):
                    yield from (str(value) for _, value in pairs if value)
                case story.Points(lines):
                    yield from lines
                case story.Table(_, rows):
                    yield from (cell for row in rows for cell in row if isinstance(cell, str))
                case story.Item(_, title, lines):
                    yield from (title, *(text for _, text in lines))


def test_the_file_says_what_the_terminal_says_beside_the_trend(view: RunView) -> None:
    page, shown = report(view), story.terminal(story.headline(view), story.of_view(view))
    assert "<h1>v1-initial: Critical, since step 0, raw logprobs." in page
    assert page.index("<dd>semantic") < page.index("--logprobs-mode processed_logprobs") < page.index("calibration z")
    assert "K3 over 300 steps; onset at step 0" in page
    assert len(page) < 50_000
    plain = " ".join(re.sub("<[^>]*>", "", page).split()).replace("&#x27;", "'").replace("&quot;", '"')
    said = list(words(view))
    assert len(said) > 20
    for text in said:
        assert " ".join(text.replace("`", "").split()) in plain
        assert "".join(text.split()) in "".join(shown.split()) or text in shown


def test_what_happened_is_in_order_and_what_was_done_comes_first(view: RunView) -> None:
    fires = {"step": 30, "rule": "high", "severity": "critical", "state": "firing", "words": "K3 is high"}
    masks = {"step": 40, "name": "issued", "words": "masked IS from step 44"}
    account = replace(
        view.account,
        alerts=[{**fires, "time": later(30)}, {**fires, "state": "acknowledged", "time": later(32)}],
        actions=[{**masks, "name": "suggested", "time": later(35)}, {**masks, "time": later(40)}],
        deeds=[{"time": later(50), "author": "Ada", "action": "acknowledged", "subject": "r/high/1", "words": "mine"}],
        history=replace(view.account.history, begun=NOON, seconds={0: 0.0}),
    )
    events = [(time[-2:], what) for time, _, what, _ in happened(account)]
    assert events == [
        ("00", "onset"),
        ("30", "alert high fires"),
        ("35", "correction suggested"),
        ("40", "correction issued"),
        ("50", "acknowledged: r/high/1"),
    ]
    page = str(document(story.of_account(account), Markup()))
    assert "2026-03-01 12:00:00 UTC" in page
    assert page.index("issued at step 40: masked IS from step 44") < page.index("What happened")


def test_what_changed_before_the_onset(view: RunView) -> None:
    event = {"kind": "config", "label": "engine_config", "happened_at": NOON, "step": 99}
    account = replace(
        view.account,
        document={**view.account.document, "since_step": 100},
        parts=[],
        events=[
            {**event, "kind": "weights", "step": 60},
            {**event, "step": 20},
            event,
            {**event, "kind": "restart", "label": "vllm", "step": 101},
        ],
    )
    assert changes(account) == [("2026-03-01 12:00:00", 99, "configuration changed", "engine_config")]
    quiet = replace(account, events=[])
    assert "nothing restarted, as far as recorded" in str(document(story.of_account(quiet), Markup()))


def test_a_terminal_shows_the_newest_of_what_happened_and_says_so() -> None:
    rows = [[step, f"event {step}"] for step in range(60)]
    section = story.Section("what happened", [story.Table(["step", "what"], rows, long=True)])
    shown = story.terminal("r", [section])
    assert [f"event {step}" in shown for step in (54, 55, 59)] == [False, True, True]
    assert "the newest 5 of 60" in shown


def test_names_from_outside_are_text(view: RunView) -> None:
    finding = {**view.diagnosis["findings"][0], "explanation": EVIL, "cause": EVIL}
    records = {
        **view.records,
        "reason": EVIL,
        "problems": [
            {
                "event": EVIL,
                "component": EVIL,
                "message": "</style>",
                "times": 1,
                "last_at": NOON,
                "tokens_lost": 0,
                "sequences_lost": 0,
            }
        ],
    }
    page = report(
        replace(view, judgement=None, diagnosis={**view.diagnosis, "run": EVIL, "findings": [finding]}, records=records)
    )
    assert "<script" not in page
    assert page.count("&lt;script&gt;") > 5
    assert page.count("</style>") == 1


def test_the_command_writes_where_it_says(
    capsys: pytest.CaptureFixture[str], first_steps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    home = ("--home", str(first_steps))
    assert main(["show", "v0-reference", "--html", "page.html", *home]) == 0
    assert "wrote page.html" in capsys.readouterr().err
    assert "<h1>v0-reference: " in (tmp_path / "page.html").read_text()
    assert main(["show", "v0-reference", "--html", "nowhere/page.html", *home]) == 1
    assert "the report nowhere/page.html cannot be written" in capsys.readouterr().err


def test_steps_without_a_value_are_a_gap_and_not_a_line() -> None:
    points = [(float(step), 1.0 + step) for step in (0, 1, 2, 50, 51, 52)]
    drawn = str(figure(Chart("t", "alt", [Line("run", points)])))
    assert re.search(r'd="([^"]*)" class="line c0"', drawn)[1].count("M") == 2
    assert "Not measured." in figure(Chart("t", "alt", [Line("run", [])]))
