"""How often judged growth alerts on healthy runs, and how late on runs that grow: measured, and written into tests/RESULTS.md.

python tests/benchmarks/alert_delays.py            # some minutes; rewrites the measured part of the page
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from growth_runs import HEALTHY, STEPS, Trend, series  # noqa: E402 - beside the tests
from marked_page import write_between  # noqa: E402

from logprobe.alerts.rules import judged  # noqa: E402
from logprobe.alerts.rules.alert import CRITICAL, LEVELS, Alert  # noqa: E402
from logprobe.monitor.judgement import JUDGEMENT, Judgement  # noqa: E402
from logprobe.monitor.judging.growth import Tracker  # noqa: E402

RUNS = 200
ONSET = 500
DOUBLINGS = (15, 30, 60, 120, 240)
SEEDS = 12
PAGE = ROOT / "tests" / "RESULTS.md"
BEGIN, END = "<!-- measured: tests/benchmarks/alert_delays.py -->", "<!-- end of what was measured -->"
START = datetime(2026, 1, 1, tzinfo=UTC)


def fired(trend: Trend, seed: int, steps: int = STEPS) -> dict[str, int]:
    """Severity → the first step in which the judgement of growth has stood for as long as its alert needs."""
    tracker, alert = Tracker(), Alert(JUDGEMENT, needs=judged.NEEDS, keeps=judged.KEEPS)
    first: dict[str, int] = {}
    for step, value in enumerate(series(trend, seed, steps)):
        tracker.follow([step], [float(value)])
        seen = judged.look(Judgement(tracker.verdict().verdict), None)
        alert = alert.look(seen, step=step, at=START)
        if alert.level:
            first.setdefault(LEVELS[alert.level], step)
        if alert.level == CRITICAL:
            first.setdefault("warning", step)
            break
    return first


def healthy(seed: int) -> tuple[str, dict[str, int]]:
    """One healthy run: what it was like, and what fired."""
    names = list(HEALTHY)
    name = names[seed % len(names)]
    return name, fired(HEALTHY[name], seed)


def growing(doubling: int, seed: int) -> dict[str, int]:
    """One run that grows from `ONSET` on."""
    trend = replace(HEALTHY["memory of 0.5"], onset=ONSET, doubling=float(doubling))
    return fired(trend, 10_000 + seed, steps=min(STEPS, ONSET + 4 * doubling + 60))


def tables(pool: ProcessPoolExecutor) -> Iterator[str]:
    """The measured part of the page, line by line."""
    yield from _false_alarms(list(pool.map(healthy, range(RUNS), chunksize=4)))
    yield ""
    yield f"Delay after an onset at step {ONSET}, in steps; median (90th percentile) of {SEEDS} seeded runs, noise as in “memory of 0.5”:"
    yield ""
    yield "| K3 doubles every | warning | critical | not found | before the onset |"
    yield "|---|---|---|---|---|"
    for doubling in DOUBLINGS:
        found = list(pool.map(growing, [doubling] * SEEDS, range(SEEDS)))
        early = sum(step < ONSET for first in found for step in first.values())
        missed = sum("critical" not in first for first in found)
        yield f"| {doubling} steps | {_delay(found, 'warning')} | {_delay(found, 'critical')} | {missed} | {early} |"


def _false_alarms(found: list[tuple[str, dict[str, int]]]) -> Iterator[str]:
    everything = [first for _, first in found]
    shares = [f"{_count(everything, severity) / len(everything):.1%}" for severity in ("warning", "critical")]
    words = f"False alarms on {len(found)} seeded synthetic healthy runs of {STEPS} steps (`tests/support/growth_runs.py`: {'; '.join(HEALTHY)}): "
    yield from textwrap.wrap(f"{words}{shares[0]} with a warning, {shares[1]} with a critical alert.", 120)
    for name in HEALTHY:
        of_kind = [first for kind, first in found if kind == name]
        if any(of_kind):
            yield f"- {name}: {_count(of_kind, 'warning')} warnings, {_count(of_kind, 'critical')} critical, of {len(of_kind)}"


def _count(found: list[dict[str, int]], severity: str) -> int:
    return sum(severity in first for first in found)


def _delay(found: list[dict[str, int]], severity: str) -> str:
    delays = [first[severity] - ONSET for first in found if severity in first]
    return f"{np.median(delays):.0f} ({np.quantile(delays, 0.9):.0f})" if delays else "–"


def main() -> None:
    """Measures, and rewrites the page."""
    with ProcessPoolExecutor(2) as pool:
        measured = "\n".join(tables(pool))
    print(measured)
    write_between(PAGE, BEGIN, END, [measured])


if __name__ == "__main__":
    main()
