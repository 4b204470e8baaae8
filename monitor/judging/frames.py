"""Frames of live runs, kept from step to step: what a new step adds is read, and nothing else.

Sums by step and stratum and records of weights are appended, and growth goes on from where it stood some steps ago. All
but tokens is read again after `AGAIN` steps, and raw tokens once the run is a tenth longer, or either when a judgement
becomes another one: the sample is of the whole run, and a step more changes little of it. A step that was computed
again is read again; one from further back makes the whole frame be read again.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from logprobe.monitor import queries
from logprobe.monitor.judging.diagnosing import named
from logprobe.monitor.judging.document import DiagnosisDocument
from logprobe.monitor.judging.explain import explained
from logprobe.monitor.judging.frame import Frame, Strata
from logprobe.monitor.judging.gather import (
    begun,
    gather_sums,
    series_of_runs,
    strata_of_runs,
    weights_of_runs,
    with_tokens,
)
from logprobe.monitor.judging.growth import Change, Tracker
from logprobe.monitor.judging.judge import judge
from logprobe.monitor.judging.judgement import Acceptance, Judgement
from logprobe.monitor.judging.records import Series, Weights
from logprobe.monitor.judging.samples import Samples
from logprobe.monitor.queries import Source

AGAIN: Final = 10  # steps after which all but tokens is read again; tokens after a tenth more steps, and so many
_SETTLED: Final = 8  # steps that may still be computed again
_RUNS: Final = 1_000  # frames that are kept


@dataclass(frozen=True, slots=True)
class _Kept:
    """A run as it was looked at last.

    Attributes:
        frame: of all steps, without tokens.
        revision: of the run's newest step then.
        read: number of steps when all but tokens was read.
        essence: what the sums alone said then.
        growth: growth rule as of `settled`.
        settled: number of steps that it has followed.
        whole: number of steps when tokens were looked at.
        diagnosis: what everything said.
    """

    frame: Frame
    revision: int
    read: int
    essence: object
    growth: Tracker
    settled: int
    whole: int
    diagnosis: DiagnosisDocument


@dataclass(frozen=True, slots=True)
class Look:
    """Look at a run that has news.

    Attributes:
        run: its name.
        revision: of its newest step, as read before.
        accepted: causes that the operator accepts.
        whole: read everything again.
    """

    run: str
    revision: int
    accepted: Sequence[Acceptance] = ()
    whole: bool = False


class Frames:
    """Frames of the live runs of one store. A run belongs to one thread at a time."""

    def __init__(self, samples: Samples | None = None) -> None:
        """Set up the frames. `samples`: where raw tokens are kept between two looks."""
        self._samples = samples or Samples()
        self._kept: dict[str, _Kept] = {}
        self._turn = threading.Lock()

    def diagnose(self, source: Source, looks: Sequence[Look]) -> list[tuple[Frame, DiagnosisDocument]]:
        """Return the frame of each run as of its newest step, and what is wrong with it.

        Args:
            source: a `Reader` or a `Store`.
            looks: at different runs; what is new of all of them is read together.

        Raises:
            QueryError: the store refused; see `Reader.read`.
        """
        known = {look.run: kept for look in looks if not look.whole and (kept := self._kept.get(look.run)) is not None}
        frames = _advanced(source, known)
        return [self._diagnose(source, look, known.get(look.run), frames.get(look.run)) for look in looks]

    def _diagnose(
        self, source: Source, look: Look, known: _Kept | None, frame: Frame | None
    ) -> tuple[Frame, DiagnosisDocument]:
        run = look.run
        if known is not None and frame is not None and len(frame.series) - known.read < AGAIN:
            plain = judge(frame, look.accepted)
            if _essence(plain) == known.essence:
                self._keep(run, replace(known, frame=frame, revision=look.revision))
                return frame, _carried(known.diagnosis, explained(plain, frame))
        frame = gather_sums(source, run)
        plain = judge(frame, look.accepted)
        essence, steps = _essence(plain), len(frame.series)
        if known is not None and essence == known.essence and steps - known.whole < max(AGAIN, known.whole // AGAIN):
            whole, diagnosis = known.whole, known.diagnosis
            found = frame, _carried(diagnosis, explained(plain, frame))
        else:
            full = with_tokens(source, frame, self._samples)
            whole, diagnosis = steps, named(source, explained(judge(full, look.accepted), full), full)
            found = full, diagnosis
        self._keep(run, _Kept(frame, look.revision, steps, essence, *_settled(frame), whole, diagnosis))
        return found

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


def _advanced(source: Source, known: Mapping[str, _Kept]) -> dict[str, Frame]:
    """Return frames with the steps that were computed since; none of a run of which one is from before the last few
    steps."""
    if not known:
        return {}
    revisions = [kept.revision for kept in known.values()]
    rows = queries.diagnosis_touched(source, runs=list(known), revisions=revisions).to_pylist()
    touched = {row["run"]: row["step"] for row in rows}
    frames = {run: kept.frame for run, kept in known.items() if run not in touched}
    ahead = {run: first for run, first in touched.items() if _steps_before(known[run], first) >= known[run].settled}
    if not ahead:
        return frames
    series = series_of_runs(source, {run: (first, None) for run, first in ahead.items()})
    strata = strata_of_runs(source, {run: some.step[some["n"] > 0].tolist() for run, some in series.items()})
    weights = weights_of_runs(source, {run: known[run].frame.weights for run in ahead})
    return frames | {
        run: _with(known[run], first, series[run], strata[run], weights[run]) for run, first in ahead.items()
    }


def _steps_before(known: _Kept, first: int) -> int:
    return int((known.frame.series.step < first).sum())


def _with(known: _Kept, first: int, news: Series, strata: Strata, weights: Weights) -> Frame:
    """Return the frame with all that is known of the steps from `first` on."""
    frame = known.frame
    series = frame.series.within(frame.series.step[frame.series.step < first]).and_later(news)
    growth = known.growth.copy().follow(
        series.step[known.settled :].tolist(), series.k3[known.settled :].tolist(), _ahead(frame, known.settled)
    )
    return replace(
        frame,
        series=series,
        weights=weights,
        strata=frame.strata.where(frame.strata.step < first).and_later(strata),
        growth=growth.verdict(),
    )


def _settled(frame: Frame) -> tuple[Tracker, int]:
    """Return the growth rule as of the last step that is not likely to be computed again."""
    count = max(len(frame.series) - _SETTLED, 0)
    steps, k3 = frame.series.step[:count].tolist(), frame.series.k3[:count].tolist()
    return begun(frame.setup, frame.setups).follow(steps, k3, frame.setups[1:]), count


def _ahead(frame: Frame, settled: int) -> list[Change]:
    """Return the changes of the engines' setup after some steps."""
    last = int(frame.series.step[settled - 1]) if settled else -1
    return [change for change in frame.setups[1:] if change[0] > last]
