"""Judges the zoo and writes the confusion table into tests/RESULTS.md: `make campaign NAME=zoo`, or `PYTHONPATH=tests:tests/support python -m zoo.table`.

`--each N --healthy N`: runs of each family and kind; `--development`: of the development sets, on the terminal; `--keep FILE`: outcomes as JSON lines; `--from FILE`: the table of kept outcomes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from textwrap import wrap
from typing import Final

import numpy as np
from marked_page import write_between
from zoo.cases import DEVELOPMENT, FAMILIES, HEALTHY_FAMILIES, HELD_BACK, KINDS, SEMANTIC_FAMILIES, Set, cases
from zoo.judge import Outcome, judge

PAGE: Final = Path(__file__).resolve().parents[1] / "RESULTS.md"
BEGIN, END = "<!-- zoo: written by make campaign NAME=zoo -->", "<!-- zoo: end -->"
WIDTH: Final = 120  # of the page's prose
TARGETS: Final = {"healthy": 0.99, "enable": 0.95, "refuse": 0.98, "refuse, semantic": 1.0}


def markdown(outcomes: list[Outcome], *, whole: bool = False) -> str:
    """Tables, with the line that says which sets they are of.

    Args:
        outcomes: of the judged runs.
        whole: every family and kind of model; else those only in which something was missed.
    """
    by_kind = _by_kind(outcomes) if whole else _missed(outcomes)
    sets = f"developed with: seeds from {_seeds(DEVELOPMENT)};\nheld back and judged: seeds from {_seeds(HELD_BACK)}"
    return "\n".join([f"{len(outcomes)} runs ({sets}).", "", *_advice(outcomes), "", *by_kind, "", *_errors(outcomes)])


def _seeds(sets: Iterable[Set]) -> str:
    return ", ".join(f"{of.first_seed:,}" for of in sets)


def _advice(outcomes: list[Outcome]) -> Iterator[str]:
    advices = ("not_needed", "enable", "do_not_enable")
    yield "| what should follow | runs | not needed | enable | do not enable | right | target | enabled too early or wrongly |"
    yield "|---|---|---|---|---|---|---|---|"
    for wanted, target in TARGETS.items():
        some = [each for each in outcomes if each["wanted"] == wanted]
        counts = " | ".join(str(sum(each["advice"] == advice for each in some)) for advice in advices)
        yield f"| {wanted} | {len(some)} | {counts} | {_share(some)} | {target:.0%} | {sum(each['early'] for each in some)} |"


def _by_kind(outcomes: list[Outcome]) -> Iterator[str]:
    kinds = [kind.name for kind in KINDS]
    yield (
        "| right of all, by dtype (engine / trainer) and kind of model | "
        + " | ".join(kinds)
        + " | first cause named |"
    )
    yield "|---" * (len(kinds) + 2) + "|"
    for family in FAMILIES:
        some = [each for each in outcomes if each["family"] == family]
        cells = " | ".join(_count([each for each in some if each["kind"] == kind], "right") for kind in kinds)
        named = "" if family in HEALTHY_FAMILIES else _count(some, "named")
        yield f"| {family} | {cells} | {named} |"


def _missed(outcomes: list[Outcome]) -> Iterator[str]:
    """Families and kinds of model in which not all was right, or the first cause another."""
    faulty = [each for each in outcomes if each["family"] not in HEALTHY_FAMILIES]
    yield from wrap(f"Wrong: {_short(outcomes, 'right')}.", WIDTH, break_on_hyphens=False)
    named = f"First cause named in {_count(faulty, 'named')}: {_short(faulty, 'named')} missed."
    yield from wrap(named, WIDTH, break_on_hyphens=False)


def _short(outcomes: list[Outcome], key: str) -> str:
    places = Counter(f"{each['family']}, {each['kind']}" for each in outcomes if not each[key])
    return "; ".join(f"{place} ({count})" for place, count in places.items()) or "none"


def _errors(outcomes: list[Outcome]) -> Iterator[str]:
    yield "| onset | runs | dated | median error, steps | 95 % within |"
    yield "|---|---|---|---|---|"
    for wanted in ("enable", "refuse", "refuse, semantic"):
        some = [each for each in outcomes if each["wanted"] == wanted]
        errors = np.array([each["error"] for each in some if each["error"] is not None], float)
        if len(errors):
            yield f"| {wanted} | {len(some)} | {len(errors)} | {np.median(errors):+.0f} | {np.quantile(np.abs(errors), 0.95):.0f} |"


def _share(some: list[Outcome]) -> str:
    return f"{sum(each['right'] for each in some) / len(some):.1%}" if some else "–"


def _count(some: list[Outcome], key: str) -> str:
    return f"{sum(each[key] for each in some)} of {len(some)}" if some else "–"


def write(text: str, page: Path = PAGE) -> None:
    """Replaces what stands between the marks."""
    write_between(page, BEGIN, END, [text])


def _judged(arguments: argparse.Namespace) -> Iterator[Outcome]:
    """In an order of their own, so that those judged first are a fair sample of all."""
    sets = DEVELOPMENT if arguments.development else HELD_BACK
    everything = [case for of in sets for case in cases(of, arguments.each, arguments.healthy)]
    order = np.random.default_rng(17).permutation(len(everything))
    for each in judge((everything[place] for place in order), arguments.processes):
        yield {**each, "wanted": "refuse, semantic"} if each["family"] in SEMANTIC_FAMILIES else each


def _kept(outcomes: Iterable[Outcome], file: Path | None) -> list[Outcome]:
    found = []
    for each in outcomes:
        found.append(each)
        print(json.dumps(each, default=str), file=sys.stderr if file is None else file.open("a"), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--each", type=int, default=3)
    parser.add_argument("--healthy", type=int, default=20)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--development", action="store_true", help="judge the development sets, print the tables, write nothing"
    )
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--from", dest="file", type=Path)
    arguments = parser.parse_args()
    if arguments.file is not None:
        outcomes = [json.loads(line) for line in arguments.file.read_text(encoding="utf-8").splitlines()]
    else:
        outcomes = _kept(_judged(arguments), arguments.keep)
    if arguments.development:
        print(markdown(outcomes, whole=True))
    else:
        write(markdown(outcomes))


if __name__ == "__main__":
    main()
