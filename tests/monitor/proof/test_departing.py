"""Who departs, as a table of cases over gaps that were measured or not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from logprobe.monitor.proof.departing import FOREIGN, decide, pattern
from logprobe.monitor.proof.paired import Gap, gap
from logprobe.monitor.proof.sample import TokenSequence


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
    ("engine did not start, no gap", None, None, FP32, None, FP32, "unknown", ()),
    ("engine did not start, no recorded r", None, None, FP32, None, None, "unknown", ()),
    ("no trainer at all", 0.0, FP32, None, None, None, "unknown", ()),
    ("no recorded r, engine and trainer agree with the reference", None, FP32, FP32, None, None, "unknown", ()),
    ("all but r against t, which nobody needs then", 0.0, FP32, FP32, None, None, "none", ()),
    ("r and t of another temperature or checkpoint", RAW, FP32, RAW, None, FP32, "unknown", ()),
    ("the fresh engine has settings that the run's had not", BF16, BF16, FP32, None, FP32, "unknown", ()),
    ("likewise, and a bf16 trainer", RAW, RAW, BF16, None, BF16, "unknown", ("trainer",)),
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
    legs = {"engine_state": _gap(0.0), "engine": _gap(0.0), "trainer": _gap(1e-5, spread=0.999)}
    assert decide(legs, None).departs == "none"


# --- Gaps of real arrays: a few tokens, a few sequences, one sign ---

SEQUENCES, TOKENS = 24, 24


def _world(seed: int = 3) -> tuple[list[TokenSequence], np.ndarray, np.ndarray]:
    """Sequences, the log-probs of a reference, and rounding as float32 has it."""
    rng = np.random.default_rng(seed)
    exact = -3 * rng.random((SEQUENCES, TOKENS))
    rows = [TokenSequence(str(at), (at,), tuple(rng.integers(2, 200, TOKENS).tolist())) for at in range(SEQUENCES)]
    return rows, exact, 1e-6 * rng.standard_normal((SEQUENCES, TOKENS))


def _decided(rows: list[TokenSequence], r: np.ndarray, fresh: np.ndarray, q: np.ndarray, t: np.ndarray, **more: Any):
    """As `score` decides; arrays [sequences, tokens]."""
    r, fresh, q, t = (tuple(array) for array in (r, fresh, q, t))
    legs = {
        "engine_state": gap("r", r, "r_fresh", fresh),
        "engine": gap("r_fresh", fresh, "q", q),
        "trainer": gap("q", q, "t", t),
    }
    return decide(legs, gap("r", r, "t", t), state=pattern(r, fresh, rows), **more)


@pytest.mark.parametrize("wrong", [1, 3, 23])
def test_a_few_wrong_sequences_are_a_departure_and_are_named(wrong):
    """Another's KV cache in some requests: of the fresh engine they differ, however few they are."""
    rows, exact, noise = _world()
    r = exact + noise
    r[:wrong] += 0.05 * np.random.default_rng(1).standard_normal((wrong, TOKENS))
    found = _decided(rows, r, exact + noise, exact, exact - noise)
    assert (found.departs, found.departs_all) == ("engine_state", ("engine_state",))
    seen = gap("r", tuple(r), "r_fresh", tuple(exact + noise))
    assert seen.sequences_off == tuple(range(wrong))
    assert 0 < seen.off <= wrong * TOKENS


@pytest.mark.parametrize(("size", "departs"), [(1.0, "engine_state"), (0.03, "unknown"), (1e-4, "none")])
def test_two_tokens_far_off_are_not_nothing(size, departs):
    rows, exact, noise = _world()
    r = exact + noise
    r[3, 5] += size
    r[17, 20] -= size
    found = _decided(rows, r, exact, exact, exact)
    assert found.departs == departs
    assert gap("r", tuple(r), "q", tuple(exact)).off == (2 if size > 1e-3 else 0)


def test_one_sign_is_a_truncation_that_the_sample_lacks_and_no_state():
    rows, exact, noise = _world()
    kept = 0.3 * np.random.default_rng(2).random((SEQUENCES, TOKENS))
    found = _decided(rows, exact + kept + noise, exact, exact + noise, exact)
    assert (found.departs, found.departs_all) == ("unknown", ())
    assert "top-p" in found.why


def test_a_gap_in_all_sequences_alike_is_not_called_a_state_until_it_is_reproduced():
    rows, exact, noise = _world()
    r = exact + 0.1 * np.random.default_rng(4).standard_normal((SEQUENCES, TOKENS))
    found = _decided(rows, r, exact, exact + noise, exact)
    assert (found.departs, found.departs_all) == ("unknown", ("engine_state",))
    assert _decided(rows, r, exact, exact + noise, exact, reproduced=["engine_state"]).departs == "engine_state"


def test_late_tokens_alone_are_a_state():
    rows, exact, noise = _world()
    r = exact + noise
    r[:, 10:] += 0.1 * np.random.default_rng(4).standard_normal((SEQUENCES, TOKENS - 10))
    assert _decided(rows, r, exact, exact, exact + noise).departs == "engine_state"
    unsure = _decided(rows, r, exact, exact, exact + noise, unsure="speculative_config")
    assert (unsure.departs, unsure.departs_all) == ("unknown", ("engine_state",))


def test_r_that_is_t_in_every_bit_is_a_copy():
    rows, exact, noise = _world()
    r = exact + 0.01 * np.random.default_rng(4).standard_normal((SEQUENCES, TOKENS))
    found = _decided(rows, r, exact, exact + noise, r)
    assert (found.departs, found.departs_all, found.why) == ("unknown", (), FOREIGN)
