"""Pairs of causes that raise K3 alike, and the stored evidence that separates them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from zoo.rollouts import Fault, Lag, Noise, Run, Trend, rollouts

from logprobe.monitor.judging.course import shape
from logprobe.monitor.judging.document import DiagnosisDocument
from logprobe.monitor.judging.explain import diagnosed
from logprobe.monitor.judging.records import WeightRecord, Weights
from logprobe.monitor.judging.setup import Setup

ONSET = 250
TAILS = Noise(5e-3, tail=0.9, rerouted=0.005)
SAMPLED_COLD = Setup(engines=({"dtype": "bfloat16"},), samplings={"a": {"temperature": 0.88}})


def causes(found: DiagnosisDocument) -> list[str]:
    return [finding["cause"] for finding in found["findings"]]


def loads(steps: int) -> Weights:
    """Every step's weights, as the engine loaded them."""
    known = {
        "source": "engine",
        "replica": None,
        "loaded": True,
        "pause_mode": None,
        "cache_cleared": True,
        "tensors": None,
    }
    return Weights(tuple(WeightRecord(str(step), step, checksum=None, **known) for step in range(steps)))  # type: ignore[arg-type]


@pytest.mark.parametrize("fault", ["stale_prefix_cache", "replica_divergence"])
def test_requests_that_were_spared_refute_missed_updates(fault: str) -> None:
    found = diagnosed(rollouts(Run(noise=TAILS, fault=Fault(fault, 0.03, ONSET), raw=False)).frame())
    assert causes(found)[0] == fault
    assert "missed_weight_sync" not in causes(found)
    assert found["correction"]["advice"] == "do_not_enable"


def test_a_drift_multiplies_and_missed_updates_add() -> None:
    drift = rollouts(Run(steps=380, noise=Noise(1e-3), trend=Trend(ONSET, 35))).frame()
    missed = rollouts(Run(steps=330, noise=Noise(1e-3), fault=Fault("missed_weight_sync", 5e-4, ONSET))).frame()
    drifts, stops = (shape(frame.strata.alike) for frame in (drift, missed))
    assert drifts is not None
    assert stops is not None
    assert drifts.drift > 1 > -1 > stops.drift
    assert diagnosed(drift)["correction"]["advice"] == "enable"
    found = diagnosed(missed)
    assert (causes(found)[0], found["correction"]["advice"]) == ("missed_weight_sync", "do_not_enable")


def test_growth_that_fits_both_names_what_decides() -> None:
    early = rollouts(Run(steps=300, noise=Noise(1e-3, unrest=0.3, memory=0.8), trend=Trend(ONSET, 15), seed=3)).frame()
    grown = next(finding for finding in diagnosed(early)["findings"] if finding["cause"] == "late_growth")
    assert grown["confidence"] == 0.4
    assert "fingerprints of weights" in grown["explanation"]


def test_a_version_that_stands_still_is_no_staleness_to_be_corrected() -> None:
    run = Run(steps=290, noise=Noise(1e-3), lag=Lag((0,), 5e-4, onset=ONSET, every=1))
    found = diagnosed(rollouts(run).frame())
    assert (causes(found)[0], found["correction"]["advice"]) == ("missed_weight_sync", "do_not_enable")
    assert found["findings"][0]["since_step"] == pytest.approx(ONSET, abs=2)
    waiting = diagnosed(rollouts(replace(run, weights=loads(run.steps))).frame())  # the engine moved: batches wait
    assert "missed_weight_sync" not in causes(waiting)
    assert waiting["correction"]["advice"] == "enable"


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("kind", ["temperature_mismatch", "raw_logprobs"])
def test_a_temperature_is_found_under_the_noise_of_experts(kind: str, raw: bool) -> None:
    noisy = Run(noise=replace(TAILS, level=0.02), setup=SAMPLED_COLD, raw=raw)
    found = diagnosed(rollouts(replace(noisy, fault=Fault(kind, 0.88, ONSET))).frame())
    assert (found["layer"], found["correction"]["advice"]) == ("semantic", "do_not_enable")
    assert causes(found)[0] in {"temperature_mismatch", "raw_logprobs"}
    without = diagnosed(rollouts(noisy).frame())
    assert (without["verdict"], without["layer"]) == ("healthy", "none")
