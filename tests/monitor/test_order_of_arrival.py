"""Metrics do not depend, in any bit, on the order in which records arrive, or on how they are batched."""

from __future__ import annotations

import itertools
import math
import shutil
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from store_work import METRICS, bring_in, recompute

from logprobe.collectors.recorder.recorder import Recorder
from logprobe.monitor.home import Home
from logprobe.monitor.metrics import exact
from logprobe.monitor.store.store import Store

RUN, STEPS, RANKS, REPLICAS, SEQUENCES = "r", 6, 3, 2, 5


@pytest.fixture(scope="module")
def segments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A spool with one segment for each rank and replica of each step."""
    home, rng = tmp_path_factory.mktemp("arrival") / "home", np.random.default_rng(5)
    trainers = [Recorder(home, RUN, rank=rank) for rank in range(RANKS)]
    engines = [Recorder(home, RUN, rank=10 + replica) for replica in range(REPLICAS)]
    for step in range(STEPS):
        for replica, engine in enumerate(engines):
            engine.weights(f"v{step}", step=step, replica=str(replica))  # labels that count by their order
            assert engine.flush()
        trainers[0].weights(f"v{step}", step=step)
        for rank, trainer in enumerate(trainers):
            _record(trainer, engines[rank % REPLICAS], step, rank, rng)
    for recorder in (*trainers, *engines):
        recorder.close()
    return home / "spool"


def _record(trainer: Recorder, engine: Recorder, step: int, rank: int, rng: np.random.Generator) -> None:
    shape = (SEQUENCES, 9)
    scale = 10.0 ** rng.integers(-4, 1, (SEQUENCES, 1))  # sums of very unlike numbers round the most
    r = -rng.exponential(0.7, shape).astype(np.float32)
    t = np.minimum(r + rng.normal(0, 0.3, shape) * scale, -1e-9).astype(np.float32)
    samples, ids = [f"{step}-{rank}-{index}" for index in range(SEQUENCES)], rng.integers(0, 1000, shape)
    spans = [[(0, 4, f"v{max(step - index % 3, 0)}"), (4, 9, f"v{step}")] for index in range(SEQUENCES)]
    engine.rollout(sample_ids=samples, token_ids=ids, logprobs=r, lengths=[9] * SEQUENCES, weight_version=spans)
    assert engine.flush()
    trainer.training(
        step=step,
        sample_ids=samples,
        token_ids=ids,
        mask=np.ones(shape, bool),
        rollout_logprobs=None if step % 2 else r,
        trainer_logprobs=t,
        current_logprobs=np.minimum(t + rng.normal(0, 0.05, shape), -1e-9).astype(np.float32),
        entropy=rng.random(shape) * scale,
        advantages=rng.normal(size=shape),
        rewards=None if step % 2 else rng.normal(size=SEQUENCES),
        weight_version=f"v{step}",
    )
    trainer.step(step, loss=1.0, reward=rng.random() * 10.0 ** -rng.integers(9))
    assert trainer.flush()


def _files(spool: Path) -> list[Path]:
    return sorted(path for path in spool.rglob("*.arrow"))


def _bring(home: Home, spool: Path, files: list[Path]) -> None:
    for file in files:
        target = home.spool / file.relative_to(spool)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, target)


def _batches(files: list[Path], rng: np.random.Generator) -> list[list[Path]]:
    order = [files[place] for place in rng.permutation(len(files))]
    cuts = np.sort(rng.integers(0, len(order), 4)).tolist()
    return [order[first:last] for first, last in zip([0, *cuts], [*cuts, len(order)], strict=True)]


@pytest.fixture(scope="module")
def expected(segments: Path, tmp_path_factory: pytest.TempPathFactory) -> pa.Table:
    """Metrics of what arrived all at once."""
    home = Home(tmp_path_factory.mktemp("at_once"))
    _bring(home, segments, _files(segments))
    with Store.open(home) as store:
        bring_in(store)
        found = store.query(METRICS)
        assert len(set(found["step"].to_pylist())) == STEPS
        known = {
            name for name, value in zip(*(found[c].to_pylist() for c in ("metric", "value")), strict=True) if value
        }
        assert known >= {"backend.k3_kl", "update.ess_seq", "entropy", "reward", "weight_lag_seconds_mean"}
    return found


@pytest.mark.parametrize("seed", range(4))
def test_any_order_and_batching_gives_the_same_metrics(
    segments: Path, expected: pa.Table, tmp_path: Path, seed: int
) -> None:
    home = Home(tmp_path)
    with Store.open(home) as store:
        for batch in _batches(_files(segments), np.random.default_rng(seed)):
            _bring(home, segments, batch)
            bring_in(store)
        _same(store.query(METRICS), expected)
        recompute(store)
        _same(store.query(METRICS), expected)


def _same(found: pa.Table, expected: pa.Table) -> None:
    rows = [
        dict(zip(((r["step"], r["metric"]) for r in t.to_pylist()), t["value"].to_pylist(), strict=True))
        for t in (found, expected)
    ]
    assert {
        key: (rows[0].get(key), value) for key, value in rows[1].items() if repr(rows[0].get(key)) != repr(value)
    } == {}
    assert len(rows[0]) == len(rows[1])


@pytest.mark.parametrize("size", [3, 200, 257, 5_000])
def test_sums_are_exact_in_any_order(size: int) -> None:
    rng = np.random.default_rng(size)
    values = rng.normal(size=size) * 10.0 ** rng.integers(-300, 300, size)
    values[::3] = rng.integers(-9, 9, len(values[::3]))
    index = rng.integers(0, 3, size)
    exactly = [sum(map(Fraction, values[index == group].tolist()), Fraction(0)) for group in range(4)]
    for order in (np.arange(size), rng.permutation(size)):
        assert exact.sums(index[order], values[order], 4).tolist() == list(map(float, exactly))


@pytest.mark.parametrize("copies", [1, 200])
def test_sums_of_what_is_no_number_or_too_large(copies: int) -> None:
    def total(*values: float) -> float:
        given = np.array(values * copies)
        return float(exact.sums(np.zeros(len(given), np.intp), given, 1)[0])

    assert math.isnan(total(1.0, math.nan))
    assert math.isnan(total(math.inf, -math.inf))
    assert total(1.0, -math.inf) == -math.inf
    assert total(1e308, 1e308, -1e308, -1e308, 1.0) == copies
    assert total(1e308, 1e308) == math.inf
    assert total(5e-324, -0.0) == copies * 5e-324
    assert str(total(-0.0)) == "0.0"


@pytest.mark.parametrize(
    ("numbers", "total"),
    [
        ([1e308, 1e308, math.inf], math.inf),
        ([1e308, 1e308, -math.inf], -math.inf),
        ([1e308, 1e308, math.nan], math.nan),
    ],
)
def test_what_is_endless_wins_over_sums_that_overflow(numbers: list[float], total: float) -> None:
    for order in itertools.permutations(numbers):
        assert exact.rounded(list(order)) == pytest.approx(total, nan_ok=True)
