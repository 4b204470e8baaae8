"""Thinning keeps what the eye would see."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logprobe.app.dashboard.charts.downsample import MAX_POINTS, envelope, thin


def noisy(n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    return np.arange(n, dtype=np.float64), rng.normal(size=n)


def test_few_points_stay_as_they_are() -> None:
    x, y = noisy(MAX_POINTS)
    thin_x, thin_y = thin(x, y)
    assert thin_x is x
    assert thin_y is y
    assert envelope(x, y) is None


def test_many_points_keep_peaks_and_ends() -> None:
    x, y = noisy(100_000)
    y[54_321] = 50.0
    y[12_345] = -50.0
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


def test_nothing_but_gaps() -> None:
    x = np.arange(5000, dtype=np.float64)
    thin_x, _ = thin(x, np.full(5000, np.nan))
    assert len(thin_x) == 0
    band = envelope(x, np.full(5000, np.nan))
    assert band is not None
    assert np.isnan(band.low).all()


@pytest.mark.parametrize("n", [2001, 2500, 100_000])
def test_the_envelope_holds_every_value(n: int) -> None:
    x, y = noisy(n)
    y[100:120] = np.nan
    band = envelope(x, y)
    assert band is not None
    assert np.nanmin(band.low) == np.nanmin(y)
    assert np.nanmax(band.high) == np.nanmax(y)
    assert (np.diff(band.x) > 0).all()
    assert len(band.x) <= MAX_POINTS
