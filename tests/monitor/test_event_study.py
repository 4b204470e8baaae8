"""Around weight updates: the mismatch by distance of tokens to a switch."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
from recorded_home import feed, ingest_recorded
from segments import RUN, sampled, trained

from logprobe.monitor import queries
from logprobe.monitor.analysis import worst
from logprobe.monitor.queries import Source
from logprobe.monitor.reader import Reader, open_reader
from logprobe.monitor.store.store import Store


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    home = tmp_path_factory.mktemp("recorded") / "home"
    ingest_recorded(home, "v1-initial")
    ingest_recorded(home, "v0-reference", before_step=20)
    with open_reader(home) as reader:
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


def by_distance(source: Source, run: str = RUN, *, reach: int = 16) -> dict[int | None, dict]:
    rows = queries.event_study_switch(source, run=run, first=None, last=None, reach=reach)
    return {row["distance"]: row for row in rows.to_pylist()}


# --- Distance to a switch ---


def test_distances_count_sampled_tokens_from_the_first_of_the_new_weights(store: Store) -> None:
    feed(
        store,
        rollout=[sampled("a", n=5, spans=pieces((3, "1"), (2, "2")))],
        training=[trained("a", n=5, received=False, **off_by([0.25, 0.25, 0.5, -1.0, -0.75]))],
    )
    found = by_distance(store)
    assert {at: row["logprob_abs_diff_mean"] for at, row in found.items()} == {
        -3: 0.25,
        -2: 0.25,
        -1: 0.5,
        0: 1.0,
        1: 0.75,
    }
    assert {row["tokens"] for row in found.values()} == {1}
    assert found[0]["log_ratio_mean"] == -1.0
    assert found[0]["k3_kl"] == pytest.approx(math.exp(-1), rel=1e-12)
    assert sorted(by_distance(store, reach=1)) == [-1, 0, 1]


def test_tokens_between_two_switches_stand_in_both_counts(store: Store) -> None:
    feed(
        store,
        rollout=[sampled("a", n=4, spans=pieces((1, "1"), (2, "2"), (1, "3")))],
        training=[trained("a", n=4, received=False, **off_by([0.5, 0.25, 0.125, 0.75]))],
    )
    found = by_distance(store)
    assert {at: row["tokens"] for at, row in found.items()} == {-2: 1, -1: 2, 0: 2, 1: 1}
    assert found[-1]["logprob_abs_diff_mean"] == (0.5 + 0.125) / 2
    assert found[0]["logprob_abs_diff_mean"] == (0.25 + 0.75) / 2


def test_masked_tokens_are_no_distance(store: Store) -> None:
    mask = [True, False, False, True, True]
    feed(
        store,
        rollout=[sampled("a", n=5, spans=pieces((4, "1"), (1, "2")))],
        training=[trained("a", n=5, received=False, mask=mask, **off_by([0.5, 9, 9, 0.25, 1.0]))],
    )
    found = by_distance(store)
    assert {at: row["logprob_abs_diff_mean"] for at, row in found.items()} == {-2: 0.5, -1: 0.25, 0: 1.0}


def test_sequences_without_a_switch_are_the_comparison_and_unknown_weights_are_nothing(store: Store) -> None:
    feed(
        store,
        rollout=[
            sampled("a", n=2, spans=pieces((2, "1"))),
            sampled("b", n=2, spans=pieces((2, None))),
            sampled("c", n=2, spans=pieces((1, None), (1, "1"))),
        ],
        training=[trained(name, n=2, received=False, **off_by([0.5, 0.25])) for name in "abc"],
    )
    found = by_distance(store)
    assert list(found) == [None]
    assert (found[None]["sequences"], found[None]["tokens"]) == (1, 2)


@pytest.mark.parametrize("bad", [math.nan, 0.5])
def test_a_broken_token_is_counted_and_not_averaged(store: Store, bad: float) -> None:
    feed(
        store,
        rollout=[sampled("a", n=3, spans=pieces((1, "1"), (2, "2")))],
        training=[trained("a", n=3, received=False, trainer_logprobs=[-0.5, bad, -2.75])],
    )
    found = by_distance(store)
    assert (found[0]["tokens"], found[0]["broken"], found[0]["logprob_abs_diff_mean"], found[0]["k3_kl"]) == (
        0,
        1,
        None,
        None,
    )
    assert (found[1]["tokens"], found[1]["broken"], found[1]["logprob_abs_diff_mean"]) == (1, 0, 0.25)
    first = worst.tokens(store, RUN, steps=(0, 0), count=1).to_pylist()[0]
    assert first["position"] == 1
    assert first["broken"] is not None


def test_small_gaps_keep_their_digits(store: Store) -> None:
    d = np.float64(np.float32(-1.0 + 2**-20)) + 1.0
    feed(
        store,
        rollout=[sampled("a", n=1, spans=pieces((1, "1")))],
        training=[trained("a", n=1, received=False, trainer_logprobs=[-1.0 + 2**-20])],
    )
    assert by_distance(store)[None]["k3_kl"] == pytest.approx(d * d / 2 * (1 + d / 3), rel=1e-9)


# --- Recorded runs ---


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
