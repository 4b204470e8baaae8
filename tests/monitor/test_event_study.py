"""Around weight updates: the mismatch by distance of tokens to a switch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from recorded_home import feed
from segments import RUN, sampled, trained

from logprobe.monitor import queries
from logprobe.monitor.queries import Source
from logprobe.monitor.reader import Reader, open_reader
from logprobe.monitor.store.store import Store


@pytest.fixture(scope="module")
def recorded(recorded_runs: Path) -> Iterator[Reader]:
    """A home with the shipped runs, read without a service."""
    with open_reader(recorded_runs) as reader:
        yield reader


def pieces(*parts: tuple[int, str | None]) -> list[dict]:
    """Spans of these lengths and versions."""
    ends = np.cumsum([length for length, _ in parts]).tolist()
    return [
        {"start": end - length, "end": end, "version": version}
        for end, (length, version) in zip(ends, parts, strict=True)
    ]


def off_by(d: list[float]) -> dict[str, list[float]]:
    """Trainer log-probs at these distances from what `sampled` sampled."""
    return {"trainer_logprobs": [-float(i + 1) + value for i, value in enumerate(d)]}


def by_distance(source: Source, run: str = RUN, *, step: int | None = None, reach: int = 16) -> dict[int | None, dict]:
    rows = queries.event_study_switch(source, run=run, first=step, last=step, reach=reach)
    return {row["distance"]: row for row in rows.to_pylist()}


def test_distances_count_sampled_tokens_from_the_first_of_the_new_weights(store: Store) -> None:
    """Cases: the spans of one sequence, and by how much its tokens are off."""
    tool = {"mask": [True, False, False, True, True]}
    cases: list[tuple[list[dict], list[float], dict]] = [
        (pieces((3, "1"), (2, "2")), [0.25, 0.25, 0.5, -1.0, -0.75], {}),
        (pieces((1, "1"), (2, "2"), (1, "3")), [0.5, 0.25, 0.125, 0.75], {}),
        (pieces((4, "1"), (1, "2")), [0.5, 9, 9, 0.25, 1.0], tool),
        (pieces((1, "1"), (2, "2")), [0.5, math.nan, 0.25], {}),
        (pieces((1, "1"), (2, "2")), [0.5, 2.5, 0.25], {}),  # t is 0.5
    ]
    feed(
        store,
        rollout=[sampled(f"{step}", n=len(d), spans=spans) for step, (spans, d, _) in enumerate(cases)],
        training=[
            trained(f"{step}", step, n=len(d), received=False, **off_by(d), **more)
            for step, (_, d, more) in enumerate(cases)
        ],
    )
    found = [by_distance(store, step=step) for step in range(len(cases))]
    sizes = [{at: row["logprob_abs_diff_mean"] for at, row in each.items()} for each in found]
    assert sizes[0] == {-3: 0.25, -2: 0.25, -1: 0.5, 0: 1.0, 1: 0.75}
    assert sorted(by_distance(store, step=0, reach=1)) == [-1, 0, 1]
    assert sorted(sizes[1]) == [-2, -1, 0, 1]
    assert (sizes[1][-1], sizes[1][0]) == ((0.5 + 0.125) / 2, (0.25 + 0.75) / 2), "between two switches: in both means"
    assert sizes[2] == {-2: 0.5, -1: 0.25, 0: 1.0}, "masked tokens are no distance"
    for step in (3, 4):  # a broken token is counted and not averaged
        assert {at: row["broken"] for at, row in found[step].items()} == {-1: 0, 0: 1, 1: 0}
        assert (sizes[step][0], sizes[step][1]) == (None, 0.25)


def test_sequences_without_a_switch_are_the_comparison_and_unknown_weights_are_nothing(store: Store) -> None:
    spans = {"a": pieces((2, "1")), "b": pieces((2, None)), "c": pieces((1, None), (1, "1"))}
    feed(
        store,
        rollout=[sampled(name, n=2, spans=each) for name, each in spans.items()],
        training=[
            trained(name, n=2, received=False, **off_by([d, 0.25]))
            for d, name in zip((0.5, 1.0, 2.0), spans, strict=True)
        ],
    )
    found = by_distance(store)
    assert list(found) == [None]
    assert found[None]["logprob_abs_diff_mean"] == 0.375, "of the one whose weights are known"


def test_an_in_flight_update_shows_as_a_step(recorded: Reader) -> None:
    found = by_distance(recorded, "v1-initial", reach=8)
    assert list(found) == [*range(-8, 9), None]
    before, after = found[-1], found[0]
    gap = before["logprob_abs_diff_mean"] - after["logprob_abs_diff_mean"]
    error = math.hypot(before["logprob_abs_diff_error"], after["logprob_abs_diff_error"])
    # The tokens of the older weights are further from the trainer, and there is a jump between them
    assert gap > 8 * error
    neighbours = found[-2]["logprob_abs_diff_mean"] - found[-1]["logprob_abs_diff_mean"]
    assert gap > 5 * abs(neighbours)


def test_a_run_that_waits_for_its_requests_has_no_switch(recorded: Reader) -> None:
    assert list(by_distance(recorded, "v0-reference")) == [None]
