"""An 8-bit KV cache in software, for CPUs on which vLLM has none (its kernels need AVX-512 or AMX).

Keys and values are rounded to float8 (e4m3, scale 1, which are vLLM's defaults) as they are written and kept as wider floats, so the
engine attends to the very numbers that an 8-bit cache would give back. Everything else, the configuration included, is vLLM's own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class _Kernels:
    """vLLM's CPU kernels, around a cache of wider floats."""

    def __init__(self, kernels: Any) -> None:
        self._kernels = kernels

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernels, name)

    def cpu_attn_reshape_and_cache(self, key: Tensor, value: Tensor, *places: Any, **more: Any) -> None:
        quantized = more.pop("kv_cache_dtype", "auto").startswith("fp8")
        written = (_rounded(key), _rounded(value)) if quantized else (key, value)
        self._kernels.cpu_attn_reshape_and_cache(*written, *places, **more)

    def cpu_attention_with_kv_cache(self, **more: Any) -> None:
        self._kernels.cpu_attention_with_kv_cache(**{**more, "kv_cache_dtype": "auto"})

    def cpu_attn_get_scheduler_metadata(self, **more: Any) -> Any:
        return self._kernels.cpu_attn_get_scheduler_metadata(**{**more, "kv_cache_dtype": "auto"})


def provide() -> None:
    """Makes ``kv_cache_dtype="fp8"`` work in engines that are built in this process; does nothing where it already does."""
    from vllm.model_executor.layers.attention import attention
    from vllm.v1.attention.backends import cpu_attn

    native = torch.cpu._is_avx512_supported() or torch.cpu._is_amx_tile_supported()  # noqa: SLF001 - as vLLM asks
    if native or isinstance(cpu_attn.ops, _Kernels):
        return
    cpu_attn.ops = _Kernels(cpu_attn.ops)
    cpu_attn.is_quantized_kv_cache = lambda _dtype: False
    attention.kv_cache_dtype_str_to_dtype = lambda _dtype, model_config: model_config.dtype


def _rounded(tensor: Tensor) -> Tensor:
    largest = torch.finfo(torch.float8_e4m3fn).max
    return tensor.clamp(-largest, largest).to(torch.float8_e4m3fn).to(tensor.dtype)
