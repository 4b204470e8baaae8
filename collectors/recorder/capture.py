"""Work of the host's thread: it reads shapes and copies arrays.

A captured call owns part of the ring, with a copy of every array. The host may therefore change its arrays immediately.
The recorder's thread converts, trims and writes. The host waits for this code, and its caches are cold between steps.
Fewer instructions therefore matter more here than anywhere else in logprobe.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from logprobe.collectors.errors import InputError
from logprobe.collectors.recorder import arrays, torch_bridge
from logprobe.collectors.recorder.arrays import Layout, Piece, part_names, trajectory_name
from logprobe.collectors.recorder.ring import Claim, Ring
from logprobe.collectors.recorder.torch_bridge import Block, DeviceCopies, PinnedBlocks

Bytes: TypeAlias = NDArray[np.uint8]
_ALIGNMENT: Final = 64
# numpy lets go of the GIL while it copies, and to get it back from a busy thread costs a thousand times the copy. A
# copy through a memoryview keeps it; beyond this size that would hold up the host's other threads.
_HELD_BYTES: Final = 4 << 20
_SEQUENCE_BYTES: Final = 512  # ids, versions and tags of one sequence as Python objects, roughly
_RECORD_BYTES: Final = 2048
_PLAIN: Final = frozenset({float, int, type(None)})
_BFLOAT16_NAN: Final = np.uint16(0x7FC0)


@dataclass(slots=True, eq=False)
class Part:
    """Array argument with its pieces, one per sequence of a list or else a single one, and their copy in the block.

    The copy is one array of `dtype` and `shape`, with the pieces end to end.
    """

    name: str
    pieces: Sequence[Piece]
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    nbytes: int
    per_token: bool = False
    on_device: bool = False  # whether a stream has to copy some of it
    offset: int = 0

    @property
    def device(self) -> Any:
        """Device of the first tensor, for a part that is `on_device`."""
        return next(piece.device for piece in self.pieces if not isinstance(piece, np.ndarray))

    def copy_to(self, memory: Bytes, view: memoryview) -> None:
        """Copy host memory into uint8 [size]. `view` is the same memory as bytes."""
        piece: Piece = self.pieces[0] if len(self.pieces) == 1 else None
        as_it_is = isinstance(piece, np.ndarray) and piece.dtype is self.dtype and piece.flags.c_contiguous
        if as_it_is and 0 < self.nbytes <= _HELD_BYTES:
            plain = piece if piece.dtype.kind != "V" else piece.view(np.uint16)
            view[self.offset : self.offset + self.nbytes] = plain.data.cast("B")
        elif isinstance(piece, np.ndarray):
            self.at(memory)[...] = piece
        elif piece is None:
            target, start = self.at(memory), 0
            for piece in self.pieces:
                if isinstance(piece, np.ndarray):
                    target[start : start + len(piece)] = piece
                start += len(piece)

    def has_nan(self) -> bool:
        """Return whether a number on the host is NaN. Numbers on a device are checked later."""
        if self.dtype.kind not in "fV":
            return False
        return any(isinstance(piece, np.ndarray) and arrays.has_nan(piece) for piece in self.pieces)

    def device_pieces(self) -> Iterable[tuple[Piece, int]]:
        """Yield the tensors for a stream to copy, with their offsets in the block."""
        start = self.offset
        for piece in self.pieces:
            if not isinstance(piece, np.ndarray):
                yield piece, start
            start += math.prod(piece.shape) * self.dtype.itemsize

    def at(self, memory: Bytes) -> NDArray[Any]:
        """Return the copy as an array."""
        return memory[self.offset : self.offset + self.nbytes].view(self.dtype).reshape(self.shape)


def array_part(name: str, piece: Piece, *, per_token: bool = False) -> Part:
    """Return an argument that is one array."""
    if isinstance(piece, np.ndarray):
        return Part(name, (piece,), piece.dtype, piece.shape, piece.nbytes, per_token)
    dtype, nbytes = arrays.piece_dtype(piece), arrays.piece_bytes(piece)
    return Part(name, (piece,), dtype, piece.shape, nbytes, per_token, on_device=True)


def list_part(name: str, pieces: Sequence[Piece], dtype: np.dtype[Any], *, per_token: bool) -> Part:
    """Return an argument that is a list of arrays. They may differ in their first dimension only."""
    shape = (sum(map(len, pieces)), *(pieces[0].shape[1:] if pieces else ()))
    nbytes = math.prod(shape) * dtype.itemsize
    on_device = not all(isinstance(piece, np.ndarray) for piece in pieces)
    return Part(name, pieces, dtype, shape, nbytes, per_token, on_device)


def _kinds(names: list[Any]) -> set[type]:
    """Return the types of the names of sequences, fast enough for ten thousand names."""
    kinds = set(map(type, names))
    if type(None) in kinds:
        index = next(index for index, name in enumerate(names) if name is None)
        raise InputError(f"sample_ids[{index}] is None; pass a name for each sequence")
    return kinds


def _own(item: Any) -> Any:
    """Return a label, or a copy of a list of labels. Arrays on the host become lists."""
    if isinstance(item, str) or item is None:
        return item
    if arrays.is_list(item):
        return list(item)
    return arrays.host_list("rollout_versions", item, len(item)) if getattr(item, "shape", ()) else item


def _all_none(value: Any) -> bool:
    return arrays.is_list(value) and len(value) > 0 and all(item is None for item in value)


def _unreported(name: str, index: int, length: int | None, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return NaN values for a sequence without reported tokens."""
    if dtype.kind not in "fV" or length is None:
        raise InputError(f"{name}[{index}] is None; pass one number per token, or omit this sequence")
    return np.full(length, _BFLOAT16_NAN).view(dtype) if dtype.kind == "V" else np.full(length, np.nan, dtype)


