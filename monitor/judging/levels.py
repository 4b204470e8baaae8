"""K3 of healthy set-ups, read once from `levels.yaml`: bands that the judge compares with, and recorded set-ups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    engine: Sequence[str] = ()
    trainer: Sequence[str] = ()
    experts: bool | None = None
    quantized: bool = False


@dataclass(frozen=True, slots=True)
class Recorded:
    """K3 of one setup.

    Attributes:
        name: name of the row.
        setup: its settings, by the names of a diagnosis (`level.setup_of`).
        low: lowest K3 of its runs.
        high: highest K3.
        source: "measured" for runs of this project, or the report.
        runs: number of runs, or None if not reported.
        tokens: compared tokens, or None if not reported.
    """

    name: str
    setup: Mapping[str, str | None]
    low: float
    high: float
    source: str
    runs: int | None = None
    tokens: int | None = None


_READ: Final[Mapping[str, Any]] = packaged("logprobe.monitor.judging", "levels.yaml")
BANDS: Final = tuple(Band(**row) for row in _READ["bands"])
SETUPS: Final = tuple(Recorded(**row) for row in _READ["setups"])
