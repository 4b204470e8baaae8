"""Fingerprint of weights: a hash of a few values of every tensor, by which two processes compare weights.

    fingerprint(model.state_dict())                     # at the trainer, for weights.mark(version, fingerprint=…)

The fingerprint samples `VALUES` evenly spaced values of each floating-point tensor. Their positions depend only on the
tensor's name and shape. Names and shapes are those of the Hugging Face checkpoint. A trainer and an engine that fuses
q, k and v therefore sample the same values. Each hash covers the values in one dtype. An engine has one hash per
tensor, in its compute dtype. A trainer has one for each dtype to which an engine may round its weights. Only hashes
with equal keys (name, dtype, shape) are compared. An engine in float32 may receive weights that were rounded on the
way. A trainer therefore has a hash of the rounded values in float32, too.

Different hashes prove different weights. Equal hashes prove that the sampled values are equal.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from logprobe.collectors.recorder import arrays, torch_bridge

Floats = NDArray[np.float32]
Bits = NDArray[np.uint32]

VALUES: Final = 64  # of a tensor
FEWEST: Final = 8  # of a smaller one nothing is taken: scales of quantised caches are no weights
DTYPES: Final = ("float32", "bfloat16", "float16")
LOW_DTYPES: Final = DTYPES[1:]
_WRAPPERS: Final = ("module.", "_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
_LOW: Final = 0x7FFF
_QUIET_NAN: Final = 0x7FC0
# Odd, so that no changed value is multiplied away.
_FACTORS: Final = np.random.default_rng(20).integers(0, 1 << 63, VALUES, dtype=np.uint64) * np.uint64(2) + np.uint64(1)


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Hashes of tensors. `keys` identify the tensors (name, dtype, shape), and `hashes` [keys] are uint32.

    `values`: sampled values of a trainer's weights [tensors, VALUES], NaN past the end of a small tensor. They are not
    recorded. `rounding` compares them with those of the next version.
    """

    keys: tuple[str, ...]
    hashes: Bits
    values: Floats | None = field(default=None, repr=False, compare=False)

    @property
    def digest(self) -> str:
        """Digest of the whole fingerprint, as 16 hex digits."""
        content = "\n".join(self.keys).encode() + self.hashes.astype("<u4").tobytes()
        return hashlib.sha256(content).hexdigest()[:16]

    def document(self) -> dict[str, object]:
        """Return the sampled values as a configuration document."""
        return {"values": VALUES, "tensors": list(self.keys)}


