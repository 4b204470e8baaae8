"""Weight lag in versions, optimizer steps and seconds, from the version labels of trainer and tokens.

Labels are a framework's names of its weights. Whole numbers are subtracted. Other labels are ranked by their first
appearance in the run's weight records. A label that is neither a number nor recorded has an unknown lag.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,15}")


@dataclass(frozen=True, slots=True)
class Versions:
    """Facts about each label of a run: place in the order of appearance, step and time of publication."""

    places: Mapping[str, int]
    steps: Mapping[str, int]
    seconds: Mapping[str, float]

    @classmethod
    def of(cls, records: Iterable[Mapping[str, Any]]) -> Versions:
        """Return the versions that weight records name, whatever their order.

        `records`: ``version, step, source``, and ``time`` as a datetime or in microseconds. The trainer's time of a
        version takes precedence over an engine's.
        """
        timed = sorted((record for record in records if record["version"] is not None), key=_place)
        places: dict[str, int] = {}
        steps: dict[str, int] = {}
        seconds: dict[str, float] = {}
        for record in timed:
            places.setdefault(record["version"], len(places))
            if record["step"] is not None:
                steps.setdefault(record["version"], record["step"])
        for record in sorted(timed, key=lambda r: r["source"] != "trainer"):
            if (time := record["time"]) is not None:
                seconds.setdefault(record["version"], time / 1e6 if isinstance(time, int) else time.timestamp())
        return cls(places, steps, seconds)

    def lag(self, ours: str | None, theirs: str | None) -> tuple[float, float, float]:
        """Return the lag of one label behind another in versions, steps and seconds, NaN where unknown."""
        if ours is None or theirs is None:
            return math.nan, math.nan, math.nan
        numbers = is_number(ours) and is_number(theirs)
        versions = float(ours) - float(theirs) if numbers else _apart(self.places, ours, theirs)
        return versions, _apart(self.steps, ours, theirs), _apart(self.seconds, ours, theirs)

    def lags(self, trainer: pa.ChunkedArray, token: pa.ChunkedArray) -> dict[str, Floats]:
        """Return the lags "versions", "steps" and "seconds" of rows of labels, NaN where unknown."""
        labels = pc.unique(pa.chunked_array([*trainer.chunks, *token.chunks], pa.string())).drop_null()
        names: list[str] = labels.to_pylist()
        ours, theirs = (_codes(column, labels) for column in (trainer, token))
        by_number = _difference([float(name) if _WHOLE.fullmatch(name) else np.nan for name in names], ours, theirs)
        by_order = _difference(_values_of(self.places, names), ours, theirs)
        return {
            "versions": np.where(np.isnan(by_number), by_order, by_number),
            "steps": _difference(_values_of(self.steps, names), ours, theirs),
            "seconds": _difference(_values_of(self.seconds, names), ours, theirs),
        }


def _place(record: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return a sort key by time that does not depend on the order of arrival."""
    time, step = record["time"], record["step"]
    return time is None, time or 0, step is None, step or 0, record["version"]


def _apart(values: Mapping[str, float], ours: str, theirs: str) -> float:
    return float(values[ours]) - float(values[theirs]) if ours in values and theirs in values else math.nan


def is_number(label: str) -> bool:
    """Return whether a label is a number, which needs no order of appearance.

    >>> is_number("12"), is_number("step-12")
    (True, False)
    """
    return _WHOLE.fullmatch(label) is not None


def _values_of(values: Mapping[str, Any], names: list[str]) -> list[float]:
    return [float(values.get(name, np.nan)) for name in names]


def _codes(column: pa.ChunkedArray, labels: pa.Array) -> NDArray[np.int64]:
    """Return the index of each label in `labels`, −1 for null."""
    return pc.index_in(column, value_set=labels).fill_null(-1).to_numpy().astype(np.int64)  # type: ignore[no-any-return]


def _difference(values: list[float], ours: NDArray[np.int64], theirs: NDArray[np.int64]) -> Floats:
    table = np.array([*values, np.nan])  # code −1, an unknown label, reads the last
    difference: Floats = table[ours] - table[theirs]
    return difference
