"""Padded form of batches that trainers hold as padded [batch, time] or as lists of 1-D arrays, of numpy or torch.

The module reads shapes only, so it never waits for a device.

Dimensions: ``_BT`` padded batch × time, ``_B1`` one value per sequence, kept broadcastable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import array_api_compat
import numpy as np

from logprobe.collectors.correction import arithmetic
from logprobe.collectors.correction.arithmetic import Array, Namespace
from logprobe.collectors.correction.config import CorrectionConfig
from logprobe.collectors.errors import InputError
from logprobe.collectors.kernel.arithmetic import sound
from logprobe.collectors.recorder.arrays import is_list, is_ragged

_PADDED: Final = 2  # dimensions of a padded batch
_LEAD: Final = "rollout_logprobs"  # whose layout and shape all other arguments must have


@dataclass(frozen=True)
class Layout:
    """Layout of a batch and of its results. `lengths`: lengths of the listed sequences, or None if padded to `time`."""

    batch: int
    time: int
    lengths: tuple[int, ...] | None

    def restore(self, values_BT: Array) -> Any:
        """Return values [batch, time] in the layout of the batch: padded, or a list of 1-D arrays."""
        if self.lengths is None:
            return values_BT[:, : self.time]
        return [values_BT[row, :length] for row, length in enumerate(self.lengths)]


@dataclass(frozen=True, eq=False)
class Tokens:
    """Batch as all parts of a correction need it, in one namespace and without a gradient.

    Arrays are [batch, time ≥ 1], advantages possibly [B, 1]. Log-probs are float64 if the input was, else float32.
    """

    xp: Namespace
    layout: Layout
    mask_dtype: Any  # of the mask as it was given
    rollout: Array
    trainer: Array
    advantages: Array | None
    mask: Array  # bool, before the correction: where the policy sampled the token and trains on it
    valid: Array  # under the mask and not broken
    usable: Array  # … and, where a product over the sequence is taken, in a sequence without a broken token
    exact: Array  # d, 0 where not valid
    d: Array  # d as the levels see it: limited to ±20 where the configuration says so

    def at(self, level: str) -> Array:
        """Return ρ of a level: [B, T] for tokens, else [B, 1]."""
        return arithmetic.exp_clamped(self.xp, arithmetic.at_level(self.xp, self.d, self.valid, level))

    def masked(self, keep_BT: Array) -> Any:
        """Return a mask in the type and layout of the caller's mask."""
        return self.layout.restore(self.xp.astype(keep_BT, self.mask_dtype))


def tokens_of(
    config: CorrectionConfig, rollout_logprobs: Any, trainer_logprobs: Any, mask: Any = None, advantages: Any = None
) -> Tokens:
    """Return the tokens of a batch as `config` needs them. The arguments are those of `correct`.

    Raises:
        InputError: shapes do not agree, or numpy arrays and torch tensors are mixed. The message names the shapes.
    """
    given = {_LEAD: _items(_LEAD, rollout_logprobs), "trainer_logprobs": _items("trainer_logprobs", trainer_logprobs)}
    lead = given[_LEAD]
    layout = _layout_of(lead)
    xp = _namespace(given, mask, advantages)
    _require("trainer_logprobs", given["trainer_logprobs"], lead)
    wide = _wide(xp, given)
    mask_items = _mask_items(xp, mask, layout, lead)
    _require("mask", mask_items, lead)
    mask_BT = _padded(xp, mask_items, layout)

    def widened(values_BT: Array) -> Array:
        return arithmetic.detached(xp.astype(values_BT, wide, copy=False))

    rollout, trainer = (widened(_padded(xp, value, layout)) for value in given.values())
    masked, good = mask_BT != 0, sound(rollout, trainer)
    valid = usable = masked & good
    if "sequence" in {config.is_level, config.rs_level}:
        usable = valid & ~arithmetic.row_any(xp, masked & ~good)
    exact = arithmetic.difference(xp, trainer, rollout, valid)
    return Tokens(
        xp=xp,
        layout=layout,
        mask_dtype=mask_BT.dtype,
        rollout=rollout,
        trainer=trainer,
        advantages=None if advantages is None else widened(_advantages(xp, advantages, layout, lead)),
        mask=masked,
        valid=valid,
        usable=usable,
        exact=exact,
        d=arithmetic.limited(exact) if config.clamp == "token" else exact,
    )


def _items(name: str, value: Any) -> Any:
    """Return an array [batch, time] or a list of 1-D arrays unchanged, and convert other values to numpy."""
    if not is_list(value):
        array = _array(name, value)
        if array.ndim != _PADDED:
            raise InputError(f"{name} has shape {_shape(array)}; pass [batch, time] or a list of 1-D arrays")
        return array
    rows = [_array(name, row) for row in value]
    for number, row in enumerate(rows):
        if row.ndim != 1:
            raise InputError(f"{name}: item {number} has shape {_shape(row)}; pass 1-D items in a list")
    return rows


