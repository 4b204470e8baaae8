"""Judges the zoo of real forward passes (`zoo.passes`): `make campaign NAME=zoo-passes`, or `PYTHONPATH=tests:tests/support python -m zoo.passes_table`.

Each run is judged at several steps, as a service would; a healthy one at every twentieth. `--development`: the cases rules may be
corrected with, on the terminal; without it those held back, into tests/RESULTS.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
from marked_page import write_between
from zoo.judge import Outcome, judge
from zoo.passes_cases import DEVELOPMENT, HELD_BACK, cases

PAGE: Final = Path(__file__).resolve().parents[1] / "RESULTS.md"
BEGIN, END = "<!-- zoo of passes: written by make campaign NAME=zoo-passes -->", "<!-- zoo of passes: end -->"
EVERY: Final = 20


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
    of, outcomes = DEVELOPMENT if arguments.development else HELD_BACK, []
    for outcome in judge(cases(of, arguments.each, arguments.healthy), arguments.processes, EVERY):
        outcomes.append(outcome)
        print(json.dumps(outcome), file=sys.stderr, flush=True)
    if arguments.development:
        print("\n".join(markdown(outcomes)))
    else:
        write_between(PAGE, BEGIN, END, [f"{len(outcomes)} runs held back.", "", *markdown(outcomes)])


if __name__ == "__main__":
    main()
