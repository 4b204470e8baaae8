"""What a logger has to be able to do."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Protocol


class Target(Protocol):
    """One run somewhere else. It knows itself how far it got, so that nothing has to be remembered here."""

    @property
    def last(self) -> int | None:
        """The newest step that is there; None: there is none."""

    def log(self, step: int, time: datetime | None, values: Mapping[str, float]) -> None:
        """Logs one step; steps only go up. `time`: of the step, UTC."""

    def flush(self) -> None:
        """Returns when what was logged survives the end of this process, as far as the target offers that."""

    def close(self) -> None:
        """Ends it."""
