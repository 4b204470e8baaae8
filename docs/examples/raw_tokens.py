"""Mean |t − r| by step from raw Parquet files alone, without logprobe: `python raw_tokens.py <home>/archive/my-run`."""

from __future__ import annotations

import sys

import duckdb
import polars as pl
import pyarrow.dataset as ds


def training_files(place: str) -> ds.Dataset:
    """The run's training records. What is needed of each file is read: columns, and row groups by their statistics."""
    return ds.dataset(f"{place}/training", partitioning=None)


def with_polars(training: ds.Dataset, first: int, last: int) -> list[tuple[int, float]]:
    """One row per step: `unique`, because a file that is being merged may be there twice for a moment."""
    columns = ["step", "mask", "trainer_logprobs", "rollout_logprobs"]
    everywhere = pl.col("trainer_logprobs").list.eval(pl.lit(True))  # where the mask is null
    gap = (pl.col("trainer_logprobs") - pl.col("rollout_logprobs").cast(pl.Float64)).abs()
    return (
        pl.scan_pyarrow_dataset(training)
        .filter(pl.col("step").is_between(first, last))
        .unique(["segment_id", "row"])
        .select(columns)
        .with_columns(pl.col("mask").fill_null(everywhere))
        .explode(columns[1:])
        .filter(pl.col("mask"))
        .group_by("step")
        .agg(gap.mean().alias("gap"))
        .sort("step")
        .collect()
        .rows()
    )


def with_duckdb(training: ds.Dataset, first: int, last: int) -> list[tuple[int, float]]:
    """The same in SQL."""
    connection = duckdb.connect()
    connection.register("training", training)
    sql = """
        SELECT step, avg(abs(t - r::DOUBLE)) AS gap
        FROM (
            SELECT step, unnest(coalesce(mask, list_transform(trainer_logprobs, lambda x: true))) AS mask, unnest(trainer_logprobs) AS t, unnest(rollout_logprobs) AS r
            FROM (SELECT DISTINCT ON (segment_id, "row") * FROM training WHERE step BETWEEN $first AND $last)
        )
        WHERE mask
        GROUP BY step
        ORDER BY step
    """
    return connection.execute(sql, {"first": first, "last": last}).fetchall()


if __name__ == "__main__":
    records = training_files(sys.argv[1])
    for name, answer in (("polars", with_polars), ("duckdb", with_duckdb)):
        for step, gap in answer(records, 0, 1 << 40):
            print(f"{name} {step} {gap:.9g}")
