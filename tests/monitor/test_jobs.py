"""Jobs: errors stay inside, are counted and told once; ticks are never lost."""

from __future__ import annotations

import logging
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, tzinfo
from typing import Any

import pytest
from apscheduler.schedulers import base
from processes import eventually

from logprobe.collectors.errors import StoreError
from logprobe.monitor.service import jobs
from logprobe.monitor.service.jobs import Job, Schedule


def failing(*errors: Exception):
    """Work that raises the given errors in turn, then succeeds."""
    left = list(errors)

    def work():
        if left:
            raise left.pop(0)
        return {"done": True}

    return work


def test_an_error_is_counted_raised_for_who_asked_and_the_next_run_tries_again() -> None:
    job = Job("toy", 1.0, failing(*[StoreError("disk full")] * 2))
    job.run()
    account = job.account()
    assert (account.runs, account.failures, account.last_error) == (1, 1, "StoreError: disk full")
    assert account.finished_at is not None
    with pytest.raises(StoreError, match="disk full"):
        job.run_now()
    assert job.run_now() == {"done": True}
    account = job.account()
    assert (account.runs, account.failures, account.last_error) == (3, 2, None)
    assert account.progress["done"] is True
    assert account.progress["seconds"] >= 0


def test_a_distinct_error_is_logged_once_of_as_many_as_are_remembered(caplog) -> None:
    many = [StoreError(f"number {number}") for number in range(jobs._MOST_ERRORS)]
    job = Job("toy", 1.0, failing(*[StoreError("disk full")] * 5, ValueError("other"), StoreError("disk full"), *many))
    with caplog.at_level(logging.ERROR, logger="logprobe.service"):
        for _ in range(7):
            job.run()
        assert [record.getMessage() for record in caplog.records] == [
            "job toy: StoreError: disk full; it will be retried",
            "job toy: ValueError: other; it will be retried",
        ]
        assert caplog.records[1].exc_info  # what nobody foresaw comes with a traceback
        for _ in many:
            job.run()
    assert f"number {jobs._MOST_ERRORS - 1};" in caplog.records[-1].getMessage()
    assert job.account().failures == 7 + len(many)


def test_a_tick_does_not_wait_for_a_run_under_way_but_who_asks_does() -> None:
    started, go_on = threading.Event(), threading.Event()
    order = []

    def work():
        started.set()
        assert go_on.wait(90)
        order.append("worked")
        return {}

    job = Job("toy", 1.0, work)
    first = threading.Thread(target=job.run)
    first.start()
    assert started.wait(90)
    job.run()
    assert job.account().runs == 0  # came back at once
    asked = threading.Thread(target=lambda: (job.run_now(), order.append("answered")))
    asked.start()
    time.sleep(0.05)
    assert order == []
    go_on.set()
    first.join(90)
    asked.join(90)
    assert order == ["worked", "worked", "answered"]
    assert job.account().runs == 2


def test_jobs_run_at_once_at_their_pace_never_twice_at_a_time_and_until_stopped() -> None:
    inside, overlaps, begun = threading.Lock(), [], threading.Event()

    def work():  # takes longer than its interval
        overlaps.append(not inside.acquire(blocking=False))
        begun.set()
        time.sleep(0.12)
        inside.release()
        return {}

    long, slow = Job("long", 0.03, work), Job("slow", 3600.0, failing())
    schedule = Schedule([long, slow])
    schedule.start()
    try:
        eventually(lambda: long.account().runs >= 5, "it runs again and again")
        begun.clear()
        assert begun.wait(90)
    finally:
        schedule.stop()  # waits for the run under way
    assert not inside.locked()
    assert not any(overlaps)
    assert slow.account().runs == 1
    after = long.account().runs
    time.sleep(0.2)
    assert long.account().runs == after  # stopped means stopped
    schedule.stop()  # twice is fine


def test_a_clock_that_is_set_back_stops_no_job(monkeypatch, caplog) -> None:
    back = timedelta(0)

    class Clock(datetime):
        """The system's clock, as the scheduler and we see it."""

        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Any:
            return datetime.now(tz) - back

    monkeypatch.setattr(base, "datetime", Clock)
    monkeypatch.setattr(jobs, "datetime", Clock)
    monkeypatch.setattr(jobs, "_WATCH_SECONDS", 0.1)
    job = Job("toy", 0.2, failing())
    schedule = Schedule([job], wall_clock=lambda: time.time() - back.total_seconds())
    schedule.start()
    try:
        eventually(lambda: job.account().runs >= 2, "the job runs")
        back = timedelta(hours=1)
        seen = job.account().runs
        eventually(lambda: job.account().runs >= seen + 4, "the job runs on, at its pace")
    finally:
        schedule.stop()
    told = re.findall(r"the clock was set back by (\d+) s; the jobs continue", caplog.text)
    # A pause of the machine counts, too.
    assert any(int(seconds) == pytest.approx(3600, abs=60) for seconds in told), told


def test_after_a_long_run_ticks_are_left_out() -> None:
    job = Job("toy", 1.0, lambda: {"sum": sum(range(100_000))}, rest=1e6, most_rest=3600.0)
    job.run()
    job.run()
    assert job.account().runs == 1
    job.run(wait=True)  # asked for
    job.run_now()
    assert job.account().runs == 3


@pytest.mark.parametrize(("segments", "runs"), [(0, 2), (1, 1)])
def test_after_a_run_that_did_much_ticks_are_left_out(segments: int, runs: int) -> None:
    job = Job(
        "toy", 1.0, lambda: {"segments": segments}, pause=lambda done: 3600.0 * done["segments"], most_rest=3600.0
    )
    job.run()
    job.run()
    assert job.account().runs == runs


def test_news_that_come_during_a_run_are_looked_at_by_another_one() -> None:
    under_way, go_on = threading.Event(), threading.Event()

    def look() -> dict[str, Any]:
        under_way.set()
        go_on.wait()
        return {}

    job = Job("job", 3600.0, look)
    schedule = Schedule([job])
    schedule.start()
    under_way.wait()
    schedule.soon(job)
    go_on.set()
    schedule.stop()
    assert job.account().runs == 2


def test_a_job_that_asks_for_another_one_while_all_are_stopped_ends_like_any_other() -> None:
    begun = threading.Event()
    other = Job("other", 3600.0, dict)

    def ask() -> dict[str, Any]:
        begun.set()
        schedule._stopped.wait()
        for _ in range(100):  # until `stop` has gone on to end the scheduler
            schedule.soon(other)
            time.sleep(0.01)
        return {}

    asking = Job("asking", 3600.0, ask)
    schedule = Schedule([asking, other])
    schedule.start()
    begun.wait()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(schedule.stop).result(60)
    assert asking.account().runs == 1
