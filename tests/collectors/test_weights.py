"""`mark(version)`: what engines and the store learn of it."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from spool_contents import health_events, rows

from logprobe.collectors import Recorder
from logprobe.collectors.clock import machine
from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.versions import MarkFile
from logprobe.collectors.weights import mark


def test_mark_is_for_engines_and_for_the_store(home: Path) -> None:
    before = time.time()
    with Recorder(home, "r") as recorder:
        assert mark(7, step=3, replica="east", recorder=recorder, home=home, run="r")
    [seen] = MarkFile(home, "r").read_new()
    assert (seen.version, seen.step, seen.replica) == ("7", 3, "east")
    assert before <= seen.applied_at <= time.time()
    [row] = rows(home, "weights")
    assert (row["version"], row["step"], row["source"], row["replica"]) == ("7", 3, "trainer", "east")
    assert abs(row["applied_at"].timestamp() - seen.applied_at) < 1e-5


def test_mark_takes_home_and_run_from_the_environment(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGPROBE_HOME", str(home))
    monkeypatch.setenv("LOGPROBE_RUN", "r")
    at = datetime(2026, 1, 2, tzinfo=UTC)
    assert mark("v1", applied_at=at)
    assert mark("v2", applied_at=at.timestamp() + 1)
    first, second = MarkFile(home, "r").read_new()
    assert (first.version, first.applied_at, second.applied_at) == ("v1", at.timestamp(), at.timestamp() + 1)
    assert first.machine == machine()
    assert second.moment is not None
    assert first.moment is not None
    assert abs(second.moment - first.moment - 1) < 1e-3, "both clocks run alike"


@pytest.mark.parametrize("version", [None, ""])
def test_a_mark_needs_a_version(home: Path, version: str | None) -> None:
    with pytest.raises(ConfigurationError, match="version"):
        mark(version, home=home, run="r")


def test_a_mark_needs_a_home() -> None:
    with pytest.raises(ConfigurationError, match="LOGPROBE_HOME"):
        mark(1)


def test_an_unwritable_home_is_said_and_never_raised(home: Path, tmp_path: Path) -> None:
    (home / "versions").mkdir(parents=True)
    (home / "versions" / "r.jsonl").mkdir()  # nothing can be appended to a directory
    with Recorder(home, "r") as recorder:
        assert not mark(1, recorder=recorder, home=home, run="r")
    [problem] = health_events(home)["mark_failed"]
    assert problem["severity"] == "warning"
    assert "weight version 1" in problem["message"]
