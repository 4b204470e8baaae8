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

from logprobe.alerts.controller.situation import Control, Phase
from logprobe.alerts.controller.standing import Standing
from logprobe.app.text.correction import in_force
from logprobe.app.text.judgement import line
from logprobe.app.view import run_view, story
from logprobe.monitor import queries
from logprobe.monitor.home import Home
from logprobe.monitor.judgement import Judgement, read
from logprobe.monitor.judging.job import DiagnosisStage
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
    Turns(DiagnosisStage(store)).run_once()
    assert not judged(store).overdue
    with store.transaction() as cursor:
        cursor.execute("UPDATE step_summaries SET computed_at = computed_at - INTERVAL 9 SECONDS")
        later = "* EXCLUDE (range) REPLACE (60 + range AS step, nextval('revision') AS revision)"
        cursor.execute(f"INSERT INTO step_summaries SELECT {later} FROM step_summaries, range(15) WHERE step = 59")
    waiting = judged(store)
    assert (waiting.newest, waiting.behind, waiting.overdue) == (74, 15, True)
    assert waiting.waiting >= 9
    with store.transaction() as cursor:
        cursor.execute("DELETE FROM step_summaries WHERE step > 59")
        since = datetime.now(UTC) - timedelta(seconds=70)
        cursor.execute("INSERT INTO spooled VALUES (?, ?, ?)", [RUN, since, datetime.now(UTC)])
        cursor.execute("UPDATE diagnoses SET verdict = 'healthy'")
    assert re.fullmatch(
        r"not judged since step 59: newer records have waited in the spool for 7\d s", judged(store).late or ""
    )
    (row,) = as_of(queries.runs_now(store), datetime.now(UTC))
    assert row["live"], "its records are new, although none was read for long"
    found = judged(store)
    assert (found.overdue, found.severity) == (True, "unknown")
    assert "newer records have waited in the spool for" in line(found)


def judged(store: Store) -> Judgement:
    return read(store, [RUN], datetime.now(UTC))[RUN]


def test_a_run_is_judged_as_of_the_newest_step_that_its_diagnosis_has_seen(store: Store) -> None:
    assert judged(store).step is None
    Turns(DiagnosisStage(store)).run_once()
    assert (judged(store).step, judged(store).overdue) == (59, False)
    with store.transaction() as cursor:
        cursor.execute("UPDATE diagnoses SET step = 30, revision = -1")
    live(store, behind=5.0)
    late = judged(store)
    assert (late.step, late.behind, late.overdue) == (30, 29, True)
    assert late.late == "not judged since step 30: 29 steps and 5 s behind step 59"


def test_what_the_controller_objects_to_is_not_advised(store: Store) -> None:
    """By whatever reads a judgement, as by the page and the command that read where the correction stands."""
    Turns(DiagnosisStage(store)).run_once()
    document = {"findings": [], "correction": {"advice": "enable", "why": ""}}
    for phase, objection, stopped in product(Phase, (None, "stopped", "masks_too_much"), (False, True)):
        control = json.dumps(Control(phase=phase, objection=objection, stopped=stopped).document())
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
    assert view.document()["judgement"]["late"] is None
    assert "behind step" not in shown(view)
    with Store.open(Home(home)) as again:
        DiagnosisStage(again).run(DiagnosisStage(again).rows())
        with again.transaction() as cursor:
            cursor.execute("UPDATE diagnoses SET step = 30")
        live(again, behind=5.0)
    with open_reader(home) as reader:
        view = run_view.read(reader, home, RUN)
    assert view.document()["judgement"]["late"] in shown(view)


@pytest.mark.parametrize(("seconds", "healthy"), [(5.0, True), (61.0, False)])
def test_healthz_names_the_run(seconds: float, healthy: bool) -> None:
    late = {"my-run": Judgement(step=40, newest=99, behind=59, waiting=seconds)}
    said = healthz.describe([], late=late, late_seconds=seconds)
    assert (said["healthy"], said["judged"]["healthy"], said["judged"]["late_runs"]) == (healthy, healthy, 1)
    assert said["judged"]["late"] == [f"my-run: not judged since step 40: 59 steps and {seconds:.0f} s behind step 99"]
    assert healthz.describe([])["judged"] == {"healthy": True, "late_runs": 0, "late": []}
