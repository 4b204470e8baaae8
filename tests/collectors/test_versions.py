"""Weight versions by time, as an engine knows them."""

from __future__ import annotations

import doctest
import math
from pathlib import Path

import pytest

from logprobe.collectors import versions
from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.versions import Timeline, home_and_run, spans_of


def test_examples() -> None:
    assert doctest.testmod(versions).failed == 0


def timeline_of(*changes: tuple[float, str | None]) -> Timeline:
    timeline = Timeline()
    for time, version in changes:
        timeline.set(time, version)
    return timeline


@pytest.mark.parametrize(
    ("changes", "times", "expected"),
    [
        ([], [1.0, 2.0], [(0, 2, None)]),
        ([(5.0, "1")], [], []),
        ([(5.0, "1")], [1.0, 2.0], [(0, 2, None)]),
        ([(5.0, "1")], [5.0, 6.0], [(0, 2, "1")]),
        ([(5.0, "1")], [4.0, 5.0, 6.0], [(0, 1, None), (1, 3, "1")]),
        ([(1.0, "1"), (5.0, "2")], [2.0, 3.0, 6.0], [(0, 2, "1"), (2, 3, "2")]),
        # two updates between two steps: only the last one sampled anything
        ([(1.0, "1"), (5.0, "2"), (5.5, "3")], [2.0, 6.0], [(0, 1, "1"), (1, 2, "3")]),
        # an unlabelled load, then its label before the next step
        ([(1.0, "1"), (5.0, None), (5.5, "2")], [2.0, 6.0], [(0, 1, "1"), (1, 2, "2")]),
        # and without a label: unknown, not the old version
        ([(1.0, "1"), (5.0, None)], [2.0, 6.0, 7.0], [(0, 1, "1"), (1, 3, None)]),
        # told the same twice: one span
        ([(1.0, "1"), (5.0, "1")], [2.0, 6.0], [(0, 2, "1")]),
        # what a worker says may come late and out of order
        ([(5.0, "2"), (1.0, "1")], [2.0, 6.0], [(0, 1, "1"), (1, 2, "2")]),
        # of two changes at one moment the later call counts
        ([(5.0, None), (5.0, "2")], [5.0], [(0, 1, "2")]),
    ],
)
def test_spans(changes: list[tuple[float, str | None]], times: list[float], expected: list[versions.Span]) -> None:
    assert spans_of(timeline_of(*changes).runs(times)) == expected


def test_timeline_is_bounded() -> None:
    timeline = timeline_of(*((float(n), str(n)) for n in range(5000)))
    assert spans_of(timeline.runs([0.5, 4999.0])) == [(0, 1, None), (1, 2, "4999")]
    assert [run.at for run in timeline.runs([0.5, 4999.0])] == [math.inf, 4999.0], "nor can a mark say what it was"


def test_home_and_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="LOGPROBE_HOME"):
        home_and_run()
    monkeypatch.setenv("LOGPROBE_HOME", str(tmp_path))
    with pytest.raises(ConfigurationError, match="LOGPROBE_RUN"):
        home_and_run()
    monkeypatch.setenv("LOGPROBE_RUN", "r")
    assert home_and_run() == (tmp_path, "r")
    assert home_and_run("/elsewhere", "s") == (Path("/elsewhere"), "s")
