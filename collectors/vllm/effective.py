"""Effective settings of an engine, chosen by platform, model and hardware after its configuration was written.

`effective` inspects a worker that is ready to run. `arguments` returns the settings from the user. vLLM keeps no record
of them. The front-end's `EngineArgs` are therefore compared with their defaults when a configuration is created, and
the configuration carries the result.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, Final

Hook = Callable[..., Any]
_ATTRIBUTE: Final = "logprobe_arguments"  # of a `VllmConfig`: survives pickling, and is no field of it
_PLAIN: Final = (bool, int, float, str)


def effective(worker: Any, vllm_config: Any) -> dict[str, str | None]:
    """Return the choices as a JSON-ready document, null for unknown ones. Several values are joined alphabetically."""
    layers = list(getattr(vllm_config.compilation_config, "static_forward_context", {}).values())
    model = worker.get_model()
    modules = list(model.modules())
    return {
        "attention_backend": _all(_backend(layer) for layer in layers),
        "kv_cache_dtype": _all(getattr(layer, "kv_cache_torch_dtype", None) for layer in layers),
        "weight_dtypes": _all(weight.dtype for weight in model.parameters() if weight.is_floating_point()),
        "head_dtype": _head_dtype(model),
        "kernels": _all(_name(getattr(module, "quant_method", None)) for module in modules),
        "compilation_mode": _text(getattr(vllm_config.compilation_config, "mode", None)),
        "cudagraph_mode": _text(getattr(vllm_config.compilation_config, "cudagraph_mode", None)),
        "model_runner": _name(getattr(worker, "model_runner", None)),
        "device": _device(worker),
    }


def _backend(layer: Any) -> str | None:
    backend = getattr(layer, "attn_backend", None)
    name = getattr(backend, "get_name", None)
    return str(name()) if callable(name) else None


def _head_dtype(model: Any) -> str | None:
    head = getattr(model, "lm_head", None)
    weight = getattr(head, "weight", None)
    chosen = getattr(getattr(model, "logits_processor", None), "head_dtype", None)
    return _text(chosen if chosen is not None else getattr(weight, "dtype", None))


def _device(worker: Any) -> str | None:
    """Return the kind of processor, or the product name of an accelerator."""
    device = getattr(worker, "device", None)
    kind = getattr(device, "type", None)
    if kind not in {"cuda", "xpu"}:
        return None if kind is None else str(kind)
    from importlib import import_module  # noqa: PLC0415

    return str(getattr(import_module("torch"), kind).get_device_name(device))


def _name(value: Any) -> str | None:
    return None if value is None else type(value).__name__


def _text(value: Any) -> str | None:
    return None if value is None else str(getattr(value, "name", value)).removeprefix("torch.").lower()


def _all(values: Iterable[Any]) -> str | None:
    texts = {value if isinstance(value, str) else _text(value) for value in values if value is not None}
    return ", ".join(sorted(text for text in texts if text)) or None


# --- What somebody set ---


def keep_arguments(original: Hook) -> Hook:
    """Return `EngineArgs.create_engine_config` with a record of the given settings."""

    def create_engine_config(arguments: Any, *args: Any, **kwargs: Any) -> Any:
        changed = _changed(arguments)
        config = original(arguments, *args, **kwargs)
        if changed is not None:
            object.__setattr__(config, _ATTRIBUTE, changed)
        return config

    return create_engine_config


def arguments(vllm_config: Any) -> dict[str, object] | None:
    """Return the arguments that differ from their default, or None if unknown.

    They are unknown for an engine that was not made from arguments, and in a process without the plugin.
    """
    kept = getattr(vllm_config, _ATTRIBUTE, None)
    return kept if isinstance(kept, dict) else None


def _changed(given: Any) -> dict[str, object] | None:
    if not dataclasses.is_dataclass(given):
        return None
    changed = {}
    for field in dataclasses.fields(given):
        value = getattr(given, field.name, None)
        made = field.default_factory
        default = made() if callable(made) else field.default
        if value is not default and bool(type(value) is not type(default) or value != default):
            changed[field.name] = _as_set(value)
    return changed


def _as_set(value: Any) -> Any:
    """Return a value that can be set again: JSON stays JSON, while other objects become a descriptive text."""
    if value is None or type(value) in _PLAIN:
        return value
    if isinstance(value, dict):
        return {str(key): _as_set(item) for key, item in value.items()}
    return [_as_set(item) for item in value] if isinstance(value, list | tuple) else _text(value)
