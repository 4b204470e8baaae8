"""What a step takes on the disk, in the store and as raw tokens, beside the formulas of docs/cluster.md."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Sequence

import numpy as np
from figure import Figure, beside
from training_calls import rows

from logprobe.collectors.recorder.recorder import Recorder
from logprobe.monitor.home import Home
from logprobe.monitor.service.pipeline import Pipeline
from logprobe.monitor.store.store import Store

SHAPES = ((8, 24, 50), (64, 24, 50), (256, 24, 50), (8, 24, 1000))  # sequences of a step, tokens of each, scalars
RAW = ((8, 24), (32, 128), (64, 512), (64, 2048))  # sequences, tokens of each
FIRST, STEPS, AT_ONCE = 300, 900, 10  # of a shape: before, and counted; so many are ingested together
# What docs/cluster.md says.
STORE = (900.0, 165.0, 8.6)  # bytes of a step, of each of its sequences, and of each scalar; one pair
TOKEN, STEP_FILE = 9.0, 6_000.0  # bytes of a raw token, and of a step until small files are merged


def measure() -> list[Figure]:
    """All figures of this module."""
    return [*(of_store(*shape) for shape in SHAPES), *(of_raw(*shape) for shape in RAW)]


def of_store(sequences: int, length: int, scalars: int) -> Figure:
    """What each further step of a run adds to the store."""
    (before, _), (after, _) = stored(sequences, length, scalars, parts=(FIRST, STEPS), at_once=AT_ONCE)
    said = STORE[0] + STORE[1] * sequences + STORE[2] * scalars
    name = f"capacity: store of a step, {sequences} sequences, {scalars} scalars"
    note = f"{STEPS} steps after {FIRST}, {AT_ONCE} at once; one pair, nothing folded"
    return beside(name, (after - before) / STEPS / 1e3, said / 1e3, "kB", note)


def of_raw(sequences: int, length: int) -> Figure:
    """What the raw tokens of a step take that is ingested by itself, before small files are merged."""
    tokens, steps = sequences * length, 4
    ((_, size),) = stored(sequences, length, 0, parts=(steps,), at_once=1)
    said, note = TOKEN * tokens + STEP_FILE, "both log-probs, a mask, no entropy"
    return beside(f"capacity: raw tokens of a step of {tokens:,}", size / steps / 1e3, said / 1e3, "kB", note)


def stored(sequences: int, length: int, scalars: int, *, parts: Sequence[int], at_once: int) -> list[tuple[int, int]]:
    """Bytes in use of a store with one run, and of its raw files, after so many steps each."""
    rng, found = np.random.default_rng(1), []
    with tempfile.TemporaryDirectory() as folder, Recorder(folder, "run") as recorder:
        home = Home(folder)
        for part, steps in enumerate(parts):
            first = sum(parts[:part])
            with Store.open(home) as store:
                pipeline = Pipeline(store, threading.Event())
                for step in range(first, first + steps):
                    recorder.step(step, {f"layer_{number}/grad_norm": rng.lognormal() for number in range(scalars)})
                    recorder.training(**rows(step, (sequences, length), spread=0.02, vocabulary=150_000))
                    if step % at_once == at_once - 1:
                        assert recorder.flush(120)
                        pipeline.ingest(lambda _: None)
            with Store.open(home) as store:
                sql = "SELECT block_size * used_blocks AS bytes FROM pragma_database_size()"
                used = int(store.query(sql)["bytes"][0].as_py())
            found.append((used, sum(file.stat().st_size for file in (home.raw / "run").rglob("*.parquet"))))
    return found
