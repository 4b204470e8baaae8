"""What fingerprints prove: other weights under one label, a label without its weights; and where they prove nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from diagnosis_simulation import Simulation

from logprobe.collectors import Recorder
from logprobe.collectors.fingerprint import Fingerprint, on_the_way
from logprobe.collectors.fingerprint import fingerprint as fingerprint_of
from logprobe.monitor.home import Home
from logprobe.monitor.judging.explain import diagnosed
from logprobe.monitor.judging.gather import gather
from logprobe.monitor.judging.records import Weights
from logprobe.monitor.judging.weight_readings import Reading, Readings
from logprobe.monitor.live.ingest import Ingester
from logprobe.monitor.store.store import Store

KEYS = ("q", "k", "norm")


def trainer(version: int, *hashes: int) -> Reading:
    return _reading("trainer", None, version, hashes)


def engine(version: int | None, *hashes: int, replica: str | None = None, **more: Any) -> Reading:
    return _reading("worker", replica, version, hashes, **more)


def _reading(
    source: str, replica: str | None, version: int | None, hashes: tuple[int, ...], layout: str = "same", **more: Any
) -> Reading:
    label = None if version is None else str(version)
    known = {"worker": None, "tensors": dict(zip(KEYS, hashes, strict=True)), "unannounced": False} | more
    return Reading(source, replica, known.pop("worker"), label, version, str(hashes), layout, **known)


OLD, NEW = (1, 2, 9), (3, 4, 9)


A, B, C = ({"replica": name} for name in "abc")
RED, BLUE = {"adapter": "red"}, {"adapter": "blue"}
EQUAL = (engine(0, *OLD, **A), engine(0, *OLD, **B))
IN_STEP = (trainer(0, *OLD), engine(0, *OLD), trainer(1, *NEW))
ODD = (5, 5, 9)


# Readings; the version, replicas and wrong replicas of the divergence that is found.
@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ((*EQUAL, engine(1, *NEW, **A), engine(1, *OLD, **B)), ("1", ("a", "b"), ("b",))),  # b has the old ones
        ((*EQUAL, engine(1, *NEW, **A), engine(1, *NEW, **B)), None),
        ((*EQUAL, engine(1, *NEW, **A)), None),
        ((engine(1, *NEW, **A), engine(1, *NEW, **B), engine(1, 7, 7, 7, **C)), ("1", ("a", "b", "c"), ("c",))),
        (
            (*EQUAL, trainer(0, *OLD), trainer(1, *NEW), engine(1, *ODD, **A), engine(1, *NEW, **B)),
            ("1", ("a", "b"), ("a",)),
        ),
        ((engine(1, *ODD, **A), engine(1, *NEW, **B)), ("1", ("a", "b"), ())),  # which is unknown
        ((engine(1, *OLD, **A), engine(1, *NEW, **B, worker="tp1of2")), None),  # only like is compared with like
        ((engine(1, *OLD, **A), engine(1, *NEW, **B, layout="packed")), None),
        (
            (engine(1, *OLD, **A), engine(1, *NEW, **B), engine(2, *ODD, **A), engine(2, *ODD, **B)),
            None,
        ),  # it is fixed
        ((engine(None, *OLD, **A), engine(None, *NEW, **B)), None),
        ((*EQUAL, engine(1, *OLD, **A, **RED), engine(1, *NEW, **B, **RED)), None),  # of adapters nothing is known
    ],
)
def test_replicas_with_one_label_and_other_weights_diverge(rows: tuple[Reading, ...], expected: Any) -> None:
    found = Readings(rows).divergence
    assert (found and (found.version, found.replicas, found.wrong)) == expected


# Readings; the version, the one whose weights are held, whether in part, and the tensors that differ.
@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ((*IN_STEP, engine(1, *OLD)), ("1", "0", False, ("q", "k"))),
        ((*IN_STEP, engine(1, 3, 2, 9)), ("1", None, True, ("k",))),
        # They never agreed, and stayed where the trainer's changed.
        ((trainer(0, *OLD), engine(0, 7, 7, 7), trainer(1, *NEW), engine(1, 7, 7, 7)), ("1", "0", False, KEYS)),
        ((*IN_STEP, engine(1, *NEW)), None),
        ((trainer(0, *OLD), engine(0, *OLD), trainer(1, *OLD), engine(1, *OLD)), None),  # a learning rate of 0
        ((trainer(0, *OLD), engine(0, 7, 7, 7), trainer(1, *NEW), engine(1, 8, 8, 8)), None),  # they never agreed
        ((engine(0, *OLD), engine(1, *OLD)), None),
        # One that another order of its values keeps apart (q) says nothing; the other one does.
        ((trainer(0, *OLD), engine(0, 70, 2, 9), trainer(1, *NEW), engine(1, 71, 4, 9)), None),
        ((), None),
    ],
)
def test_an_engine_without_the_weights_of_its_label_is_found(rows: tuple[Reading, ...], expected: Any) -> None:
    found = Readings(rows).mismatch
    assert (found and (found.version, found.held, found.partial, found.different)) == expected


# Readings; the version that is reused, who says so, and its adapter.
@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ((engine(0, *OLD), engine(1, *NEW), engine(1, *OLD)), ("1", "worker", None)),
        ((trainer(0, *OLD), trainer(1, *NEW), trainer(0, 7, 7, 7)), ("0", "trainer", None)),
        ((engine(0, *OLD), engine(0, *NEW, **RED), engine(0, 7, 7, 7, **RED)), ("0", "worker", "red")),
        ((engine(0, *OLD), engine(0, *NEW, **RED), engine(0, 7, 7, 7, **BLUE)), None),  # of different owners
        ((engine(0, *OLD, worker="tp0of2"), engine(0, *NEW, worker="tp1of2")), None),
        ((engine(0, *OLD, layout="packed"), engine(0, *NEW)), None),
        ((engine(None, *OLD), engine(None, *NEW)), None),
        ((engine(0, *OLD), engine(0, *OLD), engine(1, *OLD)), None),
        (
            (trainer(0, *OLD), trainer(0, *NEW), trainer(1, 5, 5, 5), trainer(1, 7, 7, 7)),
            None,
        ),  # two ranks with a part each
        ((trainer(0, *OLD), trainer(0, *NEW)), None),  # or two ranks at the first version
    ],
)
def test_a_version_of_two_weights_is_found_whoever_says_so(rows: tuple[Reading, ...], expected: Any) -> None:
    found = Readings(rows).reuse
    assert (found and (found.version, found.source, found.adapter)) == expected


def test_a_reused_version_and_a_change_without_a_word_are_findings() -> None:
    twice = (engine(0, *OLD), engine(1, *NEW), engine(1, *OLD))
    silent = (engine(0, *OLD), replace(engine(None, *NEW), unannounced=True))
    for rows, cause, words in (
        (twice, "version_reused", "version 1"),
        (silent, "unannounced_weights", "1 "),
    ):
        found = diagnosed(replace(Simulation().frame(), readings=Readings(rows)))["findings"]
        (finding,) = [each for each in found if each["cause"] == cause]
        assert words in finding["explanation"], finding


def test_readings_travel_from_recorders_to_the_diagnosis(home: Path) -> None:
    def fingerprint(*hashes: int) -> Fingerprint:
        return Fingerprint(KEYS, np.array(hashes, np.uint32))

    with Recorder(home, "run") as recorder:
        for step, truth in enumerate((OLD, NEW)):
            recorder.weights(step, step=step, fingerprint=fingerprint(*truth))
            recorder.weights(step, source="worker", reason="mark", fingerprint=fingerprint(*OLD))
        recorder.weights(None, source="worker", reason="unannounced", worker="tp0of2", fingerprint=fingerprint(5, 5, 5))
        recorder.weights(2, step=2, adapter="red", fingerprint=fingerprint(6, 6, 6))
    with Store.open(Home(home)) as store:
        Ingester(store).run_once()
        readings = gather(store, "run").readings
        assert [(r.source, r.version, tuple(r.tensors.values()), r.unannounced) for r in readings.rows] == [
            ("trainer", "0", OLD, False),
            ("worker", "0", OLD, False),
            ("trainer", "1", NEW, False),
            ("worker", "1", OLD, False),
            ("worker", None, (5, 5, 5), True),
            ("trainer", "2", (6, 6, 6), False),
        ]
        assert readings.mismatch is not None
        sources = store.query("SELECT DISTINCT source FROM weights WHERE run = 'run'")["source"].to_pylist()
        assert sources == ["trainer"], "readings are no updates"
        rows = store.read("export_weight_records", run="run").to_pylist()
        assert [row["source"] for row in rows].count("worker") == 3
        assert sum(row["fingerprint"] is not None for row in rows) == 6


def test_of_more_processes_than_readings_are_kept_none_is_left_out(tmp_path: Path) -> None:
    with Store.open(Home(tmp_path)) as store:
        with store.transaction() as cursor:
            cursor.execute(
                """
                INSERT INTO all_weights (run, applied_at, source, replica, version, fingerprint)
                SELECT 'run', make_timestamptz(1_000_000 * (10_000 * version + number)), 'worker', 'r' || number, version::VARCHAR,
                       CASE WHEN number = 0 AND version = 1 THEN 'other' ELSE 'version ' || version END
                FROM range(2) AS v(version), range(4_001) AS r(number)
                """
            )
        readings = gather(store, "run").readings
        assert {row.version for row in readings.rows} == {"1"}
        assert len(readings.rows) == 4001
        assert readings.divergence is not None
        assert readings.divergence.wrong == ("r0",), "the one that is read first is the 4,001st newest"
        with store.transaction() as cursor:  # one process that is looked at again and again
            cursor.execute(
                """
                INSERT INTO all_weights (run, applied_at, source, replica, version, fingerprint)
                SELECT 'run', make_timestamptz(1_000_000 * (30_000 + number)), 'worker', 'r1', '1', 'version 1' FROM range(5_000) AS r(number)
                """
            )
        readings = gather(store, "run").readings
        assert len(readings.rows) == 4000 + 4000  # r1's newest, and the one of each other
        assert readings.divergence is not None


# --- Weights that are rounded on their way to an engine in float32 ---

Q, K = "q float32[9]", "k float32[9]"


def arriving(version: int, *hashes: int, rounded: tuple[int, ...] = (), dtype: str = "bfloat16") -> Reading:
    """What a trainer says of two tensors, exactly and rounded; without the latter, what an engine has of them."""
    row = engine(version, *hashes, 9) if not rounded else trainer(version, *hashes, 9)
    told = dict(zip((Q, K), hashes, strict=True))
    told |= {on_the_way(name, dtype): value for name, value in zip((Q, K), rounded, strict=False)}
    return replace(row, tensors=told, fingerprint=str(hashes))


EXACT = (arriving(0, 1, 2, rounded=(1, 2)), arriving(0, 1, 2))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_weights_rounded_on_the_way_are_those_of_the_label(dtype: str) -> None:
    found = Readings((*EXACT, arriving(1, 3, 4, rounded=(30, 2), dtype=dtype), arriving(1, 30, 2)))
    assert (found.rounded, found.mismatch) == (dtype, None)
    assert found.same({Q: 3, on_the_way(Q, dtype): 30}, Q, 30)
    assert not found.same({Q: 3, on_the_way(Q, dtype): 30}, Q, 31)


def test_a_missed_update_among_rounded_ones_is_one_and_what_no_rounded_value_shows_is_none() -> None:
    rows = (*EXACT, arriving(1, 3, 4, rounded=(30, 40)), arriving(1, 30, 40))
    missed = Readings((*rows, arriving(2, 5, 6, rounded=(50, 40)), arriving(2, 30, 40))).mismatch
    assert missed is not None
    assert (missed.version, missed.held, missed.different, missed.partial) == ("2", "1", (Q,), False)
    assert Readings((*rows, arriving(2, 5, 6, rounded=(30, 40)), arriving(2, 30, 40))).mismatch is None
    nobodys = Readings((*EXACT, arriving(1, 3, 4, rounded=(30, 40)), arriving(1, 30, 41)))
    assert (nobodys.rounded, nobodys.mismatch is None) == (None, False)


def test_what_rounding_does_to_a_trainers_weights_is_read_of_its_records(home: Path) -> None:
    grid = np.ones((4, 16), np.float32)
    with Recorder(home, "run") as recorder:
        for version, off in enumerate((0.0, 1 / 512, 1 / 64)):  # bfloat16 has 1 and 1 + 1/128
            recorder.weights(version, step=version, fingerprint=fingerprint_of({"w": grid + np.float32(off)}))
        recorder.weights(3, step=3, adapter="red", fingerprint=fingerprint_of({"w": grid * 5 / 3}))
    with Store.open(Home(home)) as store:
        Ingester(store).run_once()
        weights = gather(store, "run").weights
    found = weights.rounding("bfloat16")
    assert found is not None
    assert (found.crossing, found.exact) == (0.5, (1.0, 1.0)), "an adapter's are not the weights"
    assert Weights(weights.records[:1]).rounding("bfloat16") is None, "one version is compared with nothing"