def _array(name: str, value: Any) -> Array:
    if array_api_compat.is_torch_array(value):
        return value
    array = np.asarray(value, np.float64 if is_list(value) else None)
    if array.dtype.kind not in "biuf":
        raise InputError(f"{name} is a {type(value).__name__}; pass a numpy array or torch tensor of numbers")
    return array


def _shape(array: Array) -> list[int]:
    return [int(size) for size in array.shape]


def _layout_of(value: Any) -> Layout:
    if not is_list(value):
        return Layout(int(value.shape[0]), int(value.shape[1]), None)
    if not value:
        raise InputError(f"{_LEAD} is an empty list; for no sequences, pass an array of shape [0, time]")
    lengths = tuple(int(row.shape[0]) for row in value)
    return Layout(len(lengths), max(lengths), lengths)


def _namespace(given: Mapping[str, Any], mask: Any, advantages: Any) -> Namespace:
    """Return the one array library of all arrays."""
    named = {**given, "mask": mask, "advantages": advantages}
    namespaces: dict[str, tuple[str, Namespace]] = {}
    for name, value in named.items():
        for array in value if is_list(value) else [value]:
            if array_api_compat.is_numpy_array(array) or array_api_compat.is_torch_array(array):
                xp = array_api_compat.array_namespace(array)
                namespaces.setdefault(xp.__name__, (name, xp))
    if len(namespaces) > 1:
        names = " and ".join(f"{name} is of {key.rpartition('.')[2]}" for key, (name, _) in namespaces.items())
        raise InputError(f"numpy arrays and torch tensors cannot be mixed: {names}; convert one side")
    (only,) = namespaces.values()
    return only[1]


def _require(name: str, value: Any, lead: Any) -> None:
    """Raise unless `value` has the layout and shape of the rollout log-probs."""
    if is_list(value) != is_list(lead):
        kinds = {True: "a list of sequences", False: "a padded array"}
        raise InputError(f"{name} is {kinds[is_list(value)]}, {_LEAD}: {kinds[is_list(lead)]}; pass one layout")
    if not is_list(value):
        if _shape(value) != _shape(lead):
            raise InputError(f"{name} has shape {_shape(value)}, {_LEAD}: {_shape(lead)}; pass equal shapes")
        return
    if len(value) != len(lead):
        raise InputError(f"{name} has {len(value)} sequences, {_LEAD}: {len(lead)}; pass equal numbers")
    for number, (row, other) in enumerate(zip(value, lead, strict=True)):
        if _shape(row) != _shape(other):
            raise InputError(
                f"{name}: sequence {number} has shape {_shape(row)}, {_LEAD}: {_shape(other)}; pass equal lengths"
            )


def _wide(xp: Namespace, given: Mapping[str, Any]) -> Any:
    """Return float64 if any log-probs are, else float32. Sums of half-precision log-ratios would be noise."""
    arrays = [array for value in given.values() for array in (value if is_list(value) else [value])]
    return xp.float64 if any(array.dtype == xp.float64 for array in arrays) else xp.float32


def _mask_items(xp: Namespace, mask: Any, layout: Layout, like: Any) -> Any:
    if mask is not None:
        return _items("mask", mask)
    if layout.lengths is None:
        return xp.ones_like(like, dtype=xp.bool)
    return [xp.ones_like(row, dtype=xp.bool) for row in like]


def _padded(xp: Namespace, value: Any, layout: Layout) -> Array:
    """Return values [batch, time ≥ 1], padded at the end with 0."""
    time = max(1, layout.time)  # reductions have no answer for an axis without elements
    if not is_list(value):
        return value if layout.time else _column(xp, value)
    return xp.stack([_filled(xp, row, time) for row in value])


def _column(xp: Namespace, value: Array) -> Array:
    """Return one column of zeros for a batch without columns."""
    return xp.zeros((value.shape[0], 1), dtype=value.dtype, device=array_api_compat.device(value))


def _filled(xp: Namespace, row: Array, time: int) -> Array:
    missing = time - int(row.shape[0])
    if not missing:
        return row
    return xp.concat([row, xp.zeros((missing,), dtype=row.dtype, device=array_api_compat.device(row))])


def _advantages(xp: Namespace, value: Any, layout: Layout, reference: Any) -> Array:
    """Return advantages per token [B, T], or one per sequence [B, 1]."""
    per_sequence = _per_sequence(xp, value, layout, reference)
    if per_sequence is not None:
        return per_sequence
    items = _items("advantages", value)
    _require("advantages", items, reference)
    return _padded(xp, items, layout)


def _per_sequence(xp: Namespace, value: Any, layout: Layout, reference: Any) -> Array | None:
    """Return [B, 1] of one value per sequence, or None if there is one per token."""
    if is_ragged(value):
        return None
    if is_list(value):
        first = reference[0] if is_list(reference) else reference
        value = xp.asarray([float(item) for item in value], device=array_api_compat.device(first))
    array = _array("advantages", value)
    if array.ndim == 1 and array.shape[0] == layout.batch:
        return array[:, None]
    return array if array.ndim == _PADDED and _shape(array) == [layout.batch, 1] else None
