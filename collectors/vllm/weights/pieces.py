"""Parameters of an engine as the tensors of their checkpoint, as far as they can be identified.

vLLM fuses some tensors (q, k and v, or gate and up), pads vocabularies, and wraps layers for LoRA. This module treats
rows of a fused parameter as separate tensors under the checkpoint's names. A parameter packed for a kernel has another
shape or dtype and therefore another key. It is compared with other engines, but never with a trainer.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from logprobe.collectors.fingerprint import key, places, sampleable


@dataclass(frozen=True)
class Piece:
    """Rows of a parameter as one tensor of the checkpoint, with the positions of its values within the parameter."""

    key: str
    owner: weakref.ref[Any]  # the module: a weak one, so that nothing of ours keeps weights in memory
    attribute: str
    shape: tuple[int, ...]  # of the parameter
    dtype: str
    start: int
    step: int
    count: int

    def tensor(self) -> Any | None:
        """Return the current parameter, or None if its shape or dtype has changed."""
        module = self.owner()
        tensor = None if module is None else module._parameters.get(self.attribute)  # noqa: SLF001 - else a search
        if tensor is None or tuple(tensor.shape) != self.shape or str(tensor.dtype) != self.dtype:
            return None
        return tensor if sampleable(tensor) else None


def pieces(model: Any) -> list[Piece]:
    """Return all tensors of a model that can be sampled. A tensor shared by two layers is returned once."""
    fused = _fused(model)
    parts: list[Piece] = []
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        for attribute, tensor in module._parameters.items():  # noqa: SLF001
            if tensor is not None and id(tensor) not in seen and sampleable(tensor) and not _moves(module):
                seen.add(id(tensor))
                parts += _of(prefix, module, attribute, tensor, fused)
    return parts


def _of(prefix: str, module: Any, attribute: str, tensor: Any, fused: Mapping[str, Sequence[str]]) -> Iterator[Piece]:
    dtype = str(tensor.dtype).removeprefix("torch.")
    columns = tensor.numel() // tensor.shape[0]
    for name, first, rows in _named_rows(prefix, module, tensor, fused):
        full = f"{name}.{attribute}{_experts_of(module)}"
        shape = (rows, *tensor.shape[1:])
        start, step, count = places(full, shape)
        owner = weakref.ref(module)
        place = first * columns + start
        yield Piece(
            key(full, dtype, shape), owner, attribute, tuple(tensor.shape), str(tensor.dtype), place, step, count
        )


def _named_rows(
    prefix: str, module: Any, tensor: Any, fused: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, int, int]]:
    """Yield the names of the checkpoint's modules in a parameter, each with its first row and its number of rows."""
    prefix = prefix.removesuffix(".base_layer")
    parent, _, own = prefix.rpartition(".")
    names, sizes = fused.get(own, ()), getattr(module, "output_partition_sizes", None) or ()
    rows = int(tensor.shape[0])
    if len(names) > 1 and len(names) == len(sizes) and sum(sizes) == rows:
        first = 0
        for name, size in zip(names, sizes, strict=True):
            yield f"{parent}.{name}" if parent else name, first, size
            first += size
        return
    vocabulary = getattr(module, "org_vocab_size", None)
    padded = vocabulary is not None and getattr(module, "tp_size", 1) == 1 and vocabulary < rows
    yield prefix, 0, int(vocabulary) if padded and vocabulary else rows


def _fused(model: Any) -> dict[str, Sequence[str]]:
    fused: dict[str, Sequence[str]] = {}
    for module in model.modules():
        mapping = getattr(module, "packed_modules_mapping", None)
        if isinstance(mapping, Mapping):
            fused.update(mapping)
    return fused


def _experts_of(module: Any) -> str:
    """Return the suffix of this rank's experts, or "" if experts are not spread over ranks.

    Other ranks have other experts under the same name.
    """
    config = getattr(module, "moe_parallel_config", module)
    size = getattr(config, "ep_size", 1)
    return f"@ep{getattr(config, 'ep_rank', 0)}/{size}" if isinstance(size, int) and size > 1 else ""


def _moves(module: Any) -> bool:
    """Return whether vLLM itself moves the weights of a layer, for expert-parallel load balancing."""
    return bool(getattr(module, "enable_eplb", False))
