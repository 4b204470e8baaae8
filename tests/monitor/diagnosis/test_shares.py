"""Eight ordinary situations, each with and without what is known of the setup and with and without raw tokens.

Noise on logits with E[ρ] = 1, so that certain tokens vary less; K3 is that of the whole run unless growth is said.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from zoo.rollouts import Fault, Lag, Noise, Run, Trend, rollouts

from logprobe.monitor.judging.document import DiagnosisDocument
from logprobe.monitor.judging.explain import diagnosed
from logprobe.monitor.judging.setup import Setup

ONSET = 250
DENSE = Setup(engines=({"dtype": "bfloat16", "architectures": ["Qwen3ForCausalLM"]},))
EXPERTS = Setup(engines=({"dtype": "bfloat16", "architectures": ["Qwen3MoeForCausalLM"]},))
TAILS = {"tail": 0.8, "rerouted": 0.01}

HEALTHY = {
    "bf16, K3 5e-4": Run(noise=Noise(5e-4), setup=DENSE),
    "asynchronous, lag 0 to 3, K3 1e-3": Run(noise=Noise(5e-4), lag=Lag((0, 1, 2, 3), 3e-4), setup=DENSE),
    "bf16, K3 2e-3": Run(noise=Noise(2e-3), setup=DENSE),
    "experts, K3 1e-2": Run(noise=Noise(1e-2, **TAILS), setup=EXPERTS),
}
GROWING = {
    "bf16, policies drift apart": Run(noise=Noise(1e-3), trend=Trend(ONSET, 40), setup=DENSE),
    "bf16, a lag that grows": Run(noise=Noise(1e-3), lag=Lag((0, 1), 5e-4, onset=ONSET), setup=DENSE),
    "experts, policies drift apart": Run(noise=Noise(1e-2, **TAILS), trend=Trend(ONSET, 40), setup=EXPERTS),
}
OFFSET = Run(noise=Noise(1e-3), fault=Fault("offset", 0.02), setup=DENSE)


def diagnosis(run: Run, last: int | None = None) -> DiagnosisDocument:
    return diagnosed(rollouts(run).frame(last))


def variants(run: Run) -> list[Run]:
    unknown = replace(run, setup=Setup())
    return [run, replace(run, raw=False), unknown, replace(unknown, raw=False)]


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_runs_are_healthy_whatever_their_level(name: str) -> None:
    for run in variants(HEALTHY[name]):
        found = diagnosis(run)
        assert (found["verdict"], found["layer"], found["correction"]["advice"]) == ("healthy", "none", "not_needed")
        assert all(finding["urgency"] == "informational" and not finding["vetoes"] for finding in found["findings"])
        assert found["level"] is not None
        assert found["level"]["status"] == ("as expected" if run.setup.engines else "unknown set-up")


@pytest.mark.parametrize("name", GROWING)
def test_late_growth_is_corrected_and_not_before_it_begins(name: str) -> None:
    for run in variants(GROWING[name])[::3]:
        grown = rollouts(run)
        before, after = diagnosed(grown.frame(ONSET - 1)), diagnosed(grown.frame())
        assert (before["verdict"], before["correction"]["advice"]) == ("healthy", "not_needed")
        assert (after["verdict"], after["layer"], after["correction"]["advice"]) == ("critical", "objective", "enable")
        assert after["findings"][0]["layer"] == "objective"
        assert after["since_step"] == pytest.approx(ONSET, abs=40)


def test_an_offset_from_the_start_is_semantic_and_never_corrected() -> None:
    for run in variants(OFFSET):
        found = diagnosis(run)
        assert (found["verdict"], found["layer"], found["correction"]["advice"]) == (
            "critical",
            "semantic",
            "do_not_enable",
        )
        assert found["findings"][0]["vetoes"]


@pytest.mark.parametrize("name", [*HEALTHY, *GROWING])
def test_shares_add_up_to_the_whole_gap(name: str) -> None:
    found = diagnosis((HEALTHY | GROWING)[name])
    shares = [finding["share"]["now"] for finding in found["findings"] if finding["share"]["now"] is not None]
    assert found["unexplained"] is not None
    assert sum(shares) + found["unexplained"] == pytest.approx(1.0)
    for finding in found["findings"]:
        low, high = finding["share"]["interval"] or (0.0, 1.0)
        assert low <= finding["share"]["now"] <= high


def test_shares_tell_noise_from_lag_and_growth() -> None:
    lagging = {
        f["cause"]: f["share"]["now"] for f in diagnosis(HEALTHY["asynchronous, lag 0 to 3, K3 1e-3"])["findings"]
    }
    assert lagging["staleness"] == pytest.approx(0.48, abs=0.1)  # 1.5 versions of 3e-4 each over 9.5e-4
    grown = diagnosis(GROWING["bf16, policies drift apart"])["findings"][0]
    assert grown["cause"] == "late_growth"
    assert grown["share"]["now"] == pytest.approx(0.9, abs=0.05)
    assert grown["share"]["growth"] == pytest.approx(1.0, abs=0.05)
