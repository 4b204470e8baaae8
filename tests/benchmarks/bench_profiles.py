"""How fast raw tokens become profiles: read back from Parquet, put into buckets, committed; beside what ingest does with them."""

from __future__ import annotations

import tempfile
import time

from bench_ingest import LENGTH, SEQUENCES, USUAL, training
from figure import Figure

from logprobe.collectors.spool.segments import SpoolWriter
from logprobe.monitor.analysis.profile_job import ProfileJob
from logprobe.monitor.home import Home
from logprobe.monitor.live.ingest import Ingester
from logprobe.monitor.store.store import Store

ROUNDS = 3
STEPS = 40
TOKENS = STEPS * SEQUENCES * LENGTH


def measure() -> list[Figure]:
    """All figures of this module."""
    rounds = [rates() for _ in range(ROUNDS)]
    profiled, ingested = (max(values) for values in zip(*rounds, strict=True))
    note = f"best of {ROUNDS} × {TOKENS:,} tokens, one pair, four profiles; a job of its own, so ingest does not wait for it"
    return [Figure("token profiles", profiled, "Mtok/s", "", None, "durable ingest", ingested, note)]


def rates() -> tuple[float, float]:
    """Million tokens per second: profiled, ingested."""
    with tempfile.TemporaryDirectory() as folder:
        home = Home(folder)
        writer = SpoolWriter(home.path, "bench", "trainer")
        for step in range(STEPS):
            writer.write("training", training(USUAL, step))
        with Store.open(home) as store:
            started = time.perf_counter()
            Ingester(store).run_once()
            ingested = TOKENS / (time.perf_counter() - started) / 1e6
            job, seconds, tokens = ProfileJob(store), 0.0, 0
            while (done := job.run_once()).steps:
                seconds, tokens = seconds + done.seconds, tokens + done.tokens
        if tokens != TOKENS:
            raise RuntimeError(f"profiled {tokens} of {TOKENS} tokens")
        return tokens / seconds / 1e6, ingested
