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
from logprobe.app.text.judgement import line
from logprobe.app.view import run_view, story
from logprobe.monitor.home import Home
from logprobe.monitor.judgement import read
from logprobe.monitor.judging.job import DiagnosisStage
from logprobe.monitor.judging.judged import JudgedAsOf, judged_as_of
from logprobe.monitor.reader import open_reader
from logprobe.monitor.service import healthz
from logprobe.monitor.service.turns import Turns
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
    Turns(DiagnosisStage(store)).run_once()
    assert judged(store).in_time
    with store.transaction() as cursor:
        cursor.execute("UPDATE step_summaries SET computed_at = computed_at - INTERVAL 9 SECONDS")
        later = "* EXCLUDE (range) REPLACE (60 + range AS step, nextval('revision') AS revision)"
        cursor.execute(f"INSERT INTO step_summaries SELECT {later} FROM step_summaries, range(15) WHERE step = 59")
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


def judged(store: Store) -> JudgedAsOf:
    found = judged_as_of(store, RUN)
    assert found is not None
    return found


def test_a_run_is_judged_as_of_the_newest_step_that_its_diagnosis_has_seen(store: Store) -> None:
    assert judged(store).judged_step is None
    Turns(DiagnosisStage(store)).run_once()
    assert (judged(store).judged_step, judged(store).in_time) == (59, True)
    with store.transaction() as cursor:
        cursor.execute("UPDATE diagnoses SET step = 30, revision = -1")
    live(store, behind=5.0)
    late = judged(store)
    assert (late.judged_step, late.steps_behind, late.in_time) == (30, 29, False)
    assert late.sentence == "not judged since step 30: 29 steps and 5 s behind step 59"


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


def shown(view: run_view.RunView) -> str:
    return story.terminal(story.headline(view), story.of_view(view))


def test_show_says_it_unless_its_own_diagnosis_is_the_first(store: Store, home: Path) -> None:
    live(store, behind=5.0)
    store.close()
    with open_reader(home) as reader:
        view = run_view.read(reader, home, RUN)
    sentence = view.document()["judged"]["sentence"]
    assert sentence.startswith("not judged yet: 60 steps and ")
    assert sentence not in shown(view)
    with Store.open(Home(home)) as again:
        DiagnosisStage(again).run(DiagnosisStage(again).rows())
        with again.transaction() as cursor:
            cursor.execute("UPDATE diagnoses SET step = 30")
        live(again, behind=5.0)
    with open_reader(home) as reader:
        view = run_view.read(reader, home, RUN)
    assert view.document()["judged"]["sentence"] in shown(view)


@pytest.mark.parametrize(("seconds", "healthy"), [(5.0, True), (61.0, False)])
def test_healthz_names_the_run(seconds: float, healthy: bool) -> None:
    late = [
        JudgedAsOf(
            "my-run",
            live=True,
            newest_step=99,
            judged_step=40,
            steps_behind=59,
            seconds_behind=seconds,
        )
    ]
    said = healthz.describe([], late=late, late_seconds=seconds)
    assert (said["healthy"], said["judged"]["healthy"], said["judged"]["late_runs"]) == (healthy, healthy, 1)
    assert said["judged"]["late"] == [f"my-run: not judged since step 40: 59 steps and {seconds:.0f} s behind step 99"]
    assert healthz.describe([])["judged"] == {"healthy": True, "late_runs": 0, "late": []}


@pytest.mark.parametrize(
    ("live", "steps", "seconds", "in_time"),
    [(True, 10, 99.0, True), (True, 11, 2.1, False), (True, 500, 2.0, True), (False, 500, 99.0, False)],
)
def test_the_promise(live: bool, steps: int, seconds: float, in_time: bool) -> None:
    assert JudgedAsOf("run", live, 1000, 1000 - steps, steps, seconds).in_time is in_time
