"""Judged growth keeps quiet on healthy runs and is told on those that grow: a sample here, all of it in tests/RESULTS.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from alert_delays import ONSET, RUNS, fired, growing
from growth_runs import HEALTHY


@pytest.mark.parametrize("name", HEALTHY)
def test_no_critical_alert_on_a_healthy_run(name: str) -> None:
    assert "critical" not in fired(HEALTHY[name], seed=7, steps=500)


def test_growth_is_told_after_it_began() -> None:
    first = growing(30, seed=0)
    assert ONSET < first["warning"] <= first["critical"] < ONSET + 4 * 30


def test_what_was_measured_on_all_runs_is_within_bounds(repository: Path) -> None:
    page = " ".join((repository / "tests" / "RESULTS.md").read_text(encoding="utf-8").split())
    found = re.search(r"False alarms on (\d+) [^|]*: ([\d.]+)% with a warning, ([\d.]+)% with a critical", page)
    assert found is not None, "run tests/benchmarks/alert_delays.py"
    runs, warning, critical = found.groups()
    assert int(runs) == RUNS
    assert float(warning) <= 5.0
    assert float(critical) <= 0.5