def fingerprint(state: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> Fingerprint:
    """Return the fingerprint of a trainer's weights, in every dtype that an engine may use for them.

    For tensors on an accelerator, the call copies the sampled values to the host and waits milliseconds for them.

    Args:
        state: name → tensor or array, as ``model.state_dict()`` or ``model.named_parameters()``, with names of the
            checkpoint. Tensors that cannot be sampled are omitted: integers, tensors sharded over ranks (DTensor),
            tensors on no device, and non-contiguous ones.
    """
    pairs = state.items() if isinstance(state, Mapping) else state
    whole = {own_name(name): tensor for name, tensor in pairs if _can_be_sampled(tensor)}
    values = values_of([(tensor, *places(name, tensor.shape)) for name, tensor in whole.items()])
    names = [key(name, dtype, whole[name].shape) for dtype in DTYPES for name in whole]
    names += [on_the_way(key(name, "float32", whole[name].shape), dtype) for dtype in LOW_DTYPES for name in whole]
    found = [hashes(rounded(values, dtype)) for dtype in DTYPES]
    found += [hashes(rounded(widened(values, dtype), "float32")) for dtype in LOW_DTYPES]
    counts = np.array([places(name, tensor.shape)[2] for name, tensor in whole.items()], np.int64)
    sampled = np.where(np.arange(VALUES) < counts[:, None], values, np.float32(np.nan))
    return Fingerprint(tuple(names), np.concatenate(found), sampled)


def on_the_way(of: str, dtype: str) -> str:
    """Return the key of a tensor's float32 values after they were rounded to `dtype`.

    >>> on_the_way("model.norm.weight float32[64]", "bfloat16")
    'model.norm.weight float32[64] of bfloat16'
    """
    return f"{of} of {dtype}"


def rounding(now: Fingerprint, before: Fingerprint | None) -> dict[str, int]:
    """Count the sampled elements of a trainer's weights by the effect of rounding them to an engine's dtype.

    Returns:
        "sampled": all elements; "exact DTYPE": those that DTYPE holds; and with a version `before` of the same tensors
        "changed": those that differ from it; "changed DTYPE": those that differ from it after rounding.
    """
    values = now.values
    if values is None:
        return {}
    known = ~np.isnan(values)
    told = {"sampled": int(known.sum())}
    for dtype in LOW_DTYPES:
        told[f"exact {dtype}"] = int((widened(values, dtype) == values)[known].sum())
    if before is not None and before.values is not None and before.keys == now.keys:
        told["changed"] = int((values != before.values)[known].sum())
        for dtype in LOW_DTYPES:
            told[f"changed {dtype}"] = int((rounded(values, dtype) != rounded(before.values, dtype))[known].sum())
    return told


def own_name(name: str) -> str:
    """Return a parameter's name without the parts that wrappers add.

    >>> own_name("module._orig_mod.model.norm.weight")
    'model.norm.weight'
    """
    for wrapper in _WRAPPERS:
        name = name.removeprefix(wrapper) if wrapper == "module." else name.replace(wrapper, "")
    return name


def key(name: str, dtype: str, shape: Sequence[int]) -> str:
    """Return the key that two comparable hashes share.

    >>> key("model.norm.weight", "bfloat16", (64,))
    'model.norm.weight bfloat16[64]'
    """
    return f"{name} {dtype}[{','.join(str(int(size)) for size in shape)}]"


def places(name: str, shape: Sequence[int]) -> tuple[int, int, int]:
    """Return a tensor's first sampled position, the distance to the next, and the count, in row-major order.

    >>> places("model.norm.weight", (64,)), places("lm_head.weight", (512, 64))
    ((0, 1, 64), (90, 511, 64))
    """
    size = int(np.prod([int(length) for length in shape], dtype=np.int64))
    count = min(VALUES, size)
    step = max(1, size // max(count, 1))
    step -= step > 1 and step % 2 == 0  # odd: an even step through rows of even length would stay in few columns
    return zlib.crc32(name.encode()) % (size - step * (count - 1)), step, count


def values_of(wanted: Sequence[tuple[Any, int, int, int]]) -> Floats:
    """Return values [tensors, VALUES] of tensors or arrays, padded with zeros.

    Each tensor comes with a first position, a step and a count.
    """
    sampled = np.zeros((len(wanted), VALUES), np.float32)
    on_device = [index for index, (tensor, *_) in enumerate(wanted) if torch_bridge.on_device(tensor)]
    for index, (tensor, start, step, count) in enumerate(wanted):
        if not torch_bridge.on_device(tensor):
            array = tensor if isinstance(tensor, np.ndarray) else torch_bridge.view(tensor)
            taken = array.reshape(-1)[start : start + step * (count - 1) + 1 : step]
            sampled[index, :count] = arrays.to_float32("weights", taken)
    if on_device:
        joined = sampled_together([wanted[index] for index in on_device]).cpu()
        place(sampled, on_device, [wanted[index][3] for index in on_device], torch_bridge.view(joined))
    return sampled


def sampled_together(wanted: Sequence[tuple[Any, int, int, int]]) -> Any:
    """Return the selected values of tensors on a device in one new float32 tensor there, without synchronising."""
    return torch_bridge.joined([_strided(*piece) for piece in wanted])


def place(sampled: Floats, rows: Sequence[int], counts: Sequence[int], values: NDArray[Any]) -> None:
    """Write consecutive values into their rows."""
    start = 0
    for row, count in zip(rows, counts, strict=True):
        sampled[row, :count] = values[start : start + count]
        start += count


def _strided(tensor: Any, start: int, step: int, count: int) -> Any:
    return tensor.detach().as_strided((count,), (step,), tensor.storage_offset() + start)


def rounded(values: Floats, dtype: str) -> Bits:
    """Return the bits of float32 values rounded to `dtype`, to nearest, ties to even."""
    if dtype == "float32":
        return values.view(np.uint32)
    if dtype == "float16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16).view(np.uint16).astype(np.uint32)
    bits = values.view(np.uint32)
    short: Bits = ((bits + np.uint32(_LOW) + ((bits >> 16) & np.uint32(1))) >> 16).astype(np.uint32)
    short[np.isnan(values)] = _QUIET_NAN
    return short


def widened(values: Floats, dtype: str) -> Floats:
    """Return float32 values that were rounded to a `dtype` of 16 bits."""
    bits = rounded(values, dtype)
    if dtype == "float16":
        return bits.astype(np.uint16).view(np.float16).astype(np.float32)
    wide: Floats = (bits << np.uint32(16)).view(np.float32)
    return wide


def hashes(bits: Bits) -> Bits:
    """Return one hash per row [tensors, VALUES]."""
    mixed: NDArray[np.uint64] = (bits.astype(np.uint64) * _FACTORS).sum(axis=1, dtype=np.uint64)
    hashed: Bits = (mixed >> np.uint64(32)).astype(np.uint32)
    return hashed


def _can_be_sampled(tensor: Any) -> bool:
    if isinstance(tensor, np.ndarray):
        return bool(tensor.dtype.kind == "f" and tensor.flags.c_contiguous and tensor.size >= FEWEST)
    return torch_bridge.is_tensor(tensor) and not hasattr(tensor, "to_local") and sampleable(tensor)


def sampleable(tensor: Any) -> bool:
    """Return whether values of a tensor can be read without a copy of the whole tensor."""
    supported = str(tensor.dtype) in {f"torch.{name}" for name in (*DTYPES, "float64")}
    return supported and not tensor.is_meta and tensor.numel() >= FEWEST and bool(tensor.is_contiguous())
