"""A seeded handful of the zoo; all of it is `make campaign NAME=zoo`."""

from __future__ import annotations

from dataclasses import replace

import pytest
from zoo.cases import DEVELOPMENT, FAMILIES, FIT, HEALTHY_FAMILIES, HELD_BACK, KINDS, Case, Set
from zoo.judge import Judged, judged

QUICK = replace(FIT, name="quick", first_seed=90_000)


def results(kind: int, *families: str) -> list[Judged]:
    made: list[Case] = [FAMILIES[name](QUICK, KINDS[kind], name, QUICK.first_seed + kind) for name in families]
    return [judged(case) for case in made]


def test_healthy_runs_are_healthy_and_never_corrected() -> None:
    for kind in range(len(KINDS)):
        for found in results(kind, *HEALTHY_FAMILIES):
            assert found.right, found


def test_growth_is_corrected_and_not_before_its_onset() -> None:
    for kind in (0, 2):
        for found in results(kind, "policies drift apart", "lag grows"):
            assert found.right, found


def test_engine_faults_and_wrong_distributions_are_refused() -> None:
    for found in results(
        1,
        "stale prefix cache",
        "replica gone astray",
        "missed updates",
        "updates missed now and then",
        "offset",
        "forgotten temperature",
    ):
        assert found.right, found


RANGES = ("spreads", "unrest", "doublings", "peaks")


@pytest.mark.parametrize("held", HELD_BACK, ids=lambda of: of.name)
@pytest.mark.parametrize("seen", DEVELOPMENT, ids=lambda of: of.name)
def test_what_is_judged_was_not_developed_with(held: Set, seen: Set) -> None:
    """Seeds, shapes and every range of parameters are apart."""
    assert abs(held.first_seed - seen.first_seed) > 100_000
    assert (held.prompts, held.answers, held.length) != (seen.prompts, seen.answers, seen.length)
    for name in RANGES:
        (low, high), (seen_low, seen_high) = getattr(held, name), getattr(seen, name)
        assert high < seen_low or low > seen_high, name
    for name in ("onsets", "every"):
        mine, theirs = range(*getattr(held, name)), range(*getattr(seen, name))
        assert not set(mine) & set(theirs), name
