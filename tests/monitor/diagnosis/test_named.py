"""What remedies are called: names that exist, values as recorded, and nothing where nothing is known."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from setting_names import missing

from logprobe.monitor.judging.named import particulars, settings_of, table, with_settings
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


SKYRL = {"framework": "skyrl", "engine": None}
TRL = {"framework": "trl", "engine": None}
RATE = "trainer.policy.optimizer_config.lr"
LIMIT = "trainer.fully_async.max_staleness_steps"


@pytest.mark.parametrize(
    ("cause", "known", "expected"),
    [
        ("truncated_support",
         {"framework": "verl", "actor_rollout_ref__rollout__top_p": 0.9, "actor_rollout_ref__rollout__top_k": -1},
         [("verl", "actor_rollout_ref.rollout.top_p=1.0", [0.9], "")]),
        ("temperature_mismatch", TRL | {"temperature": 1.0}, []),  # stands already
        ("temperature_mismatch", TRL, [("TRL", "temperature=1.0", None, "")]),  # not recorded is not known
        ("staleness", TRL | {"steps_per_generation": 8, "gradient_accumulation_steps": 4, "num_iterations": 1},
         [("TRL", "steps_per_generation=4", [8], "one optimizer step per generation")]),  # the value of another setting
        ("quantized_rollout", {"engine": None}, []),
        ("misaligned_tokens", {"framework": "verl"}, []),
        ("raw_logprobs", {"framework": "slime", "engine": None}, []),
        ("low_precision", {"framework": "pipelinerl"}, []),
        # vLLM's argument, in the form of each framework that has no setting of its own for it
        *(("quantized_rollout", {"framework": framework}, [(title, form, ["fp8"], "")])
          for framework, title, form in (
              ("verl", "verl", "+actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_dtype=auto"),
              ("ms-swift", "ms-swift", '--vllm_engine_kwargs \'{"kv_cache_dtype": "auto"}\''),
              ("pipelinerl", "PipelineRL", "++vllm_config.vllm_kwargs.kv-cache-dtype=auto"),
              ("skyrl", "SkyRL", "generator.inference_engine.engine_init_kwargs.kv_cache_dtype=auto"),
              ("trl", "vLLM", "--kv-cache-dtype auto"),
              ("somebody's own loop", "vLLM", "--kv-cache-dtype auto"))),
    ],
)  # fmt: skip
def test_settings_of_a_cause(cause: str, known: dict[str, Any], expected: list[tuple[Any, ...]]) -> None:
    assert named(cause, **known) == expected


@pytest.mark.parametrize(
    ("cause", "known", "one"),
    [
        ("late_growth", SKYRL | {RATE.replace(".", "__"): 2e-6}, (f"{RATE}=1e-06", [2e-6], "")),
        ("late_growth", {"framework": "verl", "engine": None},
         ("actor_rollout_ref.actor.optim.lr", None, "0.5 × its value")),
        ("staleness", TRL | {"num_iterations": 1}, ("steps_per_generation", None, "one optimizer step per generation")),
        ("staleness", SKYRL | {"advised": True},
         ("trainer.algorithm.off_policy_correction.tis_ratio_type=token", None, "")),
        ("stale_prefix_cache", {}, ("--no-enable-prefix-caching", [True], "")),
        ("replay_off", {}, ("--enable-return-routed-experts", None, "")),
        ("replay_off", {"framework": "slime", "engine": None}, ("--use-rollout-routing-replay", None, "")),
    ],
)  # fmt: skip
def test_a_setting_among_others(cause: str, known: dict[str, Any], one: tuple[Any, ...]) -> None:
    assert one in [each[1:] for each in named(cause, **known)]


def test_a_correction_is_named_only_where_one_is_advised() -> None:
    assert not [each for each in named("staleness", **SKYRL) if "correction" in each[1]]


@pytest.mark.parametrize(
    ("now", "bound", "value"),
    [(None, None, 1), (None, 7, 7), (None, 0, 1), (8, 7, 7), (7, 7, None), (3, 7, None), (3, None, 1), (1, None, None)],
)
def test_a_limit_on_the_lag_is_the_safe_one_where_that_is_known(
    now: int | None, bound: int | None, value: int | None
) -> None:
    recorded = {} if now is None else {LIMIT.replace(".", "__"): now}
    found = named("staleness", bound=bound, **SKYRL, **recorded)
    assert [copy for _, copy, _, _ in found] == ([] if value is None else [f"{LIMIT}={value}"])


def test_what_is_normal_needs_no_setting() -> None:
    findings = [
        {"cause": "quantized_rollout", "urgency": urgency, "settings": [], "evidence": {}}
        for urgency in ("informational", "act")
    ]
    document: Any = {"correction": {"advice": "do_not_enable", "why": ""}, "findings": findings}
    found = with_settings(document, Setup((ENGINE,)))
    assert found["framework"] == "vLLM"
    assert [len(finding["settings"]) for finding in found["findings"]] == [0, 1]


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        (None, "not recorded"),
        ([0.7, 0.8, 0.9], "0.7, 0.8, 0.9"),
        ([0.7, 0.8, 0.9, 1.0], "0.7, 0.8, 0.9 and 1 more"),
    ],
)
def test_three_values_of_a_setting_are_shown_and_how_many_more_there_are(values: Any, shown: str) -> None:
    setting: Any = {"where": "", "now": values, "words": ""}
    assert particulars(setting) == (f"now {shown}",)
