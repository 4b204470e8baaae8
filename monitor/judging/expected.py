"""Expected values of evidence in a run without a fault, as far as single numbers allow.

A finding rests on all of its evidence, so one expected number decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from logprobe.monitor.judging.measures import SIGNIFICANT


@dataclass(frozen=True, slots=True)
class Expected:
    """Description and expected values: numbers between `low` and `high`, or one of `values`."""

    words: str
    low: float = 0.0
    high: float = 0.0
    values: tuple[str, ...] = ()

    def holds(self, value: Any) -> bool | None:
        """Return whether `value` is as expected, or None if it is unknown or not a number."""
        if self.values:
            return None if value is None else value in self.values
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value:  # noqa: PLR0124 -- NaN
            return None
        return self.low <= value <= self.high


_STANDARD_ERRORS: Final = Expected(f"within ±{SIGNIFICANT:g}", -SIGNIFICANT, SIGNIFICANT)
_NONE: Final = Expected("0")

_EXPECTED: Final[Mapping[str, Expected]] = {
    "logprobs_mode": Expected("processed_logprobs", values=("processed_logprobs",)),
    "calibration_z": _STANDARD_ERRORS,
    "z": _STANDARD_ERRORS,
    "correlation": Expected("near 1", 0.9, 1.0),
    "unknown_version_share": _NONE,
    "positive_share": _NONE,
    "nonfinite_rollout": _NONE,
    "nonfinite_trainer": _NONE,
    "sentinel": _NONE,
    "share": _NONE,
}


def expected(evidence: str) -> Expected | None:
    """Return the values expected of the evidence of that name, or None if it has no expectation by itself.

    >>> expected("calibration_z").holds(61.0), expected("temperature")
    (False, None)
    """
    return _EXPECTED.get(evidence)
