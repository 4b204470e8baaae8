"""Shares of K3: they add up to the whole, and tell noise from lag and growth."""

from __future__ import annotations

import pytest
from zoo.rollouts import Lag, Noise, Run, Trend, rollouts

from logprobe.monitor.judging.document import DiagnosisDocument
from logprobe.monitor.judging.explain import diagnosed
from logprobe.monitor.judging.setup import Setup

DENSE = Setup(engines=({"dtype": "bfloat16", "architectures": ["Qwen3ForCausalLM"]},))
EXPERTS = Setup(engines=({"dtype": "bfloat16", "architectures": ["Qwen3MoeForCausalLM"]},))
ROUTED = Noise(1e-2, tail=0.8, rerouted=0.01)
LAGGING = Run(noise=Noise(5e-4), lag=Lag((0, 1, 2, 3), 3e-4), setup=DENSE)
DRIFTING = Run(noise=Noise(1e-3), trend=Trend(250, 40), setup=DENSE)
RUNS = {
    "asynchronous": LAGGING,
    "policies drift apart": DRIFTING,
    "a lag that grows": Run(noise=Noise(1e-3), lag=Lag((0, 1), 5e-4, onset=250), setup=DENSE),
    "experts, policies drift apart": Run(noise=ROUTED, trend=Trend(250, 40), setup=EXPERTS),
}


def diagnosis(run: Run) -> DiagnosisDocument:
    return diagnosed(rollouts(run).frame())


@pytest.mark.parametrize("name", RUNS)
def test_shares_add_up_to_the_whole_gap(name: str) -> None:
    found = diagnosis(RUNS[name])
    shares = [finding["share"]["now"] for finding in found["findings"] if finding["share"]["now"] is not None]
    assert found["unexplained"] is not None
    assert sum(shares) + found["unexplained"] == pytest.approx(1.0)


def test_shares_tell_noise_from_lag_and_growth() -> None:
    lagging = {f["cause"]: f["share"]["now"] for f in diagnosis(LAGGING)["findings"]}
    assert lagging["staleness"] == pytest.approx(0.48, abs=0.1)  # 1.5 versions of 3e-4 each over 9.5e-4
    grown = diagnosis(DRIFTING)["findings"][0]
    assert grown["cause"] == "late_growth"
    assert grown["share"]["now"] == pytest.approx(0.9, abs=0.05)
    assert grown["share"]["growth"] == pytest.approx(1.0, abs=0.05)
