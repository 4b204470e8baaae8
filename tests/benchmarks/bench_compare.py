"""How long `logprobe compare` of two runs of 1,000 steps takes, all usual metrics, from their store: with and without the process' start."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from figure import Figure
from recorded_home import take_in

from logprobe.collectors.recorder.recorder import Recorder
from logprobe.monitor.compare import Comparison, Places, compare
from logprobe.monitor.home import Home
from logprobe.monitor.store.store import Store

sys.path.append(str(Path(__file__).resolve().parent.parent / "e2e"))

from synthetic_run import SyntheticRun

STEPS = 1000
ROUNDS = 5
AT_ONCE = 50  # steps between two flushes
RUNS = {"base": 5, "other": 7}  # seeds
LIMIT = 2.0


def measure() -> list[Figure]:
    """All figures of this module."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        fill(home)
        return figures(str(home))


def figures(home: str) -> list[Figure]:
    command = ["compare", "other", "--baseline", "base", "--home", home]
    started = [[sys.executable, "-m", "logprobe.app.cli", *words] for words in (command, ["runs", "--home", home])]
    whole, start = (min_of([taken(words) for _ in range(ROUNDS)]) for words in started)
    inside = min_of([timed(lambda: run_here(home)) for _ in range(ROUNDS)])
    note = f"{STEPS} steps each, {judged(home)} metrics, the smallest of {ROUNDS} rounds; no service runs"
    return [
        Figure("compare, the whole command", whole[0], "s", f"≤ {LIMIT:g}", whole[0] <= LIMIT, "logprobe runs", start[0], note),
        Figure("processor time of it", whole[1], "s", f"≤ {LIMIT:g}", whole[1] <= LIMIT, "logprobe runs", start[1]),
        Figure("compare, without the process' start", inside[0], "s", note="reading both runs and judging"),
        Figure("processor time of it", inside[1], "s"),
    ]  # fmt: skip


def run_here(home: str) -> Comparison:
    with Places(home) as places:
        return compare([places.find("other")], places.find("base"))


def judged(home: str) -> int:
    """How many metrics have a verdict; the others were not recorded."""
    return sum(metric.verdict != "unknown" for metric in run_here(home).pairings[0].metrics)


def taken(command: list[str]) -> tuple[float, float]:
    """Wall and processor seconds of a process."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """Wall and processor seconds of a call."""
    begun, processor = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - begun, time.process_time() - processor


def min_of(rounds: list[tuple[float, float]]) -> tuple[float, float]:
    """The smallest of each: what other work on the machine adds is not ours."""
    wall, processor = zip(*rounds, strict=True)
    return min(wall), min(processor)


def fill(home: Path) -> None:
    """Two runs through recorder, ingest, join and step job."""
    for name, seed in RUNS.items():
        with Recorder(home, name) as recorder:
            run = SyntheticRun(recorder, onset=STEPS // 2, seed=seed)
            for _ in range(STEPS // AT_ONCE):
                run.record(AT_ONCE)
    with Store.open(Home(home)) as store:
        take_in(store)
