"""Why K3 grew: runs that grow for one reason each, and the parts that add up to the growth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from zoo.rollouts import Lag, Noise, Rollouts, Run, Trend, rollouts

from logprobe.monitor.judging.decomposition import why_it_grew
from logprobe.monitor.judging.document import ExplainedDocument
from logprobe.monitor.judging.explain import diagnosed
from logprobe.monitor.judging.setup import Setup

DENSE = Setup(engines=({"dtype": "bfloat16", "architectures": ["Qwen3ForCausalLM"]},))
QUIET = Run(steps=330, noise=Noise(8e-4, unrest=0.05), setup=DENSE)


def why(drawn: Rollouts) -> ExplainedDocument:
    found = why_it_grew(drawn.frame())
    assert found is not None
    assert sum(found["parts"].values()) == pytest.approx(1, abs=3e-4)
    return found


def most(found: ExplainedDocument) -> str:
    return max(found["parts"], key=lambda name: found["parts"][name])


def other_tokens(since: int) -> Rollouts:
    """From a step on, mostly tokens of low probability, which differ more; each kind of token differs as before."""
    drawn = rollouts(replace(QUIET, answers=20, spread=3.0))
    rng = np.random.default_rng(5)
    likely = drawn.r > np.log(0.6)
    differs = np.where(likely, 0.01, 0.15)
    d = rng.standard_normal(drawn.r.shape) * differs
    low, high = np.quantile(likely.mean(axis=1), [0.15, 0.9])
    keep = np.where(drawn.step < since, likely.mean(axis=1) >= high, likely.mean(axis=1) <= low)
    names = ("step", "token", "r", "lag", "cached", "in_flight", "replica")
    kept = {name: getattr(drawn, name)[keep] for name in names}
    return replace(drawn, t=np.minimum(drawn.r + d - differs**2 / 2, 0)[keep].astype(drawn.t.dtype), **kept)


def test_the_same_tokens_that_differ_more_are_the_rates() -> None:
    found = why(rollouts(replace(QUIET, trend=Trend(250, 30))))
    assert most(found) == "rate"
    assert abs(found["parts"]["composition"]) < 0.15
    assert "more mismatch for the same kind of token" in found["words"]


def test_older_weights_are_the_lags() -> None:
    found = why(rollouts(replace(QUIET, lag=Lag((0, 1), 5e-4, onset=250, every=6))))
    assert most(found) == "lag"
    assert found["parts"]["lag"] > 0.7


def test_other_tokens_are_the_compositions_and_no_reason_to_correct() -> None:
    drawn = other_tokens(270)
    found = why(drawn)
    assert most(found) == "composition"
    assert found["parts"]["composition"] > 0.85
    assert found["k3"][1] > 2 * found["k3"][0]
    concluded = diagnosed(drawn.frame())
    assert concluded["verdict"] in {"growing", "critical"}
    assert concluded["correction"]["advice"] != "enable"


def test_few_tokens_far_off_are_the_tails() -> None:
    drawn = rollouts(QUIET)
    far = (np.random.default_rng(1).random(drawn.t.shape) < 0.003) & (drawn.step >= 280)[:, None]
    found = why(replace(drawn, t=np.where(far, drawn.t - 2.0, drawn.t)))
    assert most(found) == "tail"


def test_what_did_not_grow_or_has_no_raw_tokens_has_no_words() -> None:
    assert diagnosed(rollouts(QUIET).frame())["why_it_grew"] is None
    assert why_it_grew(rollouts(replace(QUIET, raw=False)).frame()) is None
