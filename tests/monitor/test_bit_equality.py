"""The certificate of bit equality: zero, broken, different, not measured; and never zero because one array was passed twice."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from alert_homes import put
from recorded_home import feed, take_in
from segments import RUN, at, sampled, trained

from logprobe.alerts.rules.watch import Watch
from logprobe.collectors import Recorder
from logprobe.monitor.home import Home
from logprobe.monitor.judging.bit_equality import (
    COPIES,
    SEEN_STEPS,
    Certificate,
    Steps,
    candidates,
    complete_until,
    explained,
    judge,
    read,
)
from logprobe.monitor.store.store import Store

R = [-1.0, -2.0, -3.0, -4.0]
CLAIM = {"time": at(0), "fingerprint": "t", "kind": "trainer_config", "document": '{"true_on_policy_mode": true}'}
FLOAT32 = [
    {"time": at(0), "fingerprint": "t", "kind": "trainer_config", "document": '{"dtype": "float32"}'},
    {"time": at(0), "fingerprint": "e", "kind": "engine_config", "document": '{"dtype": "float32"}'},
]


def steps(*rows: tuple[int, ...]) -> Steps:
    """Rows of (compared, differing, unknown, older, older_differing); a step has 100 tokens more than were compared."""
    filled = np.array([[*row, *[0] * (5 - len(row))] for row in rows], np.int64).reshape(-1, 5)
    return Steps(np.arange(len(rows)), filled[:, 0] + filled[:, 3] + 100, *filled.T)


def verdict(made: Steps, claim: str | None = None, *, may_agree: bool = True) -> tuple[str, int | None, int]:
    found = judge(made, claim, lambda: may_agree)
    return found.verdict, found.since_step, found.tokens


EQUAL, BROKEN, DARK = (10,), (10, 1), (0,)


@pytest.mark.parametrize(
    ("made", "claim", "expected"),
    [
        (steps(), None, ("not measured", None, 0)),
        (steps(*[EQUAL] * 49), None, ("not measured", None, 0)),
        (steps(*[EQUAL] * 50), None, ("zero", 0, 500)),
        (steps(EQUAL), "s", ("not measured", None, 0)),
        (steps(EQUAL, EQUAL), "s", ("zero", 0, 20)),
        (steps(BROKEN, *[EQUAL] * 50), None, ("zero", 1, 500)),
        (steps(BROKEN), "s", ("broken", 0, 0)),
        (steps(*[EQUAL] * 50, BROKEN), None, ("broken", 50, 500)),
        (steps(*[EQUAL] * 49, BROKEN), None, ("different", 49, 0)),
        (steps(*[EQUAL] * 3, BROKEN), "s", ("broken", 3, 30)),
        (steps(*[EQUAL] * 3, BROKEN, *[EQUAL] * 49), "s", ("broken", 3, 30)),
        (steps(*[EQUAL] * 3, BROKEN, *[EQUAL] * 50), "s", ("zero", 4, 500)),
        # The first of several differing steps has broken it, until it was equal for long.
        (steps(*[EQUAL] * 50, BROKEN, EQUAL, BROKEN, EQUAL), None, ("broken", 50, 500)),
        (steps(*[EQUAL] * 50, BROKEN, *[EQUAL] * 50, BROKEN), None, ("broken", 101, 500)),
        (steps(*[EQUAL] * 50, BROKEN, *[BROKEN] * 60), None, ("broken", 50, 500)),
        # A step without a compared token neither counts nor ends anything.
        (steps(*[EQUAL, DARK] * 50), None, ("zero", 0, 500)),
        (steps(*[EQUAL, DARK] * 49), None, ("not measured", None, 0)),
        (steps(*[DARK] * 60), "s", ("not measured", None, 0)),
        (steps(*[BROKEN] * 3), None, ("different", 0, 0)),
        (steps(BROKEN, EQUAL, BROKEN, BROKEN), None, ("different", 2, 0)),
        (steps(BROKEN, EQUAL), None, ("not measured", None, 0)),
        # Of unknown age: a difference, unless some tokens are older.
        (steps(*[EQUAL] * 50, (10, 0, 1)), None, ("broken", 50, 500)),
        (steps(*[(10, 0, 0, 5, 5)] * 50, (10, 0, 1, 5, 5)), None, ("zero", 0, 510)),
    ],
)
def test_a_verdict(made: Steps, claim: str | None, expected: tuple[str, int | None, int]) -> None:
    assert verdict(made, claim) == expected


def test_equal_bits_need_a_proof_of_two_computations() -> None:
    equal = steps(*[EQUAL] * 60)
    assert verdict(equal, may_agree=False)[0] == "not measured"
    assert verdict(steps(*[EQUAL] * 60, BROKEN), may_agree=False)[0] == "different"
    other = steps(*[(10, 0, 0, 2, 1)] * 60)  # older weights give other log-probs: the trainer does compute its own
    assert verdict(other, may_agree=False) == ("zero", 0, 600)
    assert verdict(steps(*[EQUAL] * 60), "s", may_agree=False) == ("zero", 0, 600)


@pytest.mark.parametrize("claim", [None, "s"])
def test_equal_tokens_of_older_weights_are_a_copy(claim: str | None) -> None:
    each = COPIES // 50
    assert verdict(steps(*[(10, 0, 0, each, 0)] * 50), claim)[0] == "not measured"
    assert "copy" in judge(steps(*[(10, 0, 0, each, 0)] * 50), claim, lambda: True).reason
    few = steps((10, 0, 0, each - 1, 0), *[(10, 0, 0, each, 0)] * 49)
    assert verdict(few, claim)[0] == "zero"


def test_a_certificate_says_what_it_did_not_compare() -> None:
    reason = judge(steps(*[(10, 0, 0, 2, 1)] * 50), None, lambda: True).reason
    assert reason == (
        "zero since step 0, 500 tokens (seen in 50 steps); not compared: 100 of older weights, 5,000 not recorded at "
        "both sides or broken"
    )
    assert "claimed by policy.x" in judge(steps(EQUAL, EQUAL), "policy.x", lambda: False).reason


# --- From records ---


def of(store: Store, **kinds: list[dict[str, Any]]) -> Certificate:
    feed(store, **kinds)
    return read(store, [RUN])[RUN]


def same(name: str, step: int, **fields: Any) -> dict[str, Any]:
    return trained(name, step, **{"received": False, "trainer_logprobs": R, **fields})


def test_without_a_claim_fifty_steps_of_a_setup_that_allows_it(store: Store) -> None:
    rows = [same(f"s{step}", step) for step in range(SEEN_STEPS)]
    engine = [sampled(f"s{step}") for step in range(SEEN_STEPS)]
    assert of(store, rollout=engine, training=rows).verdict == "not measured"
    found = of(store, config=FLOAT32)
    assert (found.verdict, found.since_step, found.tokens) == ("zero", 0, 4 * SEEN_STEPS)


def test_what_the_trainer_received_counts_as_the_engine_recorded_it_and_what_comes_late_ends_it(store: Store) -> None:
    rows = [same(f"s{step}", step, received=True) for step in (3, 4)]
    alone = of(store, training=rows, config=[CLAIM])
    assert (alone.verdict, "passed twice" in alone.reason) == ("not measured", True)
    found = of(store, rollout=[sampled("s3"), sampled("s4")])
    assert (found.verdict, found.since_step, found.tokens) == ("zero", 3, 8)
    assert found.words == "zero since step 3, 8 tokens (claimed by true_on_policy_mode)"
    assert "bfloat16" in explained(store, RUN, found).reason, "numbers of bfloat16"
    of(store, training=[same("late", 3, trainer_logprobs=[-1.5, *R[1:]])])
    found = of(store, rollout=[sampled("late")])
    assert (found.verdict, found.since_step) == ("broken", 3)


VERSIONS = [{"time": at(v), "version": str(v), "step": v, "source": "trainer", "applied_at": at(v)} for v in range(3)]
FINE = -4.0 + 2.0**-20
OFF = [-1.5, -2.0, -3.0, -4.0]


@pytest.mark.parametrize(
    ("change", "engine", "expected"),
    [
        ({"trainer_logprobs": [-1.0, -2.0, -3.0, FINE]}, R, ("broken", 2)),
        ({"trainer_logprobs": [-1.0, -2.0, -3.0, FINE]}, [-1.0, -2.0, -3.0, FINE], ("zero", 0)),  # no bfloat16
        ({"trainer_logprobs": [-1.0, -2.0, -3.0, FINE], "mask": [True] * 3 + [False]}, R, ("zero", 0)),
        ({"trainer_logprobs": [-1.0, -2.0, -3.0, float("nan")]}, R, ("zero", 0)),
        ({"trainer_logprobs": OFF, "weight_version": "2"}, R, ("zero", 0)),  # sampled by v1
        ({"trainer_logprobs": OFF, "weight_version": "1"}, R, ("broken", 2)),
        ({"trainer_logprobs": OFF, "sample_id": "lost"}, R, ("zero", 0)),
        ({"trainer_logprobs": [-0.0, 0.0, -1.0, -0.0]}, [0.0, -0.0, -1.0, 0.0], ("zero", 0)),  # −0 is 0
        ({"trainer_logprobs": [0.0] * 4}, [0.0] * 4, ("zero", 0)),  # and a sequence of zeros is nothing
        ({"rollout_logprobs": R}, OFF, ("zero", 0)),  # a copy of t as r
    ],
)
def test_what_breaks_it(store: Store, change: dict[str, Any], engine: list[float], expected: tuple[str, int]) -> None:
    rollout = [sampled("s0", version="1"), sampled("s1", version="1"), sampled("s2", version="1", logprobs=engine)]
    rows = [same(f"s{step}", step, weight_version="1") for step in (0, 1)] + [same("s2", 2) | change]
    found = of(store, rollout=rollout, training=rows, config=[CLAIM], weights=VERSIONS)
    assert (found.verdict, found.since_step) == expected
    if engine[-1] == FINE:
        assert "bfloat16" not in explained(store, RUN, found).reason


def test_the_first_token_is_named_with_what_came_before(store: Store) -> None:
    engine = [sampled(f"s{step}", version="1", replica="e0", time=at(step)) for step in range(3)]
    engine.append(sampled("other", version="1", replica="e1", time=at(1)))
    rows = [same(f"s{step}", step, weight_version="1") for step in range(2)]
    broken = [-1.0, -2.0 + 2.0**-20, -3.0, -4.5]
    rows += [same("s2", 2, rank=3, weight_version="1", trainer_logprobs=broken), same("other", 2, weight_version="1")]
    late = {"time": at(1.5), "fingerprint": "e2", "kind": "engine_config", "replica": "e0", "document": "{}"}
    config = [CLAIM, {**late, "time": at(0), "fingerprint": "e1"}, late]
    found = of(store, rollout=engine, training=rows, config=config, weights=VERSIONS[1:2])
    told = explained(store, RUN, found)
    assert told.reason.startswith(
        "2 of 8 tokens of step 2 have two different log-probs, after 8 equal tokens since step 0; "
    )
    assert (
        "the first is token 1 of sequence s2 of rank 3 on replica e0, sampled by weight version 1: rollout -2, trainer "
        "-1.99999905; 1 of the 2 tokens after it differ, too; 0 of 1 other sequences of the step differ, too"
    ) in told.reason
    assert "engine_config changed on e0" in told.reason
    assert "weights 1 (" in told.reason


def test_sequences_of_older_weights_are_not_the_first(store: Store) -> None:
    older = [trained(f"o{n}", 2, weight_version="2") for n in range(20)]
    engine = [sampled(f"o{n}", version="1", time=at(0)) for n in range(20)] + [sampled("own", version="2", time=at(1))]
    own = same("own", 2, weight_version="2", trainer_logprobs=[*R[:3], -4.5])
    found = of(store, rollout=engine, training=[*older, own], config=[CLAIM], weights=VERSIONS)
    assert found.reason.startswith("1 of 84 tokens of step 2")
    assert "the first is token 3 of sequence own" in explained(store, RUN, found).reason


def test_a_break_whose_tokens_cannot_be_read_at_first_is_located_later(store: Store) -> None:
    engine = [sampled(f"s{step}") for step in range(3)]
    rows = [same("s0", 0), same("s1", 1), same("s2", 2, trainer_logprobs=[*R[:3], -4.5])]
    feed(store, rollout=engine, training=rows, config=[CLAIM])
    now = datetime.now(at(0).tzinfo) + timedelta(seconds=60)
    watch = Watch(store, tuple, _Never(), clock=lambda: now)
    files = [file for file in store.home.path.rglob("*.parquet") if "training" in str(file)]
    assert files
    for file in files:
        file.rename(file.with_suffix(".away"))
    words = []
    for back in (False, True):
        for file in files if back else ():
            file.with_suffix(".away").rename(file)
        now += timedelta(seconds=10)
        watch.run_once()
        (row,) = [row for row in store.read("alert_list", run=RUN).to_pylist() if row["rule"] == "bit_equality"]
        words.append(row["words"])
    assert "the first" not in words[0]
    assert "the first is token 3 of sequence s2" in words[1]
    assert len(store.read("alert_history", run=RUN)) == 1


def test_a_step_of_a_live_run_counts_once_nothing_came_for_two_seconds(store: Store) -> None:
    feed(store, rollout=[sampled("s0")], training=[same("s0", 0, trainer_logprobs=[*R[:3], -4.5])], config=[CLAIM])
    now = store.time.now()
    verdicts = [
        read(store, [RUN], until=complete_until(now + timedelta(seconds=later), ended=ended))[RUN].verdict
        for later, ended in ((0, False), (0, True), (3, False))
    ]
    assert verdicts == ["not measured", "broken", "broken"]


def test_tokens_that_were_not_kept_have_no_position(home: Path) -> None:
    with Recorder(home, RUN, rank=0, raw_fraction=0.0, worst_sequences=0) as recorder:
        recorder.config({"true_on_policy_mode": True}, kind="trainer_config")
        call = {"sample_ids": ["a"], "token_ids": [[1, 2]], "rollout_logprobs": [[-1.0, -2.0]]}
        recorder.training(step=0, **call, trainer_logprobs=[[-1.0, -2.5]])
    with Store.open(Home(home)) as store:
        take_in(store)
        told = explained(store, RUN, read(store, [RUN])[RUN])
    assert "1 of 2 tokens of sequence a of rank 0 on an unknown replica; its tokens are not kept" in told.reason


def test_one_token_of_a_million_is_found_in_its_step_and_told_once(home: Path) -> None:
    shape = (100, 10_000)
    rng = np.random.default_rng(3)
    r = (-rng.exponential(1.0, shape)).astype(np.float32)
    t = r.copy()
    t[41, 8_765] = np.nextafter(t[41, 8_765], np.float32(-100))
    ids = rng.integers(0, 30_000, shape, dtype=np.int32)
    with Recorder(home, RUN, rank=0) as recorder:
        recorder.config({"policy": {"zero_train_gen_mismatch": True}}, kind="trainer_config")
        for step, rows, length in ((0, 1, 100), (1, 1, 100), (2, *shape)):
            part = (slice(rows), slice(length))
            some = {"sample_ids": [f"{step}/{row}" for row in range(rows)], "token_ids": ids[part], "weight_version": 1}
            assert recorder.rollout(**some, logprobs=r[part], lengths=[length] * rows, replica="e0")
            assert recorder.training(step=step, **some, trainer_logprobs=t[part], mask=np.ones((rows, length), bool))
    with Store.open(Home(home)) as store:
        take_in(store)
        now = datetime.now(at(0).tzinfo)
        watch = Watch(store, tuple, _Never(), clock=lambda: now + timedelta(seconds=60))
        assert [watch.run_once()["messages"] for _ in range(2)] == [1, 0]
        (row,) = [row for row in store.read("alert_list", run=RUN).to_pylist() if row["rule"] == "bit_equality"]
        (sent,) = store.read("alert_history", run=RUN).to_pylist()
    assert (row["severity"], row["phase"], row["started_step"]) == ("warning", "firing", 2)
    assert row["words"].startswith(
        "bit equality is broken: 1 of 1,000,000 tokens of step 2 have two different log-probs, after 200 equal"
    )
    assert "token 8,765 of sequence 2/41 of rank 0 on replica e0, sampled by weight version 1" in row["words"]
    assert "0 of the 1,234 tokens after it differ, too; 0 of 99 other sequences" in row["words"]
    assert sent["words"].startswith("Bit equality is broken: 1 of 1,000,000 tokens")


class _Never:
    def is_set(self) -> bool:
        return False


def test_an_alert_falls_once_it_was_equal_for_long_again(store: Store) -> None:
    engine = [sampled(f"s{step}") for step in range(60)]
    rows = [same(f"s{step}", step) for step in range(60)]
    rows[3]["trainer_logprobs"] = [-1.5, *R[1:]]
    now = datetime.now(at(0).tzinfo) + timedelta(seconds=60)
    watch = Watch(store, tuple, _Never(), clock=lambda: now)

    def phase(last: int) -> list[tuple[str, int | None]]:
        feed(store, rollout=engine[last - 3 : last], training=rows[last - 3 : last])
        watch.run_once()
        listed = store.read("alert_list", run=RUN).to_pylist()
        return [(row["phase"], row["started_step"]) for row in listed if row["rule"] == "bit_equality"]

    feed(store, config=[CLAIM])
    assert phase(3) == [("normal", None)]
    assert phase(6) == [("firing", 3)]
    feed(store, rollout=engine[6:50], training=rows[6:50])
    assert phase(53) == [("firing", 3)]  # 49 equal steps
    assert phase(56) == [("normal", None)]
    assert [row["state"] for row in store.read("alert_history", run=RUN).to_pylist()] == ["firing", "resolved"]


@pytest.mark.parametrize("config", [[], [{**CLAIM, "document": '{"true_on_policy_mode": false}'}]], ids=["none", "off"])
def test_a_run_that_claims_nothing_has_no_such_alert(store: Store, config: list[dict[str, Any]]) -> None:
    found = of(store, rollout=[sampled("s0"), sampled("s1")], training=[same("s0", 0), same("s1", 1)], config=config)
    assert found.verdict == "not measured"
    Watch(store, tuple, _Never(), clock=lambda: datetime.now(at(0).tzinfo) + timedelta(seconds=60)).run_once()
    assert "bit_equality" not in [row["rule"] for row in store.read("alert_list", run=RUN).to_pylist()]


def test_only_runs_that_claim_it_or_were_equal_for_long_may_hold_it(store: Store) -> None:
    found = {"short": SEEN_STEPS - 1, "long": SEEN_STEPS, "claims": 0}
    for run, equal in found.items():
        put(store, run, {step: {} for step in range(SEEN_STEPS + 1)})
        with store.transaction() as cursor:
            counts = "bits_compared = 10, bits_differing = if(step < ?, 0, 1)"
            cursor.execute(f"UPDATE step_summaries SET {counts} WHERE run = ?", [equal, run])
    with store.transaction() as cursor:
        words = ["claims", CLAIM["time"], CLAIM["document"]]
        cursor.execute("INSERT INTO config_records VALUES (?, ?, 't', 'trainer_config', NULL, ?)", words)
    assert candidates(store, list(found)) == {"long", "claims"}
    assert {run for run, each in read(store, list(found)).items() if each.verdict in {"zero", "broken"}} <= {
        "long",
        "claims",
    }