def _common_dtype(name: str, pieces: list[Piece]) -> np.dtype[Any]:
    types = {arrays.piece_dtype(piece) for piece in pieces if len(piece)}
    if len(types) > 1 and any(dtype.kind == "V" for dtype in types):
        raise InputError(f"{name}: bfloat16 mixed with other types; pass one type")
    if len(types) > 1 and not all(isinstance(piece, np.ndarray) for piece in pieces):
        raise InputError(f"{name}: tensors of different types; pass one type")
    return np.result_type(*types) if types else np.dtype(np.int32)


class Captured:
    """Call of the host that waits for the recorder's thread, with host objects in `values` and arrays in `parts`."""

    layout: Layout = "padded"
    sequences = 0
    tokens = 0  # padding included
    lengths: list[int] | None = None  # of the list layout
    missing: dict[str, NDArray[np.bool_]] | None = None  # of the list layout: where values were None
    claim: Claim | None = None
    pinned: Block | None = None  # where some of the arrays lie on a device
    memory: Bytes | None = None  # of the ring or the block: the parts' offsets are in it
    events: Sequence[Any] = ()  # of copies still under way on a device
    extra_bytes = _RECORD_BYTES
    number = 0  # in the order of acceptance

    def __init__(self, kind: str, values: dict[str, Any], step: int | None = None) -> None:
        self.kind = kind
        self.time_us = time.time_ns() // 1000
        self.step = step
        self.values = values
        self.parts: list[Part] = []

    def arrays(self) -> dict[str, Any]:
        """Wait for the copies from devices and return all copies. They are valid until their release."""
        if self.events:
            torch_bridge.beside_captures()
        for event in self.events:
            event.synchronize()
        return {} if self.memory is None else {part.name: part.at(self.memory) for part in self.parts}


class Capturer:
    """Copier of call arrays into the ring, or into pinned memory, for all threads of the host."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._pinned = PinnedBlocks()
        self._copies = DeviceCopies()

    def copy(self, call: Captured) -> bool:
        """Give `call` memory with a copy of all its parts. Return False if the limit does not allow it."""
        size, devices = 0, None
        for part in call.parts:
            size += -(-part.nbytes // _ALIGNMENT) * _ALIGNMENT
            if part.on_device:
                devices = {*(devices or ()), part.device}
        if devices:
            torch_bridge.refuse_capture(devices)
        claim = self._ring.claim(0 if devices else size, call.extra_bytes + (size if devices else 0))
        if claim is None:
            return False
        call.claim = claim
        try:
            if devices:
                self._fill_pinned(call, size)
            elif call.parts:
                self._fill(call, self._ring.memory, self._ring.view, claim.start)
        except BaseException:
            self.release(call)
            raise
        for part in call.parts:
            part.pieces = ()  # `record_stream` keeps device memory alive; the host's arrays are the host's again
        return True

    def _fill_pinned(self, call: Captured, size: int) -> None:
        block = call.pinned = self._pinned.take(size)
        self._fill(call, block.memory, block.memory.data, 0)
        call.events = self._copies.copy([piece for part in call.parts for piece in part.device_pieces()], block)

    @staticmethod
    def _fill(call: Captured, memory: Bytes, view: memoryview, start: int) -> None:
        call.memory = memory
        for part in call.parts:
            part.offset = start
            part.copy_to(memory, view)
            start += -(-part.nbytes // _ALIGNMENT) * _ALIGNMENT

    def release(self, call: Captured) -> None:
        """Release the memory of a call. Its arrays must not be used afterwards."""
        claim, call.claim, call.memory = call.claim, None, None
        block, call.pinned = call.pinned, None
        if block is not None:
            self._pinned.give_back(block)
        if claim is not None:
            self._ring.give_back(claim)


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Times at which the tokens of finished sequences were sampled.

    Times are microseconds of the monotonic clock of `machine` (see `clock`). `times`: int64 [tokens] per sequence.
    `decisions`: (end, at, first, last) per sequence, as in the schema. The recorder takes ownership of both.
    """

    times: Sequence[NDArray[np.int64]]
    decisions: Sequence[Sequence[tuple[int, int | None, int, int]]]
    machine: str | None
    clock_offset: int
    clock_set: int | None
    engine_started: int


