"""Settings for `logprobe bisect` to try. Pure data.

Names of engine settings are vLLM's argument names. Names of trainer settings have the prefix ``trainer.``.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from logprobe.collectors.errors import ConfigurationError

Side = Literal["engine", "engine_state", "trainer"]
Hardware = Literal["any", "cuda"]


@dataclass(frozen=True, slots=True, eq=False)
class Knob:
    """One setting.

    Attributes:
        name: name in vLLM or in the trainer's function.
        side: side of the setting.
        safe: description of the value at which parity is expected.
        cause: cause of the diagnosis that the knob proves, or None.
        untested: open questions of an arm, as a text after "not tested:".
        engine: fields of vLLM's `EngineArgs` for the safe value.
        environment: variables of the engine's process.
        sampling: sampling params with their neutral values.
        trainer: keyword argument of the trainer's function with its safe value.
        faulty: values that may reproduce a recorded t on top of the reference.
        hardware: hardware with the setting.
    """

    name: str
    side: Side
    safe: str
    cause: str | None
    untested: str
    engine: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)
    trainer: Mapping[str, Any] = field(default_factory=dict)
    faulty: tuple[Any, ...] = ()
    hardware: Hardware = "any"


def _engine(name: str, value: Any, cause: str | None, untested: str, hardware: Hardware = "any") -> Knob:
    return Knob(name, "engine", str(value), cause, untested, engine={name: value}, hardware=hardware)


def _sampling(name: str, neutral: float, cause: str | None) -> Knob:
    untested = f"a trainer that applies {name} too"
    return Knob(name, "engine", str(neutral), cause, untested, sampling={name: neutral})


def _trainer(name: str, safe: Any, faulty: tuple[Any, ...], cause: str | None, untested: str) -> Knob:
    return Knob(f"trainer.{name}", "trainer", str(safe), cause, untested, trainer={name: safe}, faulty=faulty)


_LONGER: Final = "longer sequences"
_BATCHES: Final = "the run's batch sizes"
_ROUTES: Final = "the routes that the run took"
_CHECKPOINTS: Final = "versions without a checkpoint here"

KNOBS: Final[tuple[Knob, ...]] = (
    _engine("logprobs_mode", "processed_logprobs", "raw_logprobs", "other temperatures"),
    _sampling("top_p", 1.0, "truncated_support"),
    _sampling("top_k", 0, "truncated_support"),
    _sampling("min_p", 0.0, "truncated_support"),
    _sampling("repetition_penalty", 1.0, None),
    _sampling("presence_penalty", 0.0, None),
    _sampling("frequency_penalty", 0.0, None),
    _engine("dtype", "float32", "low_precision", "which layer rounds, longer sequences"),
    Knob(
        "head_dtype",
        "engine",
        "float32",
        "lm_head_precision",
        _LONGER,
        engine={"hf_overrides": {"head_dtype": "float32"}},
    ),
    _engine("kv_cache_dtype", "auto", "quantized_rollout", _LONGER),
    _engine("quantization", None, "quantized_rollout", "which layer's quantization it is, longer sequences"),
    _engine("enforce_eager", True, None, "which compiled kernel it is"),
    _engine("enable_prefix_caching", False, None, "caches kept through a weight update"),
    _engine("enable_chunked_prefill", False, "batch_variance", "longer prompts"),
    _engine("async_scheduling", False, None, "the run's load"),
    _engine("max_num_seqs", 1, "batch_variance", _BATCHES),
    _engine("tensor_parallel_size", 1, "batch_variance", "other degrees"),
    _engine("enable_expert_parallel", False, "moe_routing", _ROUTES),
    _engine("disable_cascade_attn", True, "batch_variance", "longer shared prefixes", "cuda"),
    _engine("attention_backend", "FLASH_ATTN", "batch_variance", "other backends, longer sequences", "cuda"),
    _engine("moe_backend", "triton", "moe_routing", _ROUTES, "cuda"),
    Knob(
        "VLLM_BATCH_INVARIANT",
        "engine",
        "1",
        "batch_variance",
        f"which kernel varies, {_BATCHES}",
        environment={"VLLM_BATCH_INVARIANT": "1"},
        hardware="cuda",
    ),
    Knob("weights", "engine_state", "the stated version", "missed_weight_sync", _CHECKPOINTS),
    Knob("enable_prefix_caching", "engine_state", "cleared at updates", "stale_prefix_cache", _CHECKPOINTS),
    Knob("in_flight", "engine_state", "cleared or aborted at updates", "inflight_stale_kv", "updates not in the spans"),
    _trainer("dtype", "float32", ("bfloat16", "float16"), "low_precision", "which layer rounds, longer sequences"),
    _trainer("head_dtype", "float32", ("bfloat16",), "lm_head_precision", _LONGER),
    _trainer("attn_implementation", "eager", ("sdpa",), None, "other kernels"),
    _trainer("temperature", None, (1.0,), "temperature_mismatch", "other temperatures"),
    _trainer("shift", 0, (1, -1), "misaligned_tokens", "other offsets"),
    _trainer("mask_shift", 0, (1, -1), "misaligned_tokens", "other offsets"),
    _trainer("packing", False, (True,), None, "the run's own packs"),
    _trainer("dropout", 0.0, (), None, "which module drops"),
)


def chosen(names: Sequence[str] | None) -> tuple[Knob, ...]:
    """Return the knobs with these names, by default all. Raises `ConfigurationError`."""
    if names is None:
        return KNOBS
    knob_names = {knob.name for knob in KNOBS}
    for name in names:
        if name not in knob_names:
            near = difflib.get_close_matches(name, knob_names, n=3) or sorted(knob_names)
            raise ConfigurationError(f"--knobs: no knob {name!r}; did you mean {', '.join(near)}?")
    return tuple(knob for knob in KNOBS if knob.name in names)
