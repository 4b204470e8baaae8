"""Growth judged once: what is kept of each step is what the rule says of it, whatever came late and whenever the service stopped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from alert_homes import K3, at, put, series
from growth_runs import Trend
from growth_runs import series as grown

from logprobe.monitor.home import Home
from logprobe.monitor.judging import growth_kept as growth
from logprobe.monitor.judging.growth import Tracker, judge
from logprobe.monitor.judging.growth_kept import Judged, growth_of, judged, take
from logprobe.monitor.judging.growth_rule import RULE
from logprobe.monitor.store.store import Store

RUN = "run"
VALUES: list[float | None] = [*grown(Trend(onset=260, doubling=20), 3, 400).tolist()]
VALUES[50] = None


@pytest.fixture
def store(home: Path) -> Iterator[Store]:
    with Store.open(Home(home)) as opened:
        put(opened, RUN, series(VALUES))
        yield opened


def fresh(values: Sequence[float | None], changes: Sequence[int] = ()) -> dict[int, Judged]:
    """Every step judged from the run's beginning."""
    tracker, found = Tracker(RULE), {}
    for step, value in enumerate(values):
        if step in changes:
            tracker.recalibrate((step, None))
        found[step] = take(tracker, step, value)
    return found


def kept(store: Store) -> dict[int, Judged]:
    rows = store.read("growth_window", runs=[RUN], first=[0], last=[999]).to_pylist()
    return plain({row["step"]: Judged(**row) for row in rows if row.pop("run") == RUN})


def of_run(source: Store, first: int, last: int, *, keep: Store | None = None) -> dict[int, Judged]:
    return judged(source, {RUN: (first, last)}, keep=keep)[RUN]


def plain(found: dict[int, Judged]) -> dict[int, Judged]:
    return {step: replace(each, reasons=list(each.reasons)) for step, each in found.items()}


def test_in_parts_and_after_a_restart_as_in_one_go(store: Store, home: Path) -> None:
    expected = plain(fresh(VALUES))
    assert {each.verdict for each in expected.values()} == {"calibrating", "healthy", "growing", "critical"}
    for last in (0, 3, 199, 200, 301):
        found = of_run(store, 0, last, keep=store)
        assert plain(found) == {step: expected[step] for step in range(last + 1)}
    store.close()
    with Store.open(Home(home)) as again:
        assert plain(of_run(again, 290, 399)) == {step: expected[step] for step in range(290, 400)}  # not kept
        assert len(kept(again)) == 302
        of_run(again, 399, 399, keep=again)
        assert kept(again) == expected


def test_the_diagnosis_goes_on_from_there(store: Store) -> None:
    whole = judge(range(400), VALUES)
    of_run(store, 0, 350, keep=store)
    assert growth_of(store, RUN, range(400), VALUES) == whole
    for last in (300, 351):  # a window that ends earlier is judged by itself
        assert growth_of(store, RUN, range(last), VALUES[:last]) == judge(range(last), VALUES[:last])


@pytest.mark.parametrize("late", [{120: 5.0}, {50: 1e-3}, {7: None}])
def test_a_step_that_was_computed_again_with_another_value(store: Store, late: dict[int, float | None]) -> None:
    of_run(store, 0, 390, keep=store)
    with store.transaction() as cursor:
        cursor.execute("DELETE FROM step_metrics WHERE run = ? AND list_contains(?, step)", [RUN, list(late)])
    put(store, RUN, {step: {K3: value} for step, value in late.items()})
    corrected = [late.get(step, value) for step, value in enumerate(VALUES)]
    of_run(store, 391, 399, keep=store)
    assert kept(store) == plain(fresh(corrected))


def test_the_same_value_again_changes_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    of_run(store, 0, 390, keep=store)
    put(store, RUN, {380: {}})  # another revision
    taken = []
    monkeypatch.setattr(growth, "take", lambda tracker, step, value: taken.append(step) or take(tracker, step, value))
    of_run(store, 391, 399, keep=store)
    assert taken == list(range(391, 400))


def test_a_step_computed_again_while_others_are_judged_is_seen_the_next_time(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = store.read

    def late(name: str, *incoming: object, **asked: object) -> object:
        if name == "growth_values":
            monkeypatch.undo()
            with store.transaction() as cursor:
                cursor.execute("DELETE FROM step_metrics WHERE run = ? AND step = 120", [RUN])
            put(store, RUN, {120: {K3: 5.0}, 395: {}})  # and a new one after it
        return read(name, *incoming, **asked)

    of_run(store, 0, 390, keep=store)
    monkeypatch.setattr(store, "read", late)
    of_run(store, 391, 395, keep=store)
    of_run(store, 396, 399, keep=store)
    assert kept(store) == plain(fresh([5.0 if step == 120 else value for step, value in enumerate(VALUES)]))


def test_another_rule_judges_all_over(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    of_run(store, 0, 390, keep=store)
    monkeypatch.setattr(growth, "_RULE", "another")
    monkeypatch.setattr(growth, "RULE", replace(RULE, calibrate_to=100))
    of_run(store, 391, 399, keep=store)
    assert {step for step, each in kept(store).items() if each.baseline is not None}.issuperset(range(100, 400))


def test_a_new_configuration_is_a_new_baseline(store: Store) -> None:
    """Engines configured again from step 300 on, in the middle of growth: what grew then is normal now."""
    with store.transaction() as cursor:
        for step, name in ((0, "old"), (299, "old"), (300, "new"), (399, "new")):
            cursor.execute(
                "INSERT INTO config_records VALUES (?, ?, ?, 'engine_config', NULL, '{}')", [RUN, at(step), name]
            )
            cursor.execute(
                f"INSERT INTO folded_joins VALUES (?, ?, 'joined', true, true, ?{', 1' * 11})", [RUN, step, name]
            )
    expected = plain(fresh(VALUES, [300]))
    of_run(store, 0, 350, keep=store)
    of_run(store, 351, 399, keep=store)
    assert kept(store) == expected
    assert growth_of(store, RUN, range(400), VALUES) == judge(
        range(400), VALUES, config_changes=[(300, "new")], setup="old"
    )
