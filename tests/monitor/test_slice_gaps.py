"""A slice stands out when its K3 is that of other sequences many times over, and not by chance."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from recorded_home import ingest_recorded

from logprobe.monitor.analysis import slices
from logprobe.monitor.analysis.slices import against_rest
from logprobe.monitor.reader import Reader, open_reader

REPLICAS = "replica_divergence"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """A home with a run of which one replica computes something else, and a healthy one."""
    home = tmp_path_factory.mktemp("gaps") / "home"
    ingest_recorded(home, f"faults/{REPLICAS}", "faults/healthy")
    with open_reader(home) as reader:
        yield reader


def rows(reader: Reader, run: str, dimension: str) -> dict[str | None, dict[str, object]]:
    table = against_rest(slices.load(reader, run), dimension, "backend")
    return {row["slice"]: row for row in table.to_pylist()}


def test_the_diverging_replica_stands_out_by_the_ratio_of_pooled_means(recorded: Reader) -> None:
    run = f"faults/{REPLICAS}"
    sums = recorded.query(
        "SELECT r.replica, sum(s.n) AS n, sum(s.sum_k3) AS k3 FROM statistics AS s "
        "JOIN training_sequences AS t USING (run, step, segment_id, row) "
        "JOIN rollout_sequences AS r ON r.run = t.run AND r.segment_id = t.rollout_segment AND r.row = t.rollout_row "
        "WHERE s.run = ? AND s.pair = 'backend' GROUP BY ALL", [run],
    ).to_pylist()  # fmt: skip
    n, k3 = (float(sum(row[name] for row in sums)) for name in ("n", "k3"))
    found = rows(recorded, run, "replica")
    for row in sums:
        rest = (k3 - row["k3"]) / (n - float(row["n"]))
        assert found[row["replica"]]["times_rest"] == pytest.approx(row["k3"] / float(row["n"]) / rest)
        assert found[row["replica"]]["tokens"] == row["n"]
    highest = max(sums, key=lambda row: row["k3"] / float(row["n"]))["replica"]
    assert [name for name, row in found.items() if row["worse"]] == [highest]
    assert sum(row["k3_share"] for row in found.values()) == pytest.approx(1)


def test_z_is_the_difference_in_standard_errors_clustered_by_sequence(recorded: Reader) -> None:
    run = "faults/healthy"
    table = recorded.query(
        "SELECT r.finish_reason AS slice, s.n, s.sum_k3 FROM statistics AS s "
        "JOIN training_sequences AS t USING (run, step, segment_id, row) "
        "JOIN rollout_sequences AS r ON r.run = t.run AND r.segment_id = t.rollout_segment AND r.row = t.rollout_row "
        "WHERE s.run = ? AND s.pair = 'backend' AND s.n > 0", [run],
    )  # fmt: skip
    names, n, k3 = (np.array(table[name].to_pylist()) for name in ("slice", "n", "sum_k3"))
    found = rows(recorded, run, "finish_reason")
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


def test_nothing_stands_out_of_a_healthy_run_nor_of_one_slice_alone(recorded: Reader) -> None:
    for dimension in ("replica", "finish_reason", "cached_prefix"):
        assert not any(row["worse"] for row in rows(recorded, "faults/healthy", dimension).values()), dimension
    (row,) = rows(recorded, "faults/healthy", "rank").values()
    assert (row["k3_share"], row["times_rest"], row["z"], row["worse"]) == (pytest.approx(1), None, None, None)
