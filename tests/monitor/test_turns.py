"""Who comes next, on a clock of the test's: live armed runs beside ended ones, many runs, a busy machine, a run that fails."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from segments import Clock

from logprobe.monitor.judging.job import PACES
from logprobe.monitor.service.jobs import INCOMPLETE
from logprobe.monitor.service.turns import BURST, Priority, Turns, priority


@dataclass
class Run:
    """A run whose steps come every `pace` seconds until `ends`, and that needs a turn while it has steps since the last one."""

    name: str
    armed: bool = False
    pace: float = 0.35
    ends: float = float("inf")
    seen: int = -1
    turns: list[float] = field(default_factory=list)

    def step(self, now: float) -> int:
        return int(min(now, self.ends) / self.pace)


@dataclass
class Simulated:
    """A stage whose turns cost `cost` seconds of processor time; `load` times as long by the clock."""

    clock: Clock
    runs: Sequence[Run]
    cost: float = 0.5
    load: float = 1.0
    broken: str | None = None
    name = "simulated"
    together: int = 1
    spent: float = 0.0

    def rows(self) -> list[dict[str, Any]]:
        now = self.clock()
        return [self._row(run, now) for run in self.runs if run.step(now) > run.seen]

    def _row(self, run: Run, now: float) -> dict[str, Any]:
        return {"run": run.name, "of": run, "live": now < run.ends + 10}

    def due(self, row: Mapping[str, Any]) -> Priority:
        run = row["of"]
        last = bool(run.turns) and run.turns[-1] < run.ends + 10
        return priority(live=row["live"], armed=run.armed, first=run.seen < 0, last=last)

    def run(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
        for row in rows:
            run = row["of"]
            now, step = self.clock(), run.step(self.clock())
            self.spent += self.cost
            self.clock.seconds += self.cost * self.load
            if run.name == self.broken:
                raise ArithmeticError("a step that no integer holds")
            run.turns.append(now)
            run.seen = step
        return {}


def live_for(stage: Simulated, seconds: float) -> list[dict[str, Any]]:
    """Ticks of a second, as the service has them."""
    turns, reports = Turns(stage, paces=PACES, clock=stage.clock, processor=lambda: stage.spent), []
    while stage.clock() < seconds:
        begun = stage.clock()
        reports.append(turns.run_once())
        stage.clock.seconds = max(stage.clock(), begun + 1.0)
    return reports


@pytest.mark.parametrize("load", [1.0, 5.0])
def test_two_live_armed_runs_beside_three_ended_ones(load: float) -> None:
    live = [Run("a", armed=True), Run("b", armed=True)]
    ended = [Run(f"ended-{number}", ends=100.0) for number in range(3)]
    clock = Clock(300.0)
    stage = Simulated(clock, [*ended, *live], load=load)
    live_for(stage, 900.0)
    for run in live:
        gaps = [later - earlier for earlier, later in zip(run.turns, run.turns[1:], strict=False)]
        assert max(gaps) <= 12 * load, run.name
    assert [len(run.turns) for run in ended] == [1, 1, 1]  # once, and last
    assert min(run.turns[0] for run in ended) > max(run.turns[0] for run in live)


def test_of_many_live_runs_none_starves_and_the_share_is_kept() -> None:
    runs = [Run(f"live-{index}") for index in range(20)]
    stage = Simulated(Clock(), runs)
    live_for(stage, 3000.0)
    turns = [len(run.turns) for run in runs]
    assert max(turns) - min(turns) <= 1
    assert stage.spent <= PACES[Priority.LIVE].share * 3000 + 11


def test_200_runs_that_begin_together_have_a_first_verdict_within_five_minutes() -> None:
    """At what a first diagnosis costs; what has had one already comes after it."""
    runs = [Run(f"live-{index}", pace=10.0) for index in range(200)]
    stage = Simulated(Clock(10.0), runs, cost=0.18)
    live_for(stage, 320.0)
    assert max(run.turns[0] for run in runs) <= 310
    assert stage.spent <= BURST + PACES[Priority.LIVE].share * 310 + 1


def test_ended_runs_are_looked_at_although_live_ones_use_up_their_share() -> None:
    runs = [Run(f"live-{index}", armed=index < 100) for index in range(200)]
    ended = [Run(f"ended-{index}", ends=1.0) for index in range(20)]
    stage = Simulated(Clock(100.0), [*runs, *ended])
    live_for(stage, 1000.0)
    assert [len(run.turns) for run in ended] == [1] * 20


def test_200_runs_that_end_together_are_all_judged_to_their_end_at_the_pace_of_live_ones() -> None:
    runs = [Run(f"run-{index}", pace=100.0, ends=100.0) for index in range(200)]
    stage = Simulated(Clock(50.0), runs, cost=0.1)
    live_for(stage, 99.0)
    assert [run.seen for run in runs] == [0] * 200  # as live ones, before their last step
    stage.clock.seconds = 110.0
    live_for(stage, 150.0)
    assert [run.seen for run in runs] == [1] * 200
    assert [len(run.turns) for run in runs] == [2] * 200


def test_an_ended_run_rests_until_it_has_news() -> None:
    run = Run("ended", ends=10.0)
    stage = Simulated(Clock(50.0), [run])
    live_for(stage, 200.0)
    assert len(run.turns) == 1
    run.ends = 210.0  # goes on
    live_for(stage, 260.0)
    assert len(run.turns) > 1


def test_a_slow_machine_is_no_work() -> None:
    """What is accounted is processor time: at five times the load a run has as many turns, up to what the clock allows."""
    counts = []
    for load in (1.0, 5.0):
        run = Run("live", armed=True)
        live_for(Simulated(Clock(), [run], cost=0.1, load=load), 600.0)
        counts.append(len(run.turns))
    assert counts[1] >= 0.8 * counts[0]


@pytest.mark.parametrize("together", [1, 64])
def test_a_run_that_fails_ends_nobody_elses_turn_and_is_named(together: int) -> None:
    runs = [Run("fine"), Run("broken", armed=True), Run("also-fine")]
    stage = Simulated(Clock(5.0), runs, broken="broken", together=together)
    reports = live_for(stage, 100.0)
    # A tenth of a core: ten turns of half a second.
    assert min(len(run.turns) for run in runs if run.name != "broken") >= 9
    words = "broken: simulated fails (ArithmeticError: a step that no integer holds)"
    assert all(words in report["problem"] for report in reports)
    assert all(report[INCOMPLETE] for report in reports)
    stage.broken = None
    assert "problem" not in live_for(stage, 130.0)[-1]
    assert runs[1].turns


def test_an_ended_run_that_fails_does_not_make_the_service_unwell_and_an_error_of_all_is_the_jobs() -> None:
    stage = Simulated(Clock(50.0), [Run("live"), Run("broken", ends=1.0)], broken="broken")
    report = live_for(stage, 60.0)[-1]
    assert "broken" in report["problem"]
    assert INCOMPLETE not in report
    alone = Simulated(Clock(5.0), [Run("only")], broken="only")
    with pytest.raises(ArithmeticError):
        Turns(alone, clock=alone.clock, processor=lambda: alone.spent).run_once()


def test_a_service_that_stops_waits_for_no_run() -> None:
    stopping, stage = threading.Event(), Simulated(Clock(5.0), [Run("live")])
    stopping.set()
    assert Turns(stage, stopping, clock=stage.clock, processor=lambda: stage.spent).run_once()["runs"] == 0


def test_the_order_of_priorities() -> None:
    assert priority(live=True, armed=True, awaited=True) == Priority.ARMED
    assert priority(live=True, armed=False, awaited=True) == Priority.AWAITED
    assert priority(live=False, armed=True, awaited=True) == Priority.AWAITED
    assert priority(live=True, armed=False, first=True) == Priority.LIVE
    assert priority(live=False, armed=True, first=True) == Priority.FIRST
    assert priority(live=False, armed=True, last=True) == Priority.LAST
    assert priority(live=True, armed=False, last=True) == Priority.LIVE
    assert priority(live=False, armed=False, awaited=True, last=True) == Priority.AWAITED
    assert priority(live=False, armed=True) == Priority.ENDED
    assert [*Priority] == sorted(Priority)
    assert Counter(PACES.keys()) == Counter(Priority)
