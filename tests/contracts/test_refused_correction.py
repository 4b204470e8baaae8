"""A recorded run in which the armed service refused to correct: the engine's log-probs were raw, while staleness grew."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from recorded_home import SAMPLE_DATA, ingest_recorded

from logprobe.alerts.controller.job import Controller
from logprobe.alerts.controller.policy import Mode, Policy
from logprobe.collectors.directives import DirectiveFile
from logprobe.monitor.home import Home
from logprobe.monitor.judging.job import DiagnosisStage
from logprobe.monitor.recorded import RecordedRun
from logprobe.monitor.service.turns import Turns
from logprobe.monitor.store.store import Store

RUN = "raw-growth"


@pytest.fixture(scope="module")
def recorded() -> RecordedRun:
    return RecordedRun(SAMPLE_DATA / RUN)


@pytest.fixture(scope="module")
def actions(recorded: RecordedRun) -> list[dict[str, Any]]:
    """What the controller did while the engine and the trainer ran."""
    return recorded.manifest["control"]["actions"]


def test_it_refused_and_named_the_fault(actions: list[dict[str, Any]]) -> None:
    refused = [action for action in actions if action["reason"] == "fix_engine_first"]  # as it was called then
    assert [action["name"] for action in refused] == ["refused"]
    assert "fix the engine first" in refused[0]["words"]
    assert "raw_logprobs" in refused[0]["words"]
    assert {action["name"] for action in actions} == {"refused"}


def test_people_were_told(recorded: RecordedRun) -> None:
    told = [said for said in recorded.manifest["control"]["notifications"] if said["rule"] == "correction_controller"]
    assert [said["state"] for said in told] == ["refused"]


def test_the_trainer_was_told_nothing_and_corrected_nothing(recorded: RecordedRun) -> None:
    steps = recorded.table("step")
    assert "correction" not in steps.column_names or set(steps["correction"].to_pylist()) == {None}
    assert recorded.steps == list(range(140))


def test_the_code_of_today_refuses_it_too(recorded: RecordedRun, tmp_path: Path) -> None:
    ingest_recorded(tmp_path, RUN)
    with Store.open(Home(tmp_path)) as store:
        Turns(DiagnosisStage(store)).run_once()
        at_its_end = datetime.fromisoformat(recorded.manifest["recorded_to"])
        Controller(store, lambda _: Policy(mode=Mode.ARMED), clock=lambda: at_its_end).run_once()
        (action,) = store.read("controller_actions", run=RUN).to_pylist()
    assert (action["name"], action["reason"]) == ("refused", "not_advised")
    assert "raw_logprobs" in action["words"]
    assert not DirectiveFile(tmp_path, RUN).path.exists()


def test_the_mismatch_did_grow_critically_beside_it(recorded: RecordedRun) -> None:
    fired = {said["rule"]: said["step"] for said in recorded.manifest["control"]["notifications"]}
    assert fired["gap-critical"] > 60  # the step from which batches waited
    assert fired["staleness"] > 60
