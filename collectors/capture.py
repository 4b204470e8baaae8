"""What happens in the host's thread: look at the shapes, copy the arrays, nothing else.

A `Captured` call owns one block of the pool with a copy of every array, so the host may change its own at once. Converting,
trimming and writing are the recorder's thread's work.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from logprobe.collectors import arrays
from logprobe.collectors.arrays import Layout, Piece
from logprobe.collectors.buffers import Block, BlockPool, Budget, plain_block
from logprobe.collectors.errors import InputError
from logprobe.collectors.torch_bridge import DeviceCopies, pinned_block

_ALIGNMENT: Final = 64
_SEQUENCE_BYTES: Final = 512  # ids, versions and tags of one sequence as Python objects, roughly
_RECORD_BYTES: Final = 2048


@dataclass(slots=True)
class Captured:
    """One call of the host, waiting for the recorder's thread."""

    kind: str
    time_us: int = field(default_factory=lambda: time.time_ns() // 1000)
    step: int | None = None
    layout: Layout = "padded"
    sequences: int = 0
    tokens: int = 0  # padding included
    values: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    missing: dict[str, NDArray[np.bool_]] = field(default_factory=dict)  # of the list layout: where values were None
    lengths: list[int] = field(default_factory=list)  # of the list layout
    block: Block | None = None
    pool: BlockPool | None = None
    events: list[Any] = field(default_factory=list)  # of copies still under way on a device
    extra_bytes: int = _RECORD_BYTES
    number: int = 0  # in the order of acceptance

    def wait(self) -> None:
        """Until the copies from devices are complete."""
        for event in self.events:
            event.synchronize()

    def release(self) -> None:
        """Give the block back; `arrays` must not be used any more."""
        if self.block is not None and self.pool is not None:
            self.arrays = {}
            self.pool.give_back(self.block)
            self.block = None


@dataclass(slots=True)
class Source:
    """One array argument: its pieces (one, or one per sequence), all of one type."""

    name: str
    pieces: list[Piece]
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    missing: NDArray[np.bool_] | None = None  # where a list said None

    @classmethod
    def whole(cls, name: str, value: Any) -> Source:
        """An argument that is one array."""
        piece = arrays.as_piece(name, value)
        return cls(name, [piece], arrays.piece_dtype(piece), tuple(piece.shape))

    @classmethod
    def ragged(cls, name: str, values: Iterable[Any]) -> Source:
        """An argument that is a list of 1-D arrays."""
        pieces = [arrays.as_piece(name, value) for value in values]
        for piece in pieces:
            if len(piece.shape) != 1:
                raise InputError(f"{name}: every element must be 1-D, got shape {tuple(piece.shape)}")
        types = {arrays.piece_dtype(piece) for piece in pieces if len(piece)}
        if len(types) > 1 and any(dtype.kind == "V" for dtype in types):
            raise InputError(f"{name}: bfloat16 mixed with other types; pass one type")
        dtype = np.result_type(*types) if types else np.dtype(np.int32)
        return cls(name, pieces, dtype, (sum(len(piece) for piece in pieces),), _missing(pieces))

    @property
    def nbytes(self) -> int:
        return arrays.elements(self.shape) * self.dtype.itemsize

    def lengths(self) -> list[int]:
        """Tokens of every sequence of a ragged argument."""
        return [len(piece) for piece in self.pieces]


def _missing(pieces: list[Piece]) -> NDArray[np.bool_] | None:
    if not any(isinstance(piece, np.ma.MaskedArray) for piece in pieces):
        return None
    return np.concatenate([np.ma.getmaskarray(piece) for piece in pieces])


class Capturer:
    """Copies the arrays of calls into pooled memory. Used by every thread of the host."""

    def __init__(self, budget: Budget) -> None:
        self.pool = BlockPool(budget)
        self._pinned = BlockPool(budget, pinned_block)
        self._copies = DeviceCopies()

    def copy(self, sources: list[Source], captured: Captured) -> bool:
        """Copy `sources` into a block of `captured`; False when the budget does not allow it."""
        on_device = [source for source in sources if any(not isinstance(p, np.ndarray) for p in source.pieces)]
        offsets, total = _place(sources)
        pool = self._pinned if on_device else self.pool
        block = pool.take(total)
        if block is None:
            return False
        try:
            for source, offset in zip(sources, offsets, strict=True):
                memory = block.memory[offset : offset + source.nbytes]
                captured.arrays[source.name] = _copy_host(source, memory.view(source.dtype).reshape(source.shape))
            captured.events = self._copies.copy(_device_pieces(sources, offsets), block) if on_device else []
        except BaseException:
            pool.give_back(block)
            raise
        captured.block, captured.pool = block, pool
        return True

    def tend(self) -> None:
        """Housekeeping of the memory, from the recorder's thread."""
        self.pool.tend()


def _place(sources: list[Source]) -> tuple[list[int], int]:
    offsets, end = [], 0
    for source in sources:
        offsets.append(end)
        end += -(-source.nbytes // _ALIGNMENT) * _ALIGNMENT
    return offsets, end


def _copy_host(source: Source, target: NDArray[Any]) -> NDArray[Any]:
    if len(source.pieces) == 1:
        if isinstance(source.pieces[0], np.ndarray):
            np.copyto(target, np.ma.getdata(source.pieces[0]))
        return target
    start = 0
    for piece in source.pieces:
        if isinstance(piece, np.ndarray):
            target[start : start + len(piece)] = np.ma.getdata(piece)
        start += len(piece)
    return target


def _device_pieces(sources: list[Source], offsets: list[int]) -> list[tuple[Any, int]]:
    found = []
    for source, offset in zip(sources, offsets, strict=True):
        start = offset
        for piece in source.pieces:
            if not isinstance(piece, np.ndarray):
                found.append((piece, start))
            start += arrays.elements(piece.shape) * source.dtype.itemsize
    return found


class Call:
    """Interprets the arguments of one `training` or `rollout` call: names, shapes and counts, no content."""

    def __init__(self, kind: str, *, token_ids: Any, sample_ids: Any, cu_seqlens: Any) -> None:
        self.layout = arrays.layout_of(token_ids, cu_seqlens)
        self.sources: list[Source] = []
        self.captured = Captured(kind, layout=self.layout)
        tokens = self._token_source("token_ids", token_ids)
        self._shape = tokens.shape
        self._lengths = tokens.lengths() if self.layout == "list" else []
        self._add_bounds(cu_seqlens)
        captured = self.captured
        captured.sequences = self._count(cu_seqlens)
        captured.tokens = arrays.elements(tokens.shape)
        captured.lengths = self._lengths
        captured.extra_bytes += captured.sequences * _SEQUENCE_BYTES
        captured.values["sample_ids"] = arrays.host_list("sample_ids", sample_ids, captured.sequences)

    def _add_bounds(self, cu_seqlens: Any) -> None:
        if self.layout == "packed":
            self.sources.append(Source.whole("cu_seqlens", cu_seqlens))

    def _count(self, cu_seqlens: Any) -> int:
        if self.layout == "list":
            return len(self._lengths)
        if self.layout == "packed":
            shape = self.sources[-1].shape
            if len(shape) != 1 or shape[0] < 1:
                raise InputError(f"cu_seqlens: expected [sequences + 1], got shape {shape}")
            return shape[0] - 1
        return self._shape[0]

    def _token_source(self, name: str, value: Any) -> Source:
        source = self._read(name, value)
        if self.layout == "packed" and len(source.shape) == 2 and source.shape[0] == 1:  # noqa: PLR2004
            source.shape = source.shape[1:]  # [1, tokens], as flash attention has it
            source.pieces = [piece.reshape(-1) for piece in source.pieces]
        wanted = 2 if self.layout == "padded" else 1
        if len(source.shape) != wanted:
            hint = "[batch, time], or flat with cu_seqlens" if wanted == 2 else "[tokens] with cu_seqlens"  # noqa: PLR2004
            raise InputError(f"{name}: shape {source.shape}; expected {hint}, or a list of 1-D arrays")
        self.sources.append(source)
        return source

    def _read(self, name: str, value: Any) -> Source:
        if self.layout != "list":
            return Source.whole(name, value)
        if not arrays.is_list(value):
            raise InputError(f"{name}: token_ids is a list of 1-D arrays, so this must be one too")
        return Source.ragged(name, value)

    def tokens(self, name: str, value: Any) -> None:
        """An argument with one value per token; None: absent."""
        if value is None:
            return
        source = self._token_source(name, value)
        if source.shape != self._shape or (self.layout == "list" and source.lengths() != self._lengths):
            detail = f"shape {source.shape}, token_ids {self._shape}"
            raise InputError(f"{name}: does not fit token_ids ({detail}); both need one value per token")
        if source.missing is not None:
            self.captured.missing[name] = source.missing

    def require(self, name: str, value: Any) -> None:
        """An argument with one value per token that must be there."""
        if value is None:
            raise InputError(f"{name}: missing")
        self.tokens(name, value)

    def mask(self, value: Any) -> None:
        """The token mask; only padded arrays cannot do without."""
        if value is None and self.layout == "padded":
            raise InputError("mask: required for padded [batch, time] arrays; pass what tells tokens from padding")
        self.tokens("mask", value)

    def lengths(self, value: Any) -> None:
        """Tokens per padded row."""
        if self.layout != "padded":
            return
        if value is None:
            raise InputError("lengths: required for padded [batch, time] arrays")
        self.sequences("lengths", value)

    def spans(self, value: Any) -> None:
        """Weight versions: one for all, one per sequence, or spans per sequence."""
        if value is None:
            return
        if isinstance(value, str | int) or getattr(value, "shape", None) == ():
            items: list[Any] = [arrays.scalar("weight_version", value)] * self.captured.sequences
        else:
            items = arrays.host_list("weight_version", value, self.captured.sequences)
        self.captured.values["weight_version"] = [list(item) if arrays.is_list(item) else item for item in items]

    def tokens_or_sequences(self, name: str, value: Any) -> None:
        """An argument with one value per token or one per sequence."""
        if value is None:
            return
        if self.layout == "list" and arrays.is_ragged(value):
            self.tokens(name, value)
        elif self.layout != "list" and tuple(getattr(value, "shape", ())) == self._shape:
            self.tokens(name, value)
        else:
            self.sequences(name, value)

    def sequences(self, name: str, value: Any) -> None:
        """A number per sequence: [batch], [batch, 1], a list (None: unknown), or one for all."""
        if value is None:
            return
        if arrays.is_list(value):
            self.captured.values[name] = arrays.host_list(name, value, self.captured.sequences)
            return
        source = Source.whole(name, value)
        if arrays.elements(source.shape) not in (1, self.captured.sequences):
            raise InputError(f"{name}: shape {source.shape} for {self.captured.sequences} sequences")
        self.sources.append(source)

    def labels(self, name: str, value: Any) -> None:
        """A label per sequence, or one for all; None: unknown."""
        if value is None:
            return
        if isinstance(value, str | int) or getattr(value, "shape", None) == ():
            self.captured.values[name] = [arrays.scalar(name, value)] * self.captured.sequences
        else:
            self.captured.values[name] = arrays.host_list(name, value, self.captured.sequences)

    def mappings(self, name: str, value: Any) -> None:
        """A dictionary per sequence, or one for all."""
        if value is None:
            return
        if isinstance(value, Mapping):
            self.captured.values[name] = [dict(value)] * self.captured.sequences
        else:
            items = arrays.host_list(name, value, self.captured.sequences)
            self.captured.values[name] = [None if item is None else dict(item) for item in items]
