"""From captured sequences and observed updates to records in the spool; with the marks of a trainer, to the store."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from spool_contents import by_sample, health_events, rows

from logprobe.collectors import Recorder
from logprobe.collectors.clock import Clock, machine
from logprobe.collectors.vllm.capture import Capture, Sequence
from logprobe.collectors.vllm.emitter import Emitter
from logprobe.collectors.vllm.observed import Observed
from logprobe.collectors.vllm.weights.exchange import Exchange
from logprobe.monitor.home import Home
from logprobe.monitor.service.pipeline import Pipeline
from logprobe.monitor.store.store import Store

START = 100.0
HERE = machine()


class Engine:
    """An engine's collected state, an emitter whose rounds the test calls for, and the marks of a trainer."""

    def __init__(self, home: Path, run: str = "r", *, replica: str | None = None, **observed: Any) -> None:
        self.home, self.run = home, run
        self.observed = Observed(
            Capture(), **{"clock": Clock(0.0), "started": START, "caches_prefixes": True, **observed}
        )
        self.observed.clock.jump = lambda: 0.0  # the test's times are of another world
        self.recorder = Recorder(home, run, component="vllm_plugin", replica=replica)
        self.trainer = Recorder(home, run, component="weights")
        self.exchange = Exchange(home / "readings" / run / "engine")
        self.emitter = Emitter(self.observed, self.recorder, self.exchange)

    def step(self, now: float) -> None:
        self.observed.capture.scheduled(SimpleNamespace(), now)
        self.observed.updates.step(now)

    def finish(self, times: list[float], logprobs: list[float] | None = None, **more: Any) -> None:
        request = SimpleNamespace(
            request_id="a-00000000",
            logprobe_external_id="a",
            sampling_params=SimpleNamespace(temperature=0.7),
            prompt_token_ids=[1, 2],
            num_prompt_tokens=2,
        )
        sequence = Sequence(request)
        for now in times:
            sequence.add(now, [7], None)
        if logprobs is not None:
            sequence.logprobs[:] = type(sequence.logprobs)("f", logprobs)
            sequence.missing = 0
        sequence.finish_reason = "length"
        for name, value in more.items():
            setattr(sequence, name, value)
        self.observed.capture.finished.append(sequence)

    def mark(self, version: str, at: float, *, machine: str | None = HERE, **more: Any) -> None:
        """A mark at this moment, by clocks that agree."""
        self.trainer.weights(version, applied_at=at, moment=at if machine == HERE else 7.0, machine=machine, **more)

    def spans(self) -> dict[str, list[tuple[int, int, str | None]]]:
        rows = stored("SELECT sample_id, spans FROM rollouts", self)
        return {row["sample_id"]: [tuple(span.values()) for span in row["spans"]] for row in rows}

    def write(self) -> None:
        """One round, durable."""
        self.emitter.drain()
        assert self.recorder.flush()


def stored(query: str, *engines: Engine) -> list[dict[str, Any]]:
    """What the store says once everything is in it."""
    for engine in engines:
        assert engine.trainer.flush()
    with Store.open(Home(engines[0].home)) as store:
        Pipeline(store, Event()).ingest(lambda _: None)
        return store.query(query).to_pylist()


@pytest.fixture
def engine(home: Path) -> Iterator[Engine]:
    engine = Engine(home, replica="east", prefix="p:", engine_config_id="cafe")
    yield engine
    engine.recorder.close()
    engine.trainer.close()


def test_a_sequence_with_everything(engine: Engine) -> None:
    engine.mark("1", 101.0)
    engine.mark("2", 103.0, replica="east")
    engine.mark("3", 103.5, replica="west")
    engine.finish([100.5, 102.0, 104.0], [-0.5, -1.0, -1.5], cached=1)
    engine.write()
    row = by_sample(engine.home, "rollout")["p:a/0"]
    assert row["token_ids"] == [7, 7, 7]
    assert row["logprobs"] == [-0.5, -1.0, -1.5]
    assert [(s["start"], s["end"], s["version"]) for s in row["spans"]] == [(0, 3, None)], "an engine knows no marks"
    assert (row["request_id"], row["replica"], row["engine_config_id"]) == ("a-00000000", "east", "cafe")
    assert (row["prompt_length"], row["cached_prefix_tokens"], row["finish_reason"]) == (2, 1, "length")
    assert engine.spans() == {"p:a/0": [(0, 1, None), (1, 2, "1"), (2, 3, "2")]}


def test_a_label_counts_until_the_next_mark(engine: Engine) -> None:
    engine.mark("1", 101.0)
    engine.observed.timeline.set(102.0, "7")
    engine.mark("2", 104.0)
    engine.finish([101.5, 103.0, 105.0], [-0.5] * 3)
    engine.write()
    assert [tuple(s.values()) for s in rows(engine.home, "rollout")[0]["spans"]] == [(0, 1, None), (1, 3, "7")]
    assert engine.spans() == {"p:a/0": [(0, 1, "1"), (1, 2, "7"), (2, 3, "2")]}


