"""What asking for the correction costs a trainer at a step boundary, with and without the service's directives there."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from figure import Figure

from logprobe.collectors.correction import CorrectionConfig
from logprobe.collectors.directives import DirectiveFile, Directives
from logprobe.collectors.switch import CorrectionSwitch

CALLS = 20_000
ROUNDS = 15
TARGET_MICROSECONDS = 10.0
RUN = "run"
MIS = CorrectionConfig(is_level="token", is_mode="mask", is_lower=0.5, is_upper=5.0)


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        with CorrectionSwitch(home, RUN) as nothing, CorrectionSwitch(_switched(home / "on"), RUN) as often:
            calls = {
                "no directive": nothing.current,
                "after 200 switchings": often.current,
                "an empty call": _empty,
            }
            seconds = fastest(calls)
    return [
        Figure(
            name=f"CorrectionSwitch.current, {name}",
            value=seconds[name] * 1e6,
            unit="µs",
            target=f"≤ {TARGET_MICROSECONDS:.0f}",
            met=seconds[name] * 1e6 <= TARGET_MICROSECONDS,
            baseline="an empty Python call",
            baseline_value=seconds["an empty call"] * 1e6,
            note=f"fastest of {ROUNDS} rounds of {CALLS} calls",
        )
        for name in ("no directive", "after 200 switchings")
    ]


def _switched(home: Path) -> Path:
    """A home whose run was switched on and off a hundred times."""
    directives = Directives(RUN)
    for number in range(200):
        directives = directives.issue(number * 10, MIS if number % 2 else None, "bench")
    DirectiveFile(home, RUN).write(directives, None)
    return home


def _empty(_: int) -> None:
    return None


def fastest(calls: dict[str, Callable[[int], object]]) -> dict[str, float]:
    """Fewest seconds of a call, in rounds that take turns: what a machine can do when nobody else uses it."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(ROUNDS):
        for name, call in calls.items():
            started = time.perf_counter()
            for step in range(CALLS):
                call(step)
            best[name] = min(best[name], (time.perf_counter() - started) / CALLS)
    return best
