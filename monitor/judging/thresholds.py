"""Thresholds of the judge, read once from `thresholds.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

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


THRESHOLDS: Final[Mapping[str, Threshold]] = MappingProxyType(
    {
        name: Threshold(float(row["value"]), row["unit"], row["source"], tuple(row["guards"]))
        for name, row in packaged("logprobe.monitor.judging", "thresholds.yaml")["thresholds"].items()
    }
)


def number(name: str) -> float:
    """Return the value of a threshold. Raises KeyError for an unknown name."""
    return THRESHOLDS[name].value
