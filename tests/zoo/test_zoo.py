"""A seeded handful of the zoo; all of it is `make campaign NAME=zoo`."""

from __future__ import annotations

from dataclasses import replace

import pytest
from zoo.cases import DEVELOPMENT, FAMILIES, FIT, HEALTHY_FAMILIES, HELD_BACK, KINDS, Set
from zoo.judge import judged

QUICK = replace(FIT, name="quick", first_seed=90_000)
RANGES = ("spreads", "unrest", "doublings", "peaks")


@pytest.mark.parametrize("family", [HEALTHY_FAMILIES[0], "policies drift apart", "replica gone astray"])
def test_runs_of_each_outcome_are_judged_as_the_campaign_does(family: str) -> None:
    found = judged(FAMILIES[family](QUICK, KINDS[1], family, QUICK.first_seed))
    assert found["right"], found


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
