"""What a service takes for live runs: cores, memory, and what a step costs that is wide or long.

A real service gets steps from records that were made beforehand. Its processor time is read from the system: everything that it does is in
it, and no other process's load. Of a wide or a long step it is what the service takes beyond a service at rest. Beside cores and memory
stand the formulas of docs/cluster.md, and the constants that fit this machine best. What the service was behind says whether it kept up:
on a machine that is busy with other work it does not, and its figures are those of the time that it was given.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from figure import Figure, beside, fitted
from processes import connected, end, eventually, start_service
from timed_page import cpu_seconds

from logprobe.collectors.recorder.recorder import Recorder

sys.path.append(str(Path(__file__).resolve().parent.parent / "e2e"))
from synthetic_run import SyntheticRun

SIZES = (1, 20, 200)  # live runs
PERIOD, SHORT_PERIOD = 10.0, 2.0  # seconds from one step of a run to its next, of many runs and of one
WARM_UP, SECONDS = 60.0, 60.0
REST_SECONDS = 30.0
MANY_CORES, SMALL_CORES, WIDE_SECONDS = 0.5, 0.3, 0.15
SCALARS, SMALL_SCALARS, WIDE_SCALARS = 50, 20, 1_000
JOINED = 64, 512  # sequences, tokens of each
MOST_BEHIND = 2.0  # seconds: what was due later is not missed
# What docs/cluster.md says: at rest, and of each step a second, or run; MiB.
CORES, MEMORY = (0.35, 0.007), (310.0, 2.1)

Segments = list[list[Path]]  # of each step
Record = Callable[[Path, str, int], Segments]


@dataclass(frozen=True)
class Taken:
    """What a service took. `behind`: steps that were due `MOST_BEHIND` before the end and not computed."""

    runs: int
    cores: float
    memory: float  # MiB
    behind: int


@dataclass
class Coming:
    """Records that are brought to a home when they are due."""

    stage: Path
    home: Path
    steps: list[tuple[float, list[Path]]] = field(default_factory=list)  # when, in seconds, and the segments

    def bring(self) -> None:
        begun = time.monotonic()
        for due, segments in self.steps:
            time.sleep(max(0.0, begun + due - time.monotonic()))
            for segment in segments:
                place = self.home / segment.relative_to(self.stage)
                place.parent.mkdir(parents=True, exist_ok=True)
                segment.rename(place)


def measure() -> list[Figure]:
    """All figures of this module."""
    rest, _ = live(1, small, rest=True)
    sizes = [live(runs, usual)[1] for runs in SIZES]
    figures = [figure for each in sizes for figure in of_size(each)]
    few = live(SIZES[-1], small)[1]
    figures += [
        limited(f"service: {few.runs} live runs, small steps", few.cores, "cores", SMALL_CORES,
                f"8 × 24 tokens and {SMALL_SCALARS} scalars, a step per {PERIOD:g} s"),
        Figure("service: at rest", rest, "cores", note="one run, no news"),
    ]  # fmt: skip
    for name, record, limit in (
        (f"{WIDE_SCALARS:,} scalars", wide, WIDE_SECONDS),
        ("{} × {} tokens, both sides apart".format(*JOINED), joined, None),
    ):
        cores = live(1, record, period=SHORT_PERIOD)[1].cores
        seconds = (cores - rest) * SHORT_PERIOD
        note = f"one run, a step per {SHORT_PERIOD:g} s, beyond a service at rest"
        figures.append(limited(f"service: a step of {name}", seconds, "s", limit, note))
    return [
        *figures,
        *fitted("service: cores", [each.runs / PERIOD for each in sizes], [each.cores for each in sizes]),
        *fitted("service: MiB of memory", [each.runs for each in sizes], [each.memory for each in sizes]),
    ]


def of_size(found: Taken) -> list[Figure]:
    words, note = f"service: {found.runs} live runs", f"{SCALARS} scalars and all metrics of 8 × 24 tokens a step"
    cores = CORES[0] + CORES[1] * found.runs / PERIOD
    figures = [
        Figure(f"{words}, cores", found.cores, "cores", note=note)
        if found.runs == SIZES[0]  # the formula is for many
        else beside(f"{words}, cores", found.cores, cores, "cores", note),
        beside(f"{words}, memory", found.memory, MEMORY[0] + MEMORY[1] * found.runs, "MiB", note),
        Figure(f"{words}, behind", found.behind, "steps", "0", found.behind == 0),
    ]
    if found.runs == SIZES[-1]:
        figures.append(limited(f"{words}, a step per {PERIOD:g} s", found.cores, "cores", MANY_CORES, note))
    return figures


def limited(name: str, value: float, unit: str, limit: float | None, note: str) -> Figure:
    if limit is None:
        return Figure(name, value, unit, note=note)
    return Figure(name, value, unit, f"≤ {limit:g}", value <= limit, note=note)


def live(runs: int, record: Record, *, period: float = PERIOD, rest: bool = False) -> tuple[float, Taken]:
    """A service with so many live runs; also its cores at rest afterwards, or 0 without `rest`."""
    with tempfile.TemporaryDirectory() as folder:
        coming = Coming(Path(folder) / "stage", Path(folder) / "home")
        steps = int((WARM_UP + SECONDS) / period) + 1
        recorded = [record(coming.stage, f"run-{run:03d}", steps) for run in range(runs)]
        coming.steps = [
            ((step + run / runs) * period, recorded[run][step]) for step in range(steps) for run in range(runs)
        ]
        coming.home.mkdir()
        service = start_service(coming.home)
        try:
            with connected(coming.home) as reader:

                def computed() -> int:
                    return int(reader.query("SELECT count(*) AS n FROM step_summaries")["n"][0].as_py())

                taken = watched(service.pid, coming, computed, runs)
                eventually(lambda: computed() == runs * steps, "all of it is computed", 600)
                resting = at_rest(service.pid) if rest else 0.0
        finally:
            end(service)
        return resting, taken


def watched(pid: int, coming: Coming, computed: Callable[[], int], runs: int) -> Taken:
    bringing = threading.Thread(target=coming.bring)
    bringing.start()
    time.sleep(WARM_UP)
    before, memory, until = cpu_seconds(pid), 0.0, time.monotonic() + SECONDS
    while time.monotonic() < until:
        time.sleep(1)
        memory = max(memory, resident(pid))
    cores = (cpu_seconds(pid) - before) / SECONDS
    behind = sum(due <= WARM_UP + SECONDS - MOST_BEHIND for due, _ in coming.steps) - computed()
    bringing.join()
    return Taken(runs, cores, memory, max(behind, 0))


def at_rest(pid: int) -> float:
    """Cores of a service without news."""
    time.sleep(REST_SECONDS)
    before = cpu_seconds(pid)
    time.sleep(REST_SECONDS)
    return (cpu_seconds(pid) - before) / REST_SECONDS


def resident(pid: int) -> float:
    """MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return float(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


def recorded(home: Path, run: str, steps: int, *, scalars: int, full: bool = True) -> Segments:
    """A run in the spool of `home`; → the segments that each step brought."""
    rng = np.random.default_rng(1)
    with Recorder(home, run) as recorder:
        synthetic, found = SyntheticRun(recorder, onset=1000, full=full), Found(home, run)
        for step in range(steps):
            recorder.step(step, {f"layer_{number}/grad_norm": rng.lognormal() for number in range(scalars)})
            synthetic.record(1)
            found.look()
    return found.segments


usual: Record = partial(recorded, scalars=SCALARS)
small: Record = partial(recorded, scalars=SMALL_SCALARS, full=False)
wide: Record = partial(recorded, scalars=WIDE_SCALARS)


def joined(home: Path, run: str, steps: int) -> Segments:
    """Long sequences whose r comes from rollout records."""
    rng, found = np.random.default_rng(1), Found(home, run)
    with Recorder(home, run) as recorder:
        for step in range(steps):
            names, tokens = [f"{step}-{row}" for row in range(JOINED[0])], rng.integers(0, 150_000, JOINED)
            r = -rng.exponential(1.0, JOINED).astype(np.float32)
            t = np.minimum(r + rng.normal(0, 0.02, JOINED), 0).astype(np.float32)
            version = [str(step)] * JOINED[0]
            recorder.rollout(
                sample_ids=names, token_ids=tokens, logprobs=r, lengths=[JOINED[1]] * JOINED[0], weight_version=version
            )
            recorder.training(
                step=step, sample_ids=names, token_ids=tokens, trainer_logprobs=t, mask=np.ones(JOINED, bool)
            )
            if not recorder.flush(120):
                raise RuntimeError(f"nothing to measure: {recorder.health}")
            found.look()
    return found.segments


class Found:
    """Segments of a run that appeared in its spool, by look."""

    def __init__(self, home: Path, run: str) -> None:
        self._folder = home / "spool" / run
        self._known: set[Path] = set()
        self.segments: Segments = []

    def look(self) -> None:
        new = set(self._folder.glob("*/[!.]*")) - self._known
        self.segments.append(sorted(new))
        self._known |= new
