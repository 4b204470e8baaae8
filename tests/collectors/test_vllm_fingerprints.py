"""Readings of weights become records; the store says which version they are of, by labels and marks, or that none is known."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from segments import records

from logprobe.collectors import Recorder
from logprobe.collectors.clock import Clock, machine
from logprobe.collectors.spool.segments import SpoolWriter
from logprobe.collectors.vllm.capture import Capture
from logprobe.collectors.vllm.observed import Observed
from logprobe.collectors.vllm.weights.exchange import Exchange
from logprobe.collectors.vllm.weights.fingerprints import Fingerprints
from logprobe.monitor.home import Home
from logprobe.monitor.service.pipeline import Pipeline
from logprobe.monitor.store.store import Store

# What happens, in order: a mark, a label (None: a load), a reading, a sequence whose tokens' steps began then, the engine's end.
Happened = tuple[Any, ...]
Said = list[tuple[str | None, str]]  # version and reason of each reading, oldest first
FOUR: tuple[Happened, ...] = (("mark", 0, "4"), ("read", 1, 11))
# Situation → what happens until the service looks, and what it then says; what happens until it looks again, …
SITUATIONS: dict[str, Sequence[tuple[Sequence[Happened], Said]]] = {
    "a reading has the version of its time": [
        (
            [
                ("mark", 0, "4"), ("read", 1, 11, "load"), ("label", 2, None), ("read", 3, 12, "load"), ("mark", 4, "5"), ("read", 65, 12),
            ],
            [("4", "load"), (None, "load"), ("5", "check")],
        )
    ],
    "a label is known without a mark": [([("label", 0, "6"), ("read", 1, 11)], [("6", "check")])],
    "without marks no version is known": [([("read", 1, 11), ("read", 10, 12)], [(None, "check")] * 2)],
    "a mark during a reading": [([("mark", 0, "4"), ("mark", 1.005, "5"), ("read", 1, 11, "load")], [(None, "load")])],
    "a load during a reading": [
        ([("mark", 0, "4"), ("label", 1.005, None), ("read", 1, 11, "load")], [(None, "load")])
    ],
    "a change that nobody announced, and a mark after it": [
        ([*FOUR, ("sample", 0.5, 2, 20)], [("4", "check")]),
        ([("read", 10, 12)], [("4", "check"), (None, "unannounced")]),
        ([("mark", 11, "5"), ("read", 12, 12, "label")], [("4", "check"), (None, "check"), ("5", "label")]),
    ],
    "a mark of the time of the change comes late": [
        ([*FOUR, ("sample", 2, 20), ("read", 10, 12)], [("4", "check"), (None, "unannounced")]),
        ([("mark", 9, "5")], [("4", "check"), ("5", "check")]),
    ],
    "checks that say nothing new are recorded once a minute": [
        ([("mark", 0, "4"), *(("read", at, 11) for at in (1, 11, 21, 60, 61, 62))], [("4", "check")] * 2)
    ],
    "what did not change with a mark is said before what did": [
        ([*FOUR, ("mark", 5, "5"), ("read", 11, 11)], [("4", "check")]),
        ([("read", 21, 12, "load")], [("4", "check"), ("5", "check"), (None, "unannounced")]),
    ],
    "what an engine ends with is said": [
        ([*FOUR, ("mark", 5, "5"), ("read", 11, 11), ("end",)], [("4", "check"), ("5", "check")])
    ],
    "clocks of another machine may differ": [
        (
            [("mark", 0, "4"), ("mark", 10, "5"), ("read", 5, 11, "check", "else"), ("read", 9.5, 12, "check", "else")],
            [("4", "check"), (None, "check")],
        )
    ],
    "loads that nobody sees": [
        ([*FOUR, ("mark", 9, "5")], [("4", "check")]),
        ([("read", 10, 12)], [("4", "check"), ("5", "check")]),
    ],
}  # fmt: skip
# Of the sequences, at each look: versions of their spans.
SAMPLED = {
    "a change that nobody announced, and a mark after it": [["4"], ["4", None], ["4", None, "5"]],
    "a mark of the time of the change comes late": [[None], ["4", "5"]],
}


class Engine:
    """One engine's fingerprints, with the files through which its worker talks, and the marks of a trainer."""

    def __init__(self, folder: Path, run: str) -> None:
        self.home, self.run = folder / "home", run
        self.exchange = Exchange(folder / "exchange" / run)
        self.now = time.monotonic() - 100
        self.observed = Observed(Capture(), started=self.now - 10, caches_prefixes=True)
        self.recorder = Recorder(self.home, run, component="vllm_plugin")
        self.found = Fingerprints(self.exchange, self.observed, self.recorder)

    def read(self, at: float, value: int, reason: str = "check", of: str = machine() or "") -> None:
        began = self.now + at
        line = {"reason": reason, "began": began, "ended": began + 0.01, "wall": Clock().offset, "machine": of}
        self.exchange.answers_of(None).append({**line, "keys": ["w float32[64]"], "hashes": [value]})
        self.found._next_look = 0.0
        self.found.write()

    def mark(self, at: float, version: str) -> None:
        moment = self.now + at
        self.recorder.weights(version, applied_at=Clock().wall(moment), moment=moment, machine=machine())

    def label(self, at: float, version: str | None) -> None:
        self.observed.timeline.set(self.now + at, version)

    def sample(self, *at: float) -> None:
        times = [round((self.now + each) * 1e6) for each in at]
        decisions = [{"end": len(at), "at": None, "first": times[0], "last": times[-1]}]
        row = {"sample_id": "a", "token_ids": [1] * len(at), "step_times": times, "decisions": decisions}
        about = self.observed.seen(0, 0, None)
        row |= {"machine": machine(), **{name: about[name] for name in ("clock_offset", "engine_started")}}
        SpoolWriter(self.home, self.run, "w").write("rollout", records("rollout", row))

    def end(self) -> None:
        self.found.write(everything=True)


