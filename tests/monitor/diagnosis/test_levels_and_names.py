"""What a level allows to be said: nothing is called normal that is not known to be, and no precision beyond its row of the table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from diagnosis_simulation import Logits, Simulation, drift, log_softmax, noisy
from run_columns import Columns
from zoo.rollouts import Lag, Noise, Run, rollouts

from logprobe.monitor.judging.explain import diagnosed
from logprobe.monitor.judging.growth import Tracker
from logprobe.monitor.judging.level import band_of
from logprobe.monitor.judging.setup import Setup

DENSE = Setup(engines=({"dtype": "bfloat16", "architectures": ["Qwen3ForCausalLM"]},), trainer={"dtype": "float32"})


def model(kept: float, seed: int = 9, spread: float = 4.0) -> Callable[[Logits], Logits]:
    """Logits of another model, which has a part in common with the engine's."""
    rng = np.random.default_rng(seed)
    return lambda z: log_softmax(kept * z + np.sqrt(1 - kept**2) * rng.normal(0, spread, z.shape))


def test_the_trainer_loads_other_weights_at_a_step() -> None:
    """From healthy to fatal within a step: no update of a policy does that, and it is dated to that step."""
    found = diagnosed(Simulation(steps=80, length=8, first_trained=50, spread=4.0, trained=model(0.7)).frame())
    first = found["findings"][0]
    assert (first["cause"], first["since_step"], found["since_step"]) == ("different_model", 50, 50)
    assert found["correction"]["advice"] == "do_not_enable"


def test_a_run_that_is_long_enough_for_a_level_as_a_whole_alone_is_an_unknown_set_up() -> None:
    found = diagnosed(Simulation(steps=14, prompts=1, length=4, trained=noisy(0.5)).frame())
    assert found["level"] is not None
    assert found["level"]["status"] == "unknown set-up"
    assert "no setup recorded" in found["correction"]["why"]


def test_only_old_tokens_are_no_level() -> None:
    evidence = rollouts(Run(steps=210, noise=Noise(3e-3), lag=Lag((2, 3), 1e-3), setup=DENSE)).frame()
    assert evidence.strata is not None
    older = evidence.strata.where(evidence.strata.lag > 0)
    found = diagnosed(replace(evidence, strata=older))
    assert found["level"] is not None
    assert found["level"]["status"] == "not measured"
    assert found["layer"] == "unknown"
    assert "is what this setup has" not in found["correction"]["why"]


@pytest.mark.parametrize(("level", "words"), [(1.2e-2, "high for dense bf16"), (8e-4, "usual for dense bf16")])
def test_a_level_without_a_set_up_is_not_claimed_to_be_normal(level: float, words: str) -> None:
    found = diagnosed(rollouts(Run(steps=210, noise=Noise(level))).frame())
    assert (found["verdict"], found["correction"]["advice"]) == ("healthy", "not_needed")
    assert "no setup recorded" in found["correction"]["why"]
    assert words in found["correction"]["why"]
    assert "record the configuration, or compare with a run" in found["correction"]["why"]
    assert all("normal" not in finding["explanation"] for finding in found["findings"])


@pytest.mark.parametrize(("size", "steps", "beyond"), [(0.3, 12, False), (1.2, 60, True)])
def test_a_trainer_with_dropout_is_named_by_what_varies(size: float, steps: int, beyond: bool) -> None:
    """The trainer's log-prob of one token after one context is another in every sequence, the engine's is not; a model's is the same
    each time, however large K3 is."""

    def dropout(columns: Columns) -> None:
        noisy_t = columns.t + drift(size, columns.t.shape) * (columns.t < -0.1)
        columns.t[:] = np.minimum(noisy_t, -1e-3)  # a log-prob still

    evidence = Simulation(steps=steps, change=dropout, setup=DENSE).frame()
    assert (evidence.gap.k3 > 0.3) is beyond
    found = diagnosed(evidence)
    assert found["findings"][0]["cause"] == "trainer_not_deterministic"
    assert found["correction"]["advice"] == "do_not_enable"
    assert all(finding["urgency"] == "informational" for finding in found["findings"][1:])


def test_dropout_in_the_configuration_is_named_where_nothing_is_computed_twice() -> None:
    known = replace(DENSE, trainer={"dtype": "float32", "attention_dropout": 0.1})
    found = diagnosed(rollouts(Run(steps=210, noise=Noise(5e-2), setup=known, raw=False)).frame())
    possible = next(f for f in found["findings"] if f["cause"] == "trainer_not_deterministic")
    assert "attention_dropout = 0.1" in possible["explanation"]
    assert (possible["confidence"], found["correction"]["advice"]) == (0.4, "do_not_enable")


@pytest.mark.parametrize("every", [1, 2])
def test_broken_log_probs_are_critical_whether_or_not_anything_can_be_compared(every: int) -> None:
    def broken(columns: Columns) -> None:
        columns.t[::every] = np.nan

    found = diagnosed(Simulation(steps=50, prompts=2, length=6, change=broken).frame())
    assert (found["verdict"], found["findings"][0]["cause"]) == ("critical", "nonfinite_logprobs")
    assert found["findings"][0]["evidence"]["share"] == 1 / every
    assert found["findings"][0]["share"]["now"] is None  # these tokens are in no mean: they are no part of K3


def test_what_is_not_known_of_a_set_up_excuses_no_growth() -> None:
    """A model whose kind nobody recorded may be dense: K3 of 0.05 after 5e-4, flat since, is no usual level of it."""
    experts = Setup(engines=({"dtype": "bfloat16", "architectures": ["Qwen3MoeForCausalLM"], "num_experts": 64},))
    unknown = Setup(engines=({"dtype": "bfloat16"},), trainer={"dtype": "bfloat16"})
    assert [band_of(setup) for setup in (DENSE, unknown, Setup())] == [2e-3, 2e-3, None]
    assert (band_of(experts) or 0) > 0.05
    assert band_of(Setup(engines=({"dtype": "float32"},), trainer={"dtype": "float16"})) is None  # no row is like it
    k3 = [5e-4] * 250 + [0.05] * 200
    assert Tracker(band=band_of(unknown)).follow(range(len(k3)), k3).verdict().verdict == "critical"


@pytest.mark.parametrize(
    ("level", "words"), [(1e-3, "K3 is what this setup has"), (4e-3, "is within 3 times what this setup has")]
)
def test_a_level_above_the_range_is_not_said_to_be_in_it(level: float, words: str) -> None:
    found = diagnosed(rollouts(Run(steps=210, noise=Noise(level), setup=DENSE)).frame())
    assert found["verdict"] == "healthy"
    assert words in found["correction"]["why"]
