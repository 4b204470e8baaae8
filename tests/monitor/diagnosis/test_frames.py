"""A live run is judged from what is kept of it: as one that is read whole, and with few statements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from recorded_home import SAMPLE_DATA
from segments import Clock
from store_contents import same
from synthetic_run import SyntheticRun

from logprobe.collectors.recorder.recorder import Recorder
from logprobe.collectors.spool.segments import SpoolWriter
from logprobe.monitor.home import Home
from logprobe.monitor.judging import frames as frames_module
from logprobe.monitor.judging import gather as gather_module
from logprobe.monitor.judging.diagnosing import diagnose
from logprobe.monitor.judging.frame import Column
from logprobe.monitor.judging.frames import Frames, Look
from logprobe.monitor.judging.judgement import Judgement, Level
from logprobe.monitor.live import newest as newest_module
from logprobe.monitor.live.ingest import Ingester
from logprobe.monitor.recorded import RecordedRun
from logprobe.monitor.store.store import Store

RUN = "v0-reference"


class Counted(Store):
    """A store that counts what it is asked for."""

    asked: list[str]

    on_tokens: Callable[[], None] = staticmethod(lambda: None)

    def read(self, name: str, *incoming: Any, **params: Any) -> Any:
        self.asked = [*getattr(self, "asked", []), name]
        if name == "diagnosis_tokens":
            self.on_tokens()
        return super().read(name, *incoming, **params)


class Live:
    """A home whose ingest and looks share their memory, as in a service."""

    def __init__(self, store: Counted) -> None:
        self.store = store
        self.ingester = Ingester(store)
        self.clock = Clock(1000.0)
        self.frames = Frames(self.ingester.newest, clock=self.clock)
        self.written = 0

    def bring(self, run: str = RUN, *, change: Callable[[pa.Table], pa.Table] = lambda table: table) -> None:
        """Bring in what `change` leaves of the training records of a shipped run; at first all its other kinds, too."""
        recorded = RecordedRun(SAMPLE_DATA / run)
        writer = SpoolWriter(self.store.home.path, run, f"replay-{self.written}")
        for kind in recorded.kinds if run not in self.known() else ("training",):
            table = recorded.table(kind)
            writer.write(kind, change(table) if kind == "training" else table)
        self.written += 1
        self.ingester.run_once()

    def known(self) -> list[str]:
        return self.store.query("SELECT DISTINCT run FROM step_summaries")["run"].to_pylist()

    def look(self, run: str = RUN) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
        """The document by what is kept, that of a run read whole, and the statements of the first."""
        document, asked = self.judge(run)
        return document, diagnose(self.store, run), asked

    def judge(self, run: str = RUN) -> tuple[dict[str, Any], list[str]]:
        (row,) = self.store.query(
            "SELECT max(revision) AS newest FROM step_summaries WHERE run = $run", {"run": run}
        ).to_pylist()
        self.store.asked = []
        ((_, found),) = self.frames.diagnose(self.store, [Look(run, row["newest"])])
        return found, self.store.asked


def steps(first: int, last: int) -> Callable[[pa.Table], pa.Table]:
    return lambda table: table.filter(
        pc.and_(pc.greater_equal(table["step"], first), pc.less_equal(table["step"], last))
    )


@pytest.fixture
def live(home: Path) -> Iterator[Live]:
    with Counted.open(Home(home)) as store:
        yield Live(store)


def test_steps_one_by_one_as_all_at_once(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames_module, "WINDOW", 4)
    monkeypatch.setattr(frames_module, "_holds", lambda *_: 2)
    live.bring(change=steps(0, 59))
    whole = []
    for step in range(60, 64):
        document, expected, asked = live.look()
        assert same(document, expected, rel=1e-7), step
        whole.append("diagnosis_tokens" in asked)
        assert whole[-1] or not asked
        live.bring(change=steps(step, step))
    assert [step for step, is_whole in enumerate(whole) if is_whole] == [0, 2]


def test_sums_alone_are_read_again_where_memory_lacks_a_step(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newest_module, "STEPS", 2)
    live.bring(change=steps(0, 59))
    live.judge()
    for step in (60, 61, 62, 63):
        live.bring(change=steps(step, step))
    for last, lacks in ((63, True), (64, False)):
        document, expected, asked = live.look()
        assert same(document, expected, rel=1e-7), last
        assert ("diagnosis_steps" in asked) is lacks, last
        assert "diagnosis_tokens" not in asked
        live.bring(change=steps(last + 1, last + 1))


@pytest.mark.parametrize(("most", "again"), [(61, False), (60, True)])
def test_a_look_at_the_tokens_reads_sums_again_where_some_steps_have_no_strata(
    live: Live, monkeypatch: pytest.MonkeyPatch, most: int, again: bool
) -> None:
    monkeypatch.setattr(gather_module, "_STRATA_STEPS", most)
    monkeypatch.setattr(frames_module, "_holds", lambda *_: 1)
    live.bring(change=steps(0, 59))
    live.judge()
    live.bring(change=steps(60, 60))
    document, expected, asked = live.look()
    assert "diagnosis_tokens" in asked
    assert ("diagnosis_slices" in asked) is again
    assert same(document, expected, rel=1e-7)


@pytest.mark.parametrize(
    ("whole", "quiet", "open_"), [(1, 10, 10), (11, 11, 10), (39, 39, 10), (41, 40, 10), (399, 40, 39), (410, 41, 41)]
)
def test_a_look_at_the_tokens_holds_longer_while_nothing_is_open(whole: int, quiet: int, open_: int) -> None:
    level = Level(1e-3, 0.0, 1.0, "as expected")
    calm = Judgement("healthy", "none", None, None, (), "not_needed", "nothing", level)
    assert frames_module._holds(whole, calm) == quiet
    assert frames_module._holds(whole, replace(calm, verdict="critical")) == open_
    assert frames_module._holds(whole, replace(calm, layer="unknown")) == open_


def test_renewed_looks_at_the_tokens_take_a_share_of_the_time(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fast run, whose every judgement is of many new steps, is not judged ever later because each reads its tokens."""
    monkeypatch.setattr(frames_module, "_holds", lambda *_: 1)

    def slow() -> None:
        live.clock.seconds += 1.0

    live.store.on_tokens = slow
    live.bring(change=steps(0, 59))
    live.judge()  # the first look, which is not a renewed one
    looked = []
    for step, later in enumerate((0.0, 10.0, 1.0 / frames_module.SHARE - 10.125, 0.125, 0.125), 60):
        live.bring(change=steps(step, step))
        live.clock.seconds += later
        looked.append("diagnosis_tokens" in live.judge()[1])
    assert looked == [True, False, False, True, False]


