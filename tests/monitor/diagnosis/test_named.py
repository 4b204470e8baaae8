"""What remedies are called: names that exist, values as recorded, and nothing where nothing is known."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import setting_names
from setting_names import missing

from logprobe.monitor.judging.named import settings_of, table, with_settings
from logprobe.monitor.judging.setup import Setup
from logprobe.monitor.judging.signatures import SIGNATURES

ENGINE = {"logprobs_mode": "raw_logprobs", "kv_cache_dtype": "fp8", "quantization": None, "enable_prefix_caching": True}


def named(
    cause: str,
    *,
    advised: bool = False,
    bound: int | None = None,
    engine: Any = ENGINE,
    sampling: Any = None,
    **trainer: Any,
) -> list[tuple[Any, ...]]:
    trainer = {key.replace("__", "."): value for key, value in trainer.items()}
    setup = Setup(() if engine is None else (engine,), sampling and {"a": sampling}, trainer or None)
    return [
        (s["framework"], s["copy"], s["now"], s["words"])
        for s in settings_of(cause, setup, advised=advised, bound=bound)
    ]


def test_every_cause_of_the_table_exists() -> None:
    assert {cause for each in table().values() for cause in each["causes"]} <= set(SIGNATURES)


def test_names_of_vllm_are_those_of_its_own_classes() -> None:
    spec = find_spec("vllm")
    assert spec is not None
    assert missing("vllm", Path(str(spec.origin)).parents[1]) == []


def test_the_check_finds_a_name_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = find_spec("vllm")
    assert spec is not None
    monkeypatch.setitem(setting_names.table()["vllm"]["causes"], "raw_logprobs", [{"name": "logprob_mode"}])
    assert missing("vllm", Path(str(spec.origin)).parents[1]) == ["logprob_mode"]


def test_its_own_setting_with_the_value_that_was_recorded() -> None:
    found = named(
        "truncated_support",
        framework="verl",
        actor_rollout_ref__rollout__top_p=0.9,
        actor_rollout_ref__rollout__top_k=-1,
    )
    assert found == [("verl", "actor_rollout_ref.rollout.top_p=1.0", [0.9], "")]


def test_a_setting_that_stands_already_is_no_remedy() -> None:
    assert named("temperature_mismatch", framework="trl", temperature=1.0, engine=None) == []


LIMIT = "trainer.fully_async.max_staleness_steps"


@pytest.mark.parametrize(
    ("now", "bound", "value"),
    [(None, None, 1), (None, 7, 7), (None, 0, 1), (8, 7, 7), (7, 7, None), (3, 7, None), (3, None, 1), (1, None, None)],
)
def test_a_limit_on_the_lag_is_the_safe_one_where_that_is_known(
    now: int | None, bound: int | None, value: int | None
) -> None:
    recorded = {} if now is None else {LIMIT.replace(".", "__"): now}
    found = named("staleness", framework="skyrl", engine=None, bound=bound, **recorded)
    assert [copy for _, copy, _, _ in found] == ([] if value is None else [f"{LIMIT}={value}"])


def test_what_is_not_recorded_is_not_known() -> None:
    assert named("temperature_mismatch", framework="trl", engine=None) == [("TRL", "temperature=1.0", None, "")]


def test_half_of_a_value_that_is_known_and_words_for_one_that_is_not() -> None:
    assert next(s for s in named("late_growth", framework="skyrl", engine=None, trainer__policy__optimizer_config__lr=2e-6) if "lr=" in s[1])[1:3] == (
        "trainer.policy.optimizer_config.lr=1e-06", [2e-6])  # fmt: skip
    assert [s for s in named("late_growth", framework="verl", engine=None) if s[1].endswith("optim.lr")] == [
        ("verl", "actor_rollout_ref.actor.optim.lr", None, "0.5 × its value")
    ]


def test_value_of_another_setting() -> None:
    found = named(
        "staleness",
        framework="trl",
        engine=None,
        steps_per_generation=8,
        gradient_accumulation_steps=4,
        num_iterations=1,
    )
    assert found == [("TRL", "steps_per_generation=4", [8], "one optimizer step per generation")]
    assert named("staleness", framework="trl", engine=None, num_iterations=1)[0][1:] == (
        "steps_per_generation", None, "one optimizer step per generation")  # fmt: skip


def test_corrections_are_named_only_where_one_is_advised() -> None:
    plain, corrected = (
        named("staleness", framework="skyrl", engine=None, advised=advised) for advised in (False, True)
    )
    assert [each for each in corrected if each not in plain] == [
        ("SkyRL", "trainer.algorithm.off_policy_correction.tis_ratio_type=token", None, "")
    ]


@pytest.mark.parametrize(
    ("framework", "form"),
    [
        ("verl", "+actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_dtype=auto"),
        ("ms-swift", '--vllm_engine_kwargs \'{"kv_cache_dtype": "auto"}\''),
        ("pipelinerl", "++vllm_config.vllm_kwargs.kv-cache-dtype=auto"),
        ("skyrl", "generator.inference_engine.engine_init_kwargs.kv_cache_dtype=auto"),
        ("trl", "--kv-cache-dtype auto"),
        ("somebody's own loop", "--kv-cache-dtype auto"),
    ],
)
def test_vllms_argument_where_the_framework_has_none(framework: str, form: str) -> None:
    """Also where its own setting is as it should be, and the cause is another one's."""
    own = table().get(framework, {})
    title = own["title"] if own.get("engine") else "vLLM"
    assert named("quantized_rollout", framework=framework) == [(title, form, ["fp8"], "")]


def test_nothing_is_named_where_nothing_is_known() -> None:
    assert named("quantized_rollout", engine=None) == []
    assert named("misaligned_tokens", framework="verl") == []
    assert named("raw_logprobs", framework="slime", engine=None) == []
    assert named("low_precision", framework="pipelinerl") == []


def test_switches_of_command_lines() -> None:
    assert named("stale_prefix_cache")[0][1] == "--no-enable-prefix-caching"
    assert named("replay_off")[0][1] == "--enable-return-routed-experts"
    assert named("replay_off", framework="slime", engine=None)[0][1] == "--use-rollout-routing-replay"


def test_what_is_normal_needs_no_setting() -> None:
    findings = [
        {"cause": "quantized_rollout", "urgency": urgency, "settings": [], "evidence": {}}
        for urgency in ("informational", "act")
    ]
    document: Any = {"correction": {"advice": "do_not_enable", "why": ""}, "findings": findings}
    found = with_settings(document, Setup((ENGINE,)))
    assert found["framework"] == "vLLM"
    assert [len(finding["settings"]) for finding in found["findings"]] == [0, 1]
