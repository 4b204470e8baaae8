"""Thresholds of the judge, read once from `thresholds.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from logprobe.monitor.settings.yaml_text import packaged


@dataclass(frozen=True, slots=True)
class Threshold:
    """One threshold.

    Attributes:
        value: numeric value.
        unit: unit in words.
        source: report or measurement behind the number.
        guards: cases under ``tests/judging/cases`` that fail for a worse number.
    """

    value: float
    unit: str
    source: str
    guards: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Prior:
    """One row of the level table: K3 reported for a setup.

    Attributes:
        low: lowest reported K3.
        high: highest reported K3.
        source: report behind the row.
        engine: precisions of the engine, or empty for any.
        trainer: precisions of the trainer, or empty for any.
        experts: true for a mixture of experts, false for a dense model, None for either.
        quantized: true for weights or KV cache of 8 bits or fewer.
    """

    low: float
    high: float
    source: str
    engine: tuple[str, ...]
    trainer: tuple[str, ...]
    experts: bool | None
    quantized: bool


def _document() -> Mapping[str, Any]:
    document: Mapping[str, Any] = packaged("logprobe.monitor.judging", "thresholds.yaml")
    return document


_READ: Final = _document()
THRESHOLDS: Final[Mapping[str, Threshold]] = MappingProxyType(
    {
        name: Threshold(float(row["value"]), row["unit"], row["source"], tuple(row["guards"]))
        for name, row in _READ["thresholds"].items()
    }
)
PRIORS: Final = tuple(
    Prior(
        low=float(row["low"]),
        high=float(row["high"]),
        source=row["source"],
        engine=tuple(row.get("engine", ())),
        trainer=tuple(row.get("trainer", ())),
        experts=row.get("experts"),
        quantized=row.get("quantized", False),
    )
    for row in _READ["levels"]
)


def number(name: str) -> float:
    """Return the value of a threshold. Raises KeyError for an unknown name."""
    return THRESHOLDS[name].value
