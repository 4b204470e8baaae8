"""Progress of a run's judgement, required by every display of a verdict and every action on one.

A live run should be judged at most ten steps, or two seconds if that is longer, after its newest step. Records in the
spool belong to steps that the store does not have yet. A run whose records have been there for longer is late, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

from logprobe.monitor import queries
from logprobe.monitor.queries import Source

STEPS: Final = 10  # behind the newest one, as promised above
SECONDS: Final = 2.0  # likewise


def is_in_time(steps: int, seconds: float, spooled: float) -> bool:
    """Return whether a judgement is current after `steps` later steps, the first of which is `seconds` old.

    `spooled`: age in seconds of records in the spool, or 0 for none. The limit applies to live runs. An ended run with
    unjudged steps is late.
    """
    return (steps <= STEPS or seconds <= SECONDS) and spooled <= SECONDS


@dataclass(frozen=True, slots=True)
class JudgedAsOf:
    """Progress of the judgement of one run.

    Attributes:
        run: name of the run.
        live: true while new steps arrive.
        newest_step: newest step with records.
        judged_step: newest judged step, or None before the first judgement.
        steps_behind: steps after `judged_step`.
        seconds_behind: seconds since the first of these was recorded, including spool and ingest, or 0 without any.
        spooled_seconds: age of the run's oldest record in the spool, or 0 if below `SECONDS`.
    """

    run: str
    live: bool
    newest_step: int
    judged_step: int | None
    steps_behind: int
    seconds_behind: float
    spooled_seconds: float = 0.0

    @property
    def in_time(self) -> bool:
        """Return whether the run is judged in time, see `is_in_time`."""
        return is_in_time(self.steps_behind, self.seconds_behind, self.spooled_seconds)

    @property
    def sentence(self) -> str | None:
        """Return the sentence for the run's verdict, or None if the run is judged in time."""
        if self.in_time:
            return None
        since = "not judged yet" if self.judged_step is None else f"not judged since step {self.judged_step}"
        if is_in_time(self.steps_behind, self.seconds_behind, 0.0):
            return f"{since}: newer records have waited in the spool for {self.spooled_seconds:,.0f} s"
        return f"{since}: {self.steps_behind:,} steps and {self.seconds_behind:,.0f} s behind step {self.newest_step}"

    def document(self) -> Mapping[str, Any]:
        """Return the JSON-ready form, with the sentence."""
        return {**asdict(self), "in_time": self.in_time, "sentence": self.sentence}


def judged_as_of(source: Source, run: str, *, now: datetime | None = None) -> JudgedAsOf | None:
    """Return the progress of the judgement of `run`, or None if it has no computed step. Raises `QueryError`.

    `now`: time, or None for the service's clock.
    """
    return judged_runs(source, run, now=now).get(run)


def judged_runs(source: Source, run: str | None = None, *, now: datetime | None = None) -> Mapping[str, JudgedAsOf]:
    """Return the progress of the judgement of all runs, or of `run`, by name. Raises `QueryError`."""
    rows = queries.judged_as_of(source, run=run, now=None if now is None else now.isoformat()).to_pylist()
    return {row["run"]: JudgedAsOf(**row) for row in rows}
