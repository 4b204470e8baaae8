"""Conversion of host arrays to flat arrays with offsets.

Batches come in three layouts: padded [batch, time], packed [tokens] with `cu_seqlens`, or a list of 1-D arrays. Their
elements are numpy arrays, torch tensors or plain lists. The first half of this module runs in the host's thread and
reads shapes only. The second half runs in the recorder's thread and converts numpy arrays.

Dimensions: ``_BT`` padded, ``_N`` flat tokens, ``_S`` sequences, ``_S1`` sequences + 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from logprobe.collectors.errors import InputError
from logprobe.collectors.recorder import torch_bridge

NAN_IN_MASK: Final = (
    "mask: contains NaN or None; pass 1 for tokens that the policy sampled and that are trained on, else 0"
)
Layout = Literal["padded", "packed", "list"]
Piece: TypeAlias = Any  # a numpy array, or a torch tensor on a device
Array: TypeAlias = NDArray[Any]
_BFLOAT16_INFINITY: Final = 0x7F80
_INT32: Final = np.iinfo(np.int32)


def as_piece(name: str, value: Any) -> Piece:
    """Return a numpy view of `value` if possible, and a device tensor unchanged.

    Raises:
        InputError: the value is not an array of numbers, or only one rank's shard of an array.
    """
    if hasattr(value, "full_tensor"):  # its memory is that of this rank's shard, which would pass for the whole
        raise InputError(
            f"{name}: sharded over ranks (DTensor); pass its full_tensor(), or record on ranks that have whole "
            "sequences"
        )
    array = _plain(name, value) if isinstance(value, np.ndarray) else torch_bridge.view(value)
    if array is None:
        array, _ = from_list(name, value)
    elif array is value and not isinstance(array, np.ndarray):
        return value
    if array.dtype.kind not in "biufV":
        raise InputError(f"{name}: {array.dtype} ({type(value).__name__}) has no numbers; pass an array of numbers")
    return array


def _plain(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """Return an array without its subclass. Masked numbers are NaN, since the data under the mask are no values."""
    if type(array) is np.ndarray:
        return array
    if not isinstance(array, np.ma.MaskedArray):
        return np.asarray(array)
    if array.dtype.kind == "f":
        return np.asarray(array.filled(np.nan))
    if np.ma.is_masked(array):
        raise InputError(
            f"{name}: masked {array.dtype} values; pass a plain array, and mask= for tokens that do not count"
        )
    return np.asarray(array.data)


def from_list(name: str, value: Any) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
    """Return a list of numbers as an array, and the positions of None, which differs from NaN.

    Raises:
        InputError: an element is neither a number nor None, or lists within the list differ in length.
    """
    try:
        array = np.asarray(value)
        if array.dtype.kind != "O":
            return array, None
        return np.asarray(value, dtype=np.float64), np.array([item is None for item in value], dtype=np.bool_)
    except (TypeError, ValueError):
        raise InputError(f"{name}: {type(value).__name__} is not an array of numbers; pass one") from None


def has_nan(array: NDArray[Any]) -> bool:
    """Return whether a number of any type is NaN, in one pass without a copy except for bfloat16."""
    if array.dtype.kind == "V":
        return bool((array.view(np.uint16) & np.uint16(0x7FFF) > np.uint16(_BFLOAT16_INFINITY)).any())
    return array.dtype.kind == "f" and array.size > 0 and bool(np.isnan(array.min()))


def piece_dtype(piece: Piece) -> np.dtype[Any]:
    """Return the numpy type of a piece on any device."""
    return piece.dtype if isinstance(piece, np.ndarray) else torch_bridge.numpy_dtype(piece)


def piece_bytes(piece: Piece) -> int:
    """Return the number of bytes that a copy of `piece` takes."""
    if isinstance(piece, np.ndarray):
        return piece.nbytes
    return int(piece.numel() * piece.element_size())


def is_list(value: Any) -> bool:
    """Return whether `value` is a list of 1-D arrays instead of one array."""
    return isinstance(value, list | tuple)


def layout_of(token_ids: Any, cu_seqlens: Any) -> Layout:
    """Return the layout of a call from its `token_ids`."""
    if cu_seqlens is not None:
        return "packed"
    if is_list(token_ids):
        return "list"
    return "padded"


def is_ragged(value: Any) -> bool:
    """Return whether `value` is a list whose elements are sequences, not numbers."""
    return is_list(value) and len(value) > 0 and not _is_scalar(value[0])


def _is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, int | float | np.generic) or getattr(value, "shape", None) == ()


def host_list(name: str, value: Any, count: int) -> list[Any]:
    """Return a new list with one host value per sequence.

    Raises:
        InputError: the number of values is not `count`, or they are on a device.
    """
    if isinstance(value, list | tuple):
        items = list(value)
    elif torch_bridge.on_device(value):
        raise InputError(f"{name}: must be on the host, not on {value.device}; pass a list or a CPU tensor")
    elif callable(getattr(value, "tolist", None)) and callable(getattr(value, "reshape", None)):
        items = value.reshape(-1).tolist()
    elif hasattr(value, "__array__"):  # a column of pandas, polars or pyarrow
        items = np.asarray(value).reshape(-1).tolist()
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        items = list(value)
    else:
        raise InputError(f"{name} is a {type(value).__name__}; pass a list with one value per sequence")
    if len(items) != count:
        raise InputError(f"{name}: {len(items)} values for {count} sequences; pass one per sequence")
    return items


def scalar(name: str, value: Any) -> Any:
    """Return a host scalar as a Python object.

    Raises:
        InputError: the value is on a device, where a read would block the host.
    """
    if torch_bridge.on_device(value):
        raise InputError(f"{name} is a tensor on {value.device}; pass a Python number or a CPU tensor")
    item = getattr(value, "item", None)
    return item() if callable(item) else value


# --- Labels: ids, versions, tags, messages ---


def text(value: Any) -> str | None:
    """Return a label as a string that UTF-8 can encode, the digits of a number, or None for None.

    >>> text(3.0), text(b"req-1/0")
    ('3', 'req-1/0')
    """
    if value is None:
        return None
    label = value if isinstance(value, str) else _digits(scalar("label", value))
    return label if label.isascii() else label.encode("utf-8", "replace").decode("utf-8")


def _digits(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def trajectory_name(sample_id: Any) -> str | None:
    """Return the name of a sequence. A tuple of parts is named after the first and the last.

    >>> trajectory_name(("a/0", "b/0", "c/0")), trajectory_name("a/0")
    ('a/0…c/0', 'a/0')
    """
    names = part_names(sample_id)
    if names is None:
        return text(sample_id[0] if isinstance(sample_id, tuple | list) else sample_id)
    return f"{names[0]}…{names[-1]}"


def part_names(sample_id: Any) -> list[str] | None:
    """Return the engine requests that sampled a sequence, in order, or None if there is one request.

    Raises:
        InputError: the tuple is empty or contains None.
    """
    if not isinstance(sample_id, tuple | list):
        return None
    names = [name for part in sample_id if (name := text(part))]
    if not names or len(names) < len(sample_id):
        raise InputError(
            f"sample_ids: {sample_id!r} has missing names; name the engine requests of one sequence, in order"
        )
    return names if len(names) > 1 else None


# --- In the recorder's thread ---


def is_bfloat16(array: Array) -> bool:
    """Return whether `array` holds the bits of bfloat16 numbers."""
    return array.dtype.kind == "V"


def to_float32(name: str, array: Array) -> Array:
    """Return a float32 copy. Widen bfloat16 and keep NaN and infinities."""
    if is_bfloat16(array):
        if array.dtype.itemsize != 2:  # noqa: PLR2004 - bytes of a bfloat16
            raise InputError(f"{name}: {array.dtype} is not a number; pass a floating-point array")
        bits = np.ascontiguousarray(array).view(np.uint16).astype(np.uint32)
        bits <<= np.uint32(16)
        return bits.view(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):  # beyond float32 is infinite, and counted as such later
        return array.astype(np.float32)


def to_token_ids(array: Array, name: str = "token_ids") -> Array:
    """Return an int32 copy of token ids.

    Raises:
        InputError: the ids are not whole numbers, or exceed int32.
    """
    if array.dtype.kind not in "iu" and array.size:
        raise InputError(f"{name}: {array.dtype} is not an integer type; pass integers")
    if array.dtype.itemsize > 2 and array.size and (array.max() > _INT32.max or array.min() < _INT32.min):  # noqa: PLR2004
        raise InputError(f"{name}: a value does not fit into 32 bits; pass int32 ids")
    return array.astype(np.int32)


def to_bool(array: Array) -> Array:
    """Return True where a mask of any number type is not zero.

    Raises:
        InputError: the mask contains NaN, or negative numbers, as labels with -100 for ignored tokens do.
    """
    if is_bfloat16(array):
        array = to_float32("mask", array)
    if array.dtype.kind == "f" and bool(np.isnan(array).any()):
        raise InputError(NAN_IN_MASK)
    if array.dtype.kind in "if" and array.size and array.min() < 0:
        raise InputError(f"mask: contains {array.min()}; pass 1 for tokens that the policy sampled, else 0")
    return np.asarray(array != 0)


def numbers_on_host(name: str, value: Any) -> NDArray[Any]:
    """Return numbers of any layout and type as a numpy array, bfloat16 as float32. Wait for a device.

    Raise the errors of `as_piece`.
    """
    piece = as_piece(name, value)
    array = piece if isinstance(piece, np.ndarray) else as_piece(name, piece.cpu())
    return np.asarray(to_float32(name, array) if is_bfloat16(array) else array)


def offsets_of(lengths_S: NDArray[Any] | Sequence[int]) -> NDArray[np.int64]:
    """Return the starts of consecutive sequences and the end of the last."""
    offsets = np.zeros(len(lengths_S) + 1, dtype=np.int64)
    np.cumsum(lengths_S, out=offsets[1:])
    return offsets


def segment_sums(values_N: NDArray[Any], offsets_S1: NDArray[np.int64], dtype: Any = np.float64) -> NDArray[Any]:
    """Return the sum of every sequence [S], computed in `dtype`, 0 for an empty one."""
    sums = np.zeros(len(offsets_S1) - 1, dtype)
    filled = np.diff(offsets_S1) > 0  # reduceat repeats a neighbour's value for an empty slice
    if filled.any():
        sums[filled] = np.add.reduceat(values_N, offsets_S1[:-1][filled], dtype=dtype)
    return sums


def checked_offsets(cu_seqlens: NDArray[Any], tokens: int) -> NDArray[np.int64]:
    """Return `cu_seqlens` as int64 [S1]. Tokens before its first and after its last entry are padding.

    Raises:
        InputError: the entries are not non-decreasing integers in [0, tokens].
    """
    if cu_seqlens.dtype.kind not in "iu":
        raise InputError(f"cu_seqlens: {cu_seqlens.dtype} is not an integer type; pass integers")
    offsets = cu_seqlens.astype(np.int64)
    if offsets[0] < 0 or offsets[-1] > tokens or (np.diff(offsets) < 0).any():
        raise InputError(f"cu_seqlens: {_excerpt(offsets)}; pass ascending starts from ≥ 0 to ≤ {tokens}")
    return offsets


def kept_under_mask(mask_BT: Array) -> tuple[Array, NDArray[np.int64]]:
    """Return the cells from the first to the last token under the mask, row by row, and their number per row."""
    time = mask_BT.shape[1]
    if time == 0:
        return mask_BT, np.zeros(len(mask_BT), dtype=np.int64)
    first = mask_BT.argmax(axis=1)
    end = time - mask_BT[:, ::-1].argmax(axis=1)
    end[~mask_BT.any(axis=1)] = 0
    end = np.maximum(end, first)
    position = np.arange(time)
    return (position >= first[:, None]) & (position < end[:, None]), end - first


def kept_under_lengths(lengths_B: NDArray[np.int64], time: int) -> NDArray[np.bool_]:
    """Return the cells [0, length) of every row.

    Raises:
        InputError: a length is not in [0, time].
    """
    if (lengths_B < 0).any() or (lengths_B > time).any():
        raise InputError(f"lengths: a value is outside [0, {time}]; pass the sampled tokens of each row")
    return np.arange(time) < lengths_B[:, None]


def _excerpt(values: NDArray[Any]) -> str:
    head = ", ".join(str(value) for value in values[:4])
    return f"[{head}, … {values[-1]}]" if len(values) > 4 else f"[{head}]"  # noqa: PLR2004
