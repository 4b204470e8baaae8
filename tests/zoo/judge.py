"""Judges runs of the zoo as a service would, at several steps of each, and says what was right."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from zoo.cases import Case
from zoo.rollouts import rollouts

from logprobe.monitor.judging.explain import diagnosed

LATE = 20  # steps that the switch may be dated before the onset: blocks of 5 steps and noise of the bend do not allow for better


@dataclass(frozen=True)
class Judged:
    """What became of one case. `enabled`: first of the steps looked at that advised a correction; None: none did."""

    case: Case
    verdict: str
    layer: str
    cause: str | None
    advice: str
    since: int | None
    enabled: int | None

    @property
    def early(self) -> bool:
        """Whether a correction was advised where none should ever be, or before there was a reason."""
        onset = self.case.onset if self.case.wanted == "enable" else None
        return self.enabled is not None and (onset is None or self.enabled < onset)

    @property
    def right(self) -> bool:
        wanted = self.case.wanted
        if wanted == "healthy":
            return self.verdict == "healthy" and self.layer == "none" and not self.early
        if wanted == "enable":
            return self.advice == "enable" and self.layer == "objective" and not self.early
        return self.advice == "do_not_enable" and not self.early

    @property
    def named(self) -> bool:
        """Whether the first cause is the one that was put in."""
        return self.case.cause is None or self.cause == self.case.cause

    @property
    def error(self) -> int | None:
        """Steps by which the onset was missed; None: there was none, or none was found."""
        onset = self.case.onset
        return None if onset is None or self.since is None else self.since - onset


def steps_of(case: Case) -> list[int]:
    """The steps at which a case is looked at: once calibrated, before the onset, on the way, at the end."""
    last, onset = case.run.steps - 1, case.onset
    if onset is None:
        return [205, last]
    return sorted({onset - 1, (onset + last) // 2, last})


def judged(case: Case) -> Judged:
    drawn = rollouts(case.run)
    seen = [(step, diagnosed(drawn.frame(step))) for step in steps_of(case)]
    final = seen[-1][1]
    return Judged(
        case=case,
        verdict=final["verdict"],
        layer=final["layer"],
        cause=final["findings"][0]["cause"] if final["findings"] else None,
        advice=final["correction"]["advice"],
        since=final["since_step"],
        enabled=next((step for step, found in seen if found["correction"]["advice"] == "enable"), None),
    )


def judge(cases: Iterable[Case], processes: int = 1) -> Iterator[Judged]:
    if processes == 1:
        yield from map(judged, cases)
        return
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(judged, cases, chunksize=4)
