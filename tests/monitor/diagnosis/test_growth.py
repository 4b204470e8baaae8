"""Growth of a run: the rule, over what the store has of it; a new setup of the engines is a new baseline."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from alert_homes import at, put, series
from growth_runs import Trend
from growth_runs import series as grown

from logprobe.monitor.home import Home
from logprobe.monitor.judging.gather import growth_of
from logprobe.monitor.judging.growth import Tracker
from logprobe.monitor.store.store import Store

RUN = "run"
VALUES: list[float | None] = [*grown(Trend(onset=260, doubling=20), 3, 400).tolist()]
VALUES[50] = None


@pytest.fixture
def store(home: Path) -> Iterator[Store]:
    with Store.open(Home(home)) as opened:
        put(opened, RUN, series(VALUES))
        yield opened


def test_growth_is_the_rule_over_all_steps(store: Store) -> None:
    assert growth_of(store, RUN, range(300), VALUES[:300]) == Tracker().follow(range(300), VALUES[:300]).verdict()


def test_a_new_configuration_is_a_new_baseline(store: Store) -> None:
    """Engines configured again from step 300 on, in the middle of growth: what grew then is normal now."""
    with store.transaction() as cursor:
        for step, name in ((0, "old"), (299, "old"), (300, "new"), (399, "new")):
            cursor.execute(
                "INSERT INTO config_records VALUES (?, ?, ?, 'engine_config', NULL, '{}')", [RUN, at(step), name]
            )
            cursor.execute("UPDATE step_summaries SET frozen_at = now(), engines = [?] WHERE step = ?", [name, step])
    assert growth_of(store, RUN, range(400), VALUES) == (
        Tracker(setup="old").follow(range(400), VALUES, [(300, "new")]).verdict()
    )
