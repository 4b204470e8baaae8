"""How long a diagnosis takes, and how good the growth rule is: delays, dating and false alarms on seeded synthetic runs."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from figure import Figure
from growth_runs import HEALTHY, Trend, series

from logprobe.collectors.kernel.statistics import sequence_statistics
from logprobe.monitor.home import Home
from logprobe.monitor.judging.diagnosing import diagnose
from logprobe.monitor.judging.growth import Tracker
from logprobe.monitor.judging.job import DiagnosisStage
from logprobe.monitor.service.turns import Turns
from logprobe.monitor.store.store import Store

STEPS, SEQUENCES, LENGTH = 1000, 500, 2000  # 1e6 tokens a step, 1e9 in all
ONSET, DOUBLING = 600, 60
GROWING_RUNS, HEALTHY_RUNS = 400, 240
ROUNDS = 3

# Everything that one step holds, repeated over all steps; K3 has noise, and grows from `ONSET` on.
GROWN = f"exp(0.3 * (hash(s.step) % 1000 / 500 - 1)) * pow(2, greatest(s.step - {ONSET}, 0) / {DOUBLING})"
SPREAD = {
    "all_sequences": "b.* REPLACE ('s' || s.step AS segment_id, 's' || s.step AS rollout_segment, "
    "s.step || '-' || b.row AS sample_id, s.step::VARCHAR AS weight_version), s.step",
    "all_statistics": f"b.* REPLACE ('s' || s.step AS segment_id, b.sum_k3 * {GROWN} AS sum_k3), s.step",
    "rollout_sequences": "b.* REPLACE ('s' || s.step AS segment_id, s.step || '-' || b.row AS sample_id, "
    "[{'start': 0, 'end': b.n_tokens, 'version': (s.step - 1)::VARCHAR}] AS spans)",
}


def measure() -> list[Figure]:
    """All figures of this module."""
    return [*diagnosis_figures(), *growth_figures(), *healthy_figures()]


def diagnosis_figures() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder, Store.open(Home(Path(folder) / "home")) as store:
        fill(store)
        begun = time.process_time()
        seconds = min(clock(lambda: diagnose(store, "bench")) for _ in range(ROUNDS))
        processor = (time.process_time() - begun) / ROUNDS
        Turns(DiagnosisStage(store)).run_once()
        idle = min(clock(Turns(DiagnosisStage(store)).run_once) for _ in range(ROUNDS)) * 1e3
    note = f"{STEPS} steps of {SEQUENCES * LENGTH:.0e} tokens in {SEQUENCES} sequences, no raw tokens"
    return [
        Figure("diagnosis from statistics", seconds, "s", "< 2", seconds < 2, note=note),
        Figure("processor time of it", processor, "s", note="what it takes where others compute too"),
        Figure("tick of the job, nothing new", idle, "ms", note="the same run"),
    ]


def growth_figures() -> list[Figure]:
    """How long after its onset growth is found, and how far from it it is dated."""
    runs = [
        first_alarms(series(replace(Trend(), onset=ONSET, doubling=DOUBLING), seed)) for seed in range(GROWING_RUNS)
    ]
    growing, critical, since = (np.array(column, np.float64) for column in zip(*runs, strict=True))
    early = 100 * float(np.mean(~(growing >= ONSET)))
    off = float(np.quantile(np.abs(since - ONSET), 0.95))
    note = f"{GROWING_RUNS} synthetic runs, onset {ONSET}, K3 doubles every {DOUBLING} steps"
    return [
        Figure("growth found after", float(np.median(growing)) - ONSET, "steps", note=note),
        Figure("critical after", float(np.median(critical)) - ONSET, "steps", note=note),
        Figure("alarm before the onset, or none", early, "%", "0", early == 0, note=note),
        Figure("onset dated within (95 %)", off, "steps", "≤ 60", off <= 60, note=note),
    ]


def healthy_figures() -> list[Figure]:
    """Runs without growth that raise an alarm all the same."""
    each = HEALTHY_RUNS // len(HEALTHY)
    alarms = [first_alarms(series(trend, seed)) for trend in HEALTHY.values() for seed in range(10_000, 10_000 + each)]
    share = 100 * float(np.mean([not np.isnan(growing) for growing, _, _ in alarms]))
    note = f"{len(alarms)} synthetic runs of 1,000 steps, {len(HEALTHY)} kinds"
    return [Figure("healthy runs with an alarm", share, "%", "≤ 1", share <= 1, note=note)]


def first_alarms(values: np.ndarray) -> tuple[float, float, float]:
    """Steps at which a run was first called growing (or worse) and critical, and where growth was dated to; NaN: never."""
    tracker, growing, critical, since = Tracker(), np.nan, np.nan, np.nan
    for step, value in enumerate(values.tolist()):
        tracker.follow([step], [value], ())
        growth = tracker.verdict()
        if np.isnan(growing) and growth.verdict in {"growing", "critical"}:
            growing, since = step, growth.since_step
        if np.isnan(critical) and growth.verdict == "critical":
            critical = step
    return growing, critical, since


def clock(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def fill(store: Store) -> None:
    """A run as ingest, join and step job leave it: one step is computed, the others repeat it."""
    for table, columns in one_step().items():
        with store.transaction() as cursor:
            cursor.register("base", pa.table(columns))
            cursor.execute(
                f"INSERT INTO {table} BY NAME SELECT {SPREAD[table]} FROM base AS b CROSS JOIN range({STEPS}) AS s(step)"
            )
            cursor.unregister("base")
    with store.transaction() as cursor:
        cursor.execute(
            f"INSERT INTO step_summaries BY NAME SELECT 'bench' AS run, step, {SEQUENCES * LENGTH} AS tokens, "
            f"{SEQUENCES} AS sequences, now() AS computed_at, nextval('revision') AS revision FROM range({STEPS}) AS s(step)"
        )


def one_step() -> dict[str, dict[str, object]]:
    rng = np.random.default_rng(1)
    rollout = -rng.exponential(1.0, SEQUENCES * LENGTH)
    trainer = np.minimum(rollout + rng.normal(0, 0.03, len(rollout)), 0)
    columns = sequence_statistics(rollout, trainer, None, np.arange(SEQUENCES + 1) * LENGTH)
    same = {"run": pa.repeat("bench", SEQUENCES), "segment_id": pa.repeat("", SEQUENCES), "row": np.arange(SEQUENCES)}
    length = pa.repeat(LENGTH, SEQUENCES)
    named = {"sample_id": pa.repeat("", SEQUENCES)}
    kept = {"raw_kept": pa.repeat(False, SEQUENCES)}
    trained = {
        "n_total": length,
        "n_expected": length,
        "weight_version": pa.repeat("", SEQUENCES),
        "rollout_source": pa.repeat("joined", SEQUENCES),
        "rollout_segment": pa.repeat("", SEQUENCES),
        "rollout_row": np.arange(SEQUENCES),
        "token_match": pa.repeat(True, SEQUENCES),
        "length_match": pa.repeat(True, SEQUENCES),
    }
    sampled = {"n_tokens": length, "n_logprobs": length, "spans": pa.repeat("", SEQUENCES)}
    return {
        "all_sequences": {**same, **named, **trained, **kept},
        "all_statistics": {**same, "pair": pa.repeat("backend", SEQUENCES), **columns},
        "rollout_sequences": {**same, **named, **sampled},
    }
