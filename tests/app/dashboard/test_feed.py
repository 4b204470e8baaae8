"""The feed reads a real store through its named SQL, remembers what it read, and says how old that is."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from recorded_home import take_in
from segments import RUN, records, sampled, trained
from synthetic_run import SEQUENCES, SyntheticRun

from logprobe.app.dashboard.data import feed
from logprobe.app.dashboard.data.feed import Feed, Snapshot
from logprobe.app.dashboard.elements.bar import bar_of, ingest_lag
from logprobe.collectors.errors import ServiceUnavailableError
from logprobe.collectors.recorder.recorder import Recorder
from logprobe.collectors.spool.segments import SpoolWriter
from logprobe.monitor.home import Home
from logprobe.monitor.liveness import State
from logprobe.monitor.reader import Reader, connect
from logprobe.monitor.store.store import Store


class StoreReader(Reader):
    """Reads the very store that the test writes: no second process, the same SQL."""

    source = "file"

    def __init__(self, store: Store) -> None:
        self._store = store
        self.away = False
        self.reads: list[str] = []

    def query(self, sql: str, params: Any = None) -> pa.Table:
        raise NotImplementedError("the app has no SQL of its own")

    def read(self, name: str, **params: Any) -> pa.Table:
        self.status()
        self.reads.append(name)
        return self._store.read(name, **params)

    def status(self) -> dict[str, Any]:
        if self.away:
            raise ServiceUnavailableError("nobody answers")
        return {"running": True, "jobs": {"ingest": {"progress": {"lag_seconds": 0.25}}}}

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def _no_sharing_of_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "_FRESH_SECONDS", 0.0)
    monkeypatch.setattr(feed, "_RATES_SECONDS", 3600.0)  # on no machine is a test that slow


def test_a_run_grows_and_only_what_changed_is_read(home: Path, store: Store) -> None:
    reader = StoreReader(store)
    feed = Feed(lambda: reader)
    assert feed.snapshot(None).runs == ()

    with Recorder(home, "grows") as recorder:
        run = SyntheticRun(recorder)
        run.record(5)
        take_in(store)
        first = feed.snapshot("grows")
        assert first.view is not None
        assert first.problem is None
        assert first.view.series.steps.tolist() == [0, 1, 2, 3, 4]

        reader.reads.clear()
        unchanged = feed.snapshot("grows")
        assert reader.reads == ["app_runs"]
        assert unchanged.view is first.view

        run.record(3)
        take_in(store)
        grown = feed.snapshot("grows")
    assert grown.view is not None
    series = grown.view.series
    assert series.steps.tolist() == list(range(8))
    assert series.revision > first.view.series.revision
    assert (series.tokens == SEQUENCES * 24).all()
    for metric in ("backend.k3_kl", "update.k3_kl", "total.k3_kl", "backend.coverage", "entropy", "reward"):
        assert np.isfinite(series.column(metric)).all(), metric
    np.testing.assert_allclose(series.column("entropy"), 2.0 * 0.99 ** np.arange(8), rtol=1e-6)
    with pytest.raises(LookupError, match="response_length was not read of run grows"):
        series.measured("response_length")  # it was recorded: a chart of it must not say that it was not
    newest_apart = np.median(series.column("backend.k3_kl")[:-1])
    assert grown.view.medians["backend.k3_kl"] == pytest.approx(newest_apart)
    assert {event.step for event in grown.view.events if event.kind == "weights"} == set(range(8))


def test_sessions_that_look_at_once_share_one_read(home: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "other"):
        with Recorder(home, name) as recorder:
            SyntheticRun(recorder, full=False).record(2)
    take_in(store)
    monkeypatch.setattr(feed, "_FRESH_SECONDS", 3600.0)
    reader = StoreReader(store)
    shared = Feed(lambda: reader)
    views = [shared.snapshot(name).view for name in (None, "one", "other", "one")]
    assert [view and view.series.run for view in views] == [None, "one", "other", "one"]
    assert reader.reads.count("app_runs") == 1
    assert reader.reads.count("app_points") == 2


def test_runs_are_newest_first_and_judged(home: Path, store: Store) -> None:
    with Recorder(home, "older") as recorder:
        SyntheticRun(recorder).record(2)
    take_in(store)
    begun = datetime.now(UTC)
    with Recorder(home, "newer") as recorder:
        SyntheticRun(recorder, full=False).record(2)
        take_in(store)
        snapshot = Feed(lambda: StoreReader(store), now=lambda: begun).snapshot("newer")
        later = Feed(lambda: StoreReader(store), now=lambda: datetime.now(UTC) + timedelta(hours=1)).snapshot("newer")
    assert snapshot.runs is not None
    assert later.runs is not None
    assert [(run.name, run.liveness.state) for run in snapshot.runs] == [("newer", State.LIVE), ("older", State.ENDED)]
    assert later.runs[0].liveness.state is State.STALE
    wrong = bar_of(snapshot, snapshot.runs[0], asked="no-such-run", now=datetime.now(UTC), interval=2.0)
    assert wrong["notices"][0]["text"] == "There is no run called no-such-run here"
    assert [run.get("step") for run in wrong["runs"]] == [1, None]  # of the others no more than the picker lists
    assert snapshot.runs[0].steps == 2
    assert snapshot.runs[0].last_step == 1


def test_a_changed_configuration_is_an_event(home: Path, store: Store) -> None:
    with Recorder(home, "changes") as recorder:
        recorder.config({"cache": True})
        run = SyntheticRun(recorder, full=False)
        run.record(2)
        recorder.config({"cache": False})
        run.record(2)
    take_in(store)
    view = Feed(lambda: StoreReader(store)).snapshot("changes").view
    assert view is not None
    assert [(event.kind, event.words, event.step) for event in view.events] == [("config", "engine_config changed", 2)]


def test_learning_rates_are_read_now_and_then_and_after_the_last_step_too(
    home: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = StoreReader(store)
    shared = Feed(lambda: reader)
    with Recorder(home, "rates") as recorder:
        run = SyntheticRun(recorder, full=False)
        for steps, rate in ((range(3), 1e-4), (range(3, 6), 1e-5)):
            for step in steps:
                recorder.step(step, {"lr": rate})
            run.record(3)
            take_in(store)
            early = shared.snapshot("rates").view
    assert early is not None
    assert reader.reads.count("app_learning_rates") == 1
    assert early.rates == ()  # the second time was too soon
    monkeypatch.setattr(feed, "_RATES_SECONDS", 0.0)
    views = [shared.snapshot("rates").view for _ in range(2)]  # nothing is new, and half a minute is over
    assert [[(event.step, event.words) for event in view.marked] for view in views if view] == [
        [(3, "lr 1.00e-4 → 1.00e-5")]
    ] * 2
    assert views[0] is views[1] is not early
    assert views[0].version != early.version
    assert reader.reads.count("app_learning_rates") == 2


def test_a_step_waits_for_its_engine_records_until_they_are_here(home: Path, store: Store) -> None:
    spool, reader = SpoolWriter(home, RUN, "w"), StoreReader(store)
    feed = Feed(lambda: reader)

    def bring(kind: str, row: dict[str, Any]) -> bool:
        spool.write(kind, records(kind, row))
        take_in(store)
        view = feed.snapshot(RUN).view
        return view is not None and view.awaited

    assert not bring("rollout", sampled("0/0"))
    assert not bring("training", trained("0/0", 0, received=False))
    assert bring("training", trained("1/0", 1, received=False))
    early = feed.snapshot(RUN).view
    assert not bring("rollout", sampled("1/0"))
    late = feed.snapshot(RUN).view
    assert early is not None
    assert late is not None
    assert early.version != late.version
    reader.reads.clear()
    feed.snapshot(RUN)
    assert "app_steps_on_their_way" not in reader.reads  # a step that is complete is not asked about


def test_events_of_a_step_that_came_between_the_reads_are_there_the_next_time(home: Path, store: Store) -> None:
    class Overtaken(StoreReader):
        def read(self, name: str, **params: Any) -> pa.Table:
            if name == "app_steps" and run.next_step == 5:
                run.record(1)
                take_in(store)
            return super().read(name, **params)

    reader = Overtaken(store)
    feed = Feed(lambda: reader)
    with Recorder(home, "overtaken") as recorder:
        run = SyntheticRun(recorder)
        run.record(5)
        take_in(store)
        first, second, third = (feed.snapshot("overtaken").view for _ in range(3))
    assert first is not None
    assert second is not None
    updates = [{event.step for event in view.events if event.kind == "weights"} for view in (first, second)]
    assert [view.series.steps.tolist() for view in (first, second)] == [list(range(6))] * 2
    assert updates == [set(range(5)), set(range(6))]
    assert first.version != second.version
    assert third is second


def test_the_last_values_stay_while_the_service_is_away(home: Path, store: Store) -> None:
    with Recorder(home, "stays") as recorder:
        SyntheticRun(recorder, full=False).record(2)
    take_in(store)
    reader, clock = StoreReader(store), datetime(2026, 1, 1, tzinfo=UTC)
    feed = Feed(lambda: reader, now=lambda: clock)
    seen = feed.snapshot("stays")
    reader.away = True
    away = feed.snapshot("stays")
    assert away.away_since == clock
    clock += timedelta(minutes=3)
    still = feed.snapshot("stays")
    assert still.away_since == clock - timedelta(minutes=3)
    assert still.view is seen.view
    assert still.runs == seen.runs
    bar = bar_of(still, still.run("stays"), asked="stays", now=clock, interval=2.0)
    assert bar["away"] == 180.0
    assert bar["notices"][0]["text"] == "The monitor service is not responding"
    reader.away = False
    assert feed.snapshot("stays").away_since is None


def test_without_a_service_there_is_nothing_to_show_and_it_is_said_so(home: Path) -> None:
    feed = Feed(lambda: connect(home))
    snapshot = feed.snapshot(None)
    assert snapshot.runs is None
    assert snapshot.view is None
    assert snapshot.away_since is not None
    assert snapshot.problem is None


def test_a_failing_query_is_one_line_beside_the_last_values(home: Path, store: Store) -> None:
    with Recorder(home, "breaks") as recorder:
        run = SyntheticRun(recorder, full=False)
        run.record(2)
        take_in(store)
        feed = Feed(lambda: StoreReader(store))
        seen = feed.snapshot("breaks")
        run.record(1)
    take_in(store)
    with store.transaction() as cursor:
        cursor.execute("ALTER TABLE step_metrics RENAME TO step_metrics_gone")
    broken = feed.snapshot("breaks")
    assert broken.view is seen.view
    assert broken.problem is not None
    assert "step_metrics" in broken.problem
    assert "\n" not in broken.problem


def test_a_store_made_anew_is_read_anew(home: Path, store: Store, tmp_path: Path) -> None:
    with Recorder(home, "again") as recorder:
        SyntheticRun(recorder, full=False).record(4)
    take_in(store)
    other = Store.open(Home(tmp_path / "other").create())
    with Recorder(tmp_path / "other", "again") as recorder:
        SyntheticRun(recorder, full=False).record(2)
    take_in(other)
    reader = StoreReader(store)
    feed = Feed(lambda: reader)
    feed.snapshot("again")
    reader._store = other
    view = feed.snapshot("again").view
    assert view is not None
    assert view.series.steps.tolist() == [0, 1]
    other.close()


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ({"jobs": {"ingest": {"progress": {"lag_seconds": 1.234}}}}, "1.2 s"),
        ({"jobs": {"ingest": {"progress": {"lag_seconds": None}}}}, "none"),
        ({"jobs": {"ingest": {"progress": {"lag_seconds": 0.2}}}, "backlog": {"oldest_seconds": 40.0}}, "40 s"),
        ({"jobs": {"ingest": {"progress": {}}}}, None),
        ({}, None),
    ],
)
def test_ingest_lag_in_words(status: dict[str, Any], words: str | None) -> None:
    assert ingest_lag(status) == words


def test_a_page_without_runs_asks_again() -> None:
    bar = bar_of(Snapshot(runs=()), None, asked=None, now=datetime.now(UTC), interval=2.0)
    assert bar["runs"] == []
    assert bar["selected"] is None
    assert bar["notices"] == []
