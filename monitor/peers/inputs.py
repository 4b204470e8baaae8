"""What a peer is shown: log-probs, mask and advantages as padded arrays [batch, time].

Dimensions: ``_BT`` padded batch × time, ``_B`` one value per sequence, ``_N`` tokens under the mask.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from logprobe.collectors.errors import InputError
from logprobe.collectors.recorder import arrays
from logprobe.monitor.peers.reductions import Floats

_PADDED: Final = 2  # dimensions of a padded batch


@dataclass(frozen=True)
class Tokens:
    """One batch as a framework's loss function holds it: all arrays [batch, time], of one float type."""

    rollout_BT: Floats
    trainer_BT: Floats
    mask_BT: Floats  # 1.0 or 0.0
    current_BT: Floats | None
    advantages_BT: Floats | None
    reference_BT: Floats | None = None

    @property
    def valid_BT(self) -> NDArray[np.bool_]:
        """Where the mask is set."""
        return self.mask_BT > 0

    @property
    def log_ratio_BT(self) -> Floats:
        """The log-ratio d of the pair `backend`: t − r."""
        return self.trainer_BT - self.rollout_BT

    @property
    def newest_BT(self) -> Floats:
        """Log-probs of the policy being trained: c where it is given, else t."""
        return self.trainer_BT if self.current_BT is None else self.current_BT


def tokens_of(
    *,
    rollout: Any,
    trainer: Any,
    mask: Any,
    current: Any,
    advantages: Any,
    reference: Any = None,
    dtype: np.dtype[np.floating[Any]],
) -> Tokens:
    """Arrays of any of the accepted layouts as `Tokens`.

    Raises:
        InputError: the arrays do not fit together, or are not numbers.
    """
    rollout_BT = _padded("rollout_logprobs", rollout, dtype)
    shape = rollout_BT.shape
    mask_BT = _mask(mask, rollout, shape, dtype)
    given = {
        "trainer_logprobs": _padded("trainer_logprobs", trainer, dtype),
        "mask": mask_BT,
        "current_logprobs": None if current is None else _padded("current_logprobs", current, dtype),
        "reference_logprobs": None if reference is None else _padded("reference_logprobs", reference, dtype),
        "advantages": None if advantages is None else _advantages(advantages, shape, dtype),
    }
    _require_shape(given, shape)
    trainer_BT, current_BT, advantages_BT, reference_BT = (
        given[name] for name in ("trainer_logprobs", "current_logprobs", "advantages", "reference_logprobs")
    )
    return Tokens(rollout_BT, trainer_BT, mask_BT, current_BT, advantages_BT, reference_BT)  # type: ignore[arg-type]


def _require_shape(given: Mapping[str, Floats | None], shape: tuple[int, ...]) -> None:
    for name, value in given.items():
        if value is not None and value.shape != shape:
            raise InputError(
                f"{name}: [batch, time] is {list(value.shape)} where rollout_logprobs is {list(shape)}; "
                "a peer's view needs every token on both sides"
            )


def _mask(mask: Any, rollout: Any, shape: tuple[int, ...], dtype: np.dtype[np.floating[Any]]) -> Floats:
    """1.0 where the policy sampled the token; without a mask every token that `rollout` really has."""
    if mask is not None:
        given = _padded("mask", mask, dtype)
        if np.isnan(given).any():
            raise InputError("mask: NaN does not say whether a token counts")
        return np.asarray(given != 0, dtype)
    lengths = [len(row) for row in rollout] if arrays.is_ragged(rollout) else [shape[1]] * shape[0]
    return np.asarray(np.arange(shape[1]) < np.array(lengths, np.int64).reshape(-1, 1), dtype)


def _advantages(value: Any, shape: tuple[int, ...], dtype: np.dtype[np.floating[Any]]) -> Floats:
    """Per token; one per sequence is repeated over its tokens."""
    if not arrays.is_ragged(value):
        array = _floats("advantages", value, dtype)
        if array.ndim == 1 and len(array) == shape[0]:
            return np.repeat(array[:, None], shape[1], axis=1)
    return _padded("advantages", value, dtype)


def _padded(name: str, value: Any, dtype: np.dtype[np.floating[Any]]) -> Floats:
    """[batch, time] of a padded array, a list of sequences (padded with 0 at the end) or one sequence."""
    if value is None:
        raise InputError(f"{name}: a peer's view needs it")
    if arrays.is_ragged(value):
        rows = [_floats(name, row, dtype) for row in value]
        if any(row.ndim != 1 for row in rows):
            raise InputError(f"{name}: the items of a list must be 1-D")
        array = np.zeros((len(rows), max(1, *map(len, rows))), dtype)
        for row, items in zip(array, rows, strict=True):
            row[: len(items)] = items
        return array
    array = np.atleast_2d(_floats(name, value, dtype))
    if array.ndim != _PADDED:
        raise InputError(f"{name}: must be [batch, time] or a list of 1-D arrays, not shape {list(array.shape)}")
    return array


def _floats(name: str, value: Any, dtype: np.dtype[np.floating[Any]]) -> Floats:
    piece = arrays.as_piece(name, value)
    if not isinstance(piece, np.ndarray):  # on a device; nobody trains meanwhile
        piece = arrays.as_piece(name, piece.detach().cpu())
    array = arrays.to_float32(name, piece) if arrays.is_bfloat16(piece) else piece
    return np.asarray(array, dtype)
