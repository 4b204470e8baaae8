"""Token-level profiles: buckets against plain loops, exactly once in the store, honest without raw tokens."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_home import ingest_recorded
from segments import RUN, sampled, spool, trained

from logprobe.collectors.kernel import arithmetic as kernel
from logprobe.collectors.kernel.statistics import sequence_statistics
from logprobe.monitor.analysis import profile_job, profiles
from logprobe.monitor.analysis.profile_job import ProfileJob
from logprobe.monitor.home import Home
from logprobe.monitor.service.pipeline import Pipeline
from logprobe.monitor.store.retention import Retention, RetentionPolicy
from logprobe.monitor.store.store import Store


class Feed:
    """Spool → store → join → steps → profiles, in the hand of a test."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.pipeline = Pipeline(store, threading.Event())

    def __call__(self, **kinds: list[dict]) -> dict:
        spool(self.store.home.path, **kinds)
        self.pipeline.ingest(lambda _: None)
        return self.pipeline.profile()

    def tokens(self, dimension: str, steps: tuple[int, int] = (0, 99)) -> dict[str, int]:
        table = profiles.of(self.store, RUN, dimension, steps=steps)
        return dict(zip(table["label"].to_pylist(), table["tokens"].to_pylist(), strict=True))


@pytest.fixture
def feed(home: Path) -> Iterator[Feed]:
    with Store.open(Home(home)) as store:
        yield Feed(store)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    home = tmp_path_factory.mktemp("recorded") / "home"
    ingest_recorded(home, "v1-initial", before_step=40)
    with Store.open(Home(home)) as store:
        batches: list[None] = []
        assert Pipeline(store, threading.Event()).profile(lambda: batches.append(None))["steps"] == 40
        assert batches
        yield store


# --- Buckets ---


def turns(mask: list[bool]) -> list[int]:
    """Places in turns, token by token; −1 where the mask is 0."""
    result, place = [], 0
    for index, inside in enumerate(mask):
        fresh = inside and (index == 0 or not mask[index - 1])
        place = 0 if fresh else place + 1
        result.append(min(place, profiles.TURN_TOKENS) if inside else -1)
    return result


