"""What the Mismatch page reads of a real store, how often, and what it keeps."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from recorded_home import ingest_recorded
from segments import Clock

from logprobe.app.dashboard.data.mismatch import LAG, MOST_SEQUENCES, MismatchData
from logprobe.app.dashboard.data.series import CatalogSeries, RunSeries
from logprobe.app.dashboard.data.stale_cache import StaleCache
from logprobe.app.dashboard.data.visible import visible
from logprobe.collectors.errors import ServiceUnavailableError
from logprobe.monitor.analysis.profile_job import ProfileJob
from logprobe.monitor.home import Home
from logprobe.monitor.metrics.catalog import KEYS
from logprobe.monitor.store.store import Store

RUN = "v1-initial"


class Counting:
    """A source that counts what is read from it, and can be away."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.reads: list[str] = []
        self.away = False

    def read(self, name: str, /, **params: Any) -> pa.Table:
        if self.away:
            raise ServiceUnavailableError("away")
        self.reads.append(name)
        return self.store.read(name, **params)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A recorded run of 40 steps with profiles."""
    home = tmp_path_factory.mktemp("mismatch") / "home"
    ingest_recorded(home, RUN, before_step=40)
    with Store.open(Home(home)) as store:
        ProfileJob(store).run_once()
        yield store


@pytest.fixture
def source(stored: Store) -> Counting:
    return Counting(stored)


def revision(source: Counting) -> int:
    (row,) = source.store.read("app_runs").to_pylist()
    return int(row["revision"])


def opened(source: Counting) -> tuple[MismatchData, RunSeries]:
    """What a page starts with."""
    return MismatchData(source, StaleCache(), StaleCache()), CatalogSeries(source).of(RUN, revision(source))


# --- The stale cache ---


def test_a_value_is_computed_again_only_after_a_rest_that_grows_with_its_cost() -> None:
    clock, made = Clock(), []
    values = StaleCache(clock=clock)

    def compute() -> int:
        clock.seconds += 1.0
        made.append(len(made))
        return made[-1]

    def look(state: int) -> tuple[int, bool]:
        found = values.get("k", state, compute)
        return found.value, found.old

    assert look(1) == (0, False)
    assert look(1) == (0, False)
    clock.seconds += 19.0
    assert look(2) == (0, True)  # twenty times its second have not passed: the old one, and it says so
    clock.seconds += 1.0
    assert look(2) == (1, False)
    assert values.get("another", 2, compute).value == 2  # what is asked for first is computed at once


def test_a_failed_computation_keeps_what_there_was() -> None:
    clock = Clock()
    values = StaleCache(clock=clock)
    values.get("k", 1, lambda: "first")
    clock.seconds = 1e6

    def fail() -> str:
        raise ServiceUnavailableError("away")

    with pytest.raises(ServiceUnavailableError):
        values.get("k", 2, fail)
    assert values.get("k", 1, fail).value == "first"


def test_an_old_value_does_not_wait_for_the_new_one() -> None:
    clock = Clock()
    values = StaleCache(clock=clock)
    values.get("k", 1, lambda: "old")
    clock.seconds = 1e6
    begun, go_on = threading.Event(), threading.Event()

    def slowly() -> str:
        begun.set()
        assert go_on.wait(60)
        return "new"

    found: list[str] = []
    other = threading.Thread(target=lambda: found.append(values.get("k", 2, slowly).value))
    other.start()
    assert begun.wait(60)
    meanwhile = values.get("k", 2, slowly)
    assert (meanwhile.value, meanwhile.old) == ("old", True)
    go_on.set()
    other.join(60)
    assert found == ["new"]
    assert values.get("k", 2, slowly).value == "new"


def test_what_was_asked_for_longest_ago_is_forgotten_first() -> None:
    values = StaleCache(2)
    for key in ("a", "b", "a", "c"):
        values.get(key, 1, lambda key=key: key)
    assert values.get("a", 1, lambda: "rebuilt").value == "a"
    assert values.get("b", 1, lambda: "rebuilt").value == "rebuilt"


# --- Metrics ---


def test_columns_of_the_whole_catalog_are_read_once_per_revision(source: Counting) -> None:
    series, newest = CatalogSeries(source), revision(source)
    found = series.of(RUN, newest)
    assert source.reads == ["app_steps", "app_points"]
    assert series.of(RUN, newest) is found
    assert source.reads == ["app_steps", "app_points"]
    stored = source.store.query("SELECT DISTINCT metric FROM step_metrics WHERE value IS NOT NULL")[
        "metric"
    ].to_pylist()
    assert {key for key in KEYS if found.measured(key)} == set(stored)


# --- Density, profiles, slices ---


def test_each_panel_reads_once_until_its_input_changes(source: Counting) -> None:
    data, series = opened(source)
    seen = visible(None, series.steps)
    for _ in range(3):
        data.density(series, "backend", seen, "state")
        data.side(series, "backend", "in view", seen, "state")
        data.sliced(series, "backend", "environment", seen)
    assert source.reads.count("app_mismatch_density") == 1
    assert source.reads.count("profile_read") == 3  # place, turn, probability
    data.sliced(series, "update", "length", seen)
    assert source.reads.count("slice_sequences") == 1  # for the profile by lag, all dimensions and all pairs
    data.density(series, "backend", visible("0:9", series.steps), "state")
    assert source.reads.count("app_mismatch_density") == 2


def test_a_density_holds_every_token_in_view(source: Counting) -> None:
    data, series = opened(source)
    seen = visible("10:19", series.steps)
    grid = data.density(series, "backend", seen, "state").value
    assert grid.tokens_CB.sum() == series.tokens[10:20].sum()


def test_slices_name_their_dimension_and_what_they_stand_on(source: Counting) -> None:
    data, series = opened(source)
    seen = visible("10:19", series.steps)
    sliced = data.sliced(series, "backend", "tag:environment", seen).value
    assert sliced.dimension == "tag:environment"
    assert (sliced.steps.first, sliced.steps.last, sliced.sequences) == (10, 19, 640)
    assert sliced.sequences == sum(sliced.table["sequences"].to_pylist()) <= MOST_SEQUENCES
    assert data.sliced(series, "backend", "tag:nothing of the kind", seen).value.dimension == LAG


def test_a_window_of_too_many_sequences_is_its_newest_steps(source: Counting) -> None:
    bounds = {"run": RUN, "first": 0, "last": 39}
    assert source.read("app_mismatch_window", most=200, **bounds).to_pylist() == [
        {"first": 37, "last": 39, "steps": 3, "sequences": 192}
    ]
    (one,) = source.read("app_mismatch_window", most=1, **bounds).to_pylist()
    assert (one["first"], one["steps"]) == (39, 1)  # a step is never cut


def test_the_lag_profile_has_the_numbers_of_the_slices(source: Counting) -> None:
    data, series = opened(source)
    seen = visible(None, series.steps)
    by_lag = data.side(series, "backend", "in view", seen, "state").value.buckets[LAG].to_pylist()
    table = data.sliced(series, "backend", LAG, seen).value.table.to_pylist()
    assert [(row["label"], row["tokens"], row["k3_kl"]) for row in by_lag] == [
        (row["slice"], row["tokens"], row["backend.k3_kl"]) for row in table
    ]
    assert [row["log_ratio_mean"] for row in by_lag] == [-row["backend.kl"] for row in table]
