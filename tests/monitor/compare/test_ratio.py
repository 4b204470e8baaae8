"""Ratio to the baseline, block by block."""

from __future__ import annotations

import numpy as np
import pytest

from logprobe.monitor.compare.ratio import ratios
from logprobe.monitor.judging.parity.recipe import Band
from logprobe.monitor.judging.parity.trajectories import Trend, follow

FACTOR = Band(metric="backend.k3_kl", label="K3", factor=2, floor=1e-5)
FRACTION = Band(metric="reward", label="reward", fraction=0.1)


def trend(level: float, steps: int = 80) -> Trend:
    noise = np.random.default_rng(1).normal(0, 0.01, steps)
    return {step: level * float(np.exp(value)) for step, value in enumerate(noise)}


def test_a_run_that_tracks_lies_within_its_band_and_one_that_leaves_does_not() -> None:
    for band in (FACTOR, FRACTION):
        same = ratios(follow(band, trend(0.5), trend(0.5)))
        assert all(ratio.low <= ratio.value <= ratio.high for ratio in same)
        above = ratios(follow(band, trend(2.0), trend(0.5)))
        assert [round(ratio.value) for ratio in above] == [4] * len(above)
        assert all(ratio.value > ratio.high for ratio in above)


def test_what_is_below_the_floor_is_drawn_as_it_is_compared() -> None:
    both = ratios(follow(FACTOR, trend(1e-12), trend(3e-12)))
    assert {ratio.value for ratio in both} == {1.0}
    assert all(ratio.low == pytest.approx(0.5) and ratio.high == pytest.approx(2) for ratio in both)
    above = ratios(follow(FACTOR, trend(1e-2), trend(3e-12)))
    assert all(ratio.value == pytest.approx(1e3, rel=0.05) for ratio in above)


def test_a_negative_baseline_keeps_the_ends_in_order_and_one_of_zero_has_no_ratio() -> None:
    assert all(ratio.low < ratio.high for ratio in ratios(follow(FRACTION, trend(-0.5), trend(-0.5))))
    zero = dict.fromkeys(range(80), 0.0)
    assert ratios(follow(FRACTION, zero, zero)) == ()


def test_blocks_stand_at_their_middles_in_the_axis_unit() -> None:
    found = follow(FRACTION, trend(1.0), trend(1.0))
    at = [ratio.at for ratio in ratios(found, width=100.0)]
    assert at[0] == pytest.approx(100 * (found.blocks[0].first_step + found.blocks[0].last_step) / 2)
