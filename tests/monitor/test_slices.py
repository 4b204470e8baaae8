"""Slices of a run: which sequences belong to which, and that a slice's numbers are those of its sequences alone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from recorded_home import feed, ingest_recorded
from segments import RUN, sampled, trained

from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor import metrics
from logprobe.monitor.analysis import slices
from logprobe.monitor.metrics.step_metrics import PUBLISH_METRICS
from logprobe.monitor.reader import Reader, open_reader
from logprobe.monitor.store.store import Store

OF_THE_WHOLE_STEP = {declared.key for declared in PUBLISH_METRICS}


@pytest.fixture(scope="module")
def recorded(recorded_runs: Path) -> Iterator[Reader]:
    """A home with the shipped runs, read without a service."""
    with open_reader(recorded_runs) as reader:
        yield reader


def named(table: pa.Table, column: str = "sequences") -> dict[str | None, float]:
    """Slice → one column."""
    return dict(zip(table["slice"].to_pylist(), table[column].to_pylist(), strict=True))


# --- Numbers ---


def test_a_slice_with_every_sequence_has_the_numbers_of_the_step_job(recorded: Reader) -> None:
    run, steps = "v1-initial", (0, 39)
    table = slices.by(recorded, run, "rank", steps=steps, per_step=True)  # no rank was recorded: one slice a step
    assert table["step"].to_pylist() == list(range(40))
    wanted = recorded.query("SELECT step, metric, value FROM metrics WHERE run = ? AND step <= 39", [run]).to_pylist()
    rows = table.to_pylist()
    assert len(wanted) > 40 * 50
    for entry in wanted:
        value = rows[entry["step"]][entry["metric"]]
        if entry["metric"] in OF_THE_WHOLE_STEP:
            assert value is None, entry
            continue
        expected = None if entry["value"] is None else pytest.approx(entry["value"], rel=1e-12, abs=1e-15)
        assert value == expected, entry


def test_a_slice_has_the_numbers_of_its_sequences_alone(store: Store) -> None:
    rng = np.random.default_rng(5)
    lengths = [3, 3, 9, 17, 2, 8]
    rollout = [-rng.exponential(1.0, n).astype(np.float32) for n in lengths]
    trainer = [np.minimum(r + rng.normal(0, 0.1, len(r)), 0).astype(np.float32) for r in rollout]
    trainer[2][4] = np.nan  # a broken token stays visible in its slice, and in no other
    fields = [
        {
            "rollout_logprobs": r.tolist(),
            "trainer_logprobs": t.tolist(),
            "reward": float(i),
            "tags": [("dataset", "ab"[i % 2])],
        }
        for i, (r, t) in enumerate(zip(rollout, trainer, strict=True))
    ]
    feed(
        store, training=[trained(str(i), n=n, **more) for i, (n, more) in enumerate(zip(lengths, fields, strict=True))]
    )
    for dimension, members in {
        "length": {"2–3": [0, 1, 4], "8–15": [2, 5], "16–31": [3]},
        "dataset": {"a": [0, 2, 4], "b": [1, 3, 5]},
        "tag:dataset": {"a": [0, 2, 4], "b": [1, 3, 5]},
    }.items():
        rows = slices.by(store, RUN, dimension).to_pylist()
        assert [row["slice"] for row in rows] == list(members)
        for row, chosen in zip(rows, members.values(), strict=True):
            alone = metrics.compute(
                [rollout[i] for i in chosen], [trainer[i] for i in chosen], rewards=[float(i) for i in chosen]
            )
            assert row["step"] is None
            assert row["tokens"] == sum(lengths[i] for i in chosen)
            for key in ("backend.k3_kl", "backend.chi2_seq", "backend.calibration_z", "backend.coverage", "reward"):
                assert row[key] == (None if alone[key] is None else pytest.approx(alone[key], rel=1e-12)), (row, key)
    by_length = named(slices.by(store, RUN, "length"), "backend.nonfinite_tokens")
    assert by_length == {"2–3": 0, "8–15": 1, "16–31": 0}


def test_what_the_trainer_never_saw_has_no_lag_and_what_is_masked_is_in_a_slice(store: Store) -> None:
    spans = [{"start": 0, "end": 4, "version": "3"}, {"start": 4, "end": 8, "version": "4"}]
    masks = {"x": [True] * 3, "y": [False] * 3, "z": [True, False, True]}
    feed(
        store,
        training=[
            trained("a", 0, n=4, weight_version="4"),
            *(trained(name, 1, n=3, mask=mask, weight_version="4") for name, mask in masks.items()),
        ],
        rollout=[sampled("a", n=8, spans=spans), sampled("z", n=3, spans=[{"start": 0, "end": 3, "version": "3"}])],
    )
    of_step = store.query("SELECT metric, value FROM metrics WHERE step = 0").to_pylist()
    (row,) = slices.by(store, RUN, "weight_lag", steps=(0, 0)).to_pylist()
    assert (row["slice"], row["weight_lag_mean"]) == ("1", 1)
    keys = ("weight_lag_mean", "weight_lag_newest", "mixed_version_frac", "length_mismatch_frac")
    assert {each["metric"]: each["value"] for each in of_step if each["metric"] in keys} == {k: row[k] for k in keys}
    for dimension in slices.DIMENSIONS:
        table = slices.by(store, RUN, dimension, steps=(1, 1))
        assert (sum(table["sequences"].to_pylist()), sum(table["tokens"].to_pylist())) == (3, 5)
        assert max(lag for lag in table["weight_lag_newest"].to_pylist() if lag is not None) == 1


@pytest.mark.parametrize("per_step", [False, True])
def test_slices_are_a_partition_of_finite_values_or_null(recorded: Reader, per_step: bool) -> None:
    sql = "SELECT sum(tokens) AS t, sum(sequences) AS s FROM steps WHERE run = 'v1-initial'"
    (whole,) = recorded.query(sql).to_pylist()
    for dimension in slices.DIMENSIONS:
        table = slices.by(recorded, "v1-initial", dimension, metrics=["backend.kl"], per_step=per_step)
        assert sum(table["tokens"].to_pylist()) == whole["t"], dimension
        assert sum(table["sequences"].to_pylist()) == whole["s"], dimension
        keys = list(zip(table["step"].to_pylist(), table["slice"].to_pylist(), strict=True))
        assert len(set(keys)) == len(keys), dimension
        assert all(value is None or math.isfinite(value) for value in table["backend.kl"].to_pylist()), dimension


# --- What recorded runs show ---


def test_staleness_explains_the_late_growth(recorded: Reader) -> None:
    table = slices.by(recorded, "late-growth", "weight_lag", metrics=["backend.k3_kl", "weight_lag_mean"])
    k3, lag = named(table, "backend.k3_kl"), named(table, "weight_lag_mean")
    assert {name: float(name) for name in lag} == lag, "the mean lag within a slice is the one that it is named after"
    assert list(k3) == [str(lag) for lag in range(13)]
    assert k3["0"] < 1e-9 < k3["1"] < k3["2"] < k3["3"] < k3["7"]
    order = np.argsort(np.argsort(list(k3.values())))
    assert np.corrcoef(order, range(13))[0, 1] > 0.9


# --- Which slice ---


def test_what_is_unknown_is_a_slice_of_its_own_and_comes_last(store: Store) -> None:
    known = {"start": 0, "end": 4, "version": "3"}
    half = [{"start": 0, "end": 2, "version": "3"}, {"start": 2, "end": 4, "version": None}]
    mixed = [{"start": 0, "end": 2, "version": "3"}, {"start": 2, "end": 4, "version": "4"}]
    feed(
        store,
        rollout=[
            sampled("a", spans=[known], replica="b", cached_prefix_tokens=16, finish_reason="stop"),
            sampled("b", spans=half, replica="a", cached_prefix_tokens=0, finish_reason="length"),
            sampled("c", spans=mixed),
        ],
        training=[trained(name, received=False, weight_version="5") for name in "abc"] + [trained("d", rank=1)],
    )
    assert named(slices.by(store, RUN, "weight_lag")) == {"2": 2, None: 2}  # 1.5 rounds up; one unknown token is enough
    assert named(slices.by(store, RUN, "weight_versions")) == {"1": 1, "2": 1, None: 2}
    assert list(named(slices.by(store, RUN, "replica"))) == ["a", "b", None]
    assert named(slices.by(store, RUN, "cached_prefix")) == {"no": 1, "yes": 1, None: 2}
    assert named(slices.by(store, RUN, "finish_reason")) == {"length": 1, "stop": 1, None: 2}
    assert named(slices.by(store, RUN, "rank")) == {"0": 3, "1": 1}
    assert named(slices.by(store, RUN, "dataset")) == {None: 4}
    table = slices.by(store, RUN, "weight_lag", metrics=["unknown_version_frac", "weight_lag_mean"])
    assert table["unknown_version_frac"].to_pylist() == [0, 0.75]
    assert table["weight_lag_mean"].to_pylist() == [1.75, 2.0]


def test_lags_and_lengths_have_buckets_and_what_has_no_statistics_measures_nothing(store: Store) -> None:
    spans, lags = [{"start": 0, "end": 4, "version": "100"}], (-2, 0, 16, 17, 32, 33, 64)
    masks = {count: [index < count for index in range(130)] for count in (0, 1, 2, 3, 4, 63, 64, 127, 128)}
    feed(
        store,
        rollout=[sampled(str(lag), spans=spans) for lag in lags],
        training=[
            *(trained(str(lag), 0, weight_version=str(100 + lag)) for lag in lags),
            *(trained(f"n{count}", 1, n=130, mask=mask) for count, mask in masks.items()),
            trained("without", 2, received=False),
            trained("with", 2, rank=1),
        ],
    )
    by_lag = named(slices.by(store, RUN, "weight_lag", steps=(0, 0)))
    assert by_lag == {"-2": 1, "0": 1, "16": 1, "17–32": 2, "33–64": 2}
    by_length = named(slices.by(store, RUN, "length", steps=(1, 1)), "tokens")
    assert by_length == {"0": 0, "1": 1, "2–3": 5, "4–7": 4, "32–63": 63, "64–127": 191, "128–255": 128}
    rows = slices.by(store, RUN, "rank", steps=(2, 2)).to_pylist()
    found = [(row["slice"], row["backend.k3_kl"] is None, row["backend.coverage"]) for row in rows]
    assert found == [("0", True, 0.0), ("1", False, 1.0)]


def test_a_window_without_sequences_has_no_slice_and_what_does_not_exist_is_refused(store: Store) -> None:
    feed(store, training=[trained("a", step=3)])
    for dimension in (*slices.DIMENSIONS, "tag:x"):
        table = slices.by(store, RUN, dimension, steps=(4, None))
        assert table.num_rows == 0
        assert table.column_names == ["step", "slice", "sequences", "tokens", *metrics.KEYS]
    assert slices.by(store, RUN, "rank", steps=(None, 3)).num_rows == 1
    for dimension, chosen, words in (
        ("lag", None, "weight_lag"),
        ("tag:", None, "tag:NAME"),
        ("rank", ["backend.k3"], r"backend\.k3_kl"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            slices.by(store, RUN, dimension, metrics=chosen)


# --- Against the rest ---

REPLICAS = "replica_divergence"


@pytest.fixture(scope="module")
def gaps(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """A home with a run of which one replica computes something else, and a healthy one."""
    home = tmp_path_factory.mktemp("gaps") / "home"
    ingest_recorded(home, f"faults/{REPLICAS}", "faults/healthy")
    with open_reader(home) as reader:
        yield reader


def against(reader: Reader, run: str, dimension: str) -> dict[str | None, dict[str, object]]:
    table = slices.against_rest(slices.load(reader, run), dimension, "backend")
    return {row["slice"]: row for row in table.to_pylist()}


def test_the_diverging_replica_stands_out_by_the_ratio_of_pooled_means(gaps: Reader) -> None:
    run = f"faults/{REPLICAS}"
    sums = gaps.query(
        "SELECT r.replica, sum(s.n) AS n, sum(s.sum_k3) AS k3 FROM statistics AS s "
        "JOIN training_sequences AS t USING (run, step, segment_id, row) "
        "JOIN rollout_sequences AS r ON r.run = t.run AND r.segment_id = t.rollout_segment AND r.row = t.rollout_row "
        "WHERE s.run = ? AND s.pair = 'backend' GROUP BY ALL", [run],
    ).to_pylist()  # fmt: skip
    n, k3 = (float(sum(row[name] for row in sums)) for name in ("n", "k3"))
    found = against(gaps, run, "replica")
    for row in sums:
        rest = (k3 - row["k3"]) / (n - float(row["n"]))
        assert found[row["replica"]]["times_rest"] == pytest.approx(row["k3"] / float(row["n"]) / rest)
        assert found[row["replica"]]["tokens"] == row["n"]
    highest = max(sums, key=lambda row: row["k3"] / float(row["n"]))["replica"]
    assert [name for name, row in found.items() if row["worse"]] == [highest]
    assert sum(row["k3_share"] for row in found.values()) == pytest.approx(1)


def test_z_is_the_difference_in_standard_errors_clustered_by_sequence(gaps: Reader) -> None:
    run = "faults/healthy"
    table = gaps.query(
        "SELECT r.finish_reason AS slice, s.n, s.sum_k3 FROM statistics AS s "
        "JOIN training_sequences AS t USING (run, step, segment_id, row) "
        "JOIN rollout_sequences AS r ON r.run = t.run AND r.segment_id = t.rollout_segment AND r.row = t.rollout_row "
        "WHERE s.run = ? AND s.pair = 'backend' AND s.n > 0", [run],
    )  # fmt: skip
    names, n, k3 = (np.array(table[name].to_pylist()) for name in ("slice", "n", "sum_k3"))
    found = against(gaps, run, "finish_reason")
    assert len(found) > 1
    for name, row in found.items():
        sides = [names == name, names != name]
        means = [k3[side].sum() / n[side].sum() for side in sides]
        squares = [((k3[side] - mean * n[side]) ** 2).sum() for side, mean in zip(sides, means, strict=True)]
        sizes = [int(side.sum()) for side in sides]
        errors = [
            np.sqrt(square * size / (size - 1)) / n[side].sum()
            for side, square, size in zip(sides, squares, sizes, strict=True)
        ]
        assert row["z"] == pytest.approx((means[0] - means[1]) / np.hypot(*errors), rel=1e-6)


def test_nothing_stands_out_of_a_healthy_run_nor_of_one_slice_alone(gaps: Reader) -> None:
    for dimension in ("replica", "finish_reason", "cached_prefix"):
        assert not any(row["worse"] for row in against(gaps, "faults/healthy", dimension).values()), dimension
    (row,) = against(gaps, "faults/healthy", "rank").values()
    assert (row["k3_share"], row["times_rest"], row["z"], row["worse"]) == (pytest.approx(1), None, None, None)