class Call(Captured):
    """Interpreter of the names, shapes and counts of one `training` or `rollout` call. It reads no content."""

    def __init__(self, kind: str, *, token_ids: Any, sample_ids: Any, cu_seqlens: Any = None) -> None:
        super().__init__(kind, {})
        self.layout = arrays.layout_of(token_ids, cu_seqlens)
        first = self._token_part("token_ids", token_ids)
        self._shape = first.shape
        self.sequences = self._count(first, cu_seqlens)
        self.tokens = first.nbytes // first.dtype.itemsize
        self.extra_bytes += self.sequences * _SEQUENCE_BYTES
        names = self.values["sample_ids"] = arrays.host_list("sample_ids", sample_ids, self.sequences)
        self._named_by = _kinds(names)

    def _count(self, first: Part, cu_seqlens: Any) -> int:
        if self.layout == "padded":
            return first.shape[0]
        if self.layout == "list":
            self.lengths = list(map(len, first.pieces))
            return len(self.lengths)
        bounds = array_part("cu_seqlens", arrays.as_piece("cu_seqlens", cu_seqlens))
        if len(bounds.shape) != 1 or bounds.shape[0] < 1:
            raise InputError(f"cu_seqlens: shape {tuple(bounds.shape)}; pass [sequences + 1]")
        self.parts.append(bounds)
        return bounds.shape[0] - 1

    def _token_part(self, name: str, value: Any) -> Part:
        if self.layout == "list":
            return self._token_lists(name, value)
        piece = arrays.as_piece(name, value)
        if self.layout == "packed" and len(piece.shape) == 2 and piece.shape[0] == 1:  # noqa: PLR2004
            piece = piece.reshape(-1)  # [1, tokens], as flash attention has it
        if len(piece.shape) != (2 if self.layout == "padded" else 1):
            wanted = "[batch, time], or flat with cu_seqlens" if self.layout == "padded" else "[tokens] with cu_seqlens"
            raise InputError(f"{name}: shape {tuple(piece.shape)}; pass {wanted}, or a list of 1-D arrays")
        part = array_part(name, piece, per_token=True)
        self.parts.append(part)
        return part

    def _token_lists(self, name: str, value: Any) -> Part:
        """Take a list of 1-D arrays or lists of numbers. None marks a sequence without reported tokens."""
        if not arrays.is_list(value):
            raise InputError(f"{name}: token_ids is a list of 1-D arrays; pass the same layout")
        pieces: list[Piece] = []
        gaps: dict[int, NDArray[np.bool_]] = {}  # where a list said None
        for index, item in enumerate(value):
            if arrays.is_list(item):
                item, gap = arrays.from_list(name, item)  # noqa: PLW2901
                if gap is not None:
                    gaps[index] = gap
            pieces.append(None if item is None else arrays.as_piece(name, item))
            if item is not None and len(pieces[-1].shape) != 1:
                raise InputError(f"{name}: an element has shape {tuple(pieces[-1].shape)}; pass 1-D elements")
        dtype = _common_dtype(name, [piece for piece in pieces if piece is not None])
        for index, piece in enumerate(pieces):
            if piece is None:
                length = self.lengths[index] if self.lengths and index < len(self.lengths) else None
                pieces[index] = _unreported(name, index, length, dtype)
                gaps[index] = np.ones(len(pieces[index]), np.bool_)
        if gaps:
            missing = [gaps.get(index, np.zeros(len(piece), np.bool_)) for index, piece in enumerate(pieces)]
            self.missing = {**(self.missing or {}), name: np.concatenate(missing)}
        part = list_part(name, pieces, dtype, per_token=True)
        self.parts.append(part)
        return part

    def tokens_of(self, name: str, value: Any) -> None:
        """Take an argument with one value per token. It is absent if it is None, or None for every sequence."""
        if value is None or _all_none(value):
            return
        part = self._token_part(name, value)
        if part.shape != self._shape or (self.layout == "list" and list(map(len, part.pieces)) != self.lengths):
            detail = f"shape {tuple(part.shape)}, token_ids {tuple(self._shape)}"
            raise InputError(f"{name}: does not fit token_ids ({detail}); pass one value per token")

    def require(self, name: str, value: Any) -> None:
        """Take a required argument with one value per token."""
        if value is None or _all_none(value):
            raise InputError(f"{name}: missing; pass one value per token")
        self.tokens_of(name, value)

    def mask(self, value: Any) -> None:
        """Take the token mask. Only padded arrays require one."""
        if value is None and self.layout == "padded":
            raise InputError(
                "mask: required for padded [batch, time] arrays; pass a mask that separates tokens from padding"
            )
        self.tokens_of("mask", value)
        if value is not None and self.parts[-1].name == "mask" and self.parts[-1].has_nan():
            raise InputError(arrays.NAN_IN_MASK)

    def row_lengths(self, value: Any) -> None:
        """Take the number of tokens per padded row."""
        if self.layout != "padded":
            return
        if value is None:
            raise InputError("lengths: required for padded [batch, time] arrays; pass the sampled tokens of each row")
        self.numbers("lengths", value)

    def tokens_or_numbers(self, name: str, value: Any) -> None:
        """Take an argument with one value per token or one per sequence."""
        if value is None:
            return
        if arrays.is_ragged(value) if self.layout == "list" else tuple(getattr(value, "shape", ())) == self._shape:
            self.tokens_of(name, value)
        else:
            self.numbers(name, value)

    def numbers(self, name: str, value: Any) -> None:
        """Take a number per sequence: [batch], [batch, 1], a list with None for unknown, or one for all."""
        if value is None:
            return
        if arrays.is_list(value):
            items = arrays.host_list(name, value, self.sequences)
            self.values[name] = [item if type(item) in _PLAIN else arrays.scalar(name, item) for item in items]
            return
        part = array_part(name, arrays.as_piece(name, value))
        if math.prod(part.shape) not in (1, self.sequences):
            raise InputError(
                f"{name}: shape {tuple(part.shape)} for {self.sequences} sequences; pass one value per sequence"
            )
        self.parts.append(part)

    def labels(self, name: str, value: Any) -> None:
        """Take a label per sequence, or one for all. None means unknown."""
        if value is None:
            return
        if isinstance(value, str | bytes | int | float) or getattr(value, "shape", None) == ():
            self.values[name] = [arrays.scalar(name, value)] * self.sequences
        else:
            self.values[name] = arrays.host_list(name, value, self.sequences)

    def id_lists(self, name: str, value: Any) -> None:
        """Take token ids per sequence that differ from the sampled ones, or None for none."""
        if value is None:
            return
        rows = arrays.host_list(name, value, self.sequences)
        copies = [None if row is None else arrays.to_token_ids(np.asarray(row).reshape(-1), name) for row in rows]
        self.values[name] = copies
        self.extra_bytes += sum(row.nbytes for row in copies if row is not None)

    def spans(self, value: Any) -> None:
        """Take weight versions: one for all, one per sequence, or spans per sequence."""
        self.labels("weight_version", value)
        if value is not None:
            items = self.values["weight_version"]
            self.values["weight_version"] = [list(item) if arrays.is_list(item) else item for item in items]

    def versions(self, name: str, value: Any) -> None:
        """Take weight versions: numbers in the layout of `token_ids`, or labels, lists and spans per sequence."""
        if value is None or _all_none(value):
            return
        if self._has_number_per_token(value):
            self.tokens_of(name, value)
            return
        self.labels(name, value)
        self.values[name] = [_own(item) for item in self.values[name]]

    def _has_number_per_token(self, value: Any) -> bool:
        if self.layout == "list":
            return arrays.is_list(value) and [getattr(item, "shape", None) for item in value] == [
                (length,) for length in self.lengths or ()
            ]
        shape = tuple(getattr(value, "shape", ()))
        return shape == tuple(self._shape) or (self.layout == "packed" and shape == (1, *self._shape))

    def steps(self, value: StepTimes | None) -> None:
        """Take the step times of every sequence."""
        if value is None:
            return
        for name in ("times", "decisions"):
            self.values[f"step_{name}"] = arrays.host_list(name, getattr(value, name), self.sequences)
        for name in ("machine", "clock_offset", "clock_set", "engine_started"):
            self.values[name] = [getattr(value, name)] * self.sequences
        self.extra_bytes += 8 * self.tokens

    def parts_of_sequences(self) -> None:
        """Split sample ids that are tuples. They name the engine requests of one sequence in order."""
        if not self._named_by.isdisjoint((tuple, list)):
            names = self.values["sample_ids"]
            self.values["sample_ids"] = [trajectory_name(name) for name in names]
            self.values["part_ids"] = [part_names(name) for name in names]

    def mappings(self, name: str, value: Any) -> None:
        """Take a dictionary per sequence, or one for all."""
        if value is None:
            return
        if isinstance(value, Mapping):
            self.values[name] = [dict(value)] * self.sequences
        else:
            items = arrays.host_list(name, value, self.sequences)
            self.values[name] = [None if item is None else dict(item) for item in items]
