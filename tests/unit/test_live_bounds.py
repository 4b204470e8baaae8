"""What is kept in memory of live runs, up to its bounds and one past them; that it is read back is proven by `machine/test_live_recall.py`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from mirror import Mirror, Piece, arrived, started
from segments import sampled, trained

from logprobe.monitor.live.past import Names
from logprobe.monitor.live.rows import NO_LISTS, Lists, Rows, blank
from logprobe.monitor.live.tick import Live

TRAINED: Piece = ("t", "training", [trained("a", 3, received=False)])
SAMPLED: Piece = ("e", "rollout", [sampled("a")])
BOTH = list(enumerate([SAMPLED, TRAINED]))


def brought(*runs: str) -> tuple[Mirror, Live]:
    mirror = Mirror()
    live = started(mirror)
    for run in runs:
        mirror.write(live.add(arrived(run, BOTH)))
    return mirror, live


def in_memory(live: Live) -> dict[str, int]:
    return {name: run.records() for name, run in live.memory.runs.items()}


def test_records_past_the_bound_leave_by_runs_those_without_news_for_longest_first() -> None:
    _, live = brought("one", "two")
    live.keep(records=4)
    assert in_memory(live) == {"one": 2, "two": 2}
    live.keep(records=3)
    assert in_memory(live) == {"one": 0, "two": 2}
    live.keep(records=0)
    assert in_memory(live) == {"one": 0, "two": 0}


def test_a_new_step_reads_nothing_back() -> None:
    mirror, live = brought("one")
    live.keep(records=0)
    before = mirror.read_back.total()
    pieces: list[Piece] = [("e", "rollout", [sampled("b")]), ("t", "training", [trained("b", 4, received=False)])]
    mirror.write(live.add(arrived("one", enumerate(pieces, 2))))
    assert mirror.read_back.total() == before
    assert in_memory(live) == {"one": 2}


def test_names_past_the_bound_are_forgotten_but_for_runs_with_news() -> None:
    _, live = brought("one", "two", "three")
    live.keep(records=0, names=6)
    assert set(live.memory.runs) == {"one", "two", "three"}
    live.keep(records=0, names=5)
    assert set(live.memory.runs) == {"two", "three"}
    live.keep(records=0, names=0)
    assert set(live.memory.runs) == {"three"}


def test_lists_past_the_bound_go_the_oldest_first() -> None:
    some, lists = pa.table({"token_ids": [[1, 2, 3]], "entropy": [[0.1, 0.2, 0.3]]}), Lists()  # both stay in memory
    numbers = np.concatenate([lists.add(some, ["token_ids"]), lists.add(some, ["token_ids"])])
    lists.keep(2 * some.nbytes)
    assert lists.absent(numbers).tolist() == [False, False]
    lists.keep(2 * some.nbytes - 1)
    assert lists.absent(np.append(numbers, NO_LISTS)).tolist() == [True, False, False]


def test_names_are_found_by_their_steps() -> None:
    names = Names()
    names.add(["a", "b", "a", "a"], [1, 1, 2, 2])
    names.add([], [])
    assert (names.steps(["a"]), names.steps(["b", "c"]), names.steps([])) == ({1, 2}, {1}, set())
    assert (names.has(["c", "b"]), len(names)) == (["b"], 3)
    assert Names().steps(["a"]) == set()


@pytest.mark.parametrize(
    ("rollout", "mask", "source", "token_match", "length_match", "alignment"),
    [
        ({}, None, "missing", True, True, "all"),
        ({"token_ids": [4, 4, 4, 4]}, None, "unaligned", False, True, None),
        ({"n": 2}, None, "unaligned", False, False, None),
        ({}, [True, False, True, True], "missing", None, True, None),
    ],
    ids=["same tokens", "other tokens", "fewer tokens", "a mask, so the fingerprint says nothing"],
)
def test_what_is_gone_is_compared_by_fingerprints(
    rollout: dict[str, Any],
    mask: list[bool] | None,
    source: str,
    *,
    token_match: bool | None,
    length_match: bool,
    alignment: str | None,
) -> None:
    mirror, live = brought()
    mirror.write(live.add(arrived("one", [(0, ("e", "rollout", [sampled("a", **rollout)]))])))
    live.keep(lists=0)
    mirror.raw["rollout"].clear()
    mirror.write(live.add(arrived("one", [(1, ("t", "training", [trained("a", 3, received=False, mask=mask)]))])))
    (row,) = mirror.query(
        "SELECT rollout_source, token_match, length_match, alignment FROM training_sequences"
    ).to_pylist()
    expected = {"token_match": token_match, "length_match": length_match, "alignment": alignment}
    assert row == {"rollout_source": source} | expected
    assert mirror.query("FROM all_statistics").num_rows == 0


@pytest.mark.parametrize("order", ["b", "bb", "bv", "vb", "bvb", "vbv"])
def test_columns_that_no_record_has_are_zeros_until_one_has_them(order: str) -> None:
    parts = [blank(3, 2) if each == "b" else np.full((3, 2), place + 1.0) for place, each in enumerate(order)]
    rows = Rows()
    for part in parts:
        rows.append({"x": part})
    expected = np.concatenate(parts)
    assert np.array_equal(rows["x"], expected)
    rows.put("x", [1], 0.0)
    rows.put("x", [0, 2], np.array([[np.nan, 1.0], [2.0, 3.0]]))
    expected[1], expected[0], expected[2] = 0.0, [np.nan, 1.0], [2.0, 3.0]
    assert np.array_equal(rows["x"], expected, equal_nan=True)
    rows.append({"x": blank(1, 2)})
    assert np.array_equal(rows["x"], [*expected, [0.0, 0.0]], equal_nan=True)
    assert not blank(3, 2).any()
