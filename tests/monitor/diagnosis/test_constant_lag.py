"""A trainer that is always one version ahead: no token is of its own weights, and faults are told from requests of the same lag."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from zoo.cases import KINDS, _kept, _setup
from zoo.passes_cases import silent
from zoo.rollouts import Fault, Lag, Noise, Run, Tasks, Trend, rollouts

from logprobe.monitor.judging.document import CREDIBLE, DiagnosisDocument, leading
from logprobe.monitor.judging.explain import diagnosed
from logprobe.monitor.judging.records import WeightRecord, Weights

STEPS, LATE = 330, 250
BEHIND = Run(steps=STEPS, noise=Noise(1e-3), lag=Lag((1,), 1e-3), setup=silent(_setup(KINDS[0])))
FAULTS = {
    "temperature_mismatch": Fault("temperature_mismatch", 1.5),
    "raw_logprobs": Fault("raw_logprobs", 0.8),
    "miscalibrated_logprobs": Fault("offset", 0.05),
    "stale_prefix_cache": Fault("stale_prefix_cache", 4e-3),
    "replica_divergence": Fault("replica_divergence", 4e-3),
    "inflight_stale_kv": Fault("inflight_stale_kv", 8e-3),
}


def diagnosis_of(run: Run) -> DiagnosisDocument:
    return diagnosed(rollouts(run).frame())


def share(found: DiagnosisDocument, cause: str) -> float:
    return next((finding["share"]["now"] or 0.0 for finding in found["findings"] if finding["cause"] == cause), 0.0)


def updates(loaded_until: int) -> Weights:
    common = {"source": "engine", "replica": None, "pause_mode": None, "cache_cleared": True, "tensors": None}
    return Weights(
        tuple(WeightRecord(str(v), v, loaded=v < loaded_until, checksum=None, **common) for v in range(1, STEPS))  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("since", [0, LATE])
@pytest.mark.parametrize("cause", FAULTS)
def test_a_fault_leads_before_the_lag_and_is_refused(cause: str, since: int, raw: bool) -> None:
    weights = _kept(STEPS) if cause == "inflight_stale_kv" else Weights()
    found = diagnosis_of(replace(BEHIND, fault=replace(FAULTS[cause], since=since), raw=raw, weights=weights))
    if cause == "temperature_mismatch" and not raw:  # a policy that sharpened looks so among tokens of older weights
        assert (found["findings"][0]["cause"], found["findings"][0]["confidence"]) == (cause, 0.4)
        assert found["correction"]["advice"] == "do_not_enable"
        return
    first = leading(found)
    assert first is not None
    assert first["cause"] == cause
    assert found["correction"]["advice"] == "do_not_enable"
    assert {f["cause"] for f in found["findings"] if f["vetoes"]} == {cause}


@pytest.mark.parametrize("size", [0.8, 1.5])
@pytest.mark.parametrize("lag", [(0,), (1,)])
def test_a_temperature_from_a_step_on_is_taken_out_from_there(size: float, lag: tuple[int, ...]) -> None:
    """Not of all steps: the part of today that it makes would be missed_weight_sync."""
    found = diagnosis_of(
        replace(BEHIND, lag=replace(BEHIND.lag, versions=lag), fault=Fault("temperature_mismatch", size, LATE))
    )
    first = found["findings"][0]
    assert (first["cause"], first["since_step"]) == ("temperature_mismatch", pytest.approx(LATE, abs=3))
    assert first["evidence"]["temperature_implied"] == pytest.approx(size, rel=0.08)
    assert share(found, "missed_weight_sync") < 0.25


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize(
    "run",
    [
        BEHIND,
        replace(BEHIND, lag=Lag((1,), 8e-3)),
        replace(BEHIND, lag=Lag((2, 3), 5e-4)),
        replace(BEHIND, noise=Noise(1e-3, tail=0.9, rerouted=0.005, unrest=0.3, memory=0.8)),
        replace(BEHIND, tasks=Tasks(5, harder=2.0, noisier=2.0)),
    ],
    ids=["one version", "a lag that adds much", "two or three versions", "heavy tails and unrest", "a curriculum"],
)
def test_without_a_fault_nothing_is_found(run: Run, raw: bool) -> None:
    for seed in (1, 2, 3):
        found = diagnosis_of(replace(run, raw=raw, seed=seed))
        assert (found["verdict"], found["layer"], found["correction"]["advice"]) == ("healthy", "none", "not_needed")


def test_a_replica_that_is_given_harder_tasks_has_no_fault_while_k3_is_what_the_setup_has() -> None:
    found = diagnosis_of(Run(noise=Noise(5e-4), lag=Lag((1,), 5e-4), tasks=Tasks(harder_at_second=2.5)))
    assert {finding["urgency"] for finding in found["findings"]} <= {"informational"}
    assert found["correction"]["advice"] != "enable"


@pytest.mark.parametrize("versions", [(0,), (1,)])
def test_updates_that_are_labelled_and_not_loaded_are_known(versions: tuple[int, ...]) -> None:
    missed = replace(BEHIND, fault=Fault("missed_weight_sync", 1e-3, LATE), lag=Lag(versions, 1e-3))
    found = diagnosis_of(replace(missed, weights=updates(LATE)))
    assert (found["findings"][0]["cause"], found["findings"][0]["confidence"]) == ("missed_weight_sync", 0.95)
    assert share(found, "missed_weight_sync") > 0.7
    assert found["correction"]["advice"] == "do_not_enable"


def test_updates_that_may_be_missed_are_undecided() -> None:
    """K3 of one lag rises as if updates stopped arriving; it may be the policy that moves further with each update."""
    found = diagnosis_of(replace(BEHIND, fault=Fault("missed_weight_sync", 1e-3, LATE)))
    grown = next(finding for finding in found["findings"] if finding["cause"] == "late_growth")
    assert grown["confidence"] < CREDIBLE
    assert (found["layer"], found["correction"]["advice"]) == ("unknown", "do_not_enable")


def test_a_drift_is_growth_to_correct() -> None:
    found = diagnosis_of(replace(BEHIND, steps=380, trend=Trend(LATE, 35)))
    assert (found["findings"][0]["cause"], found["correction"]["advice"]) == ("late_growth", "enable")


@pytest.mark.parametrize(("older", "expected"), [(0.94, 0), (0.98, 1)])
def test_requests_are_compared_at_lag_0_unless_hardly_any_have_it(older: float, expected: int) -> None:
    rng = np.random.default_rng(0)
    versions = tuple(int(lag) for lag in rng.permutation(np.arange(1000) < 1000 * older))
    evidence = rollouts(replace(BEHIND, steps=60, lag=Lag(versions), raw=False)).frame()
    assert set(evidence.strata.alike.lag.tolist()) == {expected}
    assert evidence.older == bool(expected)
