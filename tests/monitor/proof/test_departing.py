"""Who departs, as a table of cases over gaps that were measured or not."""

from __future__ import annotations

import pytest

from logprobe.monitor.proof.departing import decide
from logprobe.monitor.proof.paired import Gap


def _gap(k3: float | None, *, spread: float = 0.2, broken: float = 0.0) -> Gap | None:
    if k3 is None:
        return None
    return Gap("a", "b", k3, k3**0.5, ((1 - spread) * k3, (1 + spread) * k3), 1000, broken)


FP32, BF16, RAW = 1e-12, 2e-3, 0.2
CASES = [
    # name, state, engine, trainer, age, r to t, who departs, all
    ("all agree", FP32, FP32, FP32, None, FP32, "none", ()),
    ("bf16 engine", 0.0, BF16, FP32, None, BF16, "engine", ("engine",)),
    ("bf16 trainer", 0.0, FP32, BF16, None, BF16, "trainer", ("trainer",)),
    ("stale cache", RAW, FP32, FP32, None, RAW, "engine_state", ("engine_state",)),
    ("only the weights' age", FP32, FP32, FP32, BF16, BF16, "policy_age", ("policy_age",)),
    ("raw engine, bf16 trainer", FP32, RAW, BF16, None, RAW, "engine", ("engine", "trainer")),
    ("bf16 engine, stale cache", RAW, BF16, FP32, None, RAW, "engine_state", ("engine_state", "engine")),
    ("two errors that cancel are still two", FP32, BF16, BF16, None, FP32, "engine", ("engine", "trainer")),
    ("nothing measured", None, None, None, None, None, "unknown", ()),
    ("engine did not start, gap unexplained", None, None, FP32, None, RAW, "unknown", ()),
    ("engine did not start, trainer explains it", None, None, BF16, None, BF16, "trainer", ("trainer",)),
    ("engine did not start, trainer explains little", None, None, BF16, None, RAW, "unknown", ("trainer",)),
    ("engine did not start, no gap", None, None, FP32, None, FP32, "none", ()),
    ("engine did not start, no recorded r", None, None, FP32, None, None, "unknown", ()),
    ("no trainer at all", 0.0, FP32, None, None, None, "unknown", ()),
    ("no recorded r, engine and trainer agree with the reference", None, FP32, FP32, None, None, "none", ()),
    ("no recorded r: the engine is still judged", None, RAW, FP32, None, None, "engine", ("engine",)),
]


@pytest.mark.parametrize(
    ("state", "engine", "trainer", "age", "whole", "departs", "everyone"),
    [case[1:] for case in CASES],
    ids=[case[0] for case in CASES],
)
def test_who_departs(state, engine, trainer, age, whole, departs, everyone):
    legs = {"engine_state": _gap(state), "engine": _gap(engine), "trainer": _gap(trainer), "policy_age": _gap(age)}
    decision = decide(legs, _gap(whole))
    assert (decision.departs, decision.departs_all) == (departs, everyone)
    assert decision.why


def test_tokens_without_probability_are_a_departure_even_where_the_others_agree():
    decision = decide({"engine_state": _gap(0.0), "engine": _gap(FP32, broken=0.2), "trainer": _gap(0.0)}, _gap(FP32))
    assert decision.departs == "engine"


def test_a_gap_that_rests_on_too_few_sequences_to_be_sure_is_not_called():
    assert decide({"trainer": _gap(1e-5, spread=0.999), "engine": _gap(0.0)}, None).departs == "none"
