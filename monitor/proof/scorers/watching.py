"""Outputs of a network's modules, recorded by hooks, for the trainer, the reference or a vLLM engine.

Hidden states are the outputs of the embedding and of each layer. Operations are all outputs of modules, matched by
common names. The engine's fused products are compared with their constituent products.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import torch
from torch import Tensor
from torch.nn.modules import module as hooks

_PLACE: Final = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)(?:\.(.+))?$")
_EMBEDDING: Final = re.compile(r"(?:^|\.)(?:embed_tokens|wte|word_embeddings|embed_in)$")
_LAST: Final = re.compile(r"(?:^|\.)(?:norm|ln_f|final_layernorm)$")
_PRODUCT: Final = re.compile(r"(?:proj|dense|fc\d?)$")
# Modules of one name that compute the same in each implementation; an activation or a router does not.
_OPERATION: Final = re.compile(r"(?:proj|dense|fc\d?|norm|ln_\d|attn|attention|mlp)$")
_FUSED: Final = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
Outputs = dict[str, Tensor]  # by name, in the order in which they were computed: [tokens, width]


class Watch:
    """Recorder of module outputs from `__enter__` to `__exit__`.

    Args:
        operations: true to record all outputs and inputs of matrix products, else hidden states only.
        every: true to record all calls of a module, as in a decoding engine, else only the first.
    """

    def __init__(self, *, operations: bool = False, every: bool = False) -> None:
        self._operations, self._every = operations, every
        self._names: dict[int, str] = {}
        self._found: dict[str, list[Tensor]] = {}
        self._tokens: int | None = None  # of the call

    def __enter__(self) -> Self:
        """Start recording."""
        before, after = hooks.register_module_forward_pre_hook, hooks.register_module_forward_hook
        self._handles = [before(self._before), after(self._after)]
        return self

    def __exit__(self, *_: object) -> None:
        """Stop recording."""
        for handle in self._handles:
            handle.remove()

    @property
    def outputs(self) -> Outputs:
        """Recorded outputs."""
        return {
            key: torch.cat(calls) for key, calls in self._found.items() if len({call.shape[1] for call in calls}) == 1
        }

    def _before(self, module: Any, _: Any) -> None:
        if id(module) not in self._names:  # a network that runs for the first time: it names all of its parts
            self._names.update({id(part): name for name, part in module.named_modules()})

    def _after(self, module: Any, given: Any, output: Any) -> None:
        name = self._names.get(id(module), "")
        for key, values in self._named(name, given, output):
            if isinstance(values, Tensor) and values.dim() > 1 and (self._every or key not in self._found):
                self._found.setdefault(key, []).append(self._by_token(values))

    def _named(self, name: str, given: Any, output: Any) -> Iterator[tuple[str, Any]]:
        first = output[0] if isinstance(output, tuple) else output
        place = _PLACE.search(name)
        if _EMBEDDING.search(name):
            self._tokens = first.numel() // first.shape[-1]
            yield "embedding", first
        elif place and place[2] is None and not self._operations:
            yield f"layer {place[1]}", _stream(output)
        elif place and place[2] is not None and self._operations and _OPERATION.search(name):
            key = f"layer {place[1]} {place[2]}"
            if given and _PRODUCT.search(key):
                yield f"what {key} is given", given[0]
            yield key, first
        elif _LAST.search(name) and self._operations:
            yield "last norm", first

    def _by_token(self, values: Tensor) -> Tensor:
        """Return a copy [tokens, width], since engines add in place."""
        rows = self._tokens if self._tokens and values.numel() % self._tokens == 0 else values.shape[:-1].numel()
        return values.detach().reshape(rows, -1).cpu().clone()


def _stream(output: Any) -> Any:
    """Return the hidden states after a layer. In vLLM, the next norm computes a layer's last sum."""
    if isinstance(output, tuple) and len(output) > 1 and isinstance(output[1], Tensor):
        hidden, residual = output[:2]
        return hidden + residual if hidden.shape == residual.shape else hidden
    return output[0] if isinstance(output, tuple) else output


def errors(ours: Outputs, theirs: Outputs) -> Iterator[tuple[str, tuple[float, float]]]:
    """Yield the squared norms of the difference and of `ours` by name, over the common tokens."""
    for name, right, other in _common(ours, theirs):
        yield name, (float(((other - right) ** 2).sum()), float((right**2).sum()))


@dataclass(frozen=True, slots=True)
class Break:
    """First operation in which two networks differ. `operation` is None if all common ones are bit-identical.

    Attributes:
        operation: first differing operation, in the order of the first network, or None.
        token: first position in prompt and response with a difference.
        after: last operation before it, which is equal, or None.
        equal: number of equal operations before it.
    """

    operation: str | None
    token: int | None
    after: str | None
    equal: int


def first_break(ours: Outputs, theirs: Outputs) -> Break:
    """Return the first operation that differs in a bit. Raises `ValueError` without an operation of common name and
    width.
    """
    after, equal = None, 0
    for name, right, other in _common(_fused(ours, theirs), _fused(theirs, ours)):
        unequal = ((right != other) & ~(right.isnan() & other.isnan())).any(dim=1)
        if unequal.any():
            return Break(name, int(unequal.nonzero()[0]), after, equal)
        after, equal = name, equal + 1
    if after is None:
        raise ValueError("no operation has a name and a width that both sides give it")
    return Break(None, None, after, equal)


def _fused(parts: Outputs, others: Mapping[str, Tensor]) -> Outputs:
    """Add the products that only `others` fuses, at the place of the last part."""
    made: dict[str, tuple[str, Tensor]] = {}
    for name in others:
        stem, _, last = name.rpartition(".")
        of = [f"{stem}.{part}" for part in _FUSED.get(last, ())]
        if of and name not in parts and all(part in parts for part in of):
            made[of[-1]] = (name, torch.cat([parts[part] for part in of], dim=1))
    outputs: Outputs = {}
    for name, values in parts.items():
        outputs[name] = values
        if name in made:
            outputs[made[name][0]] = made[name][1]
    return outputs


def _common(ours: Outputs, theirs: Outputs) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield the common outputs in the order of `ours`, in double precision."""
    begin = None
    for name in ours:
        if name not in theirs or theirs[name].shape[1] != ours[name].shape[1]:
            continue
        right, other = ours[name].double(), theirs[name].double()
        begin = _begin(right, other) if begin is None else begin
        tokens = min(len(right), len(other) - begin)
        yield name, right[:tokens], other[begin : begin + tokens]


def _begin(right: Tensor, other: Tensor) -> int:
    """Return the number of extra leading tokens of the other network, such as padding or a BOS."""
    longer = len(other) - len(right)
    if longer <= 0:
        return 0
    return min(range(longer + 1), key=lambda at: float(((other[at : at + len(right)] - right) ** 2).sum()))
