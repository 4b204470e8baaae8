"""A recorder that ships statistics for most sequences, all the way to the metrics: the numbers are those of all raw tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import JUDGED, logprobe
from recorded_home import take_in

from logprobe.collectors import Recorder
from logprobe.collectors.recorder.reduction import sample_hash
from logprobe.monitor.home import Home
from logprobe.monitor.store.store import Store

RUN, STEPS, SEQUENCES, TIME = "run", 2, 48, 40
FRACTIONS = {"all": 1.0, "some": 0.1, "none": 0.0}
Homes = dict[str, Path]


def record(home: Path, fraction: float) -> None:
    """Both sides of a run: the engine's with weight versions, the trainer's with masks, broken tokens and calls without r."""
    with (
        Recorder(home, RUN, component="engine") as engine,
        Recorder(home, RUN, rank=0, raw_fraction=fraction, worst_sequences=2) as trainer,
    ):
        for step in range(STEPS):
            trainer.weights(step, step=step, applied_at=1000.0 + step)
            for micro_batch in range(2):
                _record_call(engine, trainer, step, micro_batch)
            trainer.step(step, grad_norm=1.0)


def _record_call(engine: Recorder, trainer: Recorder, step: int, micro_batch: int) -> None:
    rng = np.random.default_rng([step, micro_batch])
    names = [f"{step}/{micro_batch}/{row}" for row in range(SEQUENCES)]
    lengths = rng.integers(1, TIME, SEQUENCES)
    mask = np.arange(TIME) < lengths[:, None]
    tokens = rng.integers(0, 1000, mask.shape)
    rollout = -rng.exponential(1.0, mask.shape).astype(np.float32)
    trained = np.minimum(rollout + 0.05 * rng.standard_normal(mask.shape), 0).astype(np.float32)
    trained[5, 0] = np.nan
    rollout[~mask] = np.nan
    engine.rollout(
        sample_ids=names,
        token_ids=tokens,
        logprobs=rollout,
        lengths=lengths,
        weight_version=[[(0, int(n) // 2, step - 1), (int(n) // 2, int(n), step)] for n in lengths],
    )
    received = rollout.copy()
    received[6, 0] = -9999.0
    side: dict[str, Any] = {
        "step": step,
        "mask": mask,
        "token_ids": tokens,
        "trainer_logprobs": trained,
        "current_logprobs": np.minimum(trained + 0.02 * rng.standard_normal(mask.shape), 0).astype(np.float32),
        "entropy": rng.random(mask.shape, np.float32),
        "advantages": rng.standard_normal(mask.shape).astype(np.float32),
        "rewards": rng.random(SEQUENCES),
        "weight_version": step,
    }
    half = SEQUENCES // 2
    for rows, r in ((slice(0, half), received), (slice(half, None), None)):
        part = {name: value[rows] if isinstance(value, np.ndarray) else value for name, value in side.items()}
        trainer.training(sample_ids=names[rows], rollout_logprobs=None if r is None else r[rows], **part)


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Homes:
    """The same run three times, ingested, joined and computed; only `raw_fraction` differs."""
    found = {name: tmp_path_factory.mktemp(name) / "home" for name in FRACTIONS}
    for name, home in found.items():
        record(home, FRACTIONS[name])
        with Store.open(Home(home)) as store:
            take_in(store)
    return found


def query(home: Path, sql: str) -> list[dict[str, Any]]:
    with Store.open(Home(home)) as store:
        rows: list[dict[str, Any]] = store.query(sql).to_pylist()
    return rows


def metrics(home: Path) -> dict[tuple[int, str], float | None]:
    return {(row["step"], row["metric"]): row["value"] for row in query(home, "FROM step_metrics")}


COUNTED = "SELECT count(*) AS n, count(DISTINCT sample_id) AS names FROM training_sequences"
SUMS = """
SELECT t.sample_id, s.* EXCLUDE (segment_id, row) FROM statistics AS s
JOIN training_sequences AS t USING (segment_id, row) ORDER BY ALL
"""


def test_sums_and_metrics_are_those_of_all_raw_tokens_and_every_sequence_counts_once(homes: Homes):
    expected, total = metrics(homes["all"]), STEPS * 2 * SEQUENCES
    measured = {key for key, value in expected.items() if value is not None}
    assert {(step, metric) for step in range(STEPS) for metric in ("backend.k3_kl", "weight_lag_mean")} <= measured
    assert expected[0, "backend.coverage"] < 1
    for home in homes.values():
        assert query(home, COUNTED) == [{"n": total, "names": total}]
        found = metrics(home)
        assert {key for key, value in found.items() if value is not None} == measured
        for key in measured:
            # Sequences arrive in another order, and sums of differences lose some of their digits to it.
            assert found[key] == pytest.approx(expected[key], rel=1e-10, abs=1e-13), key
    assert query(homes["none"], SUMS) == query(homes["all"], SUMS), "in every bit"


def test_tokens_hold_the_sample_the_worst_and_what_had_to_be_joined(homes: Homes):
    names = [f"{step}/{micro}/{row}" for step in range(STEPS) for micro in range(2) for row in range(SEQUENCES)]
    to_be_joined = {name for name in names if int(name.rpartition("/")[2]) >= SEQUENCES // 2}
    sample = {name for name in names if sample_hash(name) < FRACTIONS["some"] * 2**64}
    order = "row_number() OVER (PARTITION BY step ORDER BY n_expected - n DESC, sum_k3 DESC) <= 2"
    received = f"FROM sequences WHERE rollout_source = 'received' QUALIFY {order}"
    worst = {row["sample_id"] for row in query(homes["all"], received)}
    some, none = (
        {row["sample_id"] for row in query(homes[name], "SELECT DISTINCT sample_id FROM tokens")}
        for name in ("some", "none")
    )
    assert len(worst) == 2 * STEPS
    assert some >= sample | worst | to_be_joined
    assert none >= worst | to_be_joined
    assert len(some - sample - to_be_joined) < 2 * 2 * STEPS, "no more than the worst of each call"


def test_show_and_doctor_say_sampled_and_not_lost(homes: Homes):
    reduced = query(homes["some"], "SELECT count(*) AS n FROM training_sequences WHERE NOT raw_kept")[0]["n"]
    for command in (("show", RUN), ("doctor",)):
        text = logprobe(*command, "--home", homes["some"], code=JUDGED).stdout
        assert f"raw tokens are sampled, not lost: {reduced} of {STEPS * 2 * SEQUENCES} sequences" in text
        assert "no raw tokens, statistics only" not in text
        assert "\nproblems" not in text or command == ("doctor",)
    assert "sampled" not in logprobe("show", RUN, "--home", homes["all"], code=JUDGED).stdout
