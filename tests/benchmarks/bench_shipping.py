"""Through a bucket against a shared folder: how many tokens a second reach the ledger, and how long a flush takes to be visible.

The same service process ingests both; on the one way segments are written into its spool, on the other into the folder of a node whose
shipper puts them into the bucket of a real S3 server on the same machine, from which the service pulls them. Likewise for what
trainers are told: how long after a directive was written, or the kill switch was set, `CorrectionSwitch` says so. The runs that
are told something have no steps: the service writes the directives of a run that it judges, and no one else may.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np
import psutil
from bench_ingest import LENGTH, SEQUENCES, USUAL, training
from bench_latency import SEQUENCES as FLUSHED
from bench_latency import TOKENS, delay
from bucket_servers import BUCKET, environment, serving
from figure import Figure
from processes import eventually, service_process
from timed_page import cpu_seconds

from logprobe.collectors.addresses import folder_of
from logprobe.collectors.correction.config import CorrectionConfig
from logprobe.collectors.directives import DirectiveFile, Directives
from logprobe.collectors.recorder.recorder import Recorder
from logprobe.collectors.spool.segments import SpoolWriter
from logprobe.collectors.switch import CorrectionSwitch
from logprobe.monitor.reader import FlightReader

MIS = CorrectionConfig(is_level="token", is_mode="mask", is_lower=0.5, is_upper=5.0)
ADDRESS = f"s3://{BUCKET}/bench"
ROUNDS, SEGMENTS = 4, 40
FLUSHES, WARM_UP = 40, 3
RUNS, TOLD, STEP = 16, 6, 1 << 40  # runs and directives of each at the same time, and a step after all of them


def measure() -> list[Figure]:
    """Rate and delay of both ways, in turns; what a segment costs the node."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        server = stack.enter_context(serving(Path(folder) / "server"))
        variables = environment(server.port, XDG_STATE_HOME=f"{folder}/node")
        stack.enter_context(patch.dict(os.environ, variables))
        home = Path(folder) / "home"
        reader, _ = stack.enter_context(service_process(home, "--bucket", ADDRESS))
        recorder = stack.enter_context(Recorder(ADDRESS, "far", flush_interval=60.0))
        assert recorder.flush()
        pid = eventually(_shipper, "the recorder starts a shipper")
        shared, shipped = _rates(reader, home, folder_of(ADDRESS))
        before = cpu_seconds(pid)
        shipped.append(_rate(reader, folder_of(ADDRESS), "last"))
        spent = cpu_seconds(pid) - before
        near, far = _delays(reader, home, recorder)
        told = [*_told(home, ADDRESS, "through a bucket", 3.0), *_told(home, str(home), "in a folder", 1.0)]
    return [*_rate_figures(shared, shipped), *_delay_figures(near, far), *told, _cost(spent)]


def _shipper() -> int | None:
    for process in psutil.Process().children():
        if "logprobe.collectors.shipping" in process.cmdline():
            return int(process.pid)
    return None


def _rates(reader: FlightReader, home: Path, node: Path) -> tuple[list[float], list[float]]:
    shared: list[float] = []
    shipped: list[float] = []
    for number in range(1 + ROUNDS):
        shared.append(_rate(reader, home, f"shared {number}"))
        shipped.append(_rate(reader, node, f"shipped {number}"))
    return shared[1:], shipped[1:]  # the first round pays for connections and what is loaded once


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


def _delays(reader: FlightReader, home: Path, second: Recorder) -> tuple[list[float], list[float]]:
    near: list[float] = []
    far: list[float] = []
    with Recorder(home, "near", flush_interval=60.0) as first:
        for step in range(WARM_UP + FLUSHES):
            near.append(delay(first, reader, "near", step))
            far.append(delay(second, reader, "far", step))
    return near[WARM_UP:], far[WARM_UP:]


def _told(home: Path, place: str, how: str, limit: float) -> list[Figure]:
    """How long trainers wait for a directive, and for the kill switch, of several runs at the same time."""
    with ThreadPoolExecutor(RUNS) as pool:
        each = list(pool.map(partial(_waits, home, place), [f"told {how} {number}" for number in range(RUNS)]))
    figures = []
    for name, seconds in zip(("directive", "kill switch"), zip(*each, strict=True), strict=True):
        for share in (50, 99):
            value = float(np.percentile(seconds, share))
            met, target = (value <= limit, f"≤ {limit:g} s") if share == 99 else (None, "")
            note = f"{RUNS} runs, {TOLD} of each"
            figures.append(Figure(f"{name} {how}, p{share}", value, "s", target, met, note=note))
    return figures


def _waits(home: Path, place: str, run: str) -> tuple[list[float], list[float]]:
    """Seconds of one run's directives and kill switches, at moments that have nothing to do with any clock."""
    file, directives, rng = DirectiveFile(home, run), Directives(run), np.random.default_rng(hash(run) % 2**32)
    told: list[float] = []
    stopped: list[float] = []
    with CorrectionSwitch(place, run) as switch:
        for number in range(1 + TOLD):
            time.sleep(rng.uniform(0, 1))
            directives = directives.issue(number, MIS, "bench")
            file.write(directives, None)
            told.append(_seconds(lambda wanted=directives.version: switch.version == wanted, "a directive arrives"))
            time.sleep(rng.uniform(0, 1))
            file.stop("bench")
            stopped.append(_seconds(lambda: switch.current(STEP) is None, "the kill switch arrives"))
            file.release()
            eventually(lambda: switch.current(STEP) is not None, "it is released")
    return told[1:], stopped[1:]  # the shipper hears of a new run first


def _seconds(condition: Callable[[], bool], what: str) -> float:
    began = time.perf_counter()
    eventually(condition, what)
    return time.perf_counter() - began


def _rate_figures(shared: list[float], shipped: list[float]) -> list[Figure]:
    rate, baseline = float(np.median(shipped)), float(np.median(shared))
    note = (
        f"median of {len(shipped)} and {len(shared)} × {SEGMENTS} segments of {SEQUENCES * LENGTH:,} tokens, one node"
    )
    kept = rate / baseline >= 0.5
    return [Figure("rate through a bucket", rate, "Mtok/s", "≥ 0.5 ×", kept, "shared disk", baseline, note)]


def _delay_figures(near: list[float], far: list[float]) -> list[Figure]:
    note = f"{len(far)} flushes of {FLUSHED} × {TOKENS} tokens each way, in turns"
    figures = []
    for share in (50, 99):
        value, baseline = float(np.percentile(far, share)), float(np.percentile(near, share))
        met = value <= 1.5 if share == 50 else None
        target = "≤ 1.5 s" if share == 50 else ""
        name = f"flush to visible through a bucket, p{share}"
        figures.append(Figure(name, value, "s", target, met, "shared disk", baseline, note))
    return figures


def _cost(spent: float) -> Figure:
    note = f"segments of {SEQUENCES * LENGTH:,} tokens"
    return Figure("processor time of the shipper per segment", 1e3 * spent / SEGMENTS, "ms", note=note)
