"""The search for settings, on sides whose arms are computed: what is found, in which order, and at which price."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from logprobe.app.commands.bisect import text
from logprobe.collectors.errors import StoreError
from logprobe.monitor.proof.departing import FOREIGN
from logprobe.monitor.proof.experiments.bisecting import Bench, Change, Measured, Search, judged, search_all
from logprobe.monitor.proof.experiments.knobs import KNOBS
from logprobe.monitor.proof.paired import Cost, gap, speed

SEQUENCES, TOKENS = 24, 30


class Side:
    """A side whose error is a sum of noises, one per faulty setting; a safe setting takes its noise away."""

    def __init__(self, sizes: dict[str, float], *, missing: tuple[str, ...] = ()) -> None:
        rng = np.random.default_rng(4)
        self.noise = {name: size * rng.standard_normal((SEQUENCES, TOKENS)) for name, size in sizes.items()}
        self.missing = missing
        self.runs = 0
        self.target = self._of(frozenset(sizes))
        names = {"engine": ("dtype", "logprobs_mode", "kv_cache_dtype", "max_num_seqs")}["engine"]
        knobs = {knob.name: knob for knob in KNOBS if knob.side == "engine"}
        self.changes = tuple(Change(knobs[name], knobs[name].safe) for name in names)

    def _of(self, safe: frozenset[str]) -> tuple[np.ndarray, ...]:
        total = sum((noise for name, noise in self.noise.items() if name not in safe), np.zeros((SEQUENCES, TOKENS)))
        return tuple(-1.0 + row for row in total)

    def measure(self, changes: tuple[Change, ...]) -> Measured:
        self.runs += 1
        names = frozenset(change.knob.name for change in changes)
        if names & set(self.missing):
            return Measured(error="ValueError: no such device")
        return Measured(self._of(names), self.target, Cost((99.0, 100.0, 101.0)))

    def search(self, **more) -> Search:
        bench = Bench("engine", (self._of(frozenset()), self.target), self.changes, self.measure)
        return Search(bench, 3e-6, **more)


def _by_knob(arms):
    return {arm.knob: arm for arm in arms}


def test_one_fault_is_named_and_nothing_else():
    side = Side({"logprobs_mode": 0.3})
    arms, smallest, parity = side.search().run()
    found = _by_knob(arms)
    assert (smallest, parity) == (("logprobs_mode",), True)
    assert found["logprobs_mode"].verdict == "this is it"
    assert found["logprobs_mode"].removed == 1.0
    assert {found[name].verdict for name in ("dtype", "kv_cache_dtype", "max_num_seqs")} == {"innocent"}
    assert side.runs == 4  # each alone; parity is reached, nothing is combined
    seen = f"seen on {SEQUENCES} sequences of up to {TOKENS} tokens; not tested: "
    assert found["logprobs_mode"].leaves_open == f"{seen}other temperatures"


def test_a_small_fault_behind_a_large_one_is_found_once_the_large_one_is_fixed():
    arms, smallest, parity = Side({"logprobs_mode": 0.3, "dtype": 0.01}).search().run()
    found = _by_knob(arms)
    assert (set(smallest), parity) == ({"logprobs_mode", "dtype"}, True)
    assert found["logprobs_mode"].verdict == "this is it"
    assert (found["dtype"].verdict, found["dtype"].note) == ("contributes", "with logprobs_mode")
    assert 0 < found["dtype"].removed < 0.05


def test_a_setting_that_does_not_start_is_a_result():
    arms, smallest, parity = Side({"dtype": 0.1}, missing=("kv_cache_dtype",)).search().run()
    found = _by_knob(arms)
    assert found["kv_cache_dtype"].verdict == "not testable here"
    assert found["kv_cache_dtype"].note == "not supported here: ValueError: no such device"
    assert found["kv_cache_dtype"].leaves_open == "everything: no arm ran"
    assert (smallest, parity) == (("dtype",), True)


def test_a_gap_that_no_setting_makes_has_no_smallest_set():
    side = Side({"something else": 0.1})
    arms, smallest, parity = side.search().run()
    assert (smallest, parity) == ((), False)
    assert {arm.verdict for arm in arms} == {"innocent"}


@pytest.mark.parametrize(("opposite", "named"), [(False, ("trainer.shift",)), (True, ())])
def test_a_setting_whose_opposite_does_it_too_is_not_named(opposite, named):
    """A reproduction: the reference is made faulty until it gives t; where +1 and −1 both do, what they share does it."""
    side = Side({"trainer.shift": 0.3})
    (knob,) = (knob for knob in KNOBS if knob.name == "trainer.shift")
    changes = tuple(Change(knob, f"{value} gives t", {"shift": value}) for value in (1, -1))

    def measure(tried):
        works = any(change.value == {"shift": 1} or opposite for change in tried)
        return Measured(side._of(frozenset(side.noise) if works else frozenset()), side.target)

    bench = Bench("trainer", (side._of(frozenset()), side.target), changes, measure, reproduces=True)
    arms, smallest, parity = Search(bench, 3e-6).run()
    assert (smallest, parity) == (named, bool(named))
    assert [arm.verdict for arm in arms] == (["unproven"] * 2 if opposite else ["this is it", "innocent"])


def test_of_a_sample_that_is_not_the_runs_nothing_is_searched():
    """R is t in every bit: both sides depart from what scores them, and no arm runs."""
    side = Side({"dtype": 0.3})
    r, fresh = side._of(frozenset()), side.target
    benches = [Bench(name, (fresh, r), side.changes, side.measure) for name in ("engine", "trainer")]
    legs = {"engine_state": gap("r", r, "r_fresh", fresh), "trainer": gap("q", fresh, "t", r)}
    found = search_all(benches, legs, gap("r", r, "t", r), look=lambda *_: None, noise_floor=0.0)
    assert (found.decision.departs, found.decision.departs_all, found.decision.why) == ("unknown", (), FOREIGN)
    assert (found.arms, found.smallest_set, side.runs) == ((), (), 0)


def test_out_of_time_no_arm_starts_and_the_rest_is_kept():
    side = Side({"dtype": 0.1})
    arms, smallest, _ = side.search(out_of_time=lambda: side.runs >= 2).run()
    assert side.runs == 2
    assert [arm.verdict for arm in arms] == ["this is it", "innocent", "not testable here", "not testable here"]
    assert "--minutes" in arms[-1].note
    assert smallest == ("dtype",)


def test_an_arm_that_makes_it_worse_is_innocent():
    assert judged(-0.5, (-0.9, -0.1), alone=False) == "innocent"


def test_an_arm_that_fails_ends_the_search():
    side = Side({"dtype": 0.1})
    bench = Bench("engine", side.search().bench.base, side.changes, _full_disk)
    with pytest.raises(StoreError):
        Search(bench, 3e-6).run()


def _full_disk(_: tuple[Change, ...]) -> Measured:
    raise StoreError("cannot write")


# --- What a setting costs ---


def test_a_setting_that_is_half_as_fast_says_so_and_one_that_is_within_the_noise_of_starts_does_not():
    baselines = Cost((100.0, 102.0, 98.0)), Cost((104.0, 103.0, 105.0))
    ratio, low, high = speed(Cost((50.0, 51.0, 52.0)), baselines)
    assert (round(ratio, 1), high < 0.7, low > 0.35) == (0.5, True, True)
    _, low, high = speed(Cost((97.0, 96.0, 98.0)), baselines)  # two starts of one configuration differ by as much
    assert low < 1 < high
    assert speed(Cost((50.0,)), baselines) is None


@pytest.mark.parametrize(
    ("level", "cheapest", "within"),
    [
        (None, "max_num_seqs = 1", False),  # the only one that is enough
        (1e-3, "kv_cache_dtype = auto", False),  # leaves 2e-4, which such a setup has, and costs less
        (1e-5, "max_num_seqs = 1", False),
        (0.9, None, True),
    ],
)
def test_the_cheapest_setting_need_only_reach_what_such_a_set_up_is_reported_to_have(level, cheapest, within):
    side = Side({"dtype": 0.02, "kv_cache_dtype": 0.3})
    rates = {"dtype": 95.0, "kv_cache_dtype": 90.0, "max_num_seqs": 10.0, "logprobs_mode": 100.0}

    def measure(changes):
        names = [one.knob.name for one in changes]
        found = side.measure(side.changes if "max_num_seqs" in names else changes)
        return Measured(found.a, found.b, Cost(tuple(min(rates[name] for name in names) + x for x in (0, 1, 2))))

    base = (side._of(frozenset()), side.target)
    bench = Bench("engine", base, side.changes, measure, costs=(Cost((99.0, 100.0, 101.0)),))
    legs = {"engine": gap("r_fresh", base[0], "q", base[1])}
    found = search_all([bench], legs, None, look=lambda *_: None, noise_floor=0.0)
    found = replace(found, level=level)
    assert (found.document()["cheapest"], found.document()["within_level"]) == (cheapest, within)
    line = next((line for line in text(found).splitlines() if line.startswith("cheapest")), "")
    assert ("within what such a setup" in line, "leaves K3 0.0002" in line) == (within, level == 1e-3)