def test_the_oldest_look_at_the_tokens_is_renewed_first(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames_module, "_holds", lambda *_: 1)

    def slow() -> None:
        live.clock.seconds += 1.0

    live.store.on_tokens = slow
    runs = (RUN, "v1-fixed")
    for run in runs:
        live.bring(run, change=steps(0, 19))
        live.judge(run)
        live.clock.seconds += 1.0
    renewed = []
    for step in range(20, 24):
        for run in runs:
            live.bring(run, change=steps(step, step))
        newest = live.store.query("SELECT run, max(revision) AS newest FROM step_summaries GROUP BY run").to_pylist()
        live.store.asked = []
        before = {run: live.frames._kept[run].read for run in runs}
        found = live.frames.diagnose(live.store, [Look(row["run"], row["newest"]) for row in newest])
        assert [frame.run for frame, _ in found] == [row["run"] for row in newest]
        renewed.append([run for run in runs if live.frames._kept[run].read != before[run]])
        live.clock.seconds += 1.0 / frames_module.SHARE
    assert renewed == [[RUN], ["v1-fixed"], [RUN], ["v1-fixed"]]


def test_weights_that_are_published_are_known_before_their_tokens_are_judged(live: Live) -> None:
    """A version that the frame did not know looked like one that was never published, and all was read again."""
    with Recorder(live.store.home.path, "synthetic") as recorder:
        run = SyntheticRun(recorder, onset=1000)
        for step in range(5):
            run.record(1)
            live.ingester.run_once()
            document, expected, asked = live.look("synthetic")
            for part in ("verdict", "layer", "findings", "level", "growth"):
                assert same(document[part], expected[part], rel=1e-7), (step, part)
            assert ("diagnosis_configs" in asked) is (step < 2), step


def test_tokens_are_looked_at_as_soon_as_the_judgement_is_another(live: Live) -> None:
    """The sums of a step with broken tokens say something new; the cause follows in the same look."""

    def broken(table: pa.Table) -> pa.Table:
        table = steps(60, 60)(table)
        values = [[float("nan"), *values[1:]] for values in table["trainer_logprobs"].to_pylist()]
        at = table.schema.get_field_index("trainer_logprobs")
        return table.set_column(at, table.schema.field(at), pa.array(values, table.schema.field(at).type))

    live.bring(change=steps(0, 59))
    live.judge()
    live.bring(change=broken)
    document, expected, asked = live.look()
    assert "diagnosis_configs" in asked
    assert "nonfinite_logprobs" in {finding["cause"] for finding in document["findings"]}
    assert same(document, expected, rel=1e-7)


@pytest.mark.parametrize(("step", "whole"), [(3, True), (57, False)])
def test_a_step_that_was_computed_again_counts_as_it_is_now(live: Live, step: int, whole: bool) -> None:
    def late(table: pa.Table) -> pa.Array:
        first = table.filter(pc.equal(table["step"], step))["sample_id"][0]
        return pc.and_(pc.equal(table["step"], step), pc.equal(table["sample_id"], first))

    live.bring(change=lambda table: steps(0, 59)(table.filter(pc.invert(late(table)))))
    live.judge()
    live.bring(change=lambda table: table.filter(late(table)))
    document, expected, asked = live.look()
    assert same(document, expected, rel=1e-7)
    assert ("diagnosis_steps" in asked) is whole


def test_the_run_that_was_looked_at_longest_ago_is_read_whole_once_more(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames_module, "_RUNS", 1)
    for run in (RUN, "v1-fixed"):
        live.bring(run, change=steps(0, 19))
    for run, whole in ((RUN, True), (RUN, False), ("v1-fixed", True), (RUN, True)):
        assert ("diagnosis_weights" in live.judge(run)[1]) is whole, run


def test_rows_of_a_column_with_other_values_go_on() -> None:
    first = Column.of(np.array(["a", None, "b"], object))
    both = first.and_later(Column.of(np.array(["c", "a", None], object)))
    assert [None if code < 0 else both.values[code] for code in both.codes.tolist()] == ["a", None, "b", "c", "a", None]
