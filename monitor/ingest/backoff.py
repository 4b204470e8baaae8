"""Runs whose raw tokens could not be read: each is left alone for a while, so that it holds up no other."""

from __future__ import annotations

import time
from typing import Final

REST_SECONDS: Final = 15.0


class RunBackoff:
    """Which runs rest, and why. For one thread at a time."""

    def __init__(self) -> None:
        self._runs: dict[str, tuple[float, str]] = {}

    def now(self) -> list[str]:
        """The runs that rest. To be looked up once for one piece of work: a run whose rest ends meanwhile is not
        done."""
        moment = time.monotonic()
        self._runs = {run: rest for run, rest in self._runs.items() if rest[0] > moment}
        return list(self._runs)

    def add(self, run: str, error: Exception) -> None:
        """It is tried again after a rest."""
        self._runs[run] = (time.monotonic() + REST_SECONDS, f"{run}: raw tokens cannot be read ({error})")

    @property
    def problem(self) -> str | None:
        """What is wrong with those that rest, in words; None: none does."""
        return "; ".join(words for _, words in self._runs.values()) or None
