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
    source: str,
    replica: str | None,
    version: int | None,
    hashes: tuple[int, ...],
    worker: str | None = None,
    layout: str = "same",
    adapter: str | None = None,
) -> Reading:
    label = None if version is None else str(version)
    tensors = dict(zip(KEYS, hashes, strict=True))
    return Reading(
        source,
        replica,
        worker,
        label,
        version,
        str(hashes),
        layout,
        unannounced=False,
        tensors=tensors,
        adapter=adapter,
    )


OLD, NEW = (1, 2, 9), (3, 4, 9)


def test_replicas_with_one_label_and_other_weights_diverge() -> None:
    rows = [engine(0, *OLD, replica="a"), engine(0, *OLD, replica="b"), engine(1, *NEW, replica="a")]
    stale = Readings((*rows, engine(1, *OLD, replica="b"))).divergence
    assert stale is not None
    assert (stale.version, stale.replicas, stale.wrong) == ("1", ("a", "b"), ("b",))
    assert Readings((*rows, engine(1, *NEW, replica="b"))).divergence is None
    assert Readings(tuple(rows)).divergence is None


def test_of_three_replicas_the_one_that_is_alone_is_wrong() -> None:
    rows = [engine(1, *NEW, replica="a"), engine(1, *NEW, replica="b"), engine(1, 7, 7, 7, replica="c")]
    found = Readings(tuple(rows)).divergence
    assert found is not None
    assert found.wrong == ("c",)


def test_the_trainer_decides_which_of_two_replicas_is_wrong() -> None:
    same = [engine(0, *OLD, replica="a"), engine(0, *OLD, replica="b"), trainer(0, *OLD), trainer(1, *NEW)]
    found = Readings((*same, engine(1, 5, 5, 9, replica="a"), engine(1, *NEW, replica="b"))).divergence
    assert found is not None
    assert found.wrong == ("a",)
    unknown = Readings((engine(1, 5, 5, 5, replica="a"), engine(1, *NEW, replica="b"))).divergence
    assert unknown is not None
    assert unknown.wrong == ()


@pytest.mark.parametrize("other", [{"worker": "tp1of2"}, {"layout": "packed"}], ids=["worker", "layout"])
def test_only_like_is_compared_with_like(other: dict[str, str]) -> None:
    assert Readings((engine(1, *OLD, replica="a"), engine(1, *NEW, replica="b", **other))).divergence is None


def test_what_was_wrong_and_is_mended_is_no_finding() -> None:
    wrong = [engine(1, *OLD, replica="a"), engine(1, *NEW, replica="b")]
    assert Readings((*wrong, engine(2, 5, 6, 9, replica="a"), engine(2, 5, 6, 9, replica="b"))).divergence is None


def test_an_engine_with_the_weights_of_another_version_is_found() -> None:
    found = Readings((trainer(0, *OLD), engine(0, *OLD), trainer(1, *NEW), engine(1, *OLD))).mismatch
    assert found is not None
    assert (found.version, found.held, found.partial, found.different) == ("1", "0", False, ("q", "k"))


def test_an_engine_with_some_tensors_of_a_version_is_found() -> None:
    found = Readings((trainer(0, *OLD), engine(0, *OLD), trainer(1, *NEW), engine(1, 3, 2, 9))).mismatch
    assert found is not None
    assert (found.held, found.partial, found.different) == (None, True, ("k",))


def test_without_a_trainer_other_replicas_show_that_versions_differ() -> None:
    rows = [engine(0, *OLD, replica="a"), engine(0, *OLD, replica="b"), engine(1, *NEW, replica="a")]
    found = Readings((*rows, engine(1, *OLD, replica="b"))).mismatch
    assert found is not None
    assert (found.replica, found.held) == ("b", "0")


