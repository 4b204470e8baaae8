"""The last incident of a run, as `logprobe show` has it: an incident that an alert opened says so and what to do, whatever the diagnosis says, in every form of it."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from alert_homes import K3, at, put
from diagnoses import diagnosis

from logprobe.alerts.controller.standing import Standing
from logprobe.alerts.rules.periods import HEALTHY_STEPS
from logprobe.alerts.rules.thresholds import Threshold
from logprobe.alerts.rules.watch import Watch
from logprobe.app.cli import main
from logprobe.app.dashboard.pages.alerts import incident_verdict
from logprobe.app.text.html import Markup
from logprobe.app.view.account import Account, facts, happened, read
from logprobe.app.view.html import document
from logprobe.app.view.story import of_account
from logprobe.collectors.recorder.recorder import Recorder
from logprobe.monitor import queries
from logprobe.monitor.home import Home
from logprobe.monitor.judging.document import Verdict
from logprobe.monitor.live.ingest import Ingester
from logprobe.monitor.service.actions import note
from logprobe.monitor.store.store import Store

LAST = 69  # step; tokens are missing from step 60 on
RUNBOOK = "logprobe show a --metrics"
LOW = (
    Threshold.model_validate(
        {"name": "coverage-low", "metric": "coverage", "below": 0.99, "steps": 3, "severity": "critical"}
    ),
)


def look(store: Store, step: int, seconds: float = 3.0) -> None:
    now = at(step) + timedelta(seconds=seconds)
    Watch(store, lambda: LOW, threading.Event(), clock=lambda: now).run_once()


def diagnosed(store: Store, verdict: Verdict, step: int = LAST) -> None:
    document = json.dumps(diagnosis(verdict, run="a"))
    with store.transaction() as cursor:
        cursor.execute(
            "INSERT OR REPLACE INTO diagnoses (run, step, revision, verdict, layer, causes, document, diagnosed_at)"
            " VALUES ('a', ?, currval('revision'), ?, 'none', [], ?, ?)",
            [step, verdict, document, at(step) + timedelta(seconds=1)],
        )


def opened(home: Path, verdict: Verdict | None = "healthy", *, silenced: bool = False) -> None:
    """A run whose coverage becomes low, which is critical, and that is diagnosed as `verdict` (None: not)."""
    with Store.open(Home(home)) as store:
        steps: Mapping[int, Mapping[str, Any]] = {
            step: {K3: 1e-4, "backend.coverage": 1.0 if step < 60 else 0.5} for step in range(LAST + 1)
        }
        put(store, "a", steps)
        with store.transaction() as cursor:
            if silenced:
                silence = {"key": "1", "runs": "a", "what": "*", "until": at(10 * LAST)}
                note(store, cursor, at(0), author="Ada", action="silenced", words="known", **silence)
        if verdict is not None:
            diagnosed(store, verdict)
        look(store, LAST)


def over(home: Path) -> None:
    """The run is healthy for long, as the diagnosis says, too."""
    with Store.open(Home(home)) as store:
        for last in (LAST + 40, LAST + 41 + HEALTHY_STEPS):
            steps = range(last - 40, last + 1)
            put(store, "a", {step: {K3: 1e-4, "backend.coverage": 1.0} for step in steps})
            diagnosed(store, "healthy", last)
            look(store, last)


def page_of(incident: Account) -> str:
    return str(document(of_account(incident), Markup()))


def found(home: Path) -> Account:
    with Store.open(Home(home)) as store:
        (row,) = queries.incident_show(store, incident="a#1").to_pylist()
        return read(store, "a", Standing.read(store, "a"), opened=row)


def test_it_is_critical_since_the_onset_of_the_alert_and_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    opened(tmp_path)
    incident = found(tmp_path)
    assert incident.document["verdict"] == "healthy"
    assert incident.headline == "a is critical by alert coverage-low, since step 60; the diagnosis says: healthy"
    verdict = incident_verdict(incident)
    assert verdict.words == f"{incident.headline}."
    assert [(rule, RUNBOOK in words) for rule, words in verdict.do] == [("coverage-low", True)]
    assert main(["show", "a", "--home", str(tmp_path)]) == 2
    shown = " ".join(capsys.readouterr().out.split())
    assert "a: Critical, since step 60, coverage-low." in shown
    assert "incident a#1 opened" in shown
    assert (incident.since, incident.last_good) == (60, 59)
    assert ("60", "onset", "as dated by the alert") in [(str(step), *rest) for _, step, *rest in happened(incident)]
    page = page_of(incident)
    for words in (RUNBOOK, "59; no checkpoint was recorded", "What changed in the 50 steps before"):
        assert words in page
    unknown = {"opened": {**incident.opened, "since_step": None}, "alerts": (), "current": ()}
    nowhere = replace(incident, document={**incident.document, "since_step": None}, **unknown)
    assert nowhere.since is None
    assert dict(facts(nowhere))["last good step"].startswith("unknown: nothing says")


@pytest.mark.parametrize(
    ("verdict", "silenced", "headline", "words"),
    [
        ("healthy", True, "a is critical by alert", "coverage-low: no message said what to do"),
        ("critical", False, "a: Critical", "no credible cause found"),  # the diagnosis accounts for it
        (None, False, "a is critical by alert", "the diagnosis says: no data"),
    ],
)
def test_what_the_alert_and_the_diagnosis_know_is_told(
    tmp_path: Path, verdict: Verdict | None, silenced: bool, headline: str, words: str
) -> None:
    opened(tmp_path, verdict, silenced=silenced)
    incident = found(tmp_path)
    assert incident.headline.startswith(headline)
    assert words in incident.headline + page_of(incident)


def test_the_last_good_checkpoint_is_one_that_is_still_there(tmp_path: Path) -> None:
    opened(tmp_path)
    with Recorder(tmp_path, "a") as recorder:

        def shown() -> tuple[str, object, object]:
            assert recorder.flush()
            with Store.open(Home(tmp_path)) as store:
                Ingester(store).run_once()
            incident = found(tmp_path)
            known = incident.incident()
            assert known is not None
            return (
                dict(facts(incident))["last good step"].partition("; ")[2],
                known["checkpoint"],
                known["checkpoint_folder"],
            )

        recorder.step(50, {"checkpoint": 1.0})  # a scalar of somebody's own
        assert shown() == ("no checkpoint was recorded, so the last good one is unknown", None, None)
        recorder.checkpoint(65, "/out/checkpoint-65")
        assert shown() == ("last good checkpoint: none was saved before the onset", None, None)
        recorder.checkpoint(20, "/out/checkpoint-20")
        recorder.weights("w", step=30, checkpoint="/out/w")
        recorder.checkpoint(40)
        assert shown() == ("last good checkpoint: step 40", 40, None)
        recorder.checkpoint(40, deleted=True)
        assert shown() == ("last good checkpoint: step 30, /out/w", 30, "/out/w")
        recorder.checkpoint(30, deleted=True)
        recorder.checkpoint(20, deleted=True)
        words = "last good checkpoint: none is left; the last one before the onset, of step 40, was deleted"
        assert shown() == (words, None, None)
        recorder.checkpoint(40)  # saved again, with the same words as before
        assert shown()[:2] == ("last good checkpoint: step 40", 40)


def test_over_or_closed_it_says_so_and_the_last_one_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    opened(tmp_path)
    with Store.open(Home(tmp_path)) as store:
        put(store, "a", {step: {K3: 1e-4, "backend.coverage": 1.0} for step in range(LAST + 1, LAST + 41)})
        look(store, LAST + 40)
    incident = found(tmp_path)
    assert incident.opened["closed_at"] is None
    assert incident.headline.startswith("a was critical by alert coverage-low, since step 60; ")
    assert incident_verdict(incident).word == "Open: incident a#1"
    over(tmp_path)
    incident = found(tmp_path)
    assert incident_verdict(incident).word == "Closed: incident a#1"
    assert f"the run was healthy for {HEALTHY_STEPS} steps" in page_of(incident)
    with Store.open(Home(tmp_path)) as store:
        first = 2 * LAST + HEALTHY_STEPS
        put(store, "a", {step: {K3: 1e-4, "backend.coverage": 0.5} for step in range(first, first + 9)})
        put(store, "quiet", {first + 8: {K3: 1e-4}})
        look(store, first + 8)
    for run, code, shown in (("a", 2, ("a#2", None)), ("quiet", 0, None)):
        assert main(["show", run, "--json", "--home", str(tmp_path)]) == code
        last = json.loads(capsys.readouterr().out)["incident"]
        assert (last and (last["id"], last["closed_at"])) == shown
