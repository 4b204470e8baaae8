"""What the live probe adds to a diagnosis: the engine's state, told from a policy that moved on."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import pytest
from diagnosis_simulation import Simulation, noisy

from logprobe.monitor.diagnosis.causes import BY_NAME
from logprobe.monitor.diagnosis.diagnosing import find
from logprobe.monitor.diagnosis.evidence.evidence import Evidence, WeightRecord, Weights
from logprobe.monitor.diagnosis.evidence.probes import Probed, Probes
from logprobe.monitor.diagnosis.evidence.setup import Setup
from logprobe.monitor.diagnosis.unmeasured import not_measured

ENGINE = {
    "logprobs_mode": "processed_logprobs",
    "dtype": "float32",
    "kv_cache_dtype": "auto",
    "architectures": ["Qwen3ForCausalLM"],
}
LIMITS = MappingProxyType({"float32": 1e-5, "bfloat16": 2e-3})


def looks(k3: float, cached: float | None, uncached: float | None, *, tokens: float = 100, since: int = 6) -> Probes:
    """Sound until step `since`."""
    bad = [Probed(step, k3, tokens, cached, uncached) for step in range(since, since + 4)]
    return Probes((*(Probed(step, 0.0, tokens, 0.0, 0.0) for step in range(since)), *bad))


def evidence(probes: Probes, *, dtype: str = "float32", **more: object) -> Evidence:
    setup = Setup(engines=({**ENGINE, "dtype": dtype},))
    return replace(Simulation(trained=noisy(0.1)).evidence(), setup=setup, probes=probes, **more)


def updates(*, cleared: bool) -> Weights:
    rest = {"replica": None, "loaded": True, "pause_mode": None, "tensors": None, "checksum": None}
    return Weights(tuple(WeightRecord(str(v), v, "engine", cache_cleared=cleared, **rest) for v in range(4)))


def causes(found: Evidence) -> list[str]:
    return [finding.cause for finding in find(found) if finding.cause in ("stale_prefix_cache", "engine_state")]


def test_only_cached_sequences_depart_it_is_the_prefix_cache() -> None:
    (finding,) = [f for f in find(evidence(looks(0.02, 0.04, 0.0))) if f.cause == "stale_prefix_cache"]
    assert (finding.since_step, finding.confidence) == (6, 0.95)
    assert finding.evidence["probe_cached_k3"] == 0.04
    assert "0.04 for requests with cached prompt tokens and 0 for those without" in finding.explanation
    assert "reset_prefix_cache" in finding.fix


def test_all_sequences_depart_alike_it_is_some_other_state() -> None:
    (finding,) = [f for f in find(evidence(looks(0.04, 0.04, 0.03))) if f.cause == "engine_state"]
    assert (finding.layer, finding.since_step) == ("inference_path", 6)
    assert causes(evidence(looks(0.04, None, 0.04))) == ["engine_state"]


def test_where_all_were_cached_the_records_of_updates_decide() -> None:
    kept, cleared = updates(cleared=False), updates(cleared=True)
    assert causes(evidence(looks(0.04, 0.04, None), weights=kept)) == ["stale_prefix_cache"]
    assert causes(evidence(looks(0.04, 0.04, None), weights=cleared)) == ["engine_state"]


def test_an_engine_that_confirms_itself_is_not_blamed_for_a_policy_that_moved_on() -> None:
    found = evidence(looks(1e-7, 1e-7, 1e-7))
    assert found.gap.visible
    assert causes(found) == []


@pytest.mark.parametrize("dtype", LIMITS)
def test_rounding_of_the_dtype_is_not_a_fault(dtype: str) -> None:
    assert causes(evidence(looks(0.9 * LIMITS[dtype], None, None), dtype=dtype)) == []
    assert causes(evidence(looks(1.1 * LIMITS[dtype], None, None), dtype=dtype)) == ["engine_state"]


def test_a_few_tokens_say_nothing_and_what_is_over_is_over() -> None:
    assert causes(evidence(looks(0.04, 0.04, 0.0, tokens=10))) == []
    healed = looks(0.04, 0.04, 0.0)
    assert causes(evidence(Probes((*healed.looks, Probed(10, 0.0, 100, 0.0, 0.0))))) == []


def test_why_the_probe_is_silent_is_said() -> None:
    silent = evidence(Probes(silence="the engine is busy: 40 requests run and 3 wait"))
    (item,) = [item for item in not_measured(silent) if "confirms" in item.what]
    assert "40 requests" in item.why
    assert not [item for item in not_measured(evidence(Probes())) if "confirms" in item.what]
    assert BY_NAME["engine_state"].layer == "inference_path"
