"""A live run is judged from what is kept of it: as one that is read whole, and with few statements."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recorded_home import ingest_recorded
from store_contents import same
from store_work import bring_in
from synthetic_run import SyntheticRun

from logprobe.collectors.recorder.recorder import Recorder
from logprobe.monitor.home import Home
from logprobe.monitor.judging import frames as frames_module
from logprobe.monitor.judging import gather as gather_module
from logprobe.monitor.judging.diagnosing import diagnose
from logprobe.monitor.judging.frame import Column
from logprobe.monitor.judging.frames import AGAIN, Frames, Look
from logprobe.monitor.judging.judgement import Judgement, Level
from logprobe.monitor.store.store import Store

RUN = "v0-reference"


class Counted(Store):
    """A store that counts what it is asked for."""

    asked: list[str]

    def read(self, name: str, *incoming: Any, **params: Any) -> Any:
        self.asked = [*getattr(self, "asked", []), name]
        return super().read(name, *incoming, **params)


def look(frames: Frames, home: Path, run: str = RUN) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """The document by what is kept, that of a run read whole, and the statements of the first."""
    with Counted.open(Home(home)) as store:
        (row,) = store.query(f"SELECT max(revision) AS newest FROM step_summaries WHERE run = '{run}'").to_pylist()
        store.asked = []
        ((_, found),) = frames.diagnose(store, [Look(run, row["newest"])])
        return found, diagnose(store, run), store.asked[: _count(store.asked)]


def _count(asked: list[str]) -> int:
    """The whole reading of `diagnose` begins with its second `diagnosis_steps` at the latest."""
    begins = [at for at, name in enumerate(asked) if name == "diagnosis_steps"]
    return begins[-1]


def test_steps_one_by_one_as_all_at_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames_module, "WINDOW", AGAIN)
    ingest_recorded(home, RUN, before_step=60)
    frames = Frames()
    whole = []
    for step in range(60, 60 + AGAIN + 2):
        document, expected, asked = look(frames, home)
        assert same(document, expected, rel=1e-7), step
        whole.append("diagnosis_tokens" in asked or "diagnosis_sample" in asked)
        if not whole[-1]:
            assert sorted(asked) == ["diagnosis_news", "diagnosis_slices", "diagnosis_steps", "diagnosis_weights"]
        ingest_recorded(home, RUN, from_step=step, before_step=step + 1)
    assert [step for step, is_whole in enumerate(whole) if is_whole] == [0, AGAIN]


@pytest.mark.parametrize(("most", "again"), [(61, False), (60, True)])
def test_a_look_at_the_tokens_reads_sums_again_where_some_steps_have_no_strata(
    home: Path, monkeypatch: pytest.MonkeyPatch, most: int, again: bool
) -> None:
    monkeypatch.setattr(gather_module, "_STRATA_STEPS", most)
    monkeypatch.setattr(frames_module, "_holds", lambda *_: 1)
    ingest_recorded(home, RUN, before_step=60)
    frames = Frames()
    look(frames, home)
    ingest_recorded(home, RUN, from_step=60, before_step=61)
    document, expected, asked = look(frames, home)
    assert "diagnosis_tokens" in asked
    assert (asked.count("diagnosis_slices") == 2) is again
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


def test_weights_that_are_published_are_known_before_their_tokens_are_judged(home: Path) -> None:
    """A version that the frame did not know looked like one that was never published, and all was read again."""
    with Recorder(home, "synthetic") as recorder:
        run, frames = SyntheticRun(recorder, onset=1000), Frames()
        for step in range(AGAIN + 1):
            run.record(1)
            with Store.open(Home(home)) as store:
                bring_in(store)
            document, expected, asked = look(frames, home, "synthetic")
            for part in ("verdict", "layer", "findings", "level", "growth"):
                assert same(document[part], expected[part], rel=1e-7), (step, part)
            assert ("diagnosis_configs" in asked) is (step < 2), step


def test_tokens_are_looked_at_as_soon_as_the_judgement_is_another(home: Path) -> None:
    """The sums of a step whose K3 is a thousand times larger say something new; the cause follows in the same look."""
    ingest_recorded(home, RUN, before_step=60)
    frames = Frames()
    look(frames, home)
    with Store.open(Home(home)) as store, store.transaction() as cursor:
        with_five = (
            "pairs = list_transform(pairs, lambda p: struct_update(p, n_nonfinite_behaviour := 5, n := p.n - 5))"
        )
        cursor.execute(f"UPDATE step_summaries SET {with_five} WHERE run = ? AND step = 59", [RUN])
        cursor.execute("UPDATE step_summaries SET revision = nextval('revision') WHERE run = ? AND step = 59", [RUN])
    document, expected, asked = look(frames, home)
    assert "diagnosis_configs" in asked
    assert "nonfinite_logprobs" in {finding["cause"] for finding in document["findings"]}
    assert same(document, expected, rel=1e-7)


@pytest.mark.parametrize("step", [3, 57])
def test_a_step_that_was_computed_again_counts_as_it_is_now(home: Path, step: int) -> None:
    ingest_recorded(home, RUN, before_step=60)
    frames = Frames()
    look(frames, home)
    with Store.open(Home(home)) as store, store.transaction() as cursor:
        twice = "pairs = list_transform(pairs, lambda p: struct_update(p, sum_k3 := p.sum_k3 * 2))"
        cursor.execute(f"UPDATE step_summaries SET {twice} WHERE run = ? AND step = ?", [RUN, step])
        cursor.execute(
            "UPDATE step_summaries SET revision = nextval('revision') WHERE run = ? AND step = ?", [RUN, step]
        )
    document, expected, _ = look(frames, home)
    assert same(document, expected, rel=1e-7)


def test_the_run_that_was_looked_at_longest_ago_is_read_whole_once_more(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames_module, "_RUNS", 1)
    ingest_recorded(home, RUN, "v1-fixed", before_step=20)
    frames = Frames()
    for run, whole in ((RUN, True), (RUN, False), ("v1-fixed", True), (RUN, True)):
        _, _, asked = look(frames, home, run)
        assert ("diagnosis_weights" in asked) is whole, run


def test_rows_of_a_column_with_other_values_go_on() -> None:
    first = Column.of(np.array(["a", None, "b"], object))
    both = first.and_later(Column.of(np.array(["c", "a", None], object)))
    assert [None if code < 0 else both.values[code] for code in both.codes.tolist()] == ["a", None, "b", "c", "a", None]
