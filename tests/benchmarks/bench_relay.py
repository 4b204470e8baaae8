"""Without a shared disk against with one: how many tokens a second reach the ledger, and how long a flush takes to be visible.

The same service process ingests both; on the one way segments are written into its spool, on the other into the spool of a node whose
relay sends them over TLS, on the same machine, so that relay and receiver share its cores with the service.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
from bench_ingest import LENGTH, SEQUENCES, USUAL, training
from bench_latency import SEQUENCES as FLUSHED
from bench_latency import TOKENS, delay
from figure import Figure
from processes import eventually, service_process
from relay_processes import port_of, prepare, receiver, relay
from timed_page import cpu_seconds

from logprobe.collectors.recorder.recorder import Recorder
from logprobe.collectors.relay.pacing import Compression
from logprobe.collectors.spool.segments import SpoolWriter
from logprobe.monitor.reader import FlightReader

ROUNDS, SEGMENTS = 4, 40
FLUSHES, WARM_UP = 40, 3


def measure() -> list[Figure]:
    """Rate and delay of both ways, in turns; what a segment costs; what compression gains."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        home, node = Path(folder) / "service" / "home", Path(folder) / "node"
        key = prepare(home)
        reader, _ = stack.enter_context(service_process(home))
        receiving = receiver(home).start()
        stack.callback(receiving.end)
        sending = relay(node, port_of(receiving), home, key).start()
        stack.callback(sending.end)
        shared, relayed = _rates(reader, home, node)
        pids = [running.process.pid for running in (sending, receiving)]
        before = [*map(cpu_seconds, pids)]
        relayed.append(_rate(reader, node, "last"))
        spent = [cpu_seconds(pid) - start for pid, start in zip(pids, before, strict=True)]
        near, far = _delays(reader, home, node)
    return [*_rate_figures(shared, relayed), *_delay_figures(near, far), *_cost_figures(spent), *_compression()]


def _rates(reader: FlightReader, home: Path, node: Path) -> tuple[list[float], list[float]]:
    shared: list[float] = []
    relayed: list[float] = []
    for number in range(1 + ROUNDS):
        shared.append(_rate(reader, home, f"shared {number}"))
        relayed.append(_rate(reader, node, f"relayed {number}"))
    return shared[1:], relayed[1:]  # the first round pays for connections and what is loaded once


def _rate(reader: FlightReader, home: Path, run: str) -> float:
    """Million tokens a second from the first segment in a spool to the ledger."""
    table = training(USUAL)
    writer = SpoolWriter(home, run, "trainer-bench-1-aa")
    started = time.perf_counter()
    for _ in range(SEGMENTS):
        writer.write("training", table)
    count = "SELECT count(*) AS n FROM segments WHERE run = ? AND kind = 'training'"
    eventually(lambda: reader.query(count, [run])["n"][0].as_py() == SEGMENTS, f"{run} is in the ledger", 300)
    return SEGMENTS * SEQUENCES * LENGTH / (time.perf_counter() - started) / 1e6


def _delays(reader: FlightReader, home: Path, node: Path) -> tuple[list[float], list[float]]:
    near: list[float] = []
    far: list[float] = []
    with Recorder(home, "near", flush_interval=60.0) as first, Recorder(node, "far", flush_interval=60.0) as second:
        for step in range(WARM_UP + FLUSHES):
            near.append(delay(first, reader, "near", step))
            far.append(delay(second, reader, "far", step))
    return near[WARM_UP:], far[WARM_UP:]


def _rate_figures(shared: list[float], relayed: list[float]) -> list[Figure]:
    rate, baseline = float(np.median(relayed)), float(np.median(shared))
    note = (
        f"median of {len(relayed)} and {len(shared)} × {SEGMENTS} segments of {SEQUENCES * LENGTH:,} tokens, one relay"
    )
    kept = rate / baseline >= 0.7
    return [Figure("rate through a relay", rate, "Mtok/s", "≥ 0.7 ×", kept, "shared disk", baseline, note)]


def _delay_figures(near: list[float], far: list[float]) -> list[Figure]:
    note = f"{len(far)} flushes of {FLUSHED} × {TOKENS} tokens each way, in turns"
    figures = []
    for share in (50, 99):
        value, baseline = float(np.percentile(far, share)), float(np.percentile(near, share))
        met = baseline / value >= 0.7 if share == 99 else None
        target = "≤ 1 / 0.7 ×" if share == 99 else ""
        figures.append(
            Figure(
                f"flush to visible through a relay, p{share}", value, "s", target, met, "shared disk", baseline, note
            )
        )
    return figures


def _cost_figures(spent: list[float]) -> list[Figure]:
    names = ("relay", "receiver")
    note = f"segments of {SEQUENCES * LENGTH:,} tokens, TLS included"
    return [
        Figure(f"processor time of the {name} per segment", 1e3 * seconds / SEGMENTS, "ms", note=note)
        for name, seconds in zip(names, spent, strict=True)
    ]


def _compression() -> list[Figure]:
    """What zstd makes of a segment, and below which bandwidth it sends it sooner."""
    sink = pa.BufferOutputStream()
    table = training(USUAL)
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    data = sink.getvalue()
    compression = Compression()
    parts = [data.slice(start, min(1 << 20, data.size - start)) for start in range(0, data.size, 1 << 20)]
    started = time.perf_counter()
    size = sum(compression.apply(part)[1].size for _ in range(5) for part in parts) / 5
    seconds = (time.perf_counter() - started) / 5
    pays_below = (data.size - size) / seconds / 1e6
    return [
        Figure("compressed segment", size / data.size, "×", note="zstd level 1, of the bytes a collector writes"),
        Figure("compression pays below", pays_below, "MB/s", note="of the network; a relay measures this for itself"),
    ]


if __name__ == "__main__":
    for figure in measure():
        print(figure)
