"""How often the shipped rules fire on healthy runs, and how late on runs that grow: measured, and written into tests/RESULTS.md.

python tests/benchmarks/alert_delays.py            # some minutes; rewrites the measured part of the page
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from growth_runs import HEALTHY, STEPS, Trend, series  # noqa: E402 - beside the tests
from marked_page import write_between  # noqa: E402

from logprobe.alerts.rules import backtest, rule_file  # noqa: E402
from logprobe.alerts.rules.judging.observation import StepFacts  # noqa: E402
from logprobe.alerts.rules.rule import Rule, Threshold  # noqa: E402
from logprobe.monitor.judging.growth import Tracker  # noqa: E402

K3 = "backend.k3_kl"
RUNS = 200
ONSET = 500
DOUBLINGS = (15, 30, 60, 120, 240)
SEEDS = 12
PAGE = ROOT / "tests" / "RESULTS.md"
BEGIN, END = "<!-- measured: tests/benchmarks/alert_delays.py -->", "<!-- end of what was measured -->"
RECORDED = ("v0-reference", "v1-fixed", "v1-initial", "late-growth")
START = datetime(2026, 1, 1, tzinfo=UTC)


def fired(trend: Trend, seed: int, steps: int = STEPS) -> dict[str, int]:
    """Severity → the first step in which a shipped rule on K3 fires.

    The rules on growth take the verdict as it is, so one tracker answers for both; rules with a limit are asked where a value is
    beyond it. `through_rules` says the same more slowly.
    """
    values = series(trend, seed, steps)
    tracker = Tracker()
    first: dict[str, int] = {}
    for step, value in enumerate(values):
        verdict = tracker.add(step, float(value)).verdict
        if verdict in {"growing", "critical"}:
            first.setdefault("warning", step)
        if verdict == "critical":
            first.setdefault("critical", step)
            break
    limits = [
        rule for rule in shipped() if isinstance(rule.when, Threshold) and values.max() > (rule.when.above or 0.0)
    ]
    return earlier(first, through_rules(values, limits)) if limits else first


def shipped() -> list[Rule]:
    """The shipped rules on K3."""
    return [rule for rule in rule_file.load().for_run("run") if rule.key == K3]


def through_rules(values: np.ndarray, rules: list[Rule]) -> dict[str, int]:
    """Severity → the first step in which one of `rules` fires, as the service evaluates them."""
    facts = [
        StepFacts(step, START + timedelta(minutes=step), {(K3, None): float(value)})
        for step, value in enumerate(values)
    ]
    first: dict[str, int] = {}
    for moved in backtest.over("run", iter([facts]), rules).transitions:
        if moved.alert.state.phase.active and moved.step is not None:
            first.setdefault(moved.alert.rule.severity, moved.step)
    return first


def earlier(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    """The smaller step of each severity."""
    return {name: min(found[name] for found in (one, other) if name in found) for name in one | other}


def healthy(seed: int) -> tuple[str, dict[str, int]]:
    """One healthy run: what it was like, and what fired."""
    names = list(HEALTHY)
    name = names[seed % len(names)]
    return name, fired(HEALTHY[name], seed)


def growing(doubling: int, seed: int) -> dict[str, int]:
    """One run that grows from `ONSET` on."""
    trend = replace(HEALTHY["memory of 0.5"], onset=ONSET, doubling=float(doubling))
    return fired(trend, 10_000 + seed, steps=min(STEPS, ONSET + 4 * doubling + 60))


def recorded(name: str) -> dict[str, int]:
    """Severity → first step, on a shipped run and with all rules on steps."""
    with backtest.opened(ROOT / "sample_data" / name) as (store, run):
        outcome = backtest.backtest(store, run, rule_file.load().for_run(run))
    first: dict[str, int] = {}
    for message in outcome.messages:
        if message.step is not None:
            first.setdefault(message.alert.rule.severity, message.step)
    return first


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
    yield ""
    yield "The recorded runs of `sample_data/`, first notification of each severity:"
    yield ""
    yield "| run | warning | critical |"
    yield "|---|---|---|"
    for name, first in zip(RECORDED, pool.map(recorded, RECORDED), strict=True):
        yield f"| `{name}` | {_step(first, 'warning')} | {_step(first, 'critical')} |"


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


def _step(first: dict[str, int], severity: str) -> str:
    return f"step {first[severity]}" if severity in first else "none"


def main() -> None:
    """Measures, and rewrites the page."""
    with ProcessPoolExecutor(2) as pool:
        measured = "\n".join(tables(pool))
    print(measured)
    write_between(PAGE, BEGIN, END, [measured])


if __name__ == "__main__":
    main()
