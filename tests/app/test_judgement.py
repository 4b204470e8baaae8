"""Severity: the table of `logprobe.monitor.judgement`, walked through every place that shows one."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import pytest
from alert_homes import put
from alert_notes import NOTE
from diagnoses import diagnosis
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from logprobe.alerts.rules.periods import advance
from logprobe.alerts.sending.channels.slack_message import colour
from logprobe.alerts.sending.messages import facts, title
from logprobe.app.commands import runs
from logprobe.app.dashboard.pages.runs import row, summary
from logprobe.app.dashboard.verdict import read_latest_diagnosis, verdict_of
from logprobe.app.processes import logger
from logprobe.app.runs import run_of
from logprobe.app.text.judgement import headline
from logprobe.app.text.runs import matching, worst_first
from logprobe.app.view import run_view, story
from logprobe.monitor import judgement as judged
from logprobe.monitor.judgement import SECONDS, SEVERITIES, Firing, Judgement
from logprobe.monitor.reader import Reader
from logprobe.monitor.service import healthz, scrape
from logprobe.monitor.store.store import Store

VERDICTS = (None, "healthy", "growing", "critical", "calibrating", "no_data")
# An alert that fires: its severity, and why nobody was notified of it.
ALERTS = (
    None,
    ("info", None),
    ("warning", None),
    ("critical", None),
    ("critical", "silenced by ann: known"),
)
AGES = ("in time", "before the alert", "overdue", "in the spool")
LAST = 99
GREEN, GREY, AMBER, RED = "ok", "unknown", "warning", "critical"


def expected(verdict: str | None, alert: tuple[str, str | None] | None, age: str) -> str:
    """Written down apart from the code, case by case."""
    fires = None if alert is None else alert[0]
    if fires == "critical" or verdict == "critical":
        return RED
    if fires == "warning" or verdict == "growing":
        return AMBER
    if verdict != "healthy" or age in {"overdue", "in the spool"}:
        return GREY
    return GREY if fires == "info" and age == "before the alert" else GREEN


# A healthy verdict with every alert at every age, as both may change what it is; the others with some.
CASES = {
    f"{verdict}, {alert}, {age}": (verdict, alert, age)
    for verdict, alert, age in product(VERDICTS, ALERTS, AGES)
    if verdict == "healthy"
    or (age == "in time" and alert in (None, *ALERTS[-2:]))
    or (alert is None and age == "overdue")
}


def fill(store: Store, name: str, verdict: str | None, alert: tuple[str, str | None] | None, age: str) -> None:
    """A run that stands like that: its newest step is `LAST`."""
    put(store, name, {step: {} for step in range(LAST - 60, LAST + 1, 5)})
    now = datetime.now(UTC)
    judged_step = LAST - 60 if age in {"before the alert", "overdue"} else LAST
    began = judged_step + 1 if age == "before the alert" else judged_step
    waits = now + timedelta(hours=-1 if age == "overdue" else 1)  # the walk takes a while
    with store.transaction() as cursor:
        cursor.execute("UPDATE step_summaries SET time = ?, computed_at = ? WHERE run = ?", [waits, waits, name])
        cursor.execute("UPDATE segments SET ingested_at = ? WHERE run = ?", [now, name])
        if age == "in the spool":
            cursor.execute("INSERT INTO spooled VALUES (?, ?, ?)", [name, now - timedelta(minutes=1), now])
        if verdict is not None:
            document = diagnosis(verdict, run=name, since_step=5)
            cursor.execute(
                "INSERT INTO diagnoses VALUES (?, ?, 1, ?, 'none', 5, [], ?, ?, NULL, NULL, NULL, 'not_needed', NULL, NULL, NULL)",
                [name, judged_step, verdict, json.dumps(document), waits],
            )
        if alert is not None:
            cursor.execute(
                "INSERT INTO alert_states VALUES (?, 'some-rule', 'f', 'firing', ?, NULL, false, ?, ?, ?, ?, 1.0, 'bad', '{}')",
                [name, alert[0], alert[1], LAST, began, now],
            )


class StoreReader(Reader):
    """A store that does not change, as a page or a command reads it."""

    source = "file"

    def __init__(self, store: Store) -> None:
        self.store = store
        self._answers: dict[str, Any] = {}

    def query(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    def read(self, name: str, /, **params: Any) -> Any:
        asked = f"{name} {params}"
        if asked not in self._answers:
            self._answers[asked] = self.store.read(name, **params)
        return self._answers[asked]

    def status(self) -> dict[str, Any]:
        return {"running": False}

    def close(self) -> None:
        pass


@pytest.fixture
def standing(store: Store) -> StoreReader:
    for name, case in CASES.items():
        fill(store, name, *case)
    return StoreReader(store)


def of_banner(reader: StoreReader) -> Iterator[tuple[str, str]]:
    """Green, amber and red are the tones of severities; every other tone is grey."""
    tones = {"ok": GREEN, "healthy": GREEN, "warning": AMBER, "growing": AMBER, "critical": RED}
    for name in CASES:
        run = run_of(reader, name, datetime.now(UTC))
        shown = verdict_of(run.judgement, read_latest_diagnosis(reader, name), range(run.steps))
        yield name, tones.get(shown.tone, GREY)


def of_runs(reader: StoreReader) -> Iterator[tuple[str, str]]:
    for line in runs.lines_of(reader):
        yield line["run"], line["severity"]


def of_metrics(reader: StoreReader) -> Iterator[tuple[str, str]]:
    families = {family.name: family for family in text_string_to_metric_families(scrape.exposition(reader.store, []))}
    by = {sample.labels["severity"]: sample.value for sample in families["logprobe_live_runs_by_severity"].samples}
    assert by == Counter(expected(*case) for case in CASES.values())
    for sample in families["logprobe_severity"].samples:
        if sample.value:
            yield sample.labels["run"], sample.labels["logprobe_severity"]


def of_show(reader: StoreReader) -> Iterator[tuple[str, str]]:
    for name, (verdict, _, _) in CASES.items():
        view = run_view.read(reader, reader.store.home.path, name)
        said = view.document()["judgement"]
        shown = " ".join(story.terminal(story.headline(view), story.of_view(view)).split())
        assert shown.startswith(f"{name}: {' '.join(said['words'].split())}")
        assert verdict is None or said["verdict"] == verdict
        yield name, said["severity"]


def of_message(reader: StoreReader) -> Iterator[tuple[str, str]]:
    """What Slack shows of the run, once another of its alerts is resolved."""
    colours = {colour(replace(NOTE, state="resolved", run_severity=severity)): severity for severity in SEVERITIES}
    assert len(colours) == len(SEVERITIES)
    for name, judgement in judged.read(reader, list(CASES), datetime.now(UTC)).items():
        note = replace(NOTE, run=name, state="resolved", run_severity=judgement.severity)
        assert ("Run now", judgement.severity) in facts(note)
        yield name, colours[colour(note)]


def of_landing_page(reader: StoreReader) -> Iterator[tuple[str, str]]:
    """The row of each run, its word, and the search that finds it."""
    known = [run_of(reader, name, datetime.now(UTC)) for name in CASES]
    for severity in SEVERITIES:
        shown = worst_first([run for run in matching(known, severity) if run.judgement.severity == severity])
        assert summary(shown, len(known)).endswith(f": {len(shown)} {severity}" if shown else "runs")
        for run in shown:
            assert row(run, None)["severity"].endswith(headline(run.judgement).word)
            yield run.name, severity


def of_loggers(reader: StoreReader) -> Iterator[tuple[str, str]]:
    """What W&B and trackio are told, and whether they alert."""
    for name in CASES:
        told = logger.standing(run_of(reader, name, datetime.now(UTC)).judgement, name)
        assert told.alerts_after("ok") == (told.severity in {RED, AMBER})
        yield name, told.severity


def of_incidents(reader: StoreReader) -> Iterator[tuple[str, str]]:
    """One opens where, and only where, a run is critical; its message says how the run stands."""
    for name, judgement in judged.read(reader, list(CASES), datetime.now(UTC)).items():
        _, change = advance(None, judgement.severity, LAST)
        assert (change == "opened") == (judgement.severity == RED)
        note = replace(NOTE, run=name, state="resolved", run_severity=judgement.severity, incident=f"{name}#1")
        yield name, title(note).rpartition(": ")[2]


PLACES = {
    "landing page": of_landing_page, "loggers": of_loggers, "incidents": of_incidents,
    "banner": of_banner, "runs": of_runs, "metrics": of_metrics, "show": of_show,
    "message": of_message,
}  # fmt: skip


def check_lateness(reader: StoreReader) -> None:
    """`/healthz` says it of each run that is overdue."""
    judgements = judged.read(reader, list(CASES), datetime.now(UTC))
    late = {name: judgement for name, judgement in judgements.items() if judgement.overdue}
    assert late.keys() >= {name for name, (_, _, age) in CASES.items() if age in {"overdue", "in the spool"}}
    said = healthz.describe([], late=late)["judged"]
    assert said["late_runs"] == len(late) > 0
    assert all("not judged" in sentence for sentence in said["late"])


def test_every_place_shows_the_severity_of_every_combination(
    standing: StoreReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrape, "MOST_RUNS", len(CASES))
    own = run_view.diagnose(standing, next(iter(CASES)))
    # A look of its own at each run would take minutes.
    monkeypatch.setattr(run_view, "diagnose", lambda _, name, **__: {**own, "run": name})
    wanted = {name: expected(*case) for name, case in CASES.items()}
    assert set(wanted.values()) == set(SEVERITIES)
    shown = {place: list(read(standing)) for place, read in PLACES.items()}
    wrong = {place: [name for name, severity in said if severity != wanted[name]] for place, said in shown.items()}
    assert wrong == {place: [] for place in PLACES}
    assert {place: len(said) for place, said in shown.items()} == {place: len(CASES) for place in PLACES}
    check_lateness(standing)


def test_a_green_verdict_that_is_older_than_an_alert_says_so() -> None:
    alert = Firing("gap-critical", "critical", started_step=500)
    shown = headline(Judgement("healthy", step=479, newest=577, alerts=(alert,)))
    assert (shown.word, shown.tone) == ("Critical", "critical")
    assert shown.words == "The alert gap-critical fires; the diagnosis as of step 479, before that, says: healthy."
    late = headline(Judgement("healthy", step=479, newest=577, behind=98, waiting=40.0))
    assert (late.word, late.tone) == ("Not judged", "unknown")
    assert "as of step 479" in late.words


def test_ten_steps_or_two_seconds_are_in_time() -> None:
    assert Judgement("healthy", behind=10, waiting=1e6).severity == GREEN
    assert Judgement("healthy", behind=11, waiting=SECONDS).severity == GREEN
    assert Judgement("healthy", behind=11, waiting=SECONDS + 1).severity == GREY


def test_it_is_since_the_step_of_what_makes_it_severe() -> None:
    early, late = Firing("a", "critical", started_step=30), Firing("b", "critical", started_step=40)
    assert Judgement("growing", 7, alerts=(late, early)).since == 30
    assert Judgement("critical", 7, alerts=(late, early)).since == 7
    assert Judgement("healthy", 7).since is None


def test_the_run_of_a_home_that_no_rule_has_looked_at_is_unknown() -> None:
    assert Judgement().severity == GREY
    assert Judgement.of(None, datetime.now(UTC)) == Judgement()


@pytest.mark.parametrize(
    ("verdict", "level", "cause", "words"),
    [
        (
            "calibrating",
            "as expected",
            None,
            "K3 is normal for this setup; whether it grows is not known before 200 steps.",
        ),
        ("calibrating", "as expected", "staleness", "Whether it grows is not known before 200 steps."),
        ("watch", "as expected", "equal_answers", "Something is off; too few steps say whether it grows."),
        ("watch", None, "equal_answers", "Something is off, and it does not grow."),
    ],
)
def test_a_run_without_a_baseline_says_nothing_of_growth(
    verdict: Any, level: str | None, cause: str | None, words: str
) -> None:
    assert headline(Judgement(verdict, cause=cause, level=level)).words == words
