"""The live probe on a real ``vllm serve``, with the service at work, and in a trainer. Run by `make test-probe`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engine_process import run_scenario, spooled

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def told(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A lag of one version, then the new weights with the cache of the old ones."""
    settings = {
        "LOGPROBE_HOME": str(tmp_path_factory.mktemp("probe") / "home"),
        "LOGPROBE_RUN": "probed",
        "LOGPROBE_VLLM": "prompts=1",
        "PYTHONPATH": str(Path(__file__).parents[1] / "support"),
    }
    return run_scenario("probing", models, script="probe_scenario", timeout=1400, **settings)


@pytest.fixture(scope="module")
def rounded(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Looks at healthy bfloat16 engines."""
    settings = {
        "LOGPROBE_HOME": str(tmp_path_factory.mktemp("rounded") / "home"),
        "LOGPROBE_RUN": "rounded",
        "PYTHONPATH": str(Path(__file__).parents[1] / "support"),
    }
    return run_scenario("rounding", models, script="probe_scenario", timeout=1400, **settings)


@pytest.fixture(scope="module")
def inside(models: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """Three looks at an engine in the trainer's process; before the third its weights change and its cache stays."""
    home = tmp_path_factory.mktemp("inside") / "home"
    settings = {
        "LOGPROBE_HOME": str(home),
        "LOGPROBE_RUN": "inside",
        "PYTHONPATH": str(Path(__file__).parents[1] / "support"),
    }
    return home, run_scenario("inside", models, script="probe_scenario", timeout=1400, **settings)


def test_an_engine_in_the_trainer_s_process_is_probed_as_well(inside: tuple[Path, Any]) -> None:
    home, told = inside
    fresh, cached, stale = told["looks"]
    assert fresh["probe/k3"] < 1e-9
    assert cached["probe/cached_k3"] < 1e-9
    assert stale["probe/cached_k3"] > 1e-4
    assert told["flushed"]
    lengths = {len(row["token_ids"]) for row in spooled(home, "inside", "rollout")}
    assert lengths == {60}, "the probe's own requests were recorded"


def _causes(findings: list[dict[str, Any]]) -> dict[str, Any]:
    return {finding["cause"]: finding for finding in findings}


def test_a_policy_that_moved_on_leaves_the_probe_at_zero(told: Any) -> None:
    assert all(look["k3"] < 1e-9 for look in told["moved_on"]), told["moved_on"]
    assert not {"engine_state", "stale_prefix_cache"} & set(_causes(told["diagnosed"]))


def test_one_look_is_printed(told: Any) -> None:
    found = told["printed"]["document"]
    assert told["printed"]["code"] == 0
    assert found["reason"] is None
    assert found["version"] == "0"
    assert found["gap"]["k3"] < 1e-9
    assert found["gap"]["tokens"] == found["sequences"] * 60
    assert told["words"]["code"] == 0
    first, *_, last = told["words"]["words"].splitlines()
    assert first.split() == ["sequences", "K3", "95", "%", "mean", "|d|", "tokens", "broken"]
    assert "sequences of weight version 0, " in last


def test_a_busy_engine_is_left_alone(told: Any) -> None:
    busy = told["busy"]
    assert busy["code"] == 3
    assert busy["document"]["reason"] == "busy", busy
    assert busy["document"]["gap"] is None
    assert busy["document"]["scored_tokens"] == 0


def test_an_engine_that_is_gone_is_noted_once(told: Any) -> None:
    assert told["gone"]["code"] == 3
    assert told["gone"]["document"]["reason"] == "engine"
    assert len(told["notes"]) == 1


def test_bfloat16_rounds_below_the_rule_s_threshold(rounded: Any) -> None:
    """The rule `engine-state` fires above 0.02; docs/proof.md names these figures."""
    for k3 in rounded.values():
        assert 1e-6 < k3["float32"] < 0.02, rounded  # the whole of its rounding
        assert 0 <= k3["look"] < k3["float32"], rounded


def test_a_stale_prefix_cache_is_found_and_named(told: Any) -> None:
    seen = {
        kind: [look[kind] for look in told["stale"] if look[kind] is not None] for kind in ("cached_k3", "uncached_k3")
    }
    assert max(seen["cached_k3"]) > 1e-4, told["stale"]
    assert max(seen["uncached_k3"]) < 1e-9, told["stale"]
    finding = _causes(told["diagnosed_stale"])["stale_prefix_cache"]
    assert finding["evidence"]["probe_k3"] > 1e-5
    assert "scored its own sequences again" in finding["explanation"]


def test_the_budget_is_kept(told: Any) -> None:
    assert 0 < told["budget"]["scored"] <= told["budget"]["sampled"]
