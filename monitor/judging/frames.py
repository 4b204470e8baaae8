"""Cached frames of live runs, to which only new steps are added, from memory.

New rows of steps and records of weights are appended, and the growth rule continues from its state some steps ago. If
memory lacks steps, all sums are read again. An older changed step or a new configuration causes a new read of the whole
frame.

Raw tokens are read when the judgement by sums changes. Otherwise they are read again at the earliest once the run is a
tenth longer, because the sample covers the whole run and one more step changes little. While no finding is open, the
limit is the number of steps in today's window. All these renewed looks together take a share of the time, so that fast
runs are judged on time. The run whose tokens were read longest ago comes first. A read of tokens also reads the
configurations again, and of a run whose strata are of some steps only, the whole frame.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from logprobe.monitor.judging.diagnosing import named
from logprobe.monitor.judging.document import DiagnosisDocument
from logprobe.monitor.judging.explain import explained
from logprobe.monitor.judging.frame import Frame, Strata
from logprobe.monitor.judging.gather import (
    begun,
    gather_sums,
    has_all_strata,
    readings_of,
    strata_of_slices,
    weights_of_runs,
    with_series,
    with_setup,
    with_tokens,
)
from logprobe.monitor.judging.growth import Change, Tracker
from logprobe.monitor.judging.judge import judge
from logprobe.monitor.judging.judgement import Acceptance, Judgement
from logprobe.monitor.judging.measures import among
from logprobe.monitor.judging.records import WINDOW, Series
from logprobe.monitor.live.newest import Newest, NewSteps
from logprobe.monitor.queries import Source

AGAIN: Final = 10  # steps for which a look at the tokens holds at first; then a tenth of the run's steps
SHARE: Final = 0.05  # of the time, for renewed looks at the tokens; on a busy machine each takes longer
_SETTLED: Final = 8  # steps that may still be computed again
_RUNS: Final = 1_000  # frames that are kept
_QUIET: Final = frozenset({"healthy", "calibrating", "no_data"})


@dataclass(frozen=True, slots=True)
class _Kept:
    """State of a run at its last judgement.

    Attributes:
        frame: frame of all steps, without tokens.
        revision: revision of the run's newest step at that time.
        tick: tick of `Newest` whose news are in the frame.
        essence: essence of the judgement by sums.
        growth: growth rule as of `settled`.
        settled: number of steps that the growth rule has followed.
        whole: number of steps at the last read of tokens.
        read: time of that read in seconds, see `Frames`.
        diagnosis: full diagnosis of that read.
    """

    frame: Frame
    revision: int
    tick: int
    essence: object
    growth: Tracker
    settled: int
    whole: int
    read: float
    diagnosis: DiagnosisDocument


@dataclass(frozen=True, slots=True)
class Look:
    """Request to judge a run that has news.

    Attributes:
        run: name of the run.
        revision: revision of its newest step.
        accepted: causes that the operator accepts.
        whole: true to read the whole frame again.
    """

    run: str
    revision: int
    accepted: Sequence[Acceptance] = ()
    whole: bool = False


class Frames:
    """Frames of the live runs of one store. Only one thread at a time may use them."""

    def __init__(
        self,
        newest: Newest | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Set up without cached frames. `newest`: newest steps in memory, or None to read all frames whole.

        `clock`: seconds.
        """
        self._newest = newest or Newest()
        self._kept: dict[str, _Kept] = {}
        self._clock = clock
        self._renewed_from = -math.inf  # when what renewed looks have taken is their share of the time again

    def diagnose(self, source: Source, looks: Sequence[Look]) -> list[tuple[Frame, DiagnosisDocument]]:
        """Return the frame of each run as of its newest step, and its diagnosis.

        Args:
            source: a `Reader` or a `Store`.
            looks: requests for different runs.

        Raises:
            QueryError: the read failed, see `Reader.read`.
        """
        known = {look.run: kept for look in looks if not look.whole and (kept := self._kept.get(look.run)) is not None}
        tick = self._newest.tick  # before anything is read: what comes later is read again
        news = {
            look.run: some
            for look in looks
            if (kept := known.get(look.run)) is not None
            and (some := self._newest.since(look.run, kept.revision, kept.tick, upto=look.revision)) is not None
        }
        again = _read_again(source, {run: kept for run, kept in known.items() if run not in news})
        frames = _advanced(source, known, news) | {run: kept.frame for run, kept in again.items()}
        known |= again
        found = {
            look.run: self._diagnose(source, look, known.get(look.run), frames.get(look.run), tick)
            for look in sorted(looks, key=lambda look: known[look.run].read if look.run in known else -math.inf)
        }
        return [found[look.run] for look in looks]

    def _diagnose(
        self, source: Source, look: Look, known: _Kept | None, frame: Frame | None, tick: int
    ) -> tuple[Frame, DiagnosisDocument]:
        plain = None if frame is None else judge(frame, look.accepted)
        if known is None or frame is None or plain is None or _essence(plain) != known.essence:
            return self._read(source, look, frame, tick)
        if len(frame.series) - known.whole >= _holds(known.whole, plain) and self._renewed_from <= self._clock():
            begun = self._clock()
            found = self._read(source, look, frame, tick)
            ended = self._clock()
            self._renewed_from = ended + (ended - begun) / SHARE
            return found
        self._keep(look.run, replace(known, frame=frame, revision=look.revision, tick=tick))
        return frame, _carried(known.diagnosis, explained(plain, frame))

    def _read(self, source: Source, look: Look, frame: Frame | None, tick: int) -> tuple[Frame, DiagnosisDocument]:
        """Judge a run with its tokens. `frame`: what is known of its sums, or None to read them, too."""
        run, at = look.run, self._clock()
        with_all = frame is not None and has_all_strata(frame)
        frame = with_setup(source, frame) if frame is not None and with_all else gather_sums(source, run)
        essence, steps = _essence(judge(frame, look.accepted)), len(frame.series)
        full = with_tokens(source, frame)
        diagnosis = named(source, explained(judge(full, look.accepted), full), full)
        self._keep(run, _Kept(frame, look.revision, tick, essence, *_settled(frame), steps, at, diagnosis))
        return full, diagnosis

    def _keep(self, run: str, kept: _Kept) -> None:
        self._kept.pop(run, None)
        self._kept[run] = kept
        while len(self._kept) > _RUNS:
            self._kept.pop(next(iter(self._kept)))


