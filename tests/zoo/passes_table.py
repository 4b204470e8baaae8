"""Judges the zoo of real forward passes (`zoo.passes`): `make campaign NAME=zoo-passes`, or `PYTHONPATH=tests:tests/support python -m zoo.passes_table`.

Each run is judged at several steps, as a service would; a healthy one at every twentieth. `--development`: the cases rules may be
corrected with, on the terminal; without it those held back, into tests/RESULTS.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np
from marked_page import write_between
from zoo.cases import Case
from zoo.passes import Run
from zoo.passes_cases import DEVELOPMENT, HELD_BACK, cases

from logprobe.monitor.judging.document import DiagnosisDocument
from logprobe.monitor.judging.explain import diagnosed

PAGE: Final = Path(__file__).resolve().parents[1] / "RESULTS.md"
BEGIN, END = "<!-- zoo of passes: written by make campaign NAME=zoo-passes -->", "<!-- zoo of passes: end -->"
CALIBRATED: Final = 205  # first step that is judged
EVERY: Final = 20
Outcome = dict[str, Any]


def onset(run: Run) -> int | None:
    """Where growth or the fault begins; None: there is none, or it was always there."""
    begins = run.drift.onset if run.drift.onset is not None else run.lag.onset
    return begins if begins is not None else run.fault.since or None


def steps_of(case: Case, run: Run) -> list[int]:
    """The steps at which it is judged: once calibrated, before the onset, on the way, within a spell, at the end."""
    last, begins = run.steps - 1, onset(run)
    if case.wanted in {"healthy", "no fault"}:
        return sorted({*range(CALIBRATED, last, EVERY), last})
    some = {CALIBRATED, last} if begins is None else {begins - 1, (begins + last) // 2, last}
    return sorted(some | {run.fault.until - 1} if case.wanted == "ended" else some)


def judged(case: Case) -> Outcome:
    """One case as plain data."""
    run: Any = case.run  # of `zoo.passes`
    drawn = run.rollouts()
    seen = [(step, diagnosed(drawn.frame(step))) for step in steps_of(case, run)]
    final = seen[-1][1]
    first = next((step for step, found in seen if found["correction"]["advice"] == "enable"), None)
    named = [
        finding["cause"]
        for finding in final["findings"]
        if finding["confidence"] >= 0.5 and finding["urgency"] == "act"
    ]
    outcome: Outcome = {
        "name": case.name, "family": case.family, "wanted": case.wanted, "verdict": final["verdict"], "layer": final["layer"],
        "advice": final["correction"]["advice"], "cause": final["findings"][0]["cause"] if final["findings"] else None, "acts": named,
        "expected": case.cause, "since": final["since_step"], "onset": onset(run), "enabled": first, "looks": len(seen),
        "alarms": [step for step, found in seen if _alarms(found)], "k3": float(np.median(drawn.frame().series.k3)),
    }  # fmt: skip
    return outcome | {"right": _right(outcome)}


def _alarms(found: DiagnosisDocument) -> bool:
    return found["verdict"] not in {"healthy", "calibrating"} or found["correction"]["advice"] == "enable"


def _right(outcome: Outcome) -> bool:
    wanted, enabled, advice = outcome["wanted"], outcome["enabled"], outcome["advice"]
    early = enabled is not None and (outcome["onset"] is None or enabled < outcome["onset"])
    if wanted == "healthy":
        return not outcome["alarms"] and outcome["layer"] == "none"
    if wanted == "enable":
        return advice == "enable" and outcome["layer"] == "objective" and not early
    if wanted == "no fault":
        return outcome["layer"] in {"none", "objective"}
    if wanted == "ended":
        return enabled is None and advice == "not_needed"
    return enabled is None and advice == "do_not_enable"


def markdown(outcomes: list[Outcome]) -> list[str]:
    """The table, and what is counted over all families."""
    lines = [
        "| family | what should follow | median K3 | right | first cause (times) |",
        "|---|---|---|---|---|",
    ]
    families = list(dict.fromkeys(each["family"] for each in outcomes))
    lines += [_row([each for each in outcomes if each["family"] == family]) for family in families]
    return [*lines, "", *_totals(outcomes)]


def _row(some: list[Outcome]) -> str:
    causes = [each["cause"] or "none" for each in some]
    named = ", ".join(f"{cause} ({causes.count(cause)})" for cause in sorted(set(causes), key=causes.index))
    right = f"{sum(each['right'] for each in some)} of {len(some)}"
    k3 = float(np.median([each["k3"] for each in some]))
    return f"| {some[0]['family']} | {some[0]['wanted']} | {k3:.1e} | {right} | {named} |"


def _totals(outcomes: list[Outcome]) -> Iterator[str]:
    faults = [each for each in outcomes if each["wanted"] in {"refuse", "ended", "unlisted"}]
    healthy = [each for each in outcomes if each["wanted"] == "healthy"]
    looks, alarms = sum(each["looks"] for each in healthy), sum(len(each["alarms"]) for each in healthy)
    known = [each for each in outcomes if each["expected"] and each["wanted"] == "refuse"]
    unlisted = [each for each in outcomes if each["wanted"] == "unlisted"]
    yield f"- Faults that were advised a correction at any step: {sum(each['enabled'] is not None for each in faults)} of {len(faults)}."
    yield f"- False alarms: {alarms} in {looks:,} judgements of {len(healthy)} healthy runs, one each {EVERY} steps."
    yield f"- First cause is the fault: {sum(each['cause'] == each['expected'] for each in known)} of {len(known)} with a cause of their own."
    yield f"- Faults without a cause of their own that look healthy at the end: {sum(each['verdict'] == 'healthy' for each in unlisted)} of {len(unlisted)}."


def main() -> None:
    """Judges, prints outcomes as JSON lines on stderr, and writes or prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--each", type=int, default=4)
    parser.add_argument("--healthy", type=int, default=10)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--development", action="store_true", help="judge those of development, print the table")
    arguments = parser.parse_args()
    outcomes = []
    with ProcessPoolExecutor(arguments.processes) as pool:
        of = DEVELOPMENT if arguments.development else HELD_BACK
        for outcome in pool.map(judged, cases(of, arguments.each, arguments.healthy)):
            outcomes.append(outcome)
            print(json.dumps(outcome), file=sys.stderr, flush=True)
    if arguments.development:
        print("\n".join(markdown(outcomes)))
    else:
        write_between(PAGE, BEGIN, END, [f"{len(outcomes)} runs held back.", "", *markdown(outcomes)])


if __name__ == "__main__":
    main()
