"""Columns of a run grow by what changed, and never keep what was taken back."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from logprobe.app.dashboard.data.series import RunSeries, merge


def summaries(*rows: tuple[int, int], times: list[datetime | None] | None = None) -> pa.Table:
    columns = {"step": [step for step, _ in rows], "revision": [revision for _, revision in rows]}
    columns |= {"tokens": [10] * len(rows)}
    moments = pa.array(times or [None] * len(rows), pa.timestamp("us", "UTC"))
    return pa.table(columns).append_column("time", moments)


def points(*rows: tuple[int, str, float | None]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [[], [], []]
    types = {"step": pa.int64(), "metric": pa.string(), "value": pa.float64()}
    return pa.table(
        {name: pa.array(list(column), kind) for (name, kind), column in zip(types.items(), columns, strict=True)}
    )


def test_steps_are_sorted_and_unknown_values_are_gaps() -> None:
    series = merge(RunSeries("r"), summaries((5, 1), (2, 2)), points((5, "a", 1.0), (2, "b", float("inf"))))
    assert series.steps.tolist() == [2, 5]
    np.testing.assert_array_equal(series.column("a"), [np.nan, 1.0])
    np.testing.assert_array_equal(series.column("b"), [np.nan, np.nan])
    assert series.revision == 2
    assert series.latest("a") == (5, 1.0)
    assert series.latest("b") is None
    assert not series.measured("b")
    assert not series.measured("never heard of")


def test_a_recomputed_step_replaces_all_its_values() -> None:
    series = merge(RunSeries("r"), summaries((1, 1), (2, 2)), points((1, "a", 1.0), (2, "a", 2.0), (1, "b", 9.0)))
    again = merge(series, summaries((1, 3)), points((1, "a", 7.0)))
    np.testing.assert_array_equal(again.column("a"), [7.0, 2.0])
    assert not again.measured("b")  # it was taken back
    np.testing.assert_array_equal(series.column("a"), [1.0, 2.0])  # what others hold did not change


def test_points_that_overtook_their_summary_wait_for_it() -> None:
    series = merge(RunSeries("r"), summaries((1, 1)), points((1, "a", 1.0), (2, "a", 2.0)))
    assert series.steps.tolist() == [1]
    assert merge(series, summaries(), points()) is series


@given(st.lists(st.tuples(st.integers(0, 9), st.floats(-1e9, 1e9)), min_size=1, max_size=40), st.integers(1, 5))
def test_growing_in_parts_is_reading_at_once(writes: list[tuple[int, float]], parts: int) -> None:
    grown = RunSeries("r")
    for start in range(0, len(writes), parts):
        batch = dict(writes[start : start + parts])
        rows = [(step, "a", value) for step, value in batch.items()]
        grown = merge(grown, summaries(*((step, start + 1) for step in batch)), points(*rows))
    final = dict(writes)
    assert grown.steps.tolist() == sorted(final)
    assert grown.column("a").tolist() == [final[step] for step in sorted(final)]


def test_places_on_other_axes_are_known_or_unknown() -> None:
    times = [datetime(2026, 1, 1, 0, 0, 30, 500_000, tzinfo=UTC), None, datetime(2026, 1, 1, tzinfo=UTC)]
    series = merge(RunSeries("r"), summaries((9, 1), (4, 1), (3, 1), times=times), points())
    np.testing.assert_array_equal(series.elapsed, [0.0, np.nan, 30.5])
    assert series.trained.tolist() == [10, 20, 30]
    unknown = RunSeries("r", 1, np.arange(3), np.array([1.0, np.nan, 1.0]))
    np.testing.assert_array_equal(unknown.trained, [1.0, np.nan, np.nan])  # never a sum of what is known only in part
    assert np.isnan(unknown.elapsed).all()


def test_a_checksum_changes_with_any_value() -> None:
    series = merge(RunSeries("r"), summaries((1, 1), (2, 2)), points((1, "a", 1.0), (2, "a", 2.0)))
    others = [
        merge(RunSeries("r"), summaries((1, 1), (2, 2)), points((1, "a", 1.0), (2, "a", 2.5))),
        merge(RunSeries("r"), summaries((1, 1), (2, 2)), points((1, "b", 1.0), (2, "b", 2.0))),
        merge(RunSeries("r"), summaries((1, 1), (3, 2)), points((1, "a", 1.0), (3, "a", 2.0))),
        merge(RunSeries("s"), summaries((1, 1), (2, 2)), points((1, "a", 1.0), (2, "a", 2.0))),
    ]
    assert len({series.checksum, *(other.checksum for other in others)}) == 5
    again = merge(RunSeries("r"), summaries((1, 1), (2, 2)), points((1, "a", 1.0), (2, "a", 2.0)))
    assert again.checksum == series.checksum
