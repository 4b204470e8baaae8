"""`mark(version)`: a record, and nothing else."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from spool_contents import rows

from logprobe.collectors import Recorder
from logprobe.collectors.clock import machine
from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.weights import mark


def test_a_mark_is_a_record_of_the_moment_it_was_made(home: Path) -> None:
    before, began = time.time(), time.monotonic()
    with Recorder(home, "r") as recorder:
        assert mark(7.0, step=3, replica="east", recorder=recorder), "its recorder has a home"
    [row] = rows(home, "weights")
    assert (row["version"], row["step"], row["source"], row["replica"]) == ("7", 3, "trainer", "east")
    assert (row["machine"], row["adapter"]) == (machine(), None)
    assert before - 1e-5 <= row["applied_at"].timestamp() <= time.time() + 1e-5
    assert began - 1e-5 <= row["moment"] / 1e6 <= time.monotonic() + 1e-5
    assert sorted(path.name for path in home.iterdir()) == ["spool"], "nothing else travels"


def test_mark_takes_home_and_run_from_the_environment(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGPROBE_HOME", str(home))
    monkeypatch.setenv("LOGPROBE_RUN", "r")
    at = datetime(2026, 1, 2, tzinfo=UTC)
    recorder = Recorder(home, "r", component="weights")
    assert mark("v1", applied_at=at, recorder=recorder)
    assert mark("v2", applied_at=at.timestamp() + 1, recorder=recorder)
    assert recorder.close()
    first, second = rows(home, "weights")
    assert (first["version"], first["applied_at"], second["applied_at"]) == ("v1", at, at + timedelta(seconds=1))
    assert abs(second["moment"] - first["moment"] - 1_000_000) < 1000, "both clocks run alike"


@pytest.mark.parametrize("version", [None, ""])
def test_a_mark_needs_a_version(home: Path, version: str | None) -> None:
    with pytest.raises(ConfigurationError, match="version"):
        mark(version, home=home, run="r")


def test_a_bad_argument_of_a_mark_costs_only_the_mark(home: Path) -> None:
    with Recorder(home, "r") as recorder:
        assert not mark(1, applied_at="now", recorder=recorder)
        assert "Recorder.mark" in recorder.health["last_error"]


def test_a_mark_needs_a_home() -> None:
    with pytest.raises(ConfigurationError, match="LOGPROBE_HOME"):
        mark(1)
