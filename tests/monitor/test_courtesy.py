"""What matters more goes first: others rest between two statements while it is under way, and never inside a transaction."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from processes import eventually
from segments import Clock

from logprobe.monitor.store import courtesy as courtesy_module
from logprobe.monitor.store.courtesy import Courtesy, Rank
from logprobe.monitor.store.store import Store

LONG = 1e6  # seconds of work: it is paid for by the longest rest there is
LONGEST = 600.0


@pytest.fixture(autouse=True)
def _long_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rest that nothing ends is longer than any machine is slow."""
    monkeypatch.setattr(courtesy_module, "_LONGEST", LONGEST)


@contextmanager
def under_way(courtesy: Courtesy, rank: Rank) -> Iterator[None]:
    begun, ended = threading.Event(), threading.Event()

    def work() -> None:
        with courtesy.work(rank):
            begun.set()
            ended.wait()

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(work)
        begun.wait()
        try:
            yield
        finally:
            ended.set()
        done.result()


def rested(courtesy: Courtesy, clock: Clock, seconds: float, rank: Rank = Rank.OTHER) -> float:
    """How long work of so many seconds rests."""
    with courtesy.work(rank):
        clock.seconds += seconds
        begun = time.monotonic()
        courtesy.rest()
        return time.monotonic() - begun


@pytest.mark.parametrize(("rank", "above"), [(Rank.OTHER, Rank.JUDGEMENT), (Rank.JUDGEMENT, Rank.DECISION)])
def test_work_rests_nine_times_as_long_as_it_took_while_what_matters_more_is_under_way(rank: Rank, above: Rank) -> None:
    clock = Clock()
    courtesy = Courtesy(clock)
    with under_way(courtesy, above):
        assert rested(courtesy, clock, 0.02, rank) >= 0.17


def test_the_rest_is_over_with_the_work_that_matters_more() -> None:
    clock = Clock()
    courtesy = Courtesy(clock)
    with ThreadPoolExecutor(1) as pool, under_way(courtesy, Rank.JUDGEMENT):
        resting = pool.submit(rested, courtesy, clock, LONG)
        eventually(lambda: len(courtesy._changed._waiters) == 1, "it rests")
        assert not resting.done()
    assert resting.result(0) < LONGEST
    assert rested(courtesy, clock, LONG) < LONGEST  # nothing else is under way any more


def test_nobody_rests_for_work_that_matters_no_more_and_whoever_asks_never_does() -> None:
    clock = Clock()
    courtesy = Courtesy(clock)
    with under_way(courtesy, Rank.JUDGEMENT):
        begun = time.monotonic()
        courtesy.rest()  # a read of the dashboard, in a thread that has no job
        for rank in (Rank.DECISION, Rank.JUDGEMENT):
            with courtesy.work(rank), courtesy.work(Rank.OTHER):  # a job that another one runs
                clock.seconds += LONG
                courtesy.rest()
        assert time.monotonic() - begun < LONGEST


def test_a_store_rests_after_its_statements_and_not_inside_a_transaction(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    rests: list[bool] = []
    monkeypatch.setattr(store.courtesy, "rest", lambda: rests.append(store._local.writing))
    with store.transaction() as cursor:
        store.read("raw_files")
        cursor.execute("SELECT 1")
        assert not rests
    store.read("raw_files")
    assert rests == [False, False]
