"""What changes over the steps without being a fault, and what differs within a step: no scapegoats, and the lead explains K3."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from zoo.rollouts import Fault, Lag, Noise, Rollouts, Run, Trend, rollouts

from logprobe.monitor.judging.document import DiagnosisDocument, leading
from logprobe.monitor.judging.explain import diagnosed
from logprobe.monitor.judging.setup import Setup

DENSE = Setup(engines=({"dtype": "bfloat16", "architectures": ["Qwen3ForCausalLM"]},))
NOISE = Noise(8e-4, unrest=0.15)


def times(run: Run, factor: np.ndarray) -> Rollouts:
    """The run with K3 so many times as large in each step [steps]: other tokens, not other weights."""
    drawn = rollouts(run)
    return replace(
        drawn, t=(drawn.r + (drawn.t - drawn.r) * np.sqrt(factor[drawn.step])[:, None]).astype(drawn.t.dtype)
    )


def causes(found: DiagnosisDocument) -> list[str]:
    return [finding["cause"] for finding in found["findings"]]


def only(first: int, last: int, factor: float, steps: int = 400) -> np.ndarray:
    return np.where((np.arange(steps) >= first) & (np.arange(steps) < last), factor, 1.0)


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize(
    "factor",
    [only(300, 308, 30.0), only(250, 330, 6.0), only(5, 6, 1e-3) * only(0, 1, 1e-3)],
    ids=["a spike that ended", "a hump that ended", "two quiet steps"],
)
def test_what_has_ended_and_odd_steps_are_no_missed_updates(factor: np.ndarray, raw: bool) -> None:
    for seed in (1, 2):
        found = diagnosed(times(Run(seed=seed, noise=NOISE, setup=DENSE, raw=raw), factor).frame())
        assert "missed_weight_sync" not in causes(found)
        assert (found["verdict"], found["layer"], found["correction"]["advice"]) == ("healthy", "none", "not_needed")


@pytest.mark.parametrize("since", [0, 250, 380])
def test_cached_requests_at_394_times_the_others_get_their_share(since: int) -> None:
    stale = Fault("stale_prefix_cache", 8e-4 * 393, since)
    found = diagnosed(rollouts(Run(noise=NOISE, fault=stale, setup=DENSE, raw=False)).frame())
    assert (causes(found)[0], found["correction"]["advice"]) == ("stale_prefix_cache", "do_not_enable")
    assert found["findings"][0]["share"]["now"] is not None
    assert found["findings"][0]["share"]["now"] > 0.9
    assert "missed_weight_sync" not in causes(found)


def test_a_contrast_comes_before_a_change_that_is_larger() -> None:
    """Updates stop arriving at 300, and cached requests have been stale all along: the cache keeps its share."""
    drawn = rollouts(Run(noise=NOISE, fault=Fault("stale_prefix_cache", 8e-3, 0), setup=DENSE, raw=False))
    both = replace(drawn, t=_left_behind(drawn, 300))
    found = diagnosed(both.frame())
    assert "stale_prefix_cache" in causes(found)
    assert next(f["share"]["now"] for f in found["findings"] if f["cause"] == "stale_prefix_cache") > 0.01


def _left_behind(drawn: Rollouts, since: int) -> np.ndarray:
    missed = np.maximum(drawn.step - since + 1, 0)
    noise = np.random.default_rng(3).standard_normal(drawn.t.shape) * np.sqrt(2e-3 * missed)[:, None]
    moved: np.ndarray = np.minimum(drawn.t + noise * (drawn.t < -0.3), 0).astype(drawn.t.dtype)
    return moved


def test_the_lag_leads_and_growth_without_a_share_is_no_cause() -> None:
    found = diagnosed(rollouts(Run(noise=NOISE, lag=Lag((0, 1), 5e-4, onset=250), setup=DENSE)).frame())
    assert causes(found)[0] == "staleness"
    assert "late_growth" not in causes(found)
    assert (found["layer"], found["correction"]["advice"]) == ("objective", "enable")


def test_growth_at_a_lag_that_stays_is_not_the_lags() -> None:
    """Tokens of one version ago, all along; what grows is how far a version is away."""
    lagging = Run(steps=380, noise=Noise(1e-3), trend=Trend(250, 30), lag=Lag((0, 1), 3e-4), setup=DENSE)
    found = diagnosed(rollouts(lagging).frame())
    assert causes(found)[0] == "late_growth"
    assert (found["findings"][0]["share"]["now"] or 0) > 0.5


@pytest.mark.parametrize("size", [1.2, 1.5])
@pytest.mark.parametrize("lag", [3e-4, 3e-3])
def test_a_temperature_that_comes_later_leads_before_the_lag_that_was_there(size: float, lag: float) -> None:
    """One version of lag from the first step on: what it made at first is all that it makes once the trainer's temperature is off."""
    wrong = Fault("temperature_mismatch", size, since=250)
    found = diagnosed(
        rollouts(Run(noise=Noise(8e-4, unrest=0.15), lag=Lag((1, 1), lag), fault=wrong, setup=DENSE)).frame()
    )
    assert causes(found)[0] == "temperature_mismatch"
    assert {finding["cause"]: finding["share"]["now"] or 0 for finding in found["findings"]}["staleness"] < 0.3
    assert found["correction"]["advice"] == "do_not_enable"


def test_findings_of_one_urgency_are_ranked_by_share_and_the_lead_explains() -> None:
    """Growth with a small offset beside: what explains K3 leads, what must be ruled out first is next, no fix is a vetoed one."""
    drawn = rollouts(Run(steps=380, noise=Noise(1e-3), trend=Trend(250, 30), setup=DENSE))
    offset = replace(drawn, r=np.minimum(drawn.r - np.float32(0.02), 0))
    found = diagnosed(offset.frame())
    assert found["correction"]["advice"] == "do_not_enable"
    ranks = [(f["confidence"] < 0.5, ("act", "watch", "informational").index(f["urgency"])) for f in found["findings"]]
    assert ranks == sorted(ranks)
    for urgency in ("act", "watch", "informational"):
        shares = [
            f["share"]["now"]
            for f in found["findings"]
            if f["urgency"] == urgency and f["share"]["now"] is not None and f["confidence"] >= 0.5
        ]
        assert shares == sorted(shares, reverse=True)
    assert leading(found) is found["findings"][0]
    assert found["findings"][0]["layer"] == "semantic"


@pytest.mark.parametrize("doubling", [600, 1000])
def test_a_trend_over_1500_steps_is_information(doubling: int) -> None:
    """It is told, and never an alarm or a reason to correct, neither on the way nor at the end."""
    drawn = rollouts(Run(steps=1800, noise=Noise(3e-4), trend=Trend(250, doubling)))
    seen = [diagnosed(drawn.frame(step)) for step in (400, 800, 1200, 1799)]
    assert {found["verdict"] for found in seen} == {"healthy"}
    assert {found["correction"]["advice"] for found in seen} == {"not_needed"}
    told = next(finding for finding in seen[-1]["findings"] if finding["cause"] == "late_growth")
    assert told["urgency"] == "informational"
