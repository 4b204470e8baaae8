"""Polars frames of a home: the same rows as SQL, and only those that a lazy query needs."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from recorded_home import ingest_recorded

from logprobe.collectors.errors import ConfigurationError, StoreError
from logprobe.monitor import reading
from logprobe.monitor.metrics.catalog import KEYS
from logprobe.monitor.reader import open_reader

RUN = "late-growth-bf16"
STEPS = 6


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reading") / "home"
    ingest_recorded(folder, RUN, before_step=STEPS)
    return folder


def shown(scalar: str) -> str:
    return f"step.{scalar}" if scalar in KEYS else scalar


def test_frames_have_the_rows_of_the_views(home: Path) -> None:
    with open_reader(home) as reader:
        expected = {
            name: pl.from_arrow(reader.query(f"SELECT * FROM {name}")) for name in ("runs", "sequences", "tokens")
        }
        fixed = pl.from_arrow(reader.query("FROM steps ORDER BY step"))
        named = reader.query(f"SELECT metrics, scalars FROM steps_of('{RUN}') ORDER BY step").to_pylist()
    assert reading.runs(home=home).equals(expected["runs"])
    steps = reading.steps(RUN, home=home)
    assert steps["step"].to_list() == list(range(STEPS))
    assert steps["backend.k3_kl"].null_count() == 0
    assert steps.select(fixed.columns).equals(fixed)
    scalars = sorted({name for row in named for name, _ in row["scalars"]})
    assert "reward" in scalars  # a metric, too
    assert steps.columns == [*fixed.columns, *sorted(KEYS), *(shown(name) for name in scalars)]
    wide = [{**dict(row["metrics"]), **{shown(name): value for name, value in row["scalars"]}} for row in named]
    assert steps.drop(fixed.columns).equals(
        pl.DataFrame(wide, schema=dict.fromkeys(steps.columns[fixed.width :], pl.Float64))
    )
    key = ["step", "sample_id"]
    assert reading.sequences(RUN, home=home).sort(key).equals(expected["sequences"].sort(key))
    key = [*key, "position"]
    assert reading.tokens(RUN, home=home).collect().sort(key).equals(expected["tokens"].sort(key))


def test_lazy_queries_agree_with_the_whole_table(home: Path) -> None:
    lazy = reading.tokens(RUN, home=home)
    whole = lazy.collect()
    assert lazy.select(pl.len()).collect().item() == whole.height
    assert lazy.head(7).collect().height == 7
    under_mask = (pl.col("step") == 3) & pl.col("mask")
    found = lazy.filter(under_mask).select("log_ratio").collect()
    assert found.height == whole.filter(under_mask).height > 0
    by_step = lazy.group_by("step").agg(pl.col("log_ratio").sum()).sort("step").collect(engine="streaming")
    expected = whole.group_by("step").agg(pl.col("log_ratio").sum()).sort("step")
    assert by_step["step"].equals(expected["step"])
    assert (by_step["log_ratio"] - expected["log_ratio"]).abs().max() < 1e-9


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (None, [(0, 1), (2, 3), (4, 5)]),
        (pl.col("step") == 3, [(3, 3)]),
        ((pl.col("step") >= 2) & pl.col("mask") & (pl.col("step") < 5), [(2, 3), (4, 4)]),
        (pl.col("step").is_in([0, 4]), [(0, 0), (4, 4)]),
        ((pl.col("step") == 3) | pl.col("mask"), [(0, 1), (2, 3), (4, 5)]),
        (pl.col("step") > pl.col("position"), [(0, 1), (2, 3), (4, 5)]),
        (pl.col("step") > 99, []),
    ],
)
def test_steps_that_a_condition_excludes_are_not_read(
    condition: pl.Expr | None, expected: list[tuple[int, int]]
) -> None:
    counted = pl.DataFrame({"step": range(6), "n": [64] * 6})
    assert reading._chunks(counted, 128, condition) == expected


def test_errors_name_what_there_is(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreError, match=f"no run 'other' in this home; choose one of: {RUN}"):
        reading.steps("other", home=home)
    with pytest.raises(StoreError, match="nothing is stored here yet"):
        reading.runs(home=tmp_path)
    monkeypatch.delenv("LOGPROBE_HOME", raising=False)
    with pytest.raises(ConfigurationError, match="pass home="):
        reading.runs()
    monkeypatch.setenv("LOGPROBE_HOME", str(home))
    assert reading.runs()["run"].to_list() == [RUN]
