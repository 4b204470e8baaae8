"""How far a run is judged: in time or not, and what says so."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path

import pytest
from recorded_home import ingest_recorded

from logprobe.alerts.controller.situation import Phase
from logprobe.alerts.controller.standing import Standing
from logprobe.app.text.correction import in_force
from logprobe.app.text.judgement import headline, line
from logprobe.app.view import run_view, words
from logprobe.monitor import queries
from logprobe.monitor.home import Home
from logprobe.monitor.judgement import read
from logprobe.monitor.judging.growth_stage import GrowthStage
from logprobe.monitor.judging.job import DiagnosisStage
from logprobe.monitor.judging.judged import JudgedAsOf, judged_as_of
from logprobe.monitor.reader import open_reader
from logprobe.monitor.service import healthz
from logprobe.monitor.service.turns import Turns, as_of
from logprobe.monitor.store.store import Store

RUN = "late-growth"


@pytest.fixture
def store(home: Path) -> Iterator[Store]:
    ingest_recorded(home, RUN, before_step=60)
    with Store.open(Home(home)) as opened:
        live(opened)
        yield opened


def live(store: Store, behind: float = 1.0) -> None:
    """As if the steps had come just now."""
    with store.transaction() as cursor:
        at = datetime.now(UTC) - timedelta(seconds=behind)
        cursor.execute("UPDATE step_summaries SET time = ?, computed_at = ?, revision = nextval('revision')", [at, at])


def test_steps_that_wait_to_be_computed_or_in_the_spool_count(store: Store) -> None:
    Turns(GrowthStage(store)).run_once()
    Turns(DiagnosisStage(store)).run_once()
    assert judged(store).in_time
    with store.transaction() as cursor:
        cursor.execute("UPDATE step_summaries SET computed_at = computed_at - INTERVAL 9 SECONDS")
        later = "SELECT run, 60 + range, 1, 1, time, computed_at, nextval('revision') FROM step_summaries, range(15) WHERE step = 59"
        cursor.execute(f"INSERT INTO step_summaries {later}")
    waiting = judged(store)
    assert (waiting.newest_step, waiting.steps_behind, waiting.in_time) == (74, 15, False)
    assert waiting.seconds_behind >= 9
    assert read(store, [RUN], datetime.now(UTC))[RUN].overdue
    with store.transaction() as cursor:
        cursor.execute("DELETE FROM step_summaries WHERE step > 59")
        since = datetime.now(UTC) - timedelta(seconds=70)
        cursor.execute("INSERT INTO spooled VALUES (?, ?, ?)", [RUN, since, datetime.now(UTC)])
        cursor.execute("UPDATE diagnoses SET verdict = 'healthy'")
    assert re.fullmatch(
        r"not judged since step 59: newer records have waited in the spool for 7\d s", judged(store).sentence or ""
    )
    assert judged(store).live, "its records are new, although none was read for long"
    found = read(store, [RUN], datetime.now(UTC))[RUN]
    assert (found.overdue, found.severity) == (True, "unknown")
    assert "newer records have waited in the spool for" in line(found)


def test_a_diagnosis_from_before_there_was_anything_to_compare_stands_for_its_own_step(store: Store) -> None:
    Turns(GrowthStage(store)).run_once()
    Turns(DiagnosisStage(store)).run_once()
    with store.transaction() as cursor:
        cursor.execute("UPDATE diagnoses SET step = 20, verdict = 'no_data'")
    live(store)
    assert judged(store).judged_step == 20
    found = read(store, [RUN], datetime.now(UTC) + timedelta(minutes=1))[RUN]
    assert headline(found).words == "There was nothing to compare as of step 20; newer steps wait for a diagnosis."
    [due] = queries.diagnosis_due(store).to_pylist()
    assert due["changed"], "so it is diagnosed next"


def judged(store: Store) -> JudgedAsOf:
    found = judged_as_of(store, RUN)
    assert found is not None
    return found


def test_growth_at_ingests_pace_keeps_the_promise_between_diagnoses(store: Store) -> None:
    assert judged(store).judged_step is None
    growth = Turns(GrowthStage(store))
    assert growth.run_once()["changes"] == 1
    Turns(DiagnosisStage(store)).run_once()
    with store.transaction() as cursor:
        cursor.execute("UPDATE diagnoses SET step = 30")
        cursor.execute("UPDATE growth_now SET step = 30, changed_step = 20, revision = -1")
    live(store, behind=5.0)
    late = judged(store)
    assert (late.judged_step, late.diagnosed_step, late.steps_behind, late.in_time) == (30, 30, 29, False)
    assert late.sentence == "not judged since step 30: 29 steps and 5 s behind step 59"
    assert growth.run_once()["changes"] == 0
    assert (judged(store).judged_step, judged(store).diagnosed_step, judged(store).in_time) == (59, 30, True)


@pytest.mark.parametrize(
    ("diagnosed", "growth", "severity", "as_of"),
    [
        ("healthy", "growing", "warning", 59),
        ("healthy", "critical", "critical", 59),
        ("growing", "growing", "warning", 59),
        ("growing", "critical", "critical", 59),
        ("critical", "growing", "critical", 30),
        ("critical", "healthy", "critical", 30),
        ("calibrating", "healthy", "unknown", 59),
    ],
)
def test_worse_growth_is_the_judgement_at_once_and_better_growth_waits_for_the_diagnosis(
    store: Store, diagnosed: str, growth: str, severity: str, as_of: int
) -> None:
    Turns(GrowthStage(store)).run_once()
    Turns(DiagnosisStage(store)).run_once()
    assert judged(store).judged_step == 59
    with store.transaction() as cursor:
        cursor.execute("UPDATE diagnoses SET step = 30, verdict = ?, since_step = 7", [diagnosed])
        cursor.execute("UPDATE growth_now SET changed_step = 40, verdict = ?", [growth])
    assert judged(store).judged_step == as_of
    known = read(store, [RUN], datetime.now(UTC))[RUN]
    worse = severity != "unknown" and diagnosed != growth and as_of == 59
    assert (known.severity, known.step, known.by_growth) == (severity, as_of, worse)
    assert known.since_step == (40 if worse else 7)
    assert (known.advice is None) == worse
    assert ("the diagnosis, which says why, follows" in line(known)) == worse


def test_what_the_controller_objects_to_is_not_advised(store: Store) -> None:
    """By whatever reads a judgement, as by the page and the command that read where the correction stands."""
    Turns(DiagnosisStage(store)).run_once()
    document = {"findings": [], "correction": {"advice": "enable", "why": ""}}
    for phase, objection, stopped in product(Phase, (None, "stopped", "masks_too_much"), (None, False, True)):
        control = json.dumps({"phase": phase, "objection": objection, "stopped": stopped})
        with store.transaction() as cursor:
            cursor.execute("UPDATE diagnoses SET advice = 'enable'")
            cursor.execute("INSERT OR REPLACE INTO controllers VALUES (?, ?, '{}', now())", [RUN, control])
        advice = read(store, [RUN], datetime.now(UTC))[RUN].advice
        assert advice == in_force(document, Standing.read(store, RUN))["advice"], (phase, objection, stopped)


def test_a_run_whose_growth_is_judged_otherwise_is_diagnosed_next(store: Store) -> None:
    Turns(GrowthStage(store)).run_once()
    Turns(DiagnosisStage(store)).run_once()
    with store.transaction() as cursor:
        cursor.execute("UPDATE diagnoses SET step = 30")
        cursor.execute("UPDATE growth_now SET changed_step = 40, verdict = 'growing'")
    assert store.read("diagnosis_due").num_rows == 0  # no other data
    live(store)
    (due,) = as_of(store.read("diagnosis_due"), datetime.now(UTC))
    assert (due["live"], due["changed"]) == (True, True)


def test_show_says_it_unless_its_own_diagnosis_is_the_first(store: Store, home: Path) -> None:
    live(store, behind=5.0)
    store.close()
    with open_reader(home) as reader:
        view = run_view.read(reader, home, RUN)
    sentence = view.document()["judged"]["sentence"]
    assert sentence.startswith("not judged yet: 60 steps and ")
    assert sentence not in words.text(view)
    with Store.open(Home(home)) as again:
        DiagnosisStage(again).run(DiagnosisStage(again).rows())
        with again.transaction() as cursor:
            cursor.execute("UPDATE diagnoses SET step = 30")
        live(again, behind=5.0)
    with open_reader(home) as reader:
        view = run_view.read(reader, home, RUN)
    assert view.document()["judged"]["sentence"] in words.text(view)


@pytest.mark.parametrize(("seconds", "healthy"), [(5.0, True), (61.0, False)])
def test_healthz_names_the_run_where_only_this_machine_asks(seconds: float, healthy: bool) -> None:
    late = [
        JudgedAsOf(
            "my-run",
            live=True,
            newest_step=99,
            judged_step=40,
            diagnosed_step=40,
            steps_behind=59,
            seconds_behind=seconds,
        )
    ]
    said = healthz.describe([], late=late, late_seconds=seconds, named=True)
    assert (said["healthy"], said["judged"]["healthy"], said["judged"]["late_runs"]) == (healthy, healthy, 1)
    assert said["judged"]["late"] == [f"my-run: not judged since step 40: 59 steps and {seconds:.0f} s behind step 99"]
    assert "my-run" not in str(healthz.describe([], late=late))
    assert healthz.describe([])["judged"] == {"healthy": True, "late_runs": 0, "late": []}


@pytest.mark.parametrize(
    ("live", "steps", "seconds", "in_time"),
    [(True, 10, 99.0, True), (True, 11, 2.1, False), (True, 500, 2.0, True), (False, 500, 99.0, False)],
)
def test_the_promise(live: bool, steps: int, seconds: float, in_time: bool) -> None:
    assert JudgedAsOf("run", live, 1000, 1000 - steps, None, steps, seconds).in_time is in_time
