"""Judges runs of both zoos as a service would, at several steps of each, and says what was right."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any, Final

import numpy as np
from zoo.cases import Case

from logprobe.monitor.judging.document import DiagnosisDocument
from logprobe.monitor.judging.explain import diagnosed

CALIBRATED: Final = 205  # first step that is judged
Outcome = dict[str, Any]


def judge(cases: Iterable[Case], processes: int = 1, every: int | None = None) -> Iterator[Outcome]:
    """The outcome of each case, see `judged`."""
    one = partial(judged, every=every)
    if processes == 1:
        yield from map(one, cases)
        return
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(one, cases, chunksize=4)


def judged(case: Case, every: int | None = None) -> Outcome:
    """One case as plain data. `every`: steps from one look at a run without a fault to the next; None: two looks."""
    drawn, onset = case.run.rollouts(), case.onset
    seen = [(step, diagnosed(drawn.frame(step))) for step in steps_of(case, every)]
    final = seen[-1][1]
    cause = final["findings"][0]["cause"] if final["findings"] else None
    enabled = next((step for step, found in seen if found["correction"]["advice"] == "enable"), None)
    since = final["since_step"]
    outcome: Outcome = {
        "name": case.name, "family": case.family, "kind": case.kind, "wanted": case.wanted, "verdict": final["verdict"],
        "layer": final["layer"], "advice": final["correction"]["advice"], "cause": cause, "expected": case.cause,
        "named": case.cause in {None, cause}, "since": since, "onset": onset, "enabled": enabled, "looks": len(seen),
        "error": None if onset is None or since is None else since - onset,
        "early": enabled is not None and not (case.wanted == "enable" and onset is not None and enabled >= onset),
        "alarms": [step for step, found in seen if _alarms(found)], "k3": float(np.median(drawn.frame().series.k3)),
    }  # fmt: skip
    return outcome | {"right": _right(outcome)}


def steps_of(case: Case, every: int | None = None) -> list[int]:
    """The steps at which a case is judged: once calibrated, before the onset, on the way, within a spell, at the end."""
    last, onset = case.run.steps - 1, case.onset
    if every is not None and case.wanted in {"healthy", "no fault"}:
        return sorted({*range(CALIBRATED, last, every), last})
    some = {CALIBRATED, last} if onset is None else {onset - 1, (onset + last) // 2, last}
    return sorted(some | {case.run.fault.until - 1} if case.wanted == "ended" else some)


def _alarms(found: DiagnosisDocument) -> bool:
    return found["verdict"] not in {"healthy", "calibrating"} or found["correction"]["advice"] == "enable"


def _right(outcome: Outcome) -> bool:
    wanted, advice, layer = outcome["wanted"], outcome["advice"], outcome["layer"]
    if wanted == "healthy":
        return not outcome["alarms"] and layer == "none"
    if wanted == "enable":
        return advice == "enable" and layer == "objective" and not outcome["early"]
    if wanted == "no fault":
        return layer in {"none", "objective"}
    return outcome["enabled"] is None and advice == ("not_needed" if wanted == "ended" else "do_not_enable")
