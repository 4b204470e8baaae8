"""Random runs that come in random order, between restarts and with memory let go of: the store has what it has of them all at once."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from live_worlds import WORLDS, History, World
from mirror import Mirror, arrived, differences, started

MOST_AT_A_TIME = 6  # segments of a tick


def at_once(history: History) -> Mirror:
    mirror = Mirror()
    mirror.write(started(mirror).add(arrived("run", enumerate(history.segments))))
    return mirror


def in_pieces(history: History, seed: int, *, restarts: float, leaves: float) -> Mirror:
    """Brings segments in random order; after each tick memory is lost, or let go of, or lists are."""
    rng, mirror = np.random.default_rng(seed), Mirror()
    order = rng.permutation(len(history.segments)).tolist()
    live = started(mirror)
    while order:
        some, order = order[: (size := int(rng.integers(1, MOST_AT_A_TIME)))], order[size:]
        mirror.write(live.add(arrived("run", [(number, history.segments[number]) for number in some])))
        if rng.random() < restarts:
            live = started(mirror)
        elif rng.random() < leaves:
            live.memory.runs["run"].leave()
        if rng.random() < leaves:
            live.memory.training_lists.keep(0)
            live.memory.rollout_lists.keep(0)
    return mirror


@pytest.mark.parametrize("name", WORLDS)
def test_what_is_read_back_is_as_if_it_had_stayed(name: str) -> None:
    history = History(WORLDS[name], list(WORLDS).index(name)).make()
    whole = at_once(history)
    for seed, (restarts, leaves) in enumerate(((0.0, 0.0), (0.3, 0.5))):
        again = in_pieces(history, seed, restarts=restarts, leaves=leaves)
        assert differences(whole, again) == [], (restarts, leaves)


def test_everything_is_read_back_somewhere() -> None:
    """Each way of reading back is taken by some of these worlds: none of them is left untested above."""
    wanted = {
        "past_trained",
        "past_named",
        "past_keyed",  # linked by tokens before names met
        "past_alike",
        "past_reached",
        "training lists",
        "rollout lists",
    }
    used: Counter[str] = Counter()
    for seed in range(1, 30):
        world = World(attempts=2, decided=0.8, marks=5, renamed=seed % 3 == 1, odd_tokens=0.05)
        used += in_pieces(History(world, seed).make(), seed, restarts=0.6, leaves=0.4).read_back
        if wanted <= used.keys():
            return
    assert wanted <= used.keys()
