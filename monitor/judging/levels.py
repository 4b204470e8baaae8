"""K3 of healthy set-ups, read once from `levels.yaml`: bands that the judge compares with, and recorded set-ups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from logprobe.monitor.settings.yaml_text import packaged


@dataclass(frozen=True, slots=True)
class Band:
    """K3 reported for setups of one kind.

    Attributes:
        name: name of the row.
        low: lowest reported K3.
        high: highest reported K3.
        source: report behind the row.
        engine: precisions of the engine, or empty for any.
        trainer: precisions of the trainer, or empty for any.
        experts: true for a mixture of experts, false for a dense model, None for either.
        quantized: true for weights or KV cache of 8 bits or fewer.
    """

    name: str
    low: float
    high: float
    source: str
    engine: tuple[str, ...]
    trainer: tuple[str, ...]
    experts: bool | None
    quantized: bool


@dataclass(frozen=True, slots=True)
class Recorded:
    """K3 of one setup.

    Attributes:
        name: name of the row.
        setup: its settings, by the names of a diagnosis (`level.setup_of`).
        low: lowest K3 of its runs.
        high: highest K3.
        runs: number of runs, or None if not reported.
        tokens: compared tokens, or None if not reported.
        source: "measured" for runs of this project, or the report.
    """

    name: str
    setup: Mapping[str, str | None]
    low: float
    high: float
    runs: int | None
    tokens: int | None
    source: str


_READ: Final[Mapping[str, Any]] = packaged("logprobe.monitor.judging", "levels.yaml")
BANDS: Final = tuple(
    Band(
        name=row["name"],
        low=float(row["low"]),
        high=float(row["high"]),
        source=row["source"],
        engine=tuple(row.get("engine", ())),
        trainer=tuple(row.get("trainer", ())),
        experts=row.get("experts"),
        quantized=row.get("quantized", False),
    )
    for row in _READ["bands"]
)
SETUPS: Final = tuple(
    Recorded(
        name=row["name"],
        setup=row["setup"],
        low=float(row["low"]),
        high=float(row["high"]),
        runs=row.get("runs"),
        tokens=row.get("tokens"),
        source=row["source"],
    )
    for row in _READ["setups"]
)
