"""From a store to evidence: the same numbers as on arrays, bounded samples, and records that are still on their way."""

from __future__ import annotations

import json

import numpy as np
import pytest
from diagnosis_simulation import Simulation, log_softmax, noisy, tempered
from run_columns import Columns
from segments import RUN
from store_work import Fed

from logprobe.monitor.judging import gather
from logprobe.monitor.judging.diagnosing import diagnose
from logprobe.monitor.store.store import Store

HOT = {"temperature": 0.7, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
RAW = Simulation(sampled=tempered(0.7), reported=log_softmax, trained=tempered(0.7))


def put(
    store: Store, columns: Columns, *, upto: int | None = None, engine: bool = True, mode: str = "processed_logprobs"
) -> None:
    """What trainer and engine record of the columns; the engine's records of steps from `upto` on have not arrived."""
    known = {"sampling_id": "s", "engine_config_id": "e"}
    training, rollout = [], []
    for i, step in enumerate(columns.step.tolist()):
        ids, name = columns.token[i].tolist(), f"a{i}"
        common = {"sample_id": name, "group_id": f"g{columns.group[i]}", "token_ids": ids}
        version = str(columns.trainer_version[i])
        training.append({**common, "step": step, "trainer_logprobs": columns.t[i].tolist(), "weight_version": version})
        spans = [{"start": 0, "end": len(ids), "version": str(int(columns.version[i, 0]))}]
        if engine and (upto is None or step < upto):
            rollout.append({**common, "logprobs": columns.r[i].tolist(), "spans": spans, **known})
    config = {"s": ("sampling_params", HOT), "e": ("engine_config", {"summary": {"logprobs_mode": mode}})}
    rows = [{"fingerprint": name, "kind": kind, "document": json.dumps(text)} for name, (kind, text) in config.items()]
    Fed(store).feed(training=training, **({"rollout": rollout, "config": rows} if rollout else {}))


def test_the_evidence_of_a_store_is_that_of_the_arrays(store: Store) -> None:
    columns, direct = RAW.columns(), RAW.frame()
    put(store, columns)
    gathered = gather.gather(store, RUN)
    for name, values in direct.series.columns.items():
        assert gathered.series[name] == pytest.approx(values, rel=1e-9, abs=1e-9), name
    assert gathered.gap == direct.gap or gathered.gap.k3 == pytest.approx(direct.gap.k3)
    assert len(gathered.tokens) == len(direct.tokens)
    assert np.sort(gathered.tokens.d) == pytest.approx(np.sort(direct.tokens.d))
    assert gathered.strata.n == direct.strata.n
    assert set(gathered.strata.lag.tolist()) == {0}
    assert gathered.strata.groups["version"].numbers.tolist() == gathered.strata.step.tolist()
    assert gathered.setup.temperatures == (0.7,)


def test_a_window_a_bounded_sample_and_what_is_left_without_raw_files(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, RAW.columns(), mode="raw_logprobs")
    evidence = gather.gather(store, RUN, steps=(3, 5))
    assert evidence.series.step.tolist() == [3, 4, 5]
    assert set(evidence.tokens.step.tolist()) == {3, 4, 5}
    found = diagnose(store, RUN, steps=(3, 5))["findings"][0]
    assert (found["cause"], found["since_step"]) == ("raw_logprobs", 3)
    with monkeypatch.context() as patched:
        patched.setattr(gather, "SAMPLE_TOKENS", 1500)
        sample = gather.gather(store, RUN).recorded
    assert 300 < len(sample) < 4500
    answers = np.bincount(np.unique(np.stack([sample.context, sample.sequence]), axis=1)[0])
    assert set(answers.tolist()) == {4}, "answers to a prompt stay together"
    with store.transaction() as cursor:
        cursor.execute("UPDATE all_sequences SET raw_kept = false")
    diagnosis = diagnose(store, RUN)
    first = diagnosis["findings"][0]
    assert (diagnosis["layer"], first["cause"], first["confidence"]) == ("semantic", "raw_logprobs", 0.95)
    assert any("raw tokens" in item["why"] for item in diagnosis["not_measured"])


def test_a_trainer_ahead_of_the_engine_has_no_missing_logprobs(store: Store) -> None:
    healthy = Simulation(steps=12, trained=noisy(1e-3))
    put(store, healthy.columns(), upto=9)
    diagnosis = diagnose(store, RUN)
    assert diagnosis["findings"] == []
    assert diagnosis["layer"] == "none"


def test_what_later_steps_have_overtaken_is_missing(store: Store) -> None:
    columns = Simulation(steps=12, trained=noisy(1e-3)).columns()
    put(store, columns)
    with store.transaction() as cursor:
        cursor.execute("UPDATE all_sequences SET rollout_source = 'missing', rollout_segment = NULL WHERE step = 4")
        gone = "seen = 0, missing = sequences, missing_tokens = tokens, unseen = sequences, unseen_tokens = tokens"
        cursor.execute(f"UPDATE step_summaries SET {gone} WHERE step = 4")
    found = diagnose(store, RUN)["findings"][0]
    assert (found["cause"], found["evidence"]["tokens"]) == ("missing_logprobs", 32 * 16)


@pytest.mark.parametrize(
    ("rates", "since"),
    [
        ([0.0, 0.0, 0.0], 0),
        ([0.0, 1e-6, 0.0, 0.0], 2),
        ([1e-6, 0.0, 1e-6], None),
        ([None, None], None),
    ],
)
def test_the_learning_rate_is_0_since_the_step_after_the_last_other_one(
    store: Store, rates: list[float | None], since: int | None
) -> None:
    rows = [
        {"step": step, "scalars": {"loss": 0.0, "critic_lr_ratio": 2.0} | ({} if rate is None else {"actor/lr": rate})}
        for step, rate in enumerate(rates)
    ]
    Fed(store).feed(step=rows)
    assert store.read("diagnosis_learning_rate", run=RUN)["since"].to_pylist() == [since]


def test_the_learning_rate_of_a_growing_run_is_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = RAW.columns()
    put(store, columns)
    Fed(store).feed(step=[{"step": 0, "scalars": {"lr": 0.0}}])
    assert gather.gather(store, RUN).unmoved_since is None
    monkeypatch.setattr(gather, "GROWS", ("calibrating", "healthy"))
    assert gather.gather(store, RUN).unmoved_since == 0
