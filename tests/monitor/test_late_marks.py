"""Marks that an engine read too late: versions are corrected in the store, whichever side comes first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from segments import RUN, at, records, sampled, trained

from logprobe.collectors.spool.segments import SpoolWriter
from logprobe.monitor.home import Home
from logprobe.monitor.live.versions import Decided, Decision, resolved
from logprobe.monitor.service.pipeline import Pipeline
from logprobe.monitor.store.store import Store

SECOND = 1_000_000
STARTED = 50 * SECOND


def steps(*seconds: float, decided: float | None, **more: Any) -> dict[str, Any]:
    """A rollout whose tokens' steps began at these seconds, all decided at once."""
    times = [round(second * SECOND) for second in seconds]
    known = None if decided is None else round(decided * SECOND)
    return {
        "step_times": times,
        "decisions": [{"end": len(times), "at": known, "last": times[-1]}],
        "machine": "here",
        "clock_offset": 0,
        "engine_started": STARTED,
        **more,
    }


def mark(version: str, second: float, **more: Any) -> dict[str, Any]:
    moment = round(second * SECOND)
    wall = at(0) + (at(second) - at(0))
    return {
        "time": wall,
        "version": version,
        "source": "trainer",
        "applied_at": wall,
        "moment": moment,
        "machine": "here",
    } | more


class Run:
    def __init__(self, store: Store) -> None:
        self.store = store
        self.writer = SpoolWriter(store.home.path, RUN, "w")
        self.pipeline = Pipeline(store, Event())

    def feed(self, kind: str, *rows: dict[str, Any]) -> None:
        self.writer.write(kind, records(kind, *rows))
        self.pipeline.ingest(lambda _: None)

    def spans(self) -> list[tuple[int, int, str | None]]:
        (row,) = self.store.query("SELECT spans FROM rollouts").to_pylist()
        return [(span["start"], span["end"], span["version"]) for span in row["spans"]]

    def lag(self) -> Any:
        (row,) = self.store.query("SELECT value FROM metrics WHERE metric = 'weight_lag_mean'").to_pylist()
        return row["value"]


@pytest.fixture
def run(home: Path) -> Iterator[Run]:
    with Store.open(Home(home)) as store:
        yield Run(store)


@pytest.mark.parametrize("order", [("training", "rollout", "weights"), ("weights", "rollout", "training")])
def test_a_late_mark_reaches_its_tokens(run: Run, order: tuple[str, ...]) -> None:
    content = {
        "training": trained("a", weight_version="3"),
        "rollout": sampled("a", version="1", **steps(101, 102, 103, 104, decided=100)),
        "weights": mark("3", 103),
    }
    for kind in order:
        run.feed(kind, content[kind])
    assert run.spans() == [(0, 2, "1"), (2, 4, "3")]
    assert run.lag() == 1


@pytest.mark.parametrize(
    "other",
    [
        mark("3", 99),  # before what decided
        mark("3", 105),  # after the last step
        mark("3", 49),  # made for an earlier engine
        mark("3", 103, replica="west"),
        mark("3", 103, adapter="style"),
        mark("3", 103, moment=None),  # the trainer speaks of its weights, which is no mark
    ],
)
def test_marks_about_other_tokens_change_nothing(run: Run, other: dict[str, Any]) -> None:
    run.feed("rollout", sampled("a", version="1", replica="east", **steps(101, 102, 103, 104, decided=100)))
    run.feed("weights", other)
    assert run.spans() == [(0, 4, "1")]


def test_a_load_after_the_mark_leaves_its_tokens_unknown(run: Run) -> None:
    load = {
        "decisions": [
            {"end": 2, "at": None, "last": 102 * SECOND},
            {"end": 4, "at": 103 * SECOND, "last": 104 * SECOND},
        ]
    }
    run.feed("rollout", sampled("a", version=None, **(steps(101, 102, 103, 104, decided=None) | load)))
    run.feed("weights", mark("3", 100.5), mark("2", 60))
    assert run.spans() == [(0, 2, "3"), (2, 4, None)]


def test_a_mark_of_another_machine_is_placed_by_the_wall_clocks(run: Run) -> None:
    offset = round(at(0).timestamp()) * SECOND
    run.feed("rollout", sampled("a", version="1", **steps(101, 102, 103, 104, decided=100, clock_offset=offset)))
    run.feed("weights", mark("3", 102, machine="there", moment=5))
    assert run.spans() == [(0, 1, "1"), (1, 4, "3")]


