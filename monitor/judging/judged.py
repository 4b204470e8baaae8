"""Progress of the judgement of a run, and whether it is in time: what must be known wherever a verdict is shown or
acted on.

The promise: a live run is judged at most ten steps, or two seconds if that is longer, after its newest step. Records
that wait in the spool are of steps that the store does not have yet: a run whose records have waited there for more
than these seconds is not judged in time either.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypedDict

from logprobe.monitor import queries
from logprobe.monitor.queries import Source

STEPS: Final = 10  # behind the newest one, as promised above
SECONDS: Final = 2.0  # likewise


def is_in_time(steps: int, seconds: float, spooled: float) -> bool:
    """Return whether a judgement still speaks for its run after `steps` later steps, the first of them `seconds` old.

    `spooled`: seconds for which records have waited in the spool, 0 for none. The promise holds for live runs only, and
    an ended run that is behind is not judged either.
    """
    return (steps <= STEPS or seconds <= SECONDS) and spooled <= SECONDS


class JudgedDocument(TypedDict):
    """A `JudgedAsOf` in JSON, with its sentence."""

    run: str
    live: bool
    newest_step: int
    judged_step: int | None
    steps_behind: int
    seconds_behind: float
    spooled_seconds: float
    in_time: bool
    sentence: str | None


@dataclass(frozen=True, slots=True)
class JudgedAsOf:
    """Progress of the judgement of one run.

    Attributes:
        run: which one.
        live: whether its steps are still coming.
        newest_step: of which there are records.
        judged_step: newest step that the judgement of the run stands for; None: it is not judged yet.
        steps_behind: steps after `judged_step`.
        seconds_behind: since the first of these was recorded: its way through spool and ingest counts; 0: there is
            none.
        spooled_seconds: for how long the oldest of its records has waited in the spool; 0: none does for more than
            `SECONDS`.
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
        """See `is_in_time`."""
        return is_in_time(self.steps_behind, self.seconds_behind, self.spooled_seconds)

    @property
    def sentence(self) -> str | None:
        """Sentence for the run's verdict, or None if it is judged in time."""
        if self.in_time:
            return None
        since = "not judged yet" if self.judged_step is None else f"not judged since step {self.judged_step}"
        if is_in_time(self.steps_behind, self.seconds_behind, 0.0):
            return f"{since}: newer records have waited in the spool for {self.spooled_seconds:,.0f} s"
        return f"{since}: {self.steps_behind:,} steps and {self.seconds_behind:,.0f} s behind step {self.newest_step}"

    def document(self) -> JudgedDocument:
        """Return the JSON-ready form."""
        return {
            "run": self.run,
            "live": self.live,
            "newest_step": self.newest_step,
            "judged_step": self.judged_step,
            "steps_behind": self.steps_behind,
            "seconds_behind": self.seconds_behind,
            "spooled_seconds": self.spooled_seconds,
            "in_time": self.in_time,
            "sentence": self.sentence,
        }


def judged_as_of(source: Source, run: str, *, now: datetime | None = None) -> JudgedAsOf | None:
    """Return the progress of the judgement of `run`, or None if it has no computed step. Raises `QueryError`.

    `now`: time, or None for the service's clock.
    """
    return judged_runs(source, run, now=now).get(run)


def judged_runs(source: Source, run: str | None = None, *, now: datetime | None = None) -> Mapping[str, JudgedAsOf]:
    """Return the progress of the judgement of all runs, or of `run`, by name. Raises `QueryError`."""
    rows = queries.judged_as_of(source, run=run, now=None if now is None else now.isoformat()).to_pylist()
    return {row["run"]: JudgedAsOf(**row) for row in rows}
