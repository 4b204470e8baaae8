"""From records to what was discarded: requests, parts, masked and aborted ones, and steps whose sequences are gone."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from sampled_requests import Requests
from segments import RUN
from store_work import Fed, freeze, recompute

from logprobe.monitor.judging.diagnosing import diagnose
from logprobe.monitor.judging.discarding import Sampled
from logprobe.monitor.judging.gather import gather
from logprobe.monitor.store.store import Store

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
BATCH = 32
SHORTER = 20  # times, so that a run has few tokens


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=float(seconds))


def put(
    store: Store, sampled: Sampled, *, extra: Sequence[dict[str, Any]] = (), training: Sequence[dict[str, Any]] = ()
) -> None:
    """What an engine and a trainer record of requests, some of which were never trained."""
    engine, trainer = list(extra), list(training)
    for i, n in enumerate(np.ceil(sampled.tokens / SHORTER).astype(int).tolist()):
        row = {"sample_id": f"s{i}", "group_id": f"g{sampled.prompt[i]}", "token_ids": list(range(n))}
        halves = [(0, n // 2, sampled.first[i]), (n // 2, n, sampled.last[i])] if n > 1 else [(0, n, sampled.last[i])]
        spans = [{"start": a, "end": b, "version": str(int(version))} for a, b, version in halves]
        logprobs = [-float(sampled.entropy[i])] * n
        engine.append({**row, "time": at(sampled.time[i]), "logprobs": logprobs, "spans": spans})
        if np.isfinite(sampled.trained_at[i]):
            own = {"rank": 0, "mask": [True] * n, "trainer_logprobs": logprobs, "weight_version": "900"}
            trainer.append({**row, **own, "time": at(sampled.trained_at[i]), "reward": sampled.reward[i]})
    trainer.sort(key=lambda row: row["time"])
    Fed(store).feed(rollout=engine, training=[{"step": i // BATCH, **row} for i, row in enumerate(trainer)])


def test_the_store_has_what_the_records_say(store: Store) -> None:
    made = Requests("late", size=600, seed=3).sampled()
    put(store, made)
    read = gather(store, RUN).sampled
    assert read is not None
    epoch = START.timestamp()
    for name in ("time", "trained_at"):
        assert getattr(read, name) - epoch == pytest.approx(getattr(made, name), abs=1e-5, nan_ok=True), name
    assert read.tokens.tolist() == np.ceil(made.tokens / SHORTER).tolist()
    assert read.entropy == pytest.approx(made.entropy, rel=1e-6)
    assert (read.reward.tolist(), read.missing) == (pytest.approx(made.reward.tolist(), nan_ok=True), 0)
    long = read.tokens > 1
    assert (read.first[long].tolist(), read.last.tolist()) == (made.first[long].tolist(), made.last.tolist())
    assert len(np.unique(read.prompt)) == len(np.unique(made.prompt))
    assert gather(store, RUN, steps=(3, 5)).sampled is None
    document = diagnose(store, RUN)
    assert document["discarded"] is not None
    assert document["discarded"]["late"] == {"limit": 2, "dropped": 1.0}
    assert "late_answers_dropped" in [finding["cause"] for finding in document["findings"]]


def test_masked_and_aborted_requests_parts_and_unknown_sequences(store: Store) -> None:
    made = Requests("nothing", size=64).sampled()
    rollout = lambda name, **more: {
        "sample_id": name,
        "token_ids": [1, 2, 3],
        "logprobs": [-1.0] * 3,
        "time": at(0),
        **more,
    }
    train = lambda name, mask, **more: {
        "sample_id": name, "token_ids": [1, 2, 3], "mask": mask, "trainer_logprobs": [-1.0] * 3, "rank": 0, "time": at(9), **more
    }  # fmt: skip
    whole = {"token_ids": [1, 2, 3, 1, 2, 3], "mask": [True] * 6, "trainer_logprobs": [-1.0] * 6}
    put(
        store,
        made,
        extra=[
            rollout("masked"),
            rollout("aborted", finish_reason="abort"),
            rollout("never"),
            rollout("p1"),
            rollout("p2"),
        ],
        training=[
            train("masked", [False] * 3, reward=0.5),
            train("unknown", [True] * 3),
            {**train("whole", [True] * 6), **whole, "part_ids": ["p1", "p2"]},
        ],
    )
    read = gather(store, RUN).sampled
    assert read is not None
    assert len(read.time) == 64 + 4  # all but the aborted one
    early = read.time == START.timestamp()
    assert sorted(np.isnan(read.trained_at[early]).tolist()) == [False, False, True, True]
    assert sorted(np.isfinite(read.reward[early]).tolist()) == [False, False, False, True]
    assert read.missing == 1


def test_of_frozen_steps_nothing_is_counted(store: Store) -> None:
    made = Requests("random", size=1600).sampled()
    put(store, made)
    recompute(store)
    whole = gather(store, RUN).sampled
    freeze(store, protected=10)
    kept = gather(store, RUN).sampled
    assert whole is not None
    assert kept is not None
    first = min(kept.trained_at[np.isfinite(kept.trained_at)])
    assert 0 < len(kept.time) < len(whole.time)
    assert kept.time.min() >= whole.trained_at[np.isfinite(whole.trained_at)].min()
    settled = kept.settled
    assert np.isnan(kept.trained_at[settled]).mean() == pytest.approx(0.3, abs=0.1)
    assert first > kept.time.min()
