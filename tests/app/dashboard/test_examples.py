"""Examples in docstrings of comparison, parity and reports say what is so."""

from __future__ import annotations

import doctest
from importlib import import_module

import pytest

MODULES = (
    "logprobe.app.dashboard.elements.links", "logprobe.app.report.chart",
    "logprobe.monitor.compare.comparison", "logprobe.monitor.compare.level", "logprobe.monitor.diagnosis.expected",
    "logprobe.monitor.diagnosis.parity.recipe",
)  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    found = doctest.testmod(import_module(name))
    assert found.attempted > 0
    assert found.failed == 0
