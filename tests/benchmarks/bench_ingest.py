"""How fast spooled segments become durable: verified, Parquet written and fsynced, statistics and ledger committed, spool emptied."""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
from figure import Figure

from logprobe.collectors.spool.schema import ROLLOUT, TRAINING
from logprobe.collectors.spool.segments import SpoolWriter, read_segment
from logprobe.monitor.home import Home
from logprobe.monitor.live.ingest import Ingester
from logprobe.monitor.live.scan import scan
from logprobe.monitor.live.sequence_rows import reduce_training
from logprobe.monitor.live.soundness import sound_rows
from logprobe.monitor.store.archive_file import parquet
from logprobe.monitor.store.store import Store

ROUNDS = 3
SEGMENTS, SEQUENCES, LENGTH = 80, 256, 512  # of one round: 80 segments of 131,072 tokens, as collectors write them
BASELINE_TOKENS = 2_000

USUAL = ("rollout_logprobs", "trainer_logprobs")
EVERYTHING = (*USUAL, "current_logprobs", "entropy", "advantages")


def measure() -> list[Figure]:
    """All figures of this module."""
    usual, everything, naive, joined = [], [], [], []
    for _ in range(ROUNDS):  # in turns: whatever else the machine does hits all of them
        usual.append(ingest_rate(USUAL))
        naive.append(executemany_rate())
        everything.append(ingest_rate(EVERYTHING))
        joined.append(join_rate())
    speed, baseline, share = max(usual), max(naive), parts_share()
    tokens = SEGMENTS * SEQUENCES * LENGTH
    note = f"best of {ROUNDS} × {tokens:,} tokens with ids, mask, r and t, in segments of {SEQUENCES * LENGTH:,}"
    return [
        Figure("durable ingest", speed, "Mtok/s", "≥ 8", speed >= 8, "executemany, a row per token", baseline, note),
        Figure("durable ingest over executemany", speed / baseline, "×", "≥ 100", speed / baseline >= 100),
        Figure(
            "durable ingest: of it Parquet and statistics",
            share,
            "",
            "≥ 0.5",
            share >= 0.5,
            note="processor time of the two measured alone, over that of ingest",
        ),
        Figure(
            "durable ingest, all columns", max(everything), "Mtok/s", note="and c, entropy, advantages: three pairs"
        ),
        Figure(
            "ingest of both sides",
            max(joined),
            "Mtok/s",
            note="trained tokens whose r comes from rollout records, with all that follows",
        ),
    ]


def ingest_rate(floats: Iterable[str]) -> float:
    """Million tokens per second from spool to files of the archive."""
    with tempfile.TemporaryDirectory() as folder:
        home = Home(folder)
        writer = SpoolWriter(home.path, "bench", "trainer")
        table = training(floats)
        for _ in range(SEGMENTS):
            writer.write("training", table)
        with Store.open(home) as store:
            ingester = Ingester(store)
            gc.collect()
            started = time.perf_counter()
            report = ingester.run_once()
            store.archive.merge()
            seconds = time.perf_counter() - started
            stored = store.query("SELECT sum(n)::BIGINT AS n FROM statistics WHERE pair = 'backend'")["n"][0].as_py()
        if not report.tokens == stored == SEGMENTS * SEQUENCES * LENGTH:
            raise RuntimeError(f"ingested {report.tokens} tokens, stored {stored}")
        return report.tokens / seconds / 1e6