def _holds(whole: int, judgement: Judgement) -> int:
    """Return the number of steps for which a read of tokens stays valid at least while the judgement by sums is the
    same."""
    tenth = max(AGAIN, whole // AGAIN)
    is_quiet = judgement.verdict in _QUIET and judgement.layer == "none"
    return max(tenth, min(whole, WINDOW)) if is_quiet else tenth


def _essence(judgement: Judgement) -> object:
    """Return the parts of a judgement whose change requires a new read of tokens."""
    causes = frozenset((f.cause, f.urgency, f.accepted is not None) for f in judgement.findings if f.named)
    return judgement.verdict, judgement.layer, judgement.advice, judgement.level.status, causes


def _carried(full: DiagnosisDocument, plain: DiagnosisDocument) -> DiagnosisDocument:
    """Return a diagnosis with the current numbers of growth and level."""
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


def _advanced(source: Source, known: Mapping[str, _Kept], news: Mapping[str, NewSteps]) -> dict[str, Frame]:
    """Return frames advanced by the newly computed steps, except for runs with a new configuration or older changed
    steps."""
    frames = {}
    for run, some in news.items():
        kept, first = known[run], int(some.steps["step"][0]) if some.steps else None
        if some.configs or (first is not None and _steps_before(kept, first) < kept.settled):
            continue
        frame = kept.frame
        if first is not None:
            frame = _with(kept, first, *_among_known(frame, first, some))
            frame = with_series(source, frame, frame.series)
        frames[run] = replace(frame, readings=readings_of(source, run)) if some.readings else frame
    marked = {run: frame.weights for run, frame in frames.items() if news[run].weights}
    weights = weights_of_runs(source, marked) if marked else {}
    return {run: replace(frame, weights=weights.get(run, frame.weights)) for run, frame in frames.items()}


def _read_again(source: Source, known: Mapping[str, _Kept]) -> dict[str, _Kept]:
    """Return the state of runs with news that memory lacks, except for runs with a new configuration."""
    again = {}
    for run, kept in known.items():
        frame = gather_sums(source, run)
        if frame.setup == kept.frame.setup:
            growth, settled = _settled(frame)
            again[run] = replace(kept, frame=frame, growth=growth, settled=settled)
    return again


def _among_known(frame: Frame, first: int, some: NewSteps) -> tuple[Series, Strata]:
    """Return the sums of steps in memory, with those of a frame's steps after the first of them that are not new."""
    series, strata = Series(some.steps), strata_of_slices(some.slices)
    same = frame.series.step[(frame.series.step >= first) & ~among(frame.series.step, series.step)]
    if not len(same):
        return series, strata
    return frame.series.within(same).and_later(series).by_order(), frame.strata.within(same).and_later(
        strata
    ).by_order()


def _steps_before(known: _Kept, first: int) -> int:
    return int((known.frame.series.step < first).sum())


def _with(known: _Kept, first: int, news: Series, strata: Strata) -> Frame:
    """Return the frame extended by the data of the steps from `first` on."""
    frame = known.frame
    series = frame.series.within(frame.series.step[frame.series.step < first]).and_later(news)
    growth = known.growth.copy().follow(
        series.step[known.settled :].tolist(), series.k3[known.settled :].tolist(), _ahead(frame, known.settled)
    )
    return replace(
        frame,
        series=series,
        strata=frame.strata.where(frame.strata.step < first).and_later(strata),
        growth=growth.verdict(),
    )


def _settled(frame: Frame) -> tuple[Tracker, int]:
    """Return the growth rule as of the last step that is unlikely to be computed again."""
    count = max(len(frame.series) - _SETTLED, 0)
    steps, k3 = frame.series.step[:count].tolist(), frame.series.k3[:count].tolist()
    return begun(frame.setup, frame.setups).follow(steps, k3, frame.setups[1:]), count


def _ahead(frame: Frame, settled: int) -> list[Change]:
    """Return the changes of the engines' setup after some steps."""
    last = int(frame.series.step[settled - 1]) if settled else -1
    return [change for change in frame.setups[1:] if change[0] > last]