def test_no_false_alarms() -> None:
    learning_rate_of_zero = Readings((trainer(0, *OLD), engine(0, *OLD), trainer(1, *OLD), engine(1, *OLD)))
    never_agreed = Readings((trainer(0, *OLD), engine(0, 7, 7, 7), trainer(1, *NEW), engine(1, 8, 8, 8)))
    alone = Readings((engine(0, *OLD), engine(1, *OLD)))
    no_versions = Readings((engine(None, *OLD, replica="a"), engine(None, *NEW, replica="b")))
    in_step = Readings((trainer(0, *OLD), engine(0, *OLD), trainer(1, *NEW), engine(1, *NEW)))
    # One that another order of its values keeps apart (q) says nothing; the other one does.
    packed = Readings((trainer(0, *OLD), engine(0, 70, 2, 9), trainer(1, *NEW), engine(1, 71, 4, 9)))
    for readings in (learning_rate_of_zero, never_agreed, alone, no_versions, in_step, packed, Readings()):
        assert readings.divergence is None
        assert readings.mismatch is None


def test_a_version_of_two_weights_is_found_whoever_says_so() -> None:
    restarted = Readings((engine(0, *OLD), engine(1, *NEW), engine(1, *OLD))).reuse
    assert restarted is not None
    assert (restarted.version, restarted.source, restarted.different, restarted.versions) == ("1", "worker", 2, 1)
    marked_twice = Readings((trainer(0, *OLD), trainer(1, *NEW), trainer(0, 7, 7, 7))).reuse
    assert marked_twice is not None
    assert (marked_twice.version, marked_twice.source) == ("0", "trainer")
    adapter = Readings((engine(0, *OLD), engine(0, *NEW, adapter="red"), engine(0, 7, 7, 7, adapter="red"))).reuse
    assert adapter is not None
    assert adapter.adapter == "red"


def test_different_weights_of_different_owners_are_no_reuse() -> None:
    for rows in (
        (engine(0, *OLD), engine(0, *NEW, adapter="red"), engine(0, 7, 7, 7, adapter="blue")),
        (engine(0, *OLD, worker="tp0of2"), engine(0, *NEW, worker="tp1of2")),
        (engine(0, *OLD, layout="packed"), engine(0, *NEW)),
        (engine(None, *OLD), engine(None, *NEW)),
        (engine(0, *OLD), engine(0, *OLD), engine(1, *OLD)),
        (trainer(0, *OLD), trainer(0, *NEW), trainer(1, 5, 5, 5), trainer(1, 7, 7, 7)),  # two ranks with a part each
        (trainer(0, *OLD), trainer(0, *NEW)),  # or two ranks at the first version
    ):
        assert Readings(rows).reuse is None


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
    assert found.rounded == dtype
    assert found.mismatch is None
    assert found.same({Q: 3, on_the_way(Q, dtype): 30}, Q, 30)
    assert not found.same({Q: 3, on_the_way(Q, dtype): 30}, Q, 31)


def test_a_missed_update_among_rounded_ones_is_one() -> None:
    rows = (*EXACT, arriving(1, 3, 4, rounded=(30, 40)), arriving(1, 30, 40))
    found = Readings((*rows, arriving(2, 5, 6, rounded=(50, 40)), arriving(2, 30, 40))).mismatch
    assert found is not None
    assert (found.version, found.held, found.different, found.partial) == ("2", "1", (Q,), False)


def test_updates_that_no_rounded_value_shows_are_not_missed() -> None:
    rows = (*EXACT, arriving(1, 3, 4, rounded=(30, 40)), arriving(1, 30, 40))
    assert Readings((*rows, arriving(2, 5, 6, rounded=(30, 40)), arriving(2, 30, 40))).mismatch is None


def test_weights_that_are_nobodys_are_not_called_rounded() -> None:
    found = Readings((*EXACT, arriving(1, 3, 4, rounded=(30, 40)), arriving(1, 30, 41)))
    assert found.rounded is None
    assert found.mismatch is not None


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