def parts_share() -> float:
    """Processor time of statistics and of durable Parquet files, each by itself, over that of ingesting the same segments."""
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryDirectory() as beside,  # raw files of its own would be foreign to the store
        Store.open(Home(folder)) as store,
    ):
        writer = SpoolWriter(store.home.path, "bench", "trainer")
        table = training(USUAL)
        for _ in range(SEGMENTS // 2):
            writer.write("training", table)
        rows = [sound_rows([read_segment(item.where)])[0].table for item in scan(store.home, now=time.time()).segments]
        together = [pa.concat_tables(rows[first : first + 20]) for first in range(0, len(rows), 20)]
        begun = time.process_time()
        for each in rows:
            reduce_training(each)
        for each in together:
            (Path(beside) / "alone.parquet").write_bytes(parquet(each.drop_columns("run"), {}))
        alone = time.process_time() - begun
        ingester = Ingester(store)
        begun = time.process_time()
        ingester.run_once()
        store.archive.merge()
        return alone / (time.process_time() - begun)


def executemany_rate() -> float:
    """The obvious way, for comparison: one INSERT per token through DB-API, one commit. Million tokens per second."""
    rng = np.random.default_rng(0)
    logprobs = rng.standard_normal((BASELINE_TOKENS, 2)).tolist()
    rows = [(0, f"s{i // LENGTH}", i % LENGTH, i, True, *pair) for i, pair in enumerate(logprobs)]
    with tempfile.TemporaryDirectory() as folder, duckdb.connect(str(Path(folder) / "naive.duckdb")) as connection:
        connection.execute(
            "CREATE TABLE tokens (step BIGINT, sample VARCHAR, position INT, token INT, mask BOOL, r FLOAT, t FLOAT)"
        )
        started = time.perf_counter()
        connection.execute("BEGIN")
        connection.executemany("INSERT INTO tokens VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
        connection.execute("COMMIT")
        return BASELINE_TOKENS / (time.perf_counter() - started) / 1e6


JOINED = "SELECT count(*) AS n FROM training_sequences WHERE rollout_source = 'joined'"


def join_rate() -> float:
    """Million trained tokens per second, their rollout records at hand."""
    segments = SEGMENTS // 8
    with tempfile.TemporaryDirectory() as folder:
        home = Home(folder)
        writer = SpoolWriter(home.path, "bench", "both")
        for number in range(segments):
            writer.write("rollout", rollout(number))
            writer.write("training", training(("trainer_logprobs",), number))
        with Store.open(home) as store:
            started = time.perf_counter()
            Ingester(store).run_once()
            seconds = time.perf_counter() - started
            joined = store.query(JOINED)["n"][0].as_py()
        if joined != segments * SEQUENCES:
            raise RuntimeError(f"joined {joined} of {segments * SEQUENCES} sequences")
        return segments * SEQUENCES * LENGTH / seconds / 1e6


def training(floats: Iterable[str], number: int = 0) -> pa.Table:
    """One segment of training records. Log-probs are real-valued noise: Parquet has to work for them."""
    rng = np.random.default_rng(number)
    r = -rng.exponential(0.5, SEQUENCES * LENGTH).astype(np.float32)
    values = {
        "rollout_logprobs": r,
        "trainer_logprobs": np.minimum(r + 0.02 * rng.standard_normal(r.size), 0).astype(np.float32),
        "current_logprobs": np.minimum(r + 0.03 * rng.standard_normal(r.size), 0).astype(np.float32),
        "entropy": rng.exponential(1.0, r.size).astype(np.float32),
        "advantages": np.repeat(rng.standard_normal(SEQUENCES), LENGTH).astype(np.float32),
    }
    columns = {
        "step": pa.array(np.full(SEQUENCES, number)),
        "sample_id": sample_ids(number),
        "token_ids": lists(token_ids(number)),
        "mask": lists(np.ones(r.size, np.bool_)),
        **{name: lists(values[name]) for name in floats},
    }
    return filled(columns, TRAINING)


def rollout(number: int) -> pa.Table:
    """The rollout records of `training(…, number)`."""
    r = -np.random.default_rng(number).exponential(0.5, SEQUENCES * LENGTH).astype(np.float32)
    columns = {"sample_id": sample_ids(number), "token_ids": lists(token_ids(number)), "logprobs": lists(r)}
    return filled(columns, ROLLOUT)


def filled(columns: dict[str, pa.Array], schema: pa.Schema) -> pa.Table:
    arrays = [columns.get(field.name, pa.nulls(SEQUENCES, field.type)).cast(field.type) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def sample_ids(number: int) -> pa.Array:
    return pa.array([f"{number}-{i}" for i in range(SEQUENCES)])


def token_ids(number: int) -> np.ndarray:
    """Frequent tokens are frequent: a power law over a vocabulary of 150,000."""
    uniform = np.random.default_rng(1000 + number).random(SEQUENCES * LENGTH)
    return (150_000**uniform).astype(np.int32) - 1


def lists(values: np.ndarray) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(np.arange(SEQUENCES + 1, dtype=np.int32) * LENGTH), pa.array(values))
