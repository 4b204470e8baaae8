"""Thinning keeps what the eye would see."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from logprobe.app.dashboard.thinning import MAX_POINTS, floor_of, spread, thin, wants_log


def noisy(n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    return np.arange(n, dtype=np.float64), rng.normal(size=n)


def test_few_points_stay_as_they_are_and_many_keep_peaks_and_ends() -> None:
    x, y = noisy(MAX_POINTS)
    assert thin(x, y)[1] is y
    x, y = noisy(100_000)
    y[54_321], y[12_345] = 50.0, -50.0
    thin_x, thin_y = thin(x, y)
    assert len(thin_x) <= MAX_POINTS
    assert (thin_x[0], thin_x[-1]) == (0, 99_999)
    assert {54_321.0, 12_345.0} <= set(thin_x)
    assert set(thin_y) <= set(y)  # chosen, never averaged


@settings(max_examples=30, deadline=None)
@given(st.integers(2100, 6000), st.lists(st.tuples(st.integers(0, 5999), st.integers(1, 400)), max_size=8))
def test_a_gap_stays_a_gap(n: int, gaps: list[tuple[int, int]]) -> None:
    x, y = noisy(n)
    for start, length in gaps:
        y[start : start + length] = np.nan
    thin_x, thin_y = thin(x, y)
    assert len(thin_x) <= MAX_POINTS
    assert (np.diff(thin_x) > 0).all()
    known = np.flatnonzero(np.isfinite(thin_y))
    for before, after in itertools.pairwise(known):
        hidden = np.isnan(y[int(thin_x[before]) : int(thin_x[after]) + 1]).any()
        assert hidden == (after > before + 1), "a line is drawn over a gap, or broken where there is none"


def test_a_few_tiny_values_do_not_press_the_others_against_the_end() -> None:
    assert floor_of(np.array([1e-9, *[1e-3] * 99])) > 1e-5
    assert floor_of(np.array([1e-4, *[1e-3] * 99])) == 1e-4
    assert floor_of(np.array([0.0, np.nan])) == 0.0


def test_a_sparkline_ends_with_the_newest_value_of_the_whole_run() -> None:
    values = spread(np.arange(1000.0), 60)
    assert (len(values), values[0], values[-1]) == (60, 0, 999)
    assert wants_log(np.array([1e-4, 1e-1]))
    assert not wants_log(np.array([1e-4, 1e-3]))
    assert not wants_log(np.array([0.0, 1e-1]))
