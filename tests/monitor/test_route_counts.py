"""Routes of engine and trainer in a store: what is counted and kept; which are compared is in tests/unit/test_live.py."""

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
from logprobe.monitor.store.store import Store

KEYS = ("routing_agreement", "routing_coverage", "routing_mismatch_frac")
A, B, C = 11, 12, 13  # fingerprints


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


def test_lists_that_are_no_multiple_of_the_tokens_are_left_out(store: Store) -> None:
    broken = {**THEIRS, "sample_id": "b", "routes": [A] * 7}
    assert measure(store, training=[OURS], rollout=[THEIRS, broken])[0] == 6 / 8
    (bad,) = store.query("SELECT message FROM health_records WHERE event = 'bad_rows'")["message"].to_pylist()
    assert "the length of routes is not a multiple of token_ids (1)" in bad


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
