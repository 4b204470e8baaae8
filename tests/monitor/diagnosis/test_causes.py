"""Each rule on a simulated policy with exactly its fault, with and without a configuration that names it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from diagnosis_simulation import (
    ANSWERS,
    Columns,
    Simulation,
    allowing,
    drift,
    log_softmax,
    noisy,
    nucleus,
    rounded,
    tempered,
)

from logprobe.monitor.judging.document import FindingDocument
from logprobe.monitor.judging.explain import diagnosed
from logprobe.monitor.judging.frame import Frame
from logprobe.monitor.judging.records import WeightRecord, Weights
from logprobe.monitor.judging.setup import Setup
from logprobe.monitor.judging.weight_readings import Reading, Readings

PLAIN = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
HOT = {**PLAIN, "temperature": 0.7}
PROCESSED = {"logprobs_mode": "processed_logprobs", "dtype": "float32", "kv_cache_dtype": "auto"}
RAW = {**PROCESSED, "logprobs_mode": "raw_logprobs"}


def configured(engine: dict, sampling: dict, **trainer: object) -> Setup:
    return Setup(engines=(engine,), samplings={"a": sampling}, trainer=trainer)


CERTAIN, KNOWN, INFERRED, POSSIBLE = 0.99, 0.95, 0.85, 0.4


def found_in(frame: Frame) -> list[FindingDocument]:
    return list(diagnosed(frame)["findings"])


def of(findings: list[FindingDocument], cause: str) -> FindingDocument:
    (found,) = [finding for finding in findings if finding["cause"] == cause]
    return found


def first(simulation: Simulation) -> FindingDocument:
    return found_in(simulation.frame())[0]


# --- Semantic ---


@pytest.mark.parametrize("temperature", [0.5, 0.7, 0.9, 1.3])
def test_raw_logprobs_from_the_numbers_with_the_temperature(temperature: float) -> None:
    scaled = tempered(temperature)
    found = first(Simulation(sampled=scaled, reported=log_softmax, trained=scaled))
    assert (found["cause"], found["confidence"]) == ("raw_logprobs", 0.85)
    assert found["evidence"]["temperature_implied"] == pytest.approx(temperature, rel=1e-3)
    assert f"{temperature:.3g}" in found["explanation"]


def test_raw_logprobs_are_known_from_the_configuration() -> None:
    scaled = tempered(0.7)
    simulation = Simulation(sampled=scaled, reported=log_softmax, trained=scaled, setup=configured(RAW, HOT))
    assert first(simulation)["confidence"] == KNOWN
    agreeing = Simulation(sampled=scaled, reported=log_softmax, trained=log_softmax, setup=configured(RAW, HOT))
    assert first(agreeing)["cause"] == "raw_logprobs"  # both sides agree about what was not sampled from


def test_what_the_record_excludes_is_not_named() -> None:
    """The engine says that it reports processed log-probs: the numbers look like raw ones, and that is said."""
    scaled = tempered(0.7)
    known = configured(PROCESSED, {**PLAIN, "temperature": 0.7}, temperature=0.7)
    found = first(Simulation(sampled=scaled, reported=log_softmax, trained=scaled, setup=known))
    assert (found["cause"], found["confidence"]) == ("unknown", INFERRED)
    assert "look like raw_logprobs, which the record excludes" in found["explanation"]


def test_raw_logprobs_from_statistics_alone() -> None:
    scaled = tempered(0.7)
    found = first(Simulation(sampled=scaled, reported=log_softmax, trained=scaled, keep_tokens=False))
    assert found["cause"] == "raw_logprobs"
    assert found["confidence"] == INFERRED  # the bend is more than noise makes, and E[ρ] is off 1


@pytest.mark.parametrize("temperature", [0.7, 1.25])
def test_a_forgotten_temperature(temperature: float) -> None:
    found = first(Simulation(sampled=tempered(temperature)))
    assert (found["cause"], found["confidence"]) == ("temperature_mismatch", 0.85)
    assert found["evidence"]["temperature_implied"] == pytest.approx(temperature, rel=1e-3)
    known = configured(PROCESSED, {**PLAIN, "temperature": temperature}, temperature=1.0)
    assert first(Simulation(sampled=tempered(temperature), setup=known))["confidence"] == KNOWN


@pytest.mark.parametrize("temperature", [0.8, 1.25])
def test_a_temperature_from_a_step_on_is_estimated_there_and_dated(temperature: float) -> None:
    """Pooled over both parts of the run it would come out between 1 and the true one."""
    late = Simulation(steps=60, prompts=4, sampled=tempered(temperature), trained=log_softmax, first_trained=35)
    found = first(late)
    assert found["cause"] == "temperature_mismatch"
    assert found["evidence"]["temperature_implied"] == pytest.approx(temperature, rel=1e-3)
    assert found["since_step"] == 35


def test_penalties_that_the_trainer_does_not_apply() -> None:
    penalised = configured(PROCESSED, {**PLAIN, "repetition_penalty": 1.2})
    found = first(Simulation(trained=noisy(0.2), setup=penalised))
    assert (found["cause"], found["evidence"]["penalties"]) == ("temperature_mismatch", "repetition_penalty = 1.2")


def test_a_scale_is_found_without_siblings() -> None:
    def alone(columns: Columns) -> None:
        columns.group[:] = np.arange(len(columns.group))

    scaled = tempered(0.7)
    found = first(Simulation(sampled=scaled, reported=log_softmax, trained=scaled, change=alone))
    assert found["cause"] == "raw_logprobs"
    assert found["evidence"]["temperature_implied"] == pytest.approx(0.7, abs=0.1)


def _top(k: int) -> Callable[[np.ndarray], np.ndarray]:
    def of(z: np.ndarray) -> np.ndarray:
        return log_softmax(np.where(z < np.sort(z, -1)[..., [-k]], -1e9, z))

    return of


@pytest.mark.parametrize("size", [0.02, 0.05])
def test_a_truncation_under_noise_that_nothing_declares_is_another_softmax(size: float) -> None:
    found = first(Simulation(sampled=_top(8), trained=noisy(size), spread=2.5, length=30))
    assert (found["cause"], found["layer"], found["vetoes"]) == ("other_softmax", "semantic", True)
    assert found["evidence"]["looks_like"] == "truncated_support"


def test_a_clamp_is_no_temperature() -> None:
    """It bends unlikely tokens alone; a scale between all of them fits badly, and better than none."""
    clamped = Simulation(trained=lambda z: np.maximum(noisy(0.02)(z), -4), spread=2.0)
    assert first(clamped)["cause"] == "miscalibrated_logprobs"


def test_a_truncation_under_rounding_noise_is_still_one_sided() -> None:
    simulation = Simulation(
        sampled=lambda z: nucleus(0.9)(rounded(z)), setup=configured(PROCESSED, {**PLAIN, "top_p": 0.9})
    )
    assert first(simulation)["cause"] == "truncated_support"


def test_structured_output_mask() -> None:
    assert first(Simulation(sampled=allowing(0.3)))["cause"] == "other_softmax"  # nothing declares it
    known = configured(PROCESSED, {**PLAIN, "structured_outputs": {"regex": "[a-z]+"}})
    assert first(Simulation(sampled=allowing(0.3), setup=known))["confidence"] == KNOWN


def _append(value: float) -> Callable[[Columns], None]:
    def change(columns: Columns) -> None:
        columns.r[::2, -1], columns.token[::2, -1] = value, 63
        columns.t[::2, -1] = -5

    return change


@pytest.mark.parametrize("value", [0.0, -9999.0])
def test_synthetic_eos(value: float) -> None:
    findings = found_in(Simulation(change=_append(value)).frame())
    assert findings[0]["cause"] == "synthetic_eos"
    assert findings[0]["evidence"]["sequences"] == 12 * 8 * ANSWERS / 2


def _shift(columns: Columns) -> None:
    columns.r[:, 1:] = columns.r[:, :-1].copy()


def test_misaligned_from_a_step_on() -> None:
    """Over the whole run both sides still have much in common."""

    def late(columns: Columns) -> None:
        columns.t += drift(0.02, columns.t.shape)
        rows = columns.step >= 90
        columns.r[rows, 1:] = columns.r[rows, :-1].copy()

    evidence = Simulation(steps=120, prompts=3, change=late).frame()
    assert evidence.gap.correlation > 0.5
    findings = found_in(evidence)
    assert [finding["cause"] for finding in findings] == ["misaligned_tokens"]
    assert findings[0]["since_step"] == 90


def test_most_sequences_misaligned_and_the_others_right() -> None:
    def some(columns: Columns) -> None:
        most = np.arange(len(columns.r)) % 10 < 8
        columns.r[most, 1:] = columns.r[most, :-1].copy()

    assert [finding["cause"] for finding in found_in(Simulation(change=some).frame())] == ["misaligned_tokens"]


def _break(columns: Columns) -> None:
    columns.t[30:40, 3] = -np.inf
    columns.r[40:45, 3] = np.nan
    columns.r[45:47, 3] = -9999


def test_nonfinite_logprobs_are_counted() -> None:
    found = of(found_in(Simulation(change=_break).frame()), "nonfinite_logprobs")
    assert found["evidence"]["nonfinite_trainer"] == 10
    assert found["evidence"]["sentinel"] == 2


# --- Inference path ---


def _mark(name: str, rows: Callable[[Columns], np.ndarray], gap: float = 0.1) -> Callable[[Columns], None]:
    """Rows whose t differs by noise, and the attribute that tells them."""

    def change(columns: Columns) -> None:
        which = rows(columns)
        getattr(columns, name)[:] = which.astype(int)
        noise = drift(gap, columns.t.shape)
        columns.t[which] += (noise * (columns.t < -0.5))[which]

    return change


def _half(columns: Columns) -> np.ndarray:
    return (np.arange(len(columns.step)) // ANSWERS) % 2 == 1


def engine_update(version: int, *, loaded: bool = True, cleared: bool | None = None, **more: object) -> WeightRecord:
    values = {"replica": None, "pause_mode": None, "tensors": None, "checksum": None, **more}
    return WeightRecord(
        version=str(version), step=version, source="engine", loaded=loaded, cache_cleared=cleared, **values
    )


def test_stale_prefix_cache_by_requests_with_and_without() -> None:
    assert first(Simulation(change=_mark("cached", _half)))["cause"] == "stale_prefix_cache"
    kept = Weights(tuple(engine_update(version) for version in range(1, 12)))
    known = first(Simulation(change=_mark("cached", _half), weights=kept))
    assert (known["cause"], known["confidence"]) == ("stale_prefix_cache", KNOWN)


def test_stale_prefix_cache_where_every_request_is_cached() -> None:
    def all_cached(columns: Columns) -> None:
        columns.cached[:] = 1

    kept = Weights(tuple(engine_update(version) for version in range(1, 12)))
    stale = {"trained": noisy(0.1), "first_trained": 4, "change": all_cached}
    assert first(Simulation(**stale, weights=kept))["cause"] == "stale_prefix_cache"
    cleared = Weights(tuple(engine_update(version, cleared=True) for version in range(1, 12)))
    assert first(Simulation(**stale, weights=cleared))["cause"] == "missed_weight_sync"  # a load may bring old weights


def test_stale_prefix_cache_that_was_cleared_until_some_step() -> None:
    """Requests without cached tokens are all of the time before: that they were no better then does not acquit the cache."""
    onset, steps = 16, 20

    def cached_since(columns: Columns) -> None:
        late = columns.step >= onset
        columns.cached[:] = np.where(~late & (np.arange(len(columns.step)) % 4 == 0), 0, 1)
        columns.t[late] += np.random.default_rng(5).normal(0, 0.05, columns.t[late].shape) * (columns.t[late] < -0.5)

    def found(kept: Callable[[int], bool]) -> list[FindingDocument]:
        updates = Weights(tuple(engine_update(version, cleared=not kept(version)) for version in range(1, steps)))
        noise = {"trained": noisy(0.02), "change": cached_since}
        return found_in(Simulation(steps=steps, **noise, weights=updates).frame())

    late = of(found(lambda version: version >= onset), "stale_prefix_cache")
    assert late["since_step"] == onset
    assert "stale_prefix_cache" not in {each["cause"] for each in found(lambda _: False)}
    assert "stale_prefix_cache" not in {each["cause"] for each in found(lambda _: True)}  # also when all was well


def test_inflight_stale_kv_by_tokens_after_a_switch() -> None:
    def switch(columns: Columns) -> None:
        rows = _half(columns) & (columns.step > 0)
        columns.version[rows, :8] -= 1
        columns.t[rows, 8:] += drift(0.1, columns.t[rows, 8:].shape) * (columns.t[rows, 8:] < -0.5)

    kept = Weights(tuple(engine_update(version, cleared=False, pause_mode="keep") for version in range(1, 12)))
    found = first(Simulation(change=switch, weights=kept))
    assert found["cause"] == "inflight_stale_kv"
    assert found["confidence"] == KNOWN


def test_what_requests_in_flight_make_is_not_the_prefix_cache() -> None:
    def both(columns: Columns) -> None:
        _mark("cached", lambda c: np.ones(len(c.step), np.bool_), gap=0.0)(columns)
        unsure = columns.t < -0.5
        late = columns.step > 0
        columns.t[late & ~_half(columns)] += (drift(0.02, columns.t.shape) * unsure)[late & ~_half(columns)]
        rows = late & _half(columns)
        columns.version[rows, :8] -= 1
        columns.t[rows, 8:] += (drift(0.3, columns.t.shape) * unsure)[rows, 8:]

    kept = Weights(tuple(engine_update(version, cleared=False, pause_mode="keep") for version in range(1, 12)))
    found = found_in(Simulation(change=both, weights=kept).frame())
    assert found[0]["cause"] == "inflight_stale_kv"
    assert all((f["share"]["now"] or 0) < 0.1 for f in found if f["cause"] == "stale_prefix_cache")


def test_replica_divergence() -> None:
    findings = found_in(Simulation(change=_mark("replica", _half)).frame())
    assert [finding["cause"] for finding in findings] == ["replica_divergence"]
    assert findings[0]["evidence"]["replica"] == "replica-1"


def test_missed_weight_sync_since_its_step() -> None:
    found = first(Simulation(trained=noisy(0.1), first_trained=5))
    assert (found["cause"], found["since_step"]) == ("missed_weight_sync", 5)
    records = [engine_update(version, loaded=version < 5, cleared=True) for version in range(1, 12)]
    labelled = first(Simulation(trained=noisy(0.1), first_trained=5, weights=Weights(tuple(records))))
    assert labelled["evidence"]["versions"] == 7
    assert labelled["confidence"] > found["confidence"]


def test_partial_weight_sync_by_tensors_and_checksums() -> None:
    fewer = [engine_update(version, cleared=True, tensors=10 if version < 5 else 7) for version in range(1, 12)]
    stale = {"trained": noisy(0.1), "first_trained": 5}
    assert first(Simulation(**stale, weights=Weights(tuple(fewer))))["cause"] == "partial_weight_sync"
    ours, theirs = (engine_update(6, cleared=True, checksum=c) for c in ("a", "b"))
    sums = Weights((ours, replace(theirs, source="trainer")))
    assert first(Simulation(**stale, weights=sums))["cause"] == "partial_weight_sync"


def test_low_precision_by_the_grid_of_the_engines_logits() -> None:
    engine = lambda z: log_softmax(rounded(z))
    found = first(Simulation(sampled=engine))
    assert found["cause"] == "low_precision"
    low = configured({**PROCESSED, "dtype": "bfloat16"}, PLAIN, dtype="float32")
    assert first(Simulation(sampled=engine, setup=low))["confidence"] == 0.95


def test_low_precision_of_stored_values() -> None:
    def cast(columns: Columns) -> None:
        columns.r[:] = rounded(columns.r)

    found = first(Simulation(change=cast))
    assert found["cause"] == "low_precision"
    assert "stored with 16 bits" in found["explanation"]


def test_lm_head_precision_by_the_grid_of_the_trainers_logits() -> None:
    assert first(Simulation(trained=lambda z: log_softmax(rounded(z))))["cause"] == "lm_head_precision"


def test_batch_variance_when_both_sides_are_on_the_grid_and_differ() -> None:
    both = lambda seed: lambda z: log_softmax(rounded(z + np.random.default_rng(seed).normal(0, 0.02, z.shape)))
    assert first(Simulation(sampled=both(1), trained=both(2)))["cause"] == "batch_variance"


def test_quantized_rollout() -> None:
    eight = configured({**PROCESSED, "kv_cache_dtype": "fp8"}, PLAIN)
    known = first(Simulation(trained=noisy(0.1), setup=eight))
    assert (known["cause"], known["evidence"]["settings"]) == ("quantized_rollout", "kv_cache_dtype = fp8")
    assert not found_in(Simulation(trained=noisy(0.1)).frame())  # what nothing declares is not named by elimination


def test_moe_routing_by_its_heavy_tail() -> None:
    def rerouted(columns: Columns) -> None:
        rng = np.random.default_rng(5)
        few = rng.random(columns.t.shape) < 0.01
        columns.t += few * (columns.t < -1) * rng.choice([-0.5, 0.5], columns.t.shape)

    engine = {**PROCESSED, "architectures": ["Qwen3MoeForCausalLM"]}
    assert first(Simulation(change=rerouted, setup=configured(engine, PLAIN)))["cause"] == "moe_routing"


# --- Objective ---


def test_the_gap_of_older_weights_is_no_numerics() -> None:
    def old(columns: Columns) -> None:
        columns.version += 1
        columns.trainer_version += 9
        columns.t += drift(0.15, columns.t.shape) * (columns.t < -0.5)

    findings = found_in(Simulation(change=old, setup=configured(PROCESSED, PLAIN)).frame())
    assert [finding["cause"] for finding in findings] == ["staleness"]


def _stale(columns: Columns) -> None:
    columns.version[columns.step >= 2] -= 3
    rows = columns.step >= 2
    columns.t[rows] += drift(0.25, columns.t[rows].shape) * (columns.t[rows] < -0.5)


def test_staleness_by_lag() -> None:
    def shifted(columns: Columns) -> None:
        columns.trainer_version += 5
        columns.version += 5
        _stale(columns)

    findings = found_in(Simulation(change=shifted).frame())
    assert [finding["cause"] for finding in findings] == ["staleness"]
    assert "K3 by lag: 3: 0.0" in findings[0]["explanation"]
    assert diagnosed(Simulation(change=shifted).frame())["correction"]["advice"] == "enable"


def _lagging(size: Callable[[np.ndarray], np.ndarray]) -> Callable[[Columns], None]:
    """One version of lag, and noise of this size at each step."""

    def change(columns: Columns) -> None:
        columns.version += 4
        columns.trainer_version += 5
        noise = drift(size(columns.step)[:, None], columns.t.shape)
        columns.t += noise * (columns.t < -0.5)

    return change


def test_late_growth_is_a_ramp() -> None:
    ramp = Simulation(steps=100, prompts=4, change=_lagging(lambda s: 0.03 * np.exp(np.clip(s - 60, 0, 40) / 20)))
    assert first(ramp)["cause"] == "late_growth"
    assert first(ramp)["since_step"] == pytest.approx(62, abs=12)


def test_labels_that_name_two_weights_and_weights_without_a_label() -> None:
    held = [("0", 1, False), ("1", 2, False), ("1", 1, False), ("1", 3, True)]  # version, weights, written in place
    readings = Readings(
        tuple(
            Reading(
                "worker",
                None,
                None,
                version,
                int(version),
                str(weights),
                "same",
                unannounced=in_place,
                tensors={"q": weights},
            )
            for version, weights, in_place in held
        )
    )
    findings = {each["cause"]: each for each in diagnosed(replace(Simulation().frame(), readings=readings))["findings"]}
    assert findings["version_reused"]["confidence"] == CERTAIN
    assert "under version 1" in findings["version_reused"]["explanation"]
    assert findings["unannounced_weights"]["evidence"]["changes"] == 1
    assert {
        (findings[name]["urgency"], findings[name]["vetoes"]) for name in ("version_reused", "unannounced_weights")
    } == {("watch", False)}
