"""A recorded run in which the armed service refused to correct: the engine's log-probs were raw, while staleness grew."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

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