def test_clocks_out_of_all_bounds_hold_up_nothing(run: Run) -> None:
    run.feed("rollout", sampled("a", version="1", **steps(101, 102, 103, 104, decided=100, clock_offset=-(1 << 53))))
    run.feed("weights", mark("3", 102, machine="there"))
    assert run.spans() == [(0, 4, "1")]


def test_of_an_adapter_only_its_own_marks_count(run: Run) -> None:
    run.feed(
        "rollout", sampled("a", version=None, adapter="style", adapter_id=7, **steps(101, 102, 103, 104, decided=None))
    )
    run.feed("weights", mark("9", 101), mark("3", 102, adapter="style"))
    assert run.spans() == [(0, 1, None), (1, 4, "3")]


def test_since_an_engines_mark_of_no_version_nothing_is_known(run: Run) -> None:
    run.feed("rollout", sampled("a", version="1", **steps(101, 102, 103, 104, decided=100)))
    run.feed("training", trained("a", weight_version="3"))
    assert run.lag() == 2
    run.feed("weights", mark("x", 102.5, source="engine") | {"version": None})
    assert run.spans() == [(0, 2, "1"), (2, 4, None)]
    run.feed("weights", mark("3", 104))
    assert run.spans() == [(0, 2, "1"), (2, 3, None), (3, 4, "3")]


def test_adapters_are_unknown_with_the_weights_below_them(run: Run) -> None:
    lora = {"adapter": "style", "adapter_id": 7}
    run.feed("rollout", sampled("a", version="1", **lora, **steps(101, 102, 103, 104, decided=100)))
    run.feed("weights", mark("x", 104, source="engine", adapter="other") | {"version": None})
    assert run.spans() == [(0, 4, "1")]
    run.feed("weights", mark("x", 103, source="engine") | {"version": None})
    assert run.spans() == [(0, 2, "1"), (2, 4, None)]


def test_parts_of_a_trajectory_are_corrected_too(run: Run) -> None:
    first = sampled("a/0", 2, version="1", prompt_length=5, **steps(101, 102, decided=100))
    second = sampled("b/0", 2, version="1", token_ids=[2, 3], prompt_length=7, **steps(103, 104, decided=100))
    run.feed("rollout", first, second)
    run.feed("training", trained("a/0…b/0", weight_version="3", part_ids=["a/0", "b/0"]))
    assert run.lag() == 2
    run.feed("weights", mark("3", 102.5))
    assert run.lag() == 1


@pytest.mark.parametrize("ends", [[4, 2], [2, 2, 4], [3], [2, 9], [0, 4]])
def test_a_record_that_does_not_fit_together_is_unknown_and_holds_up_nothing(run: Run, ends: list[int]) -> None:
    decisions = [{"end": end, "at": 100 * SECOND, "last": 104 * SECOND} for end in ends]
    odd = sampled("a", version="1", **(steps(101, 102, 103, 104, decided=100) | {"decisions": decisions}))
    run.feed("rollout", odd, sampled("b", version="1", **steps(101, 102, 103, 104, decided=100)))
    run.feed("weights", mark("3", 103))
    rows = run.store.query("SELECT sample_id, spans FROM rollouts ORDER BY ALL").to_pylist()
    assert [len(row["spans"]) for row in rows] == [0, 2]


def test_without_the_times_of_steps_tokens_of_a_late_mark_are_unknown() -> None:
    decisions = (Decision(2, 10, 12), Decision(4, 13, 16))
    record = Decided(((0, 2, "1"), (2, 4, "2")), decisions, 4, "here", 0, 0, None, None)
    assert resolved(record, [(14, "3")], None) == ((0, 2, "1"), (2, 4, None))


def test_a_run_whose_tokens_cannot_be_read_holds_up_no_other(run: Run) -> None:
    other = SpoolWriter(run.store.home.path, "other", "w")
    run.feed("rollout", sampled("a", version="1", **steps(101, 102, 103, 104, decided=100)))
    other.write("rollout", records("rollout", sampled("a", version="1", **steps(101, 102, 103, 104, decided=100))))
    run.pipeline.ingest(lambda _: None)
    run.store.archive.merge(everything=True)
    (damaged,) = (run.store.home.raw / RUN / "rollout").rglob("*.parquet")
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    run.pipeline = Pipeline(run.store, Event())  # one that has them in memory asks nobody
    for writer in (run.writer, other):
        writer.write("weights", records("weights", mark("3", 103)))
    run.pipeline.ingest(lambda _: None)
    found = {row["run"]: row["spans"] for row in run.store.query("SELECT run, spans FROM rollouts").to_pylist()}
    assert [span["version"] for span in found["other"]] == ["1", "3"]
    assert [span["version"] for span in found[RUN]] == [None]  # whichever of its tokens the mark is about
