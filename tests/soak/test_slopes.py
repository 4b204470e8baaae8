"""Intervals of a soak's slopes: as wide as samples that depend on each other make them, and no wider than a leak can be seen through."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest


@pytest.fixture(scope="module")
def slopes() -> ModuleType:
    spec = importlib.util.spec_from_file_location("soak_slopes", Path(__file__).with_name("slopes.py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["soak_slopes"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def memory(rng: np.random.Generator, size: int) -> np.ndarray:
    """MiB, every 10 s: noise that takes minutes to forget, as caches and buffers do."""
    values = np.zeros(size)
    for at in range(1, size):
        values[at] = 0.9 * values[at - 1] + rng.normal(0, 3)
    return 400 + values


HOURS = np.arange(600) / 360


def test_memory_that_only_wanders_is_flat_and_a_leak_is_not(slopes: ModuleType) -> None:
    rng = np.random.default_rng(3)
    trials = [memory(rng, len(HOURS)) for _ in range(100)]
    flat = [slopes.slope(HOURS, values).trend == "flat" for values in trials]
    leaks = [slopes.slope(HOURS, values + 60 * HOURS).trend == "grows" for values in trials]
    assert np.mean(flat) >= 0.85  # the textbook interval of a straight line holds 0 in a third of them
    assert np.mean(leaks) >= 0.9


def test_what_stands_still_is_flat_and_too_few_samples_are_nothing(slopes: ModuleType) -> None:
    assert slopes.slope(HOURS, np.full(len(HOURS), 5.0)).trend == "flat"
    assert slopes.slope(HOURS[:5], HOURS[:5]) is None
    gaps = np.where(np.arange(len(HOURS)) % 7, 400 + 60 * HOURS, np.nan)
    assert abs(slopes.slope(HOURS, gaps).per_hour - 60) < 1e-6
