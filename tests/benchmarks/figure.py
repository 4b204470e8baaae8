"""One measured figure of `make bench`.

A benchmark is a module `bench_<topic>.py` in this folder with `measure() -> list[Figure]`; `run.py` finds and runs them all.
Figures are ratios against a baseline measured in the same run, interleaved with it, because absolute times on shared machines
mean little. A figure with an absolute target still names its baseline where there is one.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """`value` (in `unit`) against `baseline_value` of `baseline`; `met` says whether `target` holds, None: no target."""

    name: str
    value: float
    unit: str
    target: str = ""
    met: bool | None = None
    baseline: str = ""
    baseline_value: float | None = None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """`value / baseline_value`, None without a baseline."""
        return None if not self.baseline_value else self.value / self.baseline_value
