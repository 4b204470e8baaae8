"""What is removed by its age waits until the clock has gone without a step for an hour."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

from processes import record

from logprobe.collectors.clock import Time
from logprobe.monitor.home import Home
from logprobe.monitor.live.ingest import Ingester
from logprobe.monitor.service.pipeline import Pipeline, SteadyClock
from logprobe.monitor.store.retention import RetentionPolicy
from logprobe.monitor.store.store import Store


class Clocks(Time):
    """The two of them; time passes for both, and a step is one of the wall clock's."""

    def __init__(self) -> None:
        self.seconds = [1.7e9, 100.0]

    def wall(self) -> float:
        return self.seconds[0]

    def monotonic(self) -> float:
        return self.seconds[1]

    def passes(self, seconds: float) -> None:
        self.seconds = [each + seconds for each in self.seconds]


def test_a_step_in_either_direction_starts_the_hour_again() -> None:
    clocks = Clocks()
    clock = SteadyClock(clocks)
    assert not clock.is_steady()
    clocks.passes(3601)
    assert clock.is_steady()
    for step in (86_400 * 365.0, -3_600.0):
        clocks.seconds[0] += step
        assert not clock.is_steady()
        clocks.passes(3599)
        assert not clock.is_steady()
        clocks.passes(2)
        assert clock.is_steady()


def test_a_clock_that_is_years_ahead_costs_no_raw_file(home: Path) -> None:
    """As after a reboot with a broken clock: the files look old at once."""
    record(home, steps=range(2))
    with Store.open(Home(home)) as store:
        Ingester(store).run_once()
        store.archive.merge()
        with store.transaction() as cursor:
            cursor.execute("UPDATE raw_files SET created_at = ?", [datetime.now(UTC) - timedelta(days=400)])
        pipeline = Pipeline(store, threading.Event(), policy=RetentionPolicy(max_age=timedelta(days=30)))
        assert pipeline.retain()["removed_files"] == 0
        pipeline.clock._since -= 3601
        assert pipeline.retain()["removed_files"] == 1
