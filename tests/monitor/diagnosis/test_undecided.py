"""Evidence that does not separate causes: nothing credible is named, the layer is unknown, no correction is advised; and what would decide."""

from __future__ import annotations

from dataclasses import replace

import pytest
from zoo.rollouts import Fault, Lag, Noise, Run, Tasks, rollouts

from logprobe.monitor.judging.document import CREDIBLE
from logprobe.monitor.judging.explain import diagnosed

UNKNOWN = Lag(known=False)
BASE = Run(noise=Noise(5e-4))
HARDER = replace(BASE, tasks=Tasks(harder_at_second=2.5))
UNDECIDED = {
    "a lag that grows, of unknown versions": replace(BASE, lag=Lag((0, 1), 5e-4, onset=250, known=False)),
    "updates that stop arriving, of unknown versions": replace(
        BASE, steps=330, fault=Fault("missed_weight_sync", 5e-4, 250), lag=UNKNOWN
    ),
    "some steps of other weights, of unknown versions": Run(
        noise=Noise(1e-13), fault=Fault("skipped_updates", 1e-3, every=7), lag=UNKNOWN
    ),
}


@pytest.mark.parametrize("name", UNDECIDED)
def test_what_does_not_separate_is_unknown(name: str) -> None:
    found = diagnosed(rollouts(UNDECIDED[name]).frame())
    calling = [finding for finding in found["findings"] if finding["urgency"] != "informational"]
    assert calling
    assert all(finding["confidence"] < CREDIBLE and not finding["vetoes"] for finding in calling)
    assert (found["layer"], found["correction"]["advice"]) == ("unknown", "do_not_enable")


@pytest.mark.parametrize("run", [HARDER, replace(HARDER, tasks=Tasks(harder_at_second=3.5), seed=5)])
def test_a_replica_that_is_given_harder_tasks_has_no_fault_while_k3_is_what_the_setup_has(run: Run) -> None:
    found = diagnosed(rollouts(run).frame())
    assert (found["verdict"], found["layer"], found["correction"]["advice"]) == ("healthy", "none", "not_needed")
    assert {finding["urgency"] for finding in found["findings"]} <= {"informational"}


def test_a_replica_gone_astray_is_named_whatever_its_tasks() -> None:
    for run in (
        replace(HARDER, fault=Fault("replica_divergence", 1e-3)),
        replace(HARDER, fault=Fault("replica_divergence", 3e-3, 250)),
    ):
        first = diagnosed(rollouts(run).frame())["findings"][0]
        assert (first["cause"], first["urgency"], first["vetoes"]) == ("replica_divergence", "act", True)
