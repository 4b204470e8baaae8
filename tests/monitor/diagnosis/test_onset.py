"""Growth of K3: the rule on seeded synthetic runs, and on every kind of series that is not as it should be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
from growth_runs import HEALTHY, Trend, series
from scipy.stats import theilslopes

from logprobe.monitor.judging.growth import Change, Tracker, bend, theil_sen
from logprobe.monitor.judging.growth_rule import RULE
from logprobe.monitor.judging.judgement import Growth

QUIET = Trend(spread=0.1)


class Point(NamedTuple):
    """The verdict at one step."""

    step: int
    value: float | None
    verdict: str
    since_step: int | None
    baseline: float | None


def points(values: list[float | None] | np.ndarray, *, first: int = 0, band: float | None = None) -> list[Point]:
    tracker = Tracker(band=band)
    return [point(tracker, first + i, None if v is None else float(v)) for i, v in enumerate(values)]


def point(tracker: Tracker, step: int, value: float | None) -> Point:
    tracker.follow([step], [value])
    growth = tracker.verdict()
    return Point(step, value, growth.verdict, growth.since_step, growth.baseline)


def judge(values: Sequence[float | None], changes: Sequence[Change] = (), setup: str | None = None) -> Growth:
    return Tracker(setup=setup).follow(range(len(values)), values, changes).verdict()


def detected(seen: list[Point], *verdicts: str) -> Point | None:
    return next((point for point in seen if point.verdict in verdicts), None)


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_run_raises_no_alarm(name: str) -> None:
    for seed in range(2):
        verdicts = {point.verdict for point in points(series(HEALTHY[name], seed))}
        assert verdicts == {"calibrating", "healthy"}, seed


@pytest.mark.parametrize("trend", [Trend(), Trend(memory=0.5, spread=0.3), Trend(spread=0.4, tail=3)])
def test_growth_is_found_in_time_and_dated_to_its_onset(trend: Trend) -> None:
    seen = [points(series(replace(trend, onset=600, doubling=60), seed)) for seed in range(6)]
    growing = [detected(run, "growing", "critical") for run in seen]
    critical = [detected(run, "critical") for run in seen]
    assert all(point is not None and point.step > 600 for point in growing)
    assert np.median([point.step - 600 for point in growing]) < 95
    assert np.median([point.step - 600 for point in critical]) < 125
    assert all(abs(point.since_step - 600) <= 60 for point in growing)


def test_the_doubling_time_and_its_interval_hold_the_true_one() -> None:
    trends = [replace(Trend(spread=0.3), onset=600, doubling=60) for _ in range(40)]
    found = [judge(series(trend, seed)[:760]) for seed, trend in enumerate(trends)]
    assert all(abs(growth.doubling_steps - 60) < 20 for growth in found)
    covered = [growth.doubling_interval[0] <= 60 <= growth.doubling_interval[1] for growth in found]
    assert np.mean(covered) >= 0.85  # of nominal 0.95, with 40 runs


def test_growth_that_levels_off_stays_critical_without_a_doubling_time() -> None:
    values = series(replace(QUIET, onset=400, doubling=20), 0)
    values[500:] = series(QUIET, 1)[500:] * 32
    growth = judge(values)
    assert growth.verdict == "critical"
    assert growth.doubling_steps is None
    assert "is unknown" in growth.reasons[-1] or "stopped" in growth.reasons[-1]


def test_an_explosion_while_the_baseline_is_still_open_does_not_become_the_baseline() -> None:
    seen = points(series(replace(QUIET, onset=80, doubling=15), 0)[:200])
    found = detected(seen, "critical")
    assert found is not None
    assert found.step < 150
    assert abs(found.since_step - 80) <= 20
    assert seen[-1].baseline < 2e-3


def test_a_step_up_is_found_and_dated() -> None:
    values = series(QUIET, 0)[:600]
    values[400:] *= 5
    found = detected(points(values), "critical")
    assert found is not None
    assert 400 <= found.step < 425
    assert abs(found.since_step - 400) <= 10


def test_spikes_that_return_are_no_growth() -> None:
    values = series(QUIET, 0)
    values[300:304] *= 1000
    values[500:508:2] *= 1000
    assert detected(points(values), "growing", "critical") is None


def test_the_verdict_clears_slowly_and_growth_can_be_found_again() -> None:
    values = series(QUIET, 0)
    values[300:400] *= 8
    values[700:] *= 8
    seen = points(values)
    last_critical = max(point.step for point in seen[:600] if point.verdict == "critical")
    assert 400 + RULE.critical.clear_steps < last_critical + 10
    assert seen[600].verdict == "healthy"
    assert seen[600].since_step is None
    assert seen[-1].verdict == "critical"
    assert abs(seen[-1].since_step - 700) <= 10


def test_calm_that_is_interrupted_clears_nothing() -> None:
    values = series(QUIET, 0)[:700]
    values[300:400] *= 8
    for step in range(435, 700, 50):  # never as many calm steps in a row as clear the verdict
        values[step : step + 15] *= 8
    seen = points(values)
    first = detected(seen, "critical")
    assert first is not None
    assert {point.verdict for point in seen if point.step >= first.step} == {"critical"}


def test_a_run_shorter_than_the_calibration_is_calibrating() -> None:
    assert judge([]).verdict == "no_data"
    assert judge(series(QUIET, 0)[:10]).verdict == "calibrating"
    assert judge(series(QUIET, 0)[:199]).verdict == "calibrating"
    assert judge(series(QUIET, 0)[:200]).verdict == "healthy"


def test_what_is_not_measured_fills_no_window_and_is_never_healthy() -> None:
    unknown = [None, math.nan, math.inf, -math.inf, -0.5]
    nothing = judge([unknown[i % 5] for i in range(300)])
    assert nothing.verdict == "no_data"
    assert "not measured" in nothing.reasons[0]

    values: list[float | None] = series(QUIET, 0)[:400].tolist()
    silent = points([*values, *[None] * 100])
    assert silent[400 + RULE.blind - 2].verdict == "healthy"
    assert {point.verdict for point in silent[400 + RULE.blind - 1 :]} == {"no_data"}


def test_after_a_gap_the_old_baseline_counts_but_not_the_old_values() -> None:
    values: list[float | None] = series(QUIET, 0)[:300].tolist()
    again = (series(QUIET, 1)[:100] * 6).tolist()
    seen = points([*values, *[None] * 50, *again])
    after = seen[350:]
    assert after[0].verdict == "calibrating"
    assert after[-1].verdict == "critical"
    assert after[-1].baseline == seen[299].baseline
    assert after[-1].since_step is None or after[-1].since_step >= 350


def test_every_second_value_missing_makes_it_slower_and_no_different() -> None:
    values: list[float | None] = series(replace(QUIET, onset=600), 0).tolist()
    values[::2] = [None] * 500
    found = detected(points(values), "growing", "critical")
    assert found is not None
    assert abs(found.since_step - 600) <= 60


@pytest.mark.parametrize("value", [0.0, 1e-12, -1e-9])
def test_a_series_that_is_identical_or_rounding_is_healthy(value: float) -> None:
    growth = judge([value] * 300)
    assert growth.verdict == "healthy"
    assert growth.baseline == pytest.approx(RULE.floor)
    assert growth.ratio == pytest.approx(1)


def test_a_run_resumed_at_another_step_counts_its_own_steps() -> None:
    values = series(replace(QUIET, onset=600), 0)
    here, there = points(values), points(values, first=50_000)
    assert [p.verdict for p in here] == [p.verdict for p in there]
    assert there[-1].since_step == here[-1].since_step + 50_000


def test_a_declared_change_gives_the_run_a_new_normal() -> None:
    values = np.concatenate([series(QUIET, 0)[:400], series(QUIET, 1)[:400] * 20])
    assert judge(values).verdict == "critical"
    changed = judge(values, changes=[(400, None)])
    assert changed.verdict == "healthy"
    assert changed.baseline == pytest.approx(0.02, rel=0.3)
    assert judge(values[:500], changes=[(400, None)]).verdict == "calibrating"
    assert judge(values, changes=[(5000, None)]).verdict == "critical"


def test_a_setup_that_comes_back_has_its_baseline_back() -> None:
    """Restarted with another setup and back again: 40 steps to compare, not 200; growth that began before is seen after."""
    values = np.concatenate([series(QUIET, 0)[:300], series(QUIET, 1)[:60] * 20, series(QUIET, 2)[:140]])
    there, back = (300, "float8"), (360, "bfloat16")
    early = judge(values[:380], changes=[there, back], setup="bfloat16")
    assert early.verdict == "calibrating"
    assert early.reasons[0] == "20 of the 40 measured steps that are compared with it"
    returned = judge(values, changes=[there, back], setup="bfloat16")
    assert returned.verdict == "healthy"
    assert returned.baseline == judge(values[:300]).baseline
    assert returned.reasons[-1] == "the baseline is that of the same engine setup before step 360"
    grown = np.concatenate([values[:360], values[360:] * 5])
    assert judge(grown, changes=[there, back], setup="bfloat16").verdict == "critical"
    for changes, first in (
        ([there, (360, "other")], "bfloat16"),
        ([there, back], None),
        ([(300, None), (360, None)], None),
    ):
        assert judge(values, changes=changes, setup=first).verdict == "calibrating"


def test_a_tracker_goes_on_from_its_copy_as_if_never_interrupted() -> None:
    values = series(replace(HEALTHY["all of it"], onset=600), 0)
    straight, interrupted = Tracker(), Tracker()
    for step, known in enumerate(values.tolist()):
        value = None if step % 7 == 0 else known
        before, interrupted = interrupted, interrupted.copy() if step % 10 == 0 else interrupted
        assert point(interrupted, step, value) == point(straight, step, value)
        if before is not interrupted:
            point(before, step, 1e6)
    assert interrupted.verdict() == straight.verdict()


def test_a_verdict_says_why() -> None:
    growth = judge(series(replace(QUIET, onset=600, doubling=60), 0)[:760])
    assert isinstance(growth, Growth)
    assert "times the run's baseline" in growth.reasons[0]
    assert str(growth.since_step) in growth.reasons[1]
    assert "doubles every" in growth.reasons[2]


def test_theil_sen_agrees_with_scipy_and_needs_three_places() -> None:
    for seed in range(5):
        rng = np.random.default_rng(seed)
        x = np.sort(rng.integers(0, 60, 40))
        y = 0.3 * x + rng.standard_cauchy(40)
        ours, theirs = theil_sen(x, y), theilslopes(y, x)
        assert ours.value == pytest.approx(theirs.slope)
        width = theirs.high_slope - theirs.low_slope
        assert ours.low == pytest.approx(theirs.low_slope, abs=0.05 * width)
        assert ours.high == pytest.approx(theirs.high_slope, abs=0.05 * width)
    assert theil_sen([1, 2], [1, 2]) is None
    assert theil_sen([1, 1, 2, 2], [1, 2, 3, 4]) is None


def test_the_bend_of_a_level_and_a_rise_is_where_it_is() -> None:
    assert bend([(5 * i, max(0.0, i - 30)) for i in range(60)]) == 150
    assert bend([(i, float(-i)) for i in range(10)]) is None
    assert bend([(0, 0.0), (5, 1.0)]) is None


# --- What moves K3 of a healthy run ---

BF16 = 2e-3  # K3 up to which dense bf16 is as others report it


def changes_of(found: list[Point]) -> int:
    verdicts = [point.verdict for point in found if point.verdict != "calibrating"]
    return sum(a != b for a, b in pairwise(verdicts))


@pytest.mark.parametrize(("memory", "spread", "band"), [(0.0, 0.2, None), (0.5, 0.3, BF16), (0.9, 0.2, None)])
def test_entropy_that_falls_over_3000_steps_is_no_growth(memory: float, spread: float, band: float | None) -> None:
    """From 5e-5 to 1.7e-4, as where a policy sharpens in bf16; the baseline follows."""
    falling = Trend(level=5e-5, memory=memory, spread=spread, drift=float(np.log(3.4)))
    assert {point.verdict for point in points(series(falling, 1, 3000), band=band)} <= {"calibrating", "healthy"}


@pytest.mark.parametrize(("doubling", "grows"), [(800, False), (300, True)])
def test_the_baseline_follows_what_doubles_in_700_steps(doubling: int, grows: bool) -> None:
    rise = Trend(level=1e-4, spread=0.1, onset=200, doubling=doubling)
    found = points(series(rise, 1, 4000))
    assert (detected(found, "growing", "critical") is not None) == grows


@pytest.mark.parametrize(("at", "seed"), [(230, 0), (700, 1)])
def test_a_curriculum_that_moves_k3_within_the_band_is_no_growth(at: int, seed: int) -> None:
    values = series(Trend(level=6e-5, memory=0.5, spread=0.2), seed, 1000)
    values[at:] *= 4.3
    within = points(values, band=BF16)
    assert not [point for point in within if point.verdict == "critical"]
    assert within[-1].verdict == "healthy"
    assert "critical" in {point.verdict for point in points(values)}  # of an unknown set-up nobody can say that


def test_what_doubles_soon_is_growth_within_the_band_too() -> None:
    for seed in range(3):
        values = series(Trend(level=2e-4, memory=0.5, spread=0.2, onset=400, doubling=30), seed, 600)
        plain, within = (detected(points(values, band=band), "growing", "critical") for band in (None, BF16))
        assert plain is not None
        assert within is not None
        assert within.step - plain.step <= 30


def test_what_leaves_the_band_is_growth_however_slow() -> None:
    values = series(Trend(level=1e-3, memory=0.5, spread=0.2, onset=300, doubling=150), 1, 1200)
    found = detected(points(values, band=BF16), "critical")
    assert found is not None
    assert float(found.value or 0) > 0.5 * BF16


def test_long_healthy_runs_do_not_flap() -> None:
    """The kinds that look the uneasiest, 3,000 steps each."""
    uneasy = ("wide noise", "memory of 0.98", "heavy tails", "a twentieth spikes", "all of it")
    flapping = {name: changes_of(points(series(HEALTHY[name], 7, 3000), band=BF16)) for name in uneasy}
    assert not {name: count for name, count in flapping.items() if count}
