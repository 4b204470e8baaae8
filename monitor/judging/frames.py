"""Frames of live runs, kept from step to step: what a new step adds is read, and nothing else.

Sums by step and stratum are appended, growth goes on from where it stood some steps ago, and raw tokens, records of
weights and configurations are looked at again when a judgement becomes another one, or after `AGAIN` steps. A step that
was computed again is read again; one from further back makes the whole frame be read again, as a new configuration
does.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from logprobe.monitor import queries
from logprobe.monitor.judging.diagnosing import named
from logprobe.monitor.judging.document import DiagnosisDocument
from logprobe.monitor.judging.explain import explained
from logprobe.monitor.judging.frame import Frame
from logprobe.monitor.judging.gather import begun, gather_sums, series_of, strata_of_run, with_tokens
from logprobe.monitor.judging.growth import Change, Tracker
from logprobe.monitor.judging.judge import judge
from logprobe.monitor.judging.judgement import Acceptance, Judgement
from logprobe.monitor.judging.samples import Samples
from logprobe.monitor.queries import Source

AGAIN: Final = 10  # steps: a run is judged at most so many steps after its newest one
_SETTLED: Final = 8  # steps that may still be computed again
_RUNS: Final = 1_000  # frames that are kept


@dataclass(frozen=True, slots=True)
class _Kept:
    """A run as it was looked at last.

    Attributes:
        frame: of all steps, without tokens.
        revision: of the run's newest step then.
        whole: number of steps when everything was looked at.
        essence: what the sums alone said then.
        diagnosis: what everything said.
        growth: growth rule as of `settled`.
        settled: number of steps that it has followed.
    """

    frame: Frame
    revision: int
    whole: int
    essence: object
    diagnosis: DiagnosisDocument
    growth: Tracker
    settled: int


class Frames:
    """Frames of the live runs of one store. A run belongs to one thread at a time."""

    def __init__(self, samples: Samples | None = None) -> None:
        """`samples`: where raw tokens are kept between two looks."""
        self._samples = samples or Samples()
        self._kept: dict[str, _Kept] = {}
        self._turn = threading.Lock()

    def diagnose(
        self, source: Source, run: str, revision: int, accepted: Sequence[Acceptance], *, whole: bool = False
    ) -> tuple[Frame, DiagnosisDocument]:
        """Return the frame of a run as of its newest step, and what is wrong with it.

        Args:
            source: a `Reader` or a `Store`.
            run: name of the run.
            revision: of its newest step, as read before.
            accepted: causes that the operator accepts.
            whole: read everything again.

        Raises:
            QueryError: the store refused; see `Reader.read`.
        """
        known = None if whole else self._kept.get(run)
        frame = None if known is None else _advanced(source, known)
        if known is not None and frame is not None:
            plain = judge(frame, accepted)
            if len(frame.series) - known.whole < AGAIN and _essence(plain) == known.essence:
                self._keep(run, replace(known, frame=frame, revision=revision))
                return frame, _carried(known.diagnosis, explained(plain, frame))
        frame = gather_sums(source, run)
        essence = _essence(judge(frame, accepted))
        full = with_tokens(source, frame, self._samples)
        diagnosis = named(source, explained(judge(full, accepted), full), full)
        growth, settled = _settled(frame)
        self._keep(run, _Kept(frame, revision, len(frame.series), essence, diagnosis, growth, settled))
        return full, diagnosis

    def _keep(self, run: str, kept: _Kept) -> None:
        with self._turn:
            self._kept.pop(run, None)
            self._kept[run] = kept
            while len(self._kept) > _RUNS:
                self._kept.pop(next(iter(self._kept)))


def _essence(judgement: Judgement) -> object:
    """Return what makes a judgement another one."""
    causes = frozenset((f.cause, f.urgency, f.accepted is not None) for f in judgement.findings if f.named)
    return judgement.verdict, judgement.layer, judgement.advice, judgement.level.status, causes


def _carried(full: DiagnosisDocument, plain: DiagnosisDocument) -> DiagnosisDocument:
    """Return a diagnosis with today's numbers of growth and level."""
    level, now = full["level"], plain["level"]
    if level is not None and now is not None:
        level = {
            **level,
            "k3": now["k3"],
            "numerics": now["numerics"],
            "first": now["first"],
            "remembered": now["remembered"],
        }
    return {**full, "growth": plain["growth"], "doubling_steps": plain["doubling_steps"], "level": level}


def _advanced(source: Source, known: _Kept) -> Frame | None:
    """Return the frame with the steps that were computed since; None if one is from before the last few steps."""
    frame, series = known.frame, known.frame.series
    (row,) = queries.diagnosis_touched(source, run=frame.run, revision=known.revision).to_pylist()
    first = row["step"]
    if first is None:
        return frame
    before = series.step < first
    if int(before.sum()) < known.settled:
        return None
    news = series_of(source, frame.run, first)
    strata = strata_of_run(source, frame.run, news.step[news["n"] > 0].tolist())
    series = series.within(series.step[before]).and_later(news)
    growth = known.growth.copy()
    growth.follow(
        series.step[known.settled :].tolist(), series.k3[known.settled :].tolist(), _ahead(frame, known.settled)
    )
    return replace(
        frame,
        series=series,
        strata=frame.strata.where(frame.strata.step < first).and_later(strata),
        growth=growth.verdict(),
    )


def _settled(frame: Frame) -> tuple[Tracker, int]:
    """Return the growth rule as of the last step that is not likely to be computed again."""
    count = max(len(frame.series) - _SETTLED, 0)
    growth = begun(frame.setup, frame.setups)
    growth.follow(frame.series.step[:count].tolist(), frame.series.k3[:count].tolist(), frame.setups[1:])
    return growth, count


def _ahead(frame: Frame, settled: int) -> list[Change]:
    """Return the changes of the engines' setup after some steps."""
    last = int(frame.series.step[settled - 1]) if settled else -1
    return [change for change in frame.setups[1:] if change[0] > last]
