"""The formula of docs/cluster.md, at four sizes each: cores and memory of a service with live runs, and what a step takes on the disk.

A real service gets a step per 10 s of so many live runs, from records that were made beforehand. Beside the error of the formula at each
size the constants are printed that fit this machine best. What the service was behind says whether it kept up: on a machine that is busy
with other work it does not, and its figures are those of the time that it was given.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from bench_service import SCALARS, Coming, bring, record
from figure import Figure
from processes import connected, end, eventually, start_service
from timed_page import cpu_seconds

from logprobe.collectors.recorder.recorder import Recorder
from logprobe.monitor.home import Home
from logprobe.monitor.service.pipeline import Pipeline
from logprobe.monitor.store.store import Store

SIZES = (25, 50, 100, 200)  # live runs
PERIOD = 10.0  # seconds from one step of a run to its next
WARM_UP, SECONDS = 60.0, 60.0
SHAPES = ((8, 24, 50), (64, 24, 50), (256, 24, 50), (8, 24, 1000))  # sequences of a step, tokens of each, scalars
RAW = ((8, 24), (32, 128), (64, 512), (64, 2048))  # sequences, tokens of each
FIRST, STEPS, AT_ONCE = 300, 900, 10  # of a shape: before, and counted; so many are ingested together
MOST = 0.25  # error of the formula
# What docs/cluster.md says: of a service at rest, and of each step a second, or run.
CORES, MEMORY = (0.45, 0.02), (320.0, 1.15)  # memory: MiB
STORE = (900.0, 165.0, 8.6)  # bytes of a step, of each of its sequences, and of each scalar; one pair
TOKEN, STEP_FILE = 9.0, 6_000.0  # bytes of a raw token, and of a step until small files are merged


@dataclass(frozen=True)
class Size:
    """What a service with so many live runs took. `behind`: steps that were due two seconds before the end and not computed."""

    runs: int
    cores: float
    memory: float
    behind: int


def measure() -> list[Figure]:
    """All figures of this module."""
    sizes = [live(runs) for runs in SIZES]
    figures = [figure for each in sizes for figure in of_size(each)]
    figures += fitted("cores", [each.runs / PERIOD for each in sizes], [each.cores for each in sizes])
    figures += fitted("MiB of memory", [each.runs for each in sizes], [each.memory for each in sizes])
    figures += [of_store(*shape) for shape in SHAPES]
    return [*figures, *(of_raw(*shape) for shape in RAW)]


def of_size(found: Size) -> list[Figure]:
    words, note = f"capacity: {found.runs} live runs", f"{SCALARS} scalars and all metrics of 8 × 24 tokens a step"
    return [
        beside(f"{words}, cores", found.cores, CORES[0] + CORES[1] * found.runs / PERIOD, "cores", note),
        beside(f"{words}, memory", found.memory, MEMORY[0] + MEMORY[1] * found.runs, "MiB", note),
        Figure(f"{words}, behind", found.behind, "steps", "0", found.behind == 0),
    ]


def beside(name: str, value: float, said: float, unit: str, note: str) -> Figure:
    """What was measured beside what the formula says."""
    met = abs(said / value - 1) <= MOST
    return Figure(
        name, value, unit, f"formula within {MOST:.0%}", met, baseline="formula", baseline_value=said, note=note
    )


def fitted(name: str, x: list[float], y: list[float]) -> list[Figure]:
    """Constant and slope with the smallest relative errors."""
    weights = 1 / np.asarray(y)
    columns = np.stack([weights, np.asarray(x) * weights], axis=1)
    constant, slope = np.linalg.lstsq(columns, np.ones(len(y)), rcond=None)[0].tolist()
    return [
        Figure(f"capacity: {name} at rest, best fit", constant, ""),
        Figure(f"capacity: {name} of each, best fit", slope, ""),
    ]


def live(runs: int) -> Size:
    """One service with so many live runs."""
    with tempfile.TemporaryDirectory() as folder:
        stage, home = Path(folder) / "stage", Path(folder) / "home"
        steps = int((WARM_UP + SECONDS) / PERIOD) + 1
        recorded = [record(stage, f"run-{run:03d}", steps) for run in range(runs)]
        coming = [
            ((step + run / runs) * PERIOD, stage, home, recorded[run][step])
            for step in range(steps)
            for run in range(runs)
        ]
        home.mkdir()
        service = start_service(home)
        try:
            with connected(home) as reader:

                def computed() -> int:
                    return int(reader.query("SELECT count(*) AS n FROM step_summaries")["n"][0].as_py())

                cores, memory, behind = watched(service.pid, coming, computed)
                eventually(lambda: computed() == runs * steps, "all of it is computed", 600)
        finally:
            end(service)
        return Size(runs, cores, memory, behind)


def watched(pid: int, coming: Coming, computed: Callable[[], int]) -> tuple[float, float, int]:
    """Cores, MiB of memory at most, and how many steps the service was behind at the end."""
    bringing = threading.Thread(target=bring, args=(coming,))
    bringing.start()
    time.sleep(WARM_UP)
    before, memory, until = cpu_seconds(pid), 0.0, time.monotonic() + SECONDS
    while time.monotonic() < until:
        time.sleep(1)
        memory = max(memory, resident(pid))
    cores = (cpu_seconds(pid) - before) / SECONDS
    behind = sum(due <= WARM_UP + SECONDS - 2 for due, *_ in coming) - computed()
    bringing.join()
    return cores, memory, max(behind, 0)


def resident(pid: int) -> float:
    """MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return float(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


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
    rng, shape, found = np.random.default_rng(1), (sequences, length), []
    with tempfile.TemporaryDirectory() as folder, Recorder(folder, "run") as recorder:
        home = Home(folder)
        for part, steps in enumerate(parts):
            first = sum(parts[:part])
            with Store.open(home) as store:
                pipeline = Pipeline(store, threading.Event())
                for step in range(first, first + steps):
                    rollout = -rng.exponential(1.0, shape).astype(np.float32)
                    recorder.step(step, {f"layer_{number}/grad_norm": rng.lognormal() for number in range(scalars)})
                    recorder.training(
                        step=step,
                        sample_ids=[f"{step}-{row}" for row in range(sequences)],
                        token_ids=rng.integers(0, 150_000, shape),
                        rollout_logprobs=rollout,
                        trainer_logprobs=np.minimum(rollout + rng.normal(0, 0.02, shape), 0).astype(np.float32),
                        mask=np.ones(shape, bool),
                    )
                    if step % at_once == at_once - 1:
                        assert recorder.flush(120)
                        pipeline.ingest(lambda _: None)
            with Store.open(home) as store:
                sql = "SELECT block_size * used_blocks AS bytes FROM pragma_database_size()"
                used = int(store.query(sql)["bytes"][0].as_py())
            found.append((used, sum(file.stat().st_size for file in (home.raw / "run").rglob("*.parquet"))))
    return found
