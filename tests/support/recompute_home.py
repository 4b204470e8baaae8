"""A home whose metrics are recomputed on Ray: raw tokens of a size, and what its store holds of them."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from logprobe.collectors.spool.schema import SCHEMAS
from logprobe.collectors.spool.segments import SpoolWriter
from logprobe.monitor.home import Home
from logprobe.monitor.service.pipeline import Pipeline
from logprobe.monitor.store.store import Store

RUN = "r"
SEQUENCES, LENGTH = 256, 512  # of a segment: 131,072 tokens, as collectors write them
_SEGMENTS_AT_ONCE = 64
# What an earlier definition may have left.
OLDER = (
    "UPDATE statistics SET sum_k3 = sum_k3 * 1.5 + 1, n_above = 0",
    "INSERT INTO dirty_steps (run, step) SELECT DISTINCT run, step FROM training_sequences",
)
CONTENT = (
    "SELECT step, metric, value FROM step_metrics ORDER BY ALL",
    "SELECT * FROM statistics ORDER BY step, segment_id, row, pair",
)


def make_home(path: Path, tokens: int) -> int:
    """A home of so many trained tokens, every other step's r from rollout records; → its steps. One segment a step."""
    rng = np.random.default_rng(3)
    writer = SpoolWriter(path, RUN, "w")
    steps = max(1, tokens // (SEQUENCES * LENGTH))
    with Store.open(Home(path)) as store:
        pipeline = Pipeline(store, threading.Event())
        for step in range(steps):
            _write(writer, rng, step)
            if (step + 1) % _SEGMENTS_AT_ONCE == 0 or step == steps - 1:
                pipeline.ingest(lambda _: None)
                pipeline.join()
        pipeline.compute_steps()
    return steps


def _write(writer: SpoolWriter, rng: np.random.Generator, step: int) -> None:
    names = [f"{step}-{number}" for number in range(SEQUENCES)]
    r = -rng.exponential(0.7, SEQUENCES * LENGTH).astype(np.float32)
    t = np.minimum(r + rng.normal(0, 0.05, len(r)).astype(np.float32), np.float32(-1e-7))
    ids = rng.integers(0, 100_000, len(r), dtype=np.int32)
    joined = bool(step % 2)
    if joined:
        writer.write("rollout", _table("rollout", sample_id=names, token_ids=_lists(ids), logprobs=_lists(r)))
    columns: dict[str, Any] = {} if joined else {"rollout_logprobs": _lists(r)}
    writer.write(
        "training",
        _table(
            "training",
            step=[step] * SEQUENCES,
            sample_id=names,
            token_ids=_lists(ids),
            mask=_lists(np.ones(len(r), np.bool_)),
            trainer_logprobs=_lists(t),
            **columns,
        ),
    )


def _table(kind: str, **columns: Any) -> pa.Table:
    schema = SCHEMAS[kind]
    empty = {field.name: pa.nulls(SEQUENCES, field.type) for field in schema}
    given = {name: pa.array(values) for name, values in columns.items()}
    return pa.table({**empty, **given}).cast(schema)


def _lists(values: np.ndarray[Any, Any]) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(np.arange(0, len(values) + 1, LENGTH, dtype=np.int32)), pa.array(values))


def content(path: Path) -> list[pa.Table]:
    """Metrics and statistics of a home."""
    with Store.open(Home(path), read_only=True) as store:
        return [store.query(sql) for sql in CONTENT]


def spoil(path: Path) -> list[pa.Table]:
    """Replaces the statistics of a home by what another definition would have left; → what it held."""
    before = content(path)
    with Store.open(Home(path)) as store, store.transaction() as cursor:
        for statement in OLDER:
            cursor.execute(statement)
    return before