def test_missing_is_null_and_nan_stays_nan(engine: Engine) -> None:
    engine.finish([101.0, 101.0], None)
    engine.finish([101.0, 101.0], [float("nan"), -0.5], internal_id="b-00000000", external_id="b")
    engine.finish([101.0], [-0.5], internal_id="c-00000000", external_id="c", foreign=True)
    engine.write()
    found = by_sample(engine.home, "rollout")
    assert found["p:a/0"]["logprobs"] == [None, None]
    first, second = found["p:b/0"]["logprobs"]
    assert np.isnan(first)
    assert second == -0.5
    assert found["p:c/0"]["logprobs"] == [None]
    events = health_events(engine.home)
    assert (events["logprobs_missing"][0]["sequences"], events["logprobs_missing"][0]["tokens"]) == (1, 2)
    assert (events["foreign_columns"][0]["severity"], events["foreign_columns"][0]["tokens"]) == ("error", 1)


def test_turns_of_a_session_and_requests_that_ended_before_their_first_token(engine: Engine) -> None:
    engine.finish([101.0], [-0.5])
    engine.finish([101.0], [-0.5], turn=1)
    engine.finish([], [], finish_reason="abort", turn=2)
    engine.write()
    found = by_sample(engine.home, "rollout")
    assert found.keys() == {"p:a/0", "p:a/0+1", "p:a/0+2"}
    last = found["p:a/0+2"]
    assert (last["token_ids"], last["logprobs"], last["spans"], last["finish_reason"]) == ([], [], [], "abort")


# --- Weight updates ---


PAUSED = [("step", 101), ("paused", 102, "keep"), ("resumed", 103), ("step", 104), ("write",)]


def loaded(at: float, version: str | None = None) -> list[tuple[Any, ...]]:
    marks = [] if version is None else [("mark", version, at + 1.5, int(version))]
    return [("label", at + 1, None), ("loaded", "reload_weights", at, at + 1, 20), *marks, ("step", at + 2)]


# Situation → what happens; of each update of the engine: version, step, whether the cache was cleared, pause, tensors, calls, time
UPDATES: dict[str, tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]] = {
    "a mark around which the cache was reset: weights were loaded where nobody sees it": (
        [("step", 101), ("mark", "1", 102, 1), ("cache_reset", True), ("step", 103), ("write",)],
        [("1", 1, True, None, None, None, 102)],
    ),
    "a mark of the same version is no update": (
        [
            ("mark", "1", 100.5), ("step", 101), ("paused", 101.5, "keep"), ("mark", "1", 101.6), ("resumed", 101.7),
            ("step", 103), ("paused", 103.5, "keep"), ("mark", "1", 103.6), ("resumed", 103.7), ("step", 105), ("write",),
        ],
        [("1", None, None, None, None, None, 100.5)],
    ),
    "pausing alone is no update": (PAUSED, []),
    "a pause with a late mark is one, of weights that nobody saw being loaded": (
        [*PAUSED, ("mark", "1", 102.5)], [("1", None, False, "keep", None, None, 102.5)],
    ),
    "a load is of the version that is marked before the next step": (
        [*loaded(101, "1"), *loaded(104, "2"), ("write",)],
        [("1", 1, False, None, 20, "reload_weights", 102), ("2", 2, False, None, 20, "reload_weights", 105)],
    ),
    "a load without a version is an update to the unknown": (
        [*loaded(101), ("write",), ("mark", "1", 103.5)],  # too late for what is sampled at 103
        [(None, None, False, None, 20, "reload_weights", 102)],
    ),
    "without a prefix cache nothing can be stale; an engine that ends": (
        [("loaded", "reload_weights", 101, 102, None), ("end",)], [(None, None, None, None, None, "reload_weights", 102)],
    ),
}  # fmt: skip


def play(engine: Engine, what: str, *given: Any) -> None:
    updates = engine.observed.updates
    ways: dict[str, Any] = {
        "step": engine.step, "write": engine.write, "end": engine.emitter.close, "label": engine.observed.timeline.set,
        "mark": lambda version, at, step=None: engine.mark(version, at, step=step),
        "cache_reset": lambda successful: updates.cache_reset(successful=successful),
    }  # fmt: skip
    ways.get(what, getattr(updates, what, None))(*given)


@pytest.fixture(scope="module")
def updates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[Any, ...]]]:
    """Of each situation, a run of its own: the engine's updates, oldest first."""
    home = tmp_path_factory.mktemp("updates") / "home"
    engines = [Engine(home, run, caches_prefixes=not run.startswith("without")) for run in UPDATES]
    for engine in engines:
        for what, *given in UPDATES[engine.run][0]:
            play(engine, what, *given)
        assert engine.recorder.close()
    columns = "run, version, step, cache_cleared, pause_mode, tensors, calls, epoch(applied_at) AS at"
    rows = stored(f"SELECT {columns} FROM weights WHERE source = 'engine' ORDER BY applied_at", *engines)
    for engine in engines:
        engine.trainer.close()
    return {run: [tuple(row.values())[1:] for row in rows if row["run"] == run] for run in UPDATES}