def taken_in(*engines: Engine) -> Store:
    """The store once everything is in it."""
    for engine in engines:
        assert engine.recorder.flush()
    store = Store.open(Home(engines[0].home))
    Pipeline(store, Event()).ingest(lambda _: None)
    return store


@pytest.fixture(scope="module")
def looks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """Of each situation, a run of its own: what the store says at each look."""
    folder = tmp_path_factory.mktemp("engines")
    engines = {name: Engine(folder, name) for name in SITUATIONS}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in SITUATIONS}
    for number in range(max(map(len, SITUATIONS.values()))):
        playing = [name for name, parts in SITUATIONS.items() if number < len(parts)]
        for name in playing:
            for what, *given in SITUATIONS[name][number][0]:
                getattr(engines[name], what)(*given)
        with taken_in(*engines.values()) as store:
            for name in playing:

                def rows(sql: str, run: str = name, store: Store = store) -> list[tuple[Any, ...]]:
                    return [tuple(row.values()) for row in store.query(sql, {"run": run}).to_pylist()]

                readings = "SELECT version, reason FROM fingerprints WHERE run = $run AND source = 'worker' "
                updates = "SELECT version, cache_cleared FROM weights WHERE run = $run AND source = 'engine' "
                late = "SELECT epoch(e.applied_at - t.applied_at) < 0.001 FROM weights AS e JOIN weights AS t USING (run, version) "
                found[name].append(
                    {
                        "readings": rows(readings + "ORDER BY applied_at"),
                        "spans": [
                            s["version"] for (row,) in rows("SELECT spans FROM rollouts WHERE run = $run") for s in row
                        ],
                        "updates": rows(updates + "ORDER BY applied_at"),
                        "in time": rows(late + "WHERE run = $run AND e.source = 'engine' AND t.source = 'trainer'"),
                    }
                )
    return found


@pytest.mark.parametrize("situation", SITUATIONS)
def test_each_reading_has_its_version_or_none(looks: dict[str, list[dict[str, Any]]], situation: str) -> None:
    assert [look["readings"] for look in looks[situation]] == [said for _, said in SITUATIONS[situation]]
    assert [look["spans"] for look in looks[situation]] == SAMPLED.get(situation, [[]] * len(looks[situation]))


def test_an_engine_whose_loads_nobody_sees_has_the_version_with_which_it_goes_on(looks: dict[str, Any]) -> None:
    """Since it was marked; and what it keeps of prefixes, it keeps."""
    first, second = looks["loads that nobody sees"]
    assert (first["updates"], second["updates"]) == ([("4", None)], [("4", None), ("5", False)])
    assert second["in time"] == [(True,)] * 2


def test_checksums_of_the_engine_are_readings_of_their_own(tmp_path: Path) -> None:
    engine = Engine(tmp_path, "run")
    engine.mark(0, "4")
    engine.read(1, 11)
    for at, digest, replica in ((2, "0a" * 32, "dp0"), (3, "0b" * 32, "dp1")):
        ranks = [{f"{replica}:pp0:pcp0:tp{rank}:w": digest} for rank in (0, 1)]
        engine.found.write_checksums((engine.now + at, engine.now + at + 0.1, ranks))
    with taken_in(engine) as store:
        rows = store.query(
            "SELECT worker, version, reason, tensor_hashes FROM fingerprints ORDER BY applied_at, worker"
        )
        layouts = store.query("SELECT worker, count(DISTINCT layout) AS n FROM fingerprints GROUP BY 1")
    assert [tuple(row.values()) for row in rows.to_pylist()] == [
        (None, "4", "check", [11]),
        *[(f"checksums-{rank}", "4", "checksum", [0x0A0A0A0A]) for rank in (0, 1)],
        *[(f"checksums-{rank}", "4", "checksum", [0x0B0B0B0B]) for rank in (0, 1)],
    ]
    assert set(layouts["n"].to_pylist()) == {1}, "replicas are compared"
