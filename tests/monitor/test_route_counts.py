"""Routes of engine and trainer: what is compared, what is counted, and what a fault does to the agreement."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recorded_home import feed
from segments import RUN, sampled, trained

from logprobe.collectors import Recorder
from logprobe.monitor.analysis import slices
from logprobe.monitor.home import Home
from logprobe.monitor.live import sequences
from logprobe.monitor.store.retention import Retention, RetentionPolicy
from logprobe.monitor.store.store import Store

KEYS = ("routing_agreement", "routing_coverage", "routing_mismatch_frac")
A, B, C, NONE = 11, 12, 13, 0  # fingerprints
Rows = dict[str, list[dict[str, Any]]]


def measure(store: Store, **rows: list[dict[str, Any]]) -> tuple[float | None, ...]:
    """Spool, ingest, join and compute; the values of `KEYS` in step 0."""
    feed(store, **rows)
    stored = store.query("SELECT metric, value FROM step_metrics WHERE step = 0").to_pylist()
    values = {row["metric"]: row["value"] for row in stored}
    return tuple(values[key] for key in KEYS)


def routed(row: dict[str, Any], *layers_of_tokens: list[int]) -> dict[str, Any]:
    return {**row, "routes": [mark for token in layers_of_tokens for mark in token]}


OURS = routed(trained("a"), [A, B], [A, B], [A, B], [A, B])
THEIRS = routed(sampled("a"), [A, B], [A, C], [B, B], [A, B])


def test_agreement_is_over_tokens_and_layers(store: Store) -> None:
    assert measure(store, training=[OURS], rollout=[THEIRS]) == (6 / 8, 1.0, 0.0)
    (row,) = store.query(
        "SELECT routes_match, routes_expected, routes_compared, routes_equal FROM sequences"
    ).to_pylist()
    assert list(row.values()) == [True, 8, 8, 6]


def test_counts_of_sequences_add_up_whatever_their_order(store: Store) -> None:
    """Sequences of one step with different numbers of layers: a run that changed its model, say."""
    other = routed(trained("b", n=3, received=False), [A], [B], [C])
    engine = routed(sampled("b", n=3), [A], [B], [A])
    silent = trained("c")
    assert measure(store, rollout=[engine, THEIRS, sampled("c")], training=[OURS, other, silent]) == (8 / 11, 1.0, 0.0)
    table = slices.by(store, RUN, "length", metrics=["routing_agreement"])
    assert dict(zip(table["slice"].to_pylist(), table["routing_agreement"].to_pylist(), strict=True)) == {
        "2–3": 2 / 3,
        "4–7": 6 / 8,
    }


# fault → (trainer's record, engine's record, what is left to measure)
FAULTS: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[float | None, ...]]] = {
    "nobody reports": (trained("a"), sampled("a"), (None, None, None)),
    "the trainer alone": (OURS, sampled("a"), (None, None, None)),
    "the engine alone": (trained("a"), THEIRS, (None, None, None)),
    "other layers": (OURS, routed(sampled("a"), [A], [A], [A], [A]), (None, None, 1.0)),
    "other token ids": (OURS, {**THEIRS, "token_ids": [9, 9, 9, 9]}, (None, None, None)),
    "an unknown route": (OURS, routed(sampled("a"), [A, B], [A, NONE], [B, B], [A, B]), (6 / 7, 7 / 8, 0.0)),
    "unknown on both sides": (
        routed(trained("a"), [A, B], [A, NONE], [A, B], [A, B]),
        routed(sampled("a"), [A, B], [A, NONE], [B, B], [A, B]),
        (6 / 7, 7 / 8, 0.0),
    ),
    "no route at all": (OURS, routed(sampled("a"), *[[NONE, NONE]] * 4), (None, 0.0, 0.0)),
    "masked tokens": ({**OURS, "mask": [True, True, False, True]}, THEIRS, (5 / 6, 1.0, 0.0)),
    "everything masked": ({**OURS, "mask": [False] * 4}, THEIRS, (None, None, 0.0)),
    "the engine stopped earlier": (OURS, routed(sampled("a", n=2), [A, B], [A, C]), (3 / 4, 4 / 8, 0.0)),
    "a token appended by the trainer": (
        routed(trained("a", n=5), *[[A, B]] * 5),
        THEIRS,
        (6 / 8, 8 / 10, 0.0),
    ),
    "without tokens": (
        trained("a", n=0, token_ids=[], mask=[], trainer_logprobs=[], routes=[]),
        sampled("a", n=0, token_ids=[], logprobs=[], routes=[]),
        (None, None, None),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_never_looks_healthier(store: Store, fault: str) -> None:
    ours, theirs, expected = FAULTS[fault]
    assert measure(store, training=[ours], rollout=[theirs]) == pytest.approx(expected)


def test_a_tool_turn_between_sampled_tokens(store: Store) -> None:
    """Aligned by the mask: the engine has no route for what it did not sample."""
    ours = routed(trained("a", n=5, mask=[True, True, False, True, True]), *[[A, B]] * 5)
    theirs = routed(
        sampled("a", token_ids=[0, 1, 3, 4], logprobs=[-1.0, -2.0, -4.0, -5.0]), [A, B], [A, C], [B, B], [A, B]
    )
    assert measure(store, training=[ours], rollout=[theirs]) == (6 / 8, 1.0, 0.0)


def test_lists_that_are_no_multiple_of_the_tokens_are_left_out(store: Store) -> None:
    broken = {**THEIRS, "sample_id": "b", "routes": [A] * 7}
    assert measure(store, training=[OURS], rollout=[THEIRS, broken])[0] == 6 / 8
    (bad,) = store.query("SELECT message FROM health_records WHERE event = 'bad_rows'")["message"].to_pylist()
    assert "the length of routes is not a multiple of token_ids (1)" in bad


def test_many_small_batches_count_the_same(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequences, "TOKENS_PER_BATCH", 20)
    names = [f"s{number}" for number in range(9)]
    ours, theirs = ([{**row, "sample_id": name} for name in names] for row in (OURS, THEIRS))
    assert measure(store, training=ours, rollout=theirs) == (6 / 8, 1.0, 0.0)


def test_merged_files_keep_routes_and_their_counts(store: Store) -> None:
    assert measure(store, training=[OURS], rollout=[THEIRS])[0] == 6 / 8
    second = {**OURS, "sample_id": "b"}
    assert measure(store, training=[second]) == (6 / 8, 1.0, 0.0)  # one side of it has not arrived
    Retention(store, RetentionPolicy()).run_once()
    assert measure(store, rollout=[{**THEIRS, "sample_id": "b"}])[0] == 6 / 8
    kept = store.query("SELECT sample_id, routes FROM raw_rollout ORDER BY sample_id").to_pylist()
    assert [row["routes"] for row in kept] == [THEIRS["routes"]] * 2
    (counted,) = store.query("SELECT sum(routes_compared)::BIGINT AS n FROM sequences").to_pylist()
    assert counted == {"n": 16}


# --- From expert ids to the metric ---


def test_a_recorder_on_both_sides(home: Path) -> None:
    rng = np.random.default_rng(0)
    theirs = np.argsort(rng.random((60, 5, 32)), axis=2)[:, :, :4]
    ours = theirs[:, :, ::-1].copy()
    moved = rng.random((60, 5)) < 0.3
    ours[moved, 0] = (theirs[moved].max(axis=1) + 1) % 32  # an expert that may or may not be in the set already
    truth = float(np.mean((np.sort(ours, axis=2) == np.sort(theirs, axis=2)).all(axis=2)))
    names, offsets = ["a", "b"], [0, 20, 60]
    both: Callable[[np.ndarray], dict[str, Any]] = lambda routes: {
        "sample_ids": names,
        "token_ids": np.arange(60),
        "cu_seqlens": offsets,
        "routes": routes,
    }
    with Recorder(home, RUN) as recorder:
        recorder.rollout(logprobs=np.full(60, -1.0), **both(theirs.astype(np.uint8)))
        recorder.training(step=0, trainer_logprobs=np.full(60, -1.0), **both(ours))
    with Store.open(Home(home)) as store:
        agreement, coverage, mismatch = measure(store)
    assert agreement == pytest.approx(truth)
    assert 0.5 < truth < 0.9
    assert (coverage, mismatch) == (1.0, 0.0)