def deciles(mask: list[bool]) -> list[int]:
    ranks = list(itertools.accumulate(mask, initial=0))
    return [10 * rank // max(sum(mask), 1) if inside else -1 for rank, inside in zip(ranks, mask, strict=False)]


@settings(deadline=None, max_examples=200)
@given(st.lists(st.lists(st.booleans(), max_size=20), min_size=1, max_size=6))
def test_places_are_those_of_a_plain_loop(masks: list[list[bool]]) -> None:
    mask_N = np.array([inside for mask in masks for inside in mask], np.bool_)
    lengths = np.array([len(mask) for mask in masks])
    found = profiles.place(np.arange(len(masks)), lengths, mask_N)
    assert found.step.tolist() == [index for index, mask in enumerate(masks) for _ in mask]
    assert np.where(mask_N, found.turn, -1).tolist() == [place for mask in masks for place in turns(mask)]
    assert np.where(mask_N, found.position, -1).tolist() == [decile for mask in masks for decile in deciles(mask)]


@given(st.lists(st.floats(-50, 1e-6), min_size=1, max_size=50))
def test_probabilities_lie_in_their_bucket(logprobs: list[float]) -> None:
    probabilities = np.exp(np.array(logprobs))
    bucket = profiles.probability_bucket(np.array(logprobs))
    ends = np.array([*profiles.PROBABILITIES, 1.00001])
    assert (ends[bucket] <= probabilities * (1 + 1e-12)).all()
    assert (probabilities <= ends[bucket + 1] * (1 + 1e-12)).all()


@given(st.floats(profiles.SMALLEST, 9e3), st.sampled_from([-1.0, 1.0]))
def test_a_bin_stands_for_what_is_in_it_within_the_error(size: float, sign: float) -> None:
    (bucket,) = profiles.log_ratio_bucket(np.array([sign * size]))
    assert np.sign(bucket) == sign
    (value,) = profiles.bin_value(np.array([bucket]))
    assert abs(value - size) <= profiles.ERROR * size * (1 + 1e-9)


def test_the_ends_of_the_bins() -> None:
    buckets = profiles.log_ratio_bucket(np.array([0.0, -0.0, 1e-13, 1e-12, -1e-12, 1e9, -1e9]))
    assert buckets.tolist() == [0, 0, 0, 1, -1, profiles.LARGEST_BIN, -profiles.LARGEST_BIN]
    assert profiles.bin_value(np.array([0])).tolist() == [0.0]


@given(
    st.lists(
        st.tuples(
            *[st.sampled_from([-2.0, -0.5, 0.0, 5e-7, 0.5, 1.0, -9998.0, -9999.0, -math.inf, math.inf, math.nan])] * 2
        ),
        min_size=1,
    )
)
def test_broken_is_what_the_statistics_call_broken(pairs: list[tuple[float, float]]) -> None:
    behaviour, policy = np.array(pairs).T
    statistics = sequence_statistics(behaviour, policy, None, np.arange(len(pairs) + 1))
    with np.errstate(invalid="ignore"):
        good, kinds = kernel.sound(behaviour, policy), kernel.broken_kinds(behaviour, policy)
    assert good.tolist() == (statistics["n"] == 1).tolist()
    assert sum(kinds.values()).tolist() == (~good).astype(int).tolist(), "each broken token has one kind"


def test_k3_is_that_of_the_statistics() -> None:
    d = np.array([0.0, 1e-9, -1e-5, 9e-5, 2e-4, -0.3, 5.0, 25.0, -25.0])
    policy = np.minimum(d, 0) - 1.0
    behaviour = policy - d
    statistics = sequence_statistics(behaviour, policy, None, np.arange(len(d) + 1))
    assert profiles.k3(policy - behaviour) == pytest.approx(statistics["sum_k3"], rel=1e-12)


# --- In the store ---


def test_every_profile_adds_up_to_the_statistics(recorded: Store) -> None:
    run, sums = "v1-initial", ("sum(n)::BIGINT AS n", "sum(sum_d) AS d", "sum(sum_abs_d) AS size", "sum(sum_k3) AS k3")
    sql = f"SELECT step, {', '.join(sums)} FROM statistics WHERE run = ? AND pair = ? GROUP BY step"
    by_step = f"SELECT step, {', '.join(sums)} FROM profiles WHERE run = ? AND pair = ? AND dimension = ? GROUP BY step"
    for pair in ("backend", "update", "total"):
        expected = {row["step"]: row for row in recorded.query(sql, [run, pair]).to_pylist()}
        for dimension in profiles.RANGES:
            found = {row["step"]: row for row in recorded.query(by_step, [run, pair, dimension]).to_pylist()}
            assert found.keys() == expected.keys()
            for step, row in expected.items():
                assert found[step] == pytest.approx(row, rel=1e-9, abs=1e-12), (dimension, pair, step)
            if dimension != "log_ratio":
                entries = profiles.of(recorded, run, dimension, pair=pair, steps=(0, 39)).to_pylist()
                assert sum(entry["tokens"] for entry in entries) == sum(row["n"] for row in expected.values())
                for name, total in {"log_ratio_mean": "d", "logprob_abs_diff_mean": "size", "k3_kl": "k3"}.items():
                    mine, whole = (
                        (entry["tokens"] * entry[name] for entry in entries),
                        (row[total] for row in expected.values()),
                    )
                    assert sum(mine) == pytest.approx(sum(whole), rel=1e-9, abs=1e-12), (dimension, pair)


def test_a_wrong_temperature_shows_by_probability(recorded: Store) -> None:
    """Raw log-probs at T < 1: rare tokens look likelier than they were sampled, frequent ones rarer."""
    table = profiles.of(recorded, "v1-initial", "probability", steps=(0, 39))
    mean = dict(zip(table["label"].to_pylist(), table["log_ratio_mean"].to_pylist(), strict=True))
    assert mean["0.01–0.05"] < -0.1 < 0.1 < mean["0.5–0.6"]


def test_what_stands_in_which_bucket(feed: Feed) -> None:
    """Cases, a step each: turns with a broken token; r of the engine, the trainer, or nobody; another length; the reference."""
    mask = [False, True, True, False, True, True, True, True, True, True, True]
    t = [-9.0, -1.5, math.nan, -9.0, *[-float(i + 1) + 0.5 for i in range(4, 11)]]
    # t is −0.5, −1.5, −2.5, −3.5: a certain token that t is far from is a placeholder
    reference = [-0.75, 0.0, math.nan, -3.25]
    short = {"token_ids": [0, 2, 3], "logprobs": [-1.0, -3.0, -4.0]}
    feed(
        rollout=[sampled("all"), sampled("masked", n=3, **short), sampled("got"), sampled("less", n=3)],
        training=[
            trained("turns", 0, n=11, mask=mask, trainer_logprobs=t),
            trained("all", 1, received=False),
            trained("masked", 1, received=False, mask=[True, False, True, True]),
            trained("got", 1),
            trained("nobody", 1, received=False),
            trained("less", 2, n=5, received=False),
            trained("referred", 3, reference_logprobs=reference),
        ],
    )
    assert feed.tokens("turn", steps=(0, 0)) == {"0": 2, "1": 1, "2": 1, "3": 1, "4": 1, "≥ 5": 2, "broken": 1}
    rows = profiles.of(feed.store, RUN, "turn", steps=(0, 0)).to_pylist()
    assert [row["k3_kl"] is None for row in rows] == [False] * 6 + [True]
    assert sum(feed.tokens("position", steps=(0, 0)).values()) == 9
    rows = profiles.of(feed.store, RUN, "position", steps=(1, 1)).to_pylist()
    assert sum(row["tokens"] for row in rows) == 4 + 3 + 4
    assert {row["log_ratio_mean"] for row in rows} == {0.5}
    known = {
        (row["step"], row["pair"]): (row["n"], row["n_expected"])
        for row in feed.store.query("SELECT step, pair, n, n_expected FROM statistics").to_pylist()
    }
    assert known[2, "backend"] == (3, 5)
    assert feed.tokens("turn", steps=(2, 2))["broken"] == 2, "what the engine did not sample has no r"
    assert sum(feed.tokens("turn", steps=(2, 2)).values()) == 5
    rows = profiles.of(feed.store, RUN, "turn", pair="reference", steps=(3, 3)).to_pylist()
    found = [(row["label"], row["tokens"], row["log_ratio_mean"]) for row in rows]
    assert found == [("0", 1, -0.25), ("3", 1, 0.25), ("broken", 2, None)]
    assert known[3, "reference"] == (2, 4)


def test_late_data_is_profiled_and_nothing_counts_twice(feed: Feed) -> None:
    assert feed(training=[trained("a"), trained("b", 1)])["steps"] == 2
    assert feed() == {"steps": 0, "tokens": 0}
    assert feed(training=[trained("c")]) == {"steps": 1, "tokens": 8}
    assert feed(rollout=[sampled("x")], training=[trained("x", 1, received=False)])["steps"] == 1
    assert sum(feed.tokens("turn", steps=(0, 0)).values()) == 8
    assert sum(feed.tokens("turn").values()) == 16


def test_a_profile_outlives_its_raw_tokens(feed: Feed) -> None:
    feed(training=[trained("a"), trained("b")])
    Retention(feed.store, RetentionPolicy(max_bytes=0)).run_once()
    feed(training=[trained("c")])  # the step is computed again, from statistics; two thirds of its tokens are gone
    assert sum(feed.tokens("turn").values()) == 8
    assert feed() == {"steps": 0, "tokens": 0}
    feed(training=[trained(name) for name in "defg"])
    assert feed.store.query("SELECT profiled_tokens AS tokens FROM step_summaries")["tokens"].to_pylist() == [20]


def test_many_small_reads_are_one_profile(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_job, "TOKENS_PER_READ", 5)
    monkeypatch.setattr(profile_job, "TOKENS_PER_BATCH", 9)
    monkeypatch.setattr(profiles, "CHUNK", 3)
    done = feed(training=[trained(f"{step}-{i}", step, n=3 + i) for step in range(3) for i in range(4)])
    assert done == {"steps": 3, "tokens": 54}
    assert sum(feed.tokens("probability").values()) == 54


def test_a_run_with_nothing_to_profile_has_none(feed: Feed) -> None:
    feed(training=[trained("a", received=False), trained("b", 1, n=0)])
    assert feed.tokens("turn") == {}
    assert ProfileJob(feed.store).run_once().steps == 0