@pytest.mark.parametrize("situation", UPDATES)
def test_updates_of_weights(updates: dict[str, list[tuple[Any, ...]]], situation: str) -> None:
    assert updates[situation] == UPDATES[situation][1]


@pytest.mark.parametrize(
    ("happened", "asked"),
    [
        ([("loaded", "reload_weights", 101, 102, 20)], ["load"]),
        ([("loaded", "reload_weights", 101, 102, 20), ("labelled", 102)], ["load"]),
        ([("labelled", 102)], ["label"]),
        ([("paused", 101, "keep"), ("resumed", 102)], ["resume"]),
        ([("cache_reset", True)], []),
    ],
)
def test_the_weights_are_read_after_all_that_may_have_changed_them(
    engine: Engine, happened: list[tuple[Any, ...]], asked: list[str]
) -> None:
    for what, *given in happened:
        play(engine, what, *given)
    engine.step(103)
    engine.write()
    assert [line["reason"] for line in engine.exchange.asked.read_new()] == asked


# --- Trouble ---


def test_counts_of_capture_become_health_records_and_a_strange_sequence_costs_no_other(engine: Engine) -> None:
    engine.observed.capture.counts["given_up"] += 3
    engine.finish([101.0], [-0.5], internal_id=None)  # not what vLLM sends
    engine.finish([102.0], [-0.5])
    engine.write()
    engine.write()
    assert by_sample(engine.home, "rollout").keys() == {"p:a/0"}
    events = health_events(engine.home)
    assert [event["sequences"] for event in events["capture_given_up"]] == [3]
    assert events["sequences_lost"][0]["sequences"] == 1
    assert "vllm_plugin.describe" in events["internal_error"][0]["message"]


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_child_writes_nothing_of_its_parents(engine: Engine) -> None:
    engine.finish([101.0], [-0.5])
    child = os.fork()
    if child == 0:
        engine.emitter.drain()
        engine.emitter.close()
        engine.recorder.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    engine.write()
    assert by_sample(engine.home, "rollout").keys() == {"p:a/0"}  # fails when a sample was recorded twice


def test_what_is_left_is_written_in_the_background_and_at_the_end(engine: Engine) -> None:
    engine.emitter.start()
    asked = engine.home / "readings" / "r" / "engine" / "asked.jsonl"
    assert '"check"' in asked.read_text(), "how the weights are before the first update"
    engine.finish([101.0], [-0.5])
    engine.observed.updates.labelled(102.0)
    engine.emitter.close()
    engine.emitter.close()
    assert engine.recorder.flush()
    assert by_sample(engine.home, "rollout").keys() == {"p:a/0"}
    assert len(rows(engine.home, "weights")) == 1
    [event] = health_events(engine.home)["detached"]
    assert '"sequences": 1' in event["details"]


# --- Clocks ---


def test_marks_of_this_machine_do_not_depend_on_the_wall_clock(engine: Engine) -> None:
    engine.trainer.weights("1", applied_at=9e9, moment=101.0, machine=HERE)
    engine.observed.clock.jumped_at = 101.5
    engine.finish([100.5, 102.0], [-0.5, -0.5])
    engine.write()
    [row] = rows(engine.home, "rollout")
    assert row["step_times"] == [100_500_000, 102_000_000]
    assert row["decisions"] == [{"end": 2, "at": None, "first": 100_500_000, "last": 102_000_000}]
    assert (row["machine"], row["engine_started"], row["clock_set"]) == (HERE, 100_000_000, 101_500_000)
    assert engine.spans() == {"p:a/0": [(0, 1, None), (1, 2, "1")]}


def test_a_clock_that_is_set_is_noticed_and_that_is_said(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.observed.clock.jump = lambda: 3600.0
    engine.write()
    [event] = health_events(engine.home)["clock_jump"]
    assert "+3600.0 s" in event["message"]
    clock = Clock()
    assert clock.jump() == 0
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - 2)
    assert abs(clock.jump() + 2) < 0.1
    assert clock.jumped_at is not None
    assert clock.jump() == 0, "from here on the clock goes as before"


def test_prompts_are_kept_once_each_and_only_where_it_was_asked_for(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def recorded(share: str) -> list[Any]:
        monkeypatch.setenv("LOGPROBE_RECORD", f"prompts={share}")
        engine = Engine(home, prefix=f"{share}:")
        for name in ("a", "b"):
            engine.finish([101.0], [-0.5], internal_id=f"{name}-00000000", external_id=name)
        engine.write()
        engine.recorder.close()
        engine.trainer.close()
        return [row["prompt_token_ids"] for row in rows(home, "rollout") if row["sample_id"].startswith(f"{share}:")]

    assert recorded("") == [None, None]
    assert recorded("0") == [None, None]
    kept = recorded("1")  # both answers are to one prompt
    assert kept[0] is not None
    assert len(kept[0]) == 2
    assert kept[1] is None
    assert recorded("many") == [None, None]
    assert health_events(home)["prompts_share"][0]["severity"] == "error"
