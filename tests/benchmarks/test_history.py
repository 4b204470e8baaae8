"""The verdict of `make bench` by its own history: a change for the worse is named, the usual spread and other machines are not."""

from __future__ import annotations

from pathlib import Path

import history
import pytest
from figure import Figure

MACHINE = {"machine": "x86_64", "cores": 2}
NOISE = (1.0, 1.02, 0.97, 1.01, 0.99, 1.03)


def slower(ratio: float) -> Figure:
    return Figure("call", 20.0 * ratio, "µs", "≤ 60", True, "np.copy", 20.0)


def faster(ratio: float) -> Figure:
    return Figure("ingest", 8.0 * ratio, "Mtok/s", "", None, "executemany", 8.0)


@pytest.mark.parametrize(("make", "bad", "good"), [(slower, 1.5, 0.5), (faster, 0.6, 2.0)])
def test_only_what_is_worse_than_usual_on_this_machine_is_named(tmp_path: Path, make, bad: float, good: float) -> None:
    file = tmp_path / "history.jsonl"
    for at, noise in enumerate(NOISE):
        assert history.worse([make(bad)], history.read(file, MACHINE)) == [] or at >= history.FEWEST
        history.append(file, f"day {at}", MACHINE, [make(noise)])
        history.append(file, f"day {at}", {**MACHINE, "cores": 64}, [make(bad)])
    earlier = history.read(file, MACHINE)
    (said,) = history.worse([make(bad)], earlier)
    assert f"ratio {bad}, usually 1" in said
    assert history.worse([make(1.08)], earlier) == history.worse([make(good)], earlier) == []


def test_what_varies_is_judged_by_how_much_it_varies() -> None:
    earlier = [{"call": ratio} for ratio in (0.5, 1.0, 2.0, 0.7, 1.4, 1.0)]
    assert history.worse([slower(1.8)], earlier) == []
    assert history.worse([slower(9.0)], earlier) != []


def test_figures_without_a_ratio_are_not_kept_and_without_a_direction_any_change_counts() -> None:
    absolute, multiple = Figure("first chart", 2.0, "s", "≤ 2", True), Figure("of it", 0.5, "×")
    assert history.ratios([absolute, multiple]) == {"of it": 0.5}
    earlier = [{"of it": 0.5 * noise} for noise in NOISE]
    assert [len(history.worse([Figure("of it", value, "×")], earlier)) for value in (0.25, 0.5, 1.0)] == [1, 0, 1]
