"""What several services cost with the same load each: processor time per step of a run, and a look at the runs of all of them.

The services of a fleet are on machines of their own; here they share one. So of what takes part at once only processor time is compared,
and a look is timed service by service: on machines of their own all of them answer within the time of the slowest, beside which whoever asks
has the rows of all to deal with. What a look takes here, and the command with the start of its process, is measured as well.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bench_service import bring, record
from figure import Figure
from processes import connected, end, eventually, start_service
from timed_page import cpu_seconds

from logprobe.app.commands.runs import lines_of
from logprobe.monitor.elsewhere import Briefly

SERVICES = (1, 2, 4)
ROUNDS = 2  # of each number, in turns
# Of each service; seconds from one step of a run to its next. Four services of 8 runs want more than two cores have, and then do less of what may wait.
RUNS, PERIOD = 3, 12.0
WARM_UP, SECONDS = 40.0, 96.0
LOOKS, COMMANDS = 25, 5


@dataclass(frozen=True)
class Found:
    """Seconds. `step`: of the services' processors, per step of a run; `apart`: of a look with each service on a machine of its own;
    `here`, `command`: of a look, and of `logprobe runs`, on this one; `row`: of all processors, per row of a look."""

    step: float
    apart: float
    here: float
    command: float
    row: float


def measure() -> list[Figure]:
    """All figures of this module."""
    rounds = [{number: fleet(number) for number in SERVICES} for _ in range(ROUNDS)]
    note = f"{RUNS} runs a service, a step per {PERIOD:g} s each, {SECONDS:g} s, {ROUNDS} times in turns"

    def of(number: int, take: Callable[[Found], float]) -> float:
        return statistics.median(take(each[number]) for each in rounds)

    figures = []
    for number in SERVICES[1:]:
        for name, take, limits, words in (
            ("per step of a run", lambda found: found.step, (0.9, 1.1), f"processor time of the services; {note}"),
            ("a look, services on machines of their own", lambda found: found.apart, (0.0, 1.3), "the slowest service, and the reader's work on all rows"),
            ("`logprobe runs`", lambda found: found.command, (0.0, 1.3), f"the whole command, services on the same {os.cpu_count()} cores"),
            ("a look, services on these cores", lambda found: found.here, None, f"connections kept, all services at once, {os.cpu_count()} cores"),
            ("a look, per row", lambda found: found.row, None, "processor time of services and reader"),
        ):  # fmt: skip
            one, many = of(1, take), of(number, take)
            target = (
                None
                if limits is None
                else f"{limits[0]:g} to {limits[1]:g} × one"
                if limits[0]
                else f"≤ {limits[1]:g} × one"
            )
            met = None if limits is None else limits[0] <= many / one <= limits[1]
            figures.append(
                Figure(f"fleet of {number}: {name}", 1e3 * many, "ms", target or "", met, baseline="one service", baseline_value=1e3 * one, note=words)
            )  # fmt: skip
    return figures


def fleet(number: int) -> Found:
    """Several services with their load, then asked while they have nothing to do."""
    with tempfile.TemporaryDirectory() as folder:
        homes = [Path(folder) / f"service{place}" for place in range(number)]
        coming = []
        steps = int((WARM_UP + SECONDS) / PERIOD) + 1
        for home in homes:
            stage = home.with_name(f"{home.name}.stage")
            recorded = [record(stage, f"run-{run:02d}", steps) for run in range(RUNS)]
            for run, segments in enumerate(recorded):
                coming += [((step + run / RUNS) * PERIOD, stage, home, segments[step]) for step in range(steps)]
            home.mkdir()
        services = [start_service(home) for home in homes]
        try:
            for home in homes:
                connected(home).close()
            coming.sort(key=lambda each: each[0])
            bringing = threading.Thread(target=bring, args=(coming,))
            bringing.start()
            time.sleep(WARM_UP)
            before = sum(cpu_seconds(service.pid) for service in services)
            time.sleep(SECONDS)
            spent = sum(cpu_seconds(service.pid) for service in services) - before
            bringing.join()
            for home in homes:
                eventually(lambda home=home: not list(home.glob("spool/*/*/[!.]*.arrow")), "all of it is stored")
            _wait_until_at_rest(services)
            apart, here, row = _looks(homes, services)
            command = _command(homes)
        finally:
            for service in services:
                end(service)
    return Found(spent / (number * RUNS * SECONDS / PERIOD), apart, here, command, row)


def _wait_until_at_rest(services: list[subprocess.Popen[bytes]]) -> None:
    """Until what they still have to judge is judged: it would be in the looks, and more of it with more services."""

    def rests() -> bool:
        before = sum(cpu_seconds(service.pid) for service in services)
        time.sleep(2.0)
        return sum(cpu_seconds(service.pid) for service in services) - before < 0.3 * len(services)

    eventually(rests, "the services are at rest", 120.0)


def _looks(homes: list[Path], services: list[subprocess.Popen[bytes]]) -> tuple[float, float, float]:
    """→ see `Found`."""
    sources = [Briefly(str(home)) for home in homes]
    slowest, mine = 0.0, []
    for source in sources:
        took = []
        for _ in range(LOOKS):
            begun, worked = time.perf_counter(), time.thread_time()
            assert len(lines_of(source)) == RUNS
            took.append(time.perf_counter() - begun)
            mine.append(time.thread_time() - worked)
        slowest = max(slowest, min(took))  # what else runs here only adds
    apart = slowest + (len(homes) - 1) * min(mine)
    here = []
    idle = _idle(services)
    before, worked, began = sum(cpu_seconds(each.pid) for each in services), time.process_time(), time.monotonic()
    with ThreadPoolExecutor(len(homes)) as pool:
        for _ in range(LOOKS):
            begun = time.perf_counter()
            list(pool.map(lines_of, sources))
            here.append(time.perf_counter() - begun)
    spent = sum(cpu_seconds(each.pid) for each in services) - before - idle * (time.monotonic() - began)
    return apart, min(here), (spent + time.process_time() - worked) / (LOOKS * RUNS * len(homes))


def _idle(services: list[subprocess.Popen[bytes]]) -> float:
    """Processor seconds per second while nobody asks."""
    before, begun = sum(cpu_seconds(each.pid) for each in services), time.monotonic()
    time.sleep(5.0)
    return (sum(cpu_seconds(each.pid) for each in services) - before) / (time.monotonic() - begun)


def _command(homes: list[Path]) -> float:
    """`logprobe runs` over all of them."""
    others = [word for home in homes[1:] for word in ("--also", str(home))]
    command = [sys.executable, "-m", "logprobe.app.cli", "runs", "--home", str(homes[0]), *others, "--json"]
    took = []
    for _ in range(COMMANDS):
        begun = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        took.append(time.perf_counter() - begun)
    return min(took)


if __name__ == "__main__":
    for figure in measure():
        print(figure)
