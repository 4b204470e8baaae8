"""What several services cost with the same load each: processor time per step of a run, and a look at the runs of all of them."""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench_service import record
from figure import Figure
from processes import connected, end, eventually, start_service

from logprobe.app.commands.runs import lines_of
from logprobe.monitor.elsewhere import Briefly

SERVICES = (1, 2, 4)
RUNS, PERIOD = 8, 10.0  # of each service; seconds from one step of a run to its next
WARM_UP, SECONDS = 40.0, 60.0
LOOKS = 9
_TICKS = os.sysconf("SC_CLK_TCK")


def measure() -> list[Figure]:
    """All figures of this module."""
    found = {number: fleet(number) for number in SERVICES}
    (one, look), note = found[1], f"{RUNS} runs a service, a step per {PERIOD:g} s each, {SECONDS:g} s"
    figures = []
    for number in SERVICES[1:]:
        cost, together = found[number]
        figures += [
            Figure(f"fleet: {number} services, per step of a run", 1e3 * cost, "ms", "0.9 to 1.1 × one", 0.9 <= cost / one <= 1.1,
                   baseline="one service", baseline_value=1e3 * one, note=f"processor time of the services; {note}"),
            Figure(f"fleet: the runs of {number} services", 1e3 * together, "ms", "≤ 1.3 × one", together <= 1.3 * look,
                   baseline="of one service", baseline_value=1e3 * look, note="median of what `logprobe runs` reads, at once"),
        ]  # fmt: skip
    return figures


def fleet(number: int) -> tuple[float, float]:
    """Processor seconds per step, and seconds that a look at all runs takes."""
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
            bringing = threading.Thread(target=_bring, args=(coming,))
            bringing.start()
            time.sleep(WARM_UP)
            before = sum(_seconds(service.pid) for service in services)
            time.sleep(SECONDS)
            spent = sum(_seconds(service.pid) for service in services) - before
            bringing.join()
            for home in homes:
                eventually(lambda home=home: not list(home.glob("spool/*/*/[!.]*.arrow")), "all of it is stored")
            look = statistics.median(_look(homes) for _ in range(LOOKS))
        finally:
            for service in services:
                end(service)
    return spent / (number * RUNS * SECONDS / PERIOD), look


def _bring(coming: list[tuple[float, Path, Path, list[Path]]]) -> None:
    begun = time.monotonic()
    for due, stage, home, segments in coming:
        time.sleep(max(0.0, begun + due - time.monotonic()))
        for segment in segments:
            place = home / segment.relative_to(stage)
            place.parent.mkdir(parents=True, exist_ok=True)
            segment.rename(place)


def _seconds(pid: int) -> float:
    """Processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _look(homes: list[Path]) -> float:
    begun = time.perf_counter()
    with ThreadPoolExecutor(len(homes)) as pool:
        lines = list(pool.map(lambda home: lines_of(Briefly(str(home))), homes))
    assert all(len(each) == RUNS for each in lines)
    return time.perf_counter() - begun


if __name__ == "__main__":
    for figure in measure():
        print(figure)
