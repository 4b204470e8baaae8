"""Conversion of captured calls of any layout to flat batches, in the recorder's thread.

Dimensions: ``_N`` flat tokens, ``_S`` sequences, ``_S1`` sequences + 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from logprobe.collectors import routes
from logprobe.collectors.errors import InputError
from logprobe.collectors.recorder import arrays, stated_versions
from logprobe.collectors.recorder.arrays import Array
from logprobe.collectors.recorder.capture import Captured
from logprobe.collectors.spool.schema import TRAINING_FLOATS

Raw: TypeAlias = dict[str, Array]
Span: TypeAlias = tuple[int, int, Any]  # start, end, version


@dataclass(slots=True, eq=False)  # arrays have no truth value
class Batch:
    """Sequences of one call, flat: `offsets` int64 [S1], `token_ids` int32 [N], `mask` bool [N] or None if all are
    True.

    `floats` (float32) and `missing` (True for a None in a list) hold one value per token, `values` one per sequence.
    """

    time_us: int
    offsets: NDArray[np.int64]
    token_ids: Array
    floats: dict[str, Array]
    values: dict[str, list[Any]]
    mask: Array | None = None
    missing: dict[str, NDArray[np.bool_]] = field(default_factory=dict)
    step: int | None = None
    number: int = 0  # of the call, in the order of acceptance
    bfloat16: frozenset[str] = frozenset()
    routes: NDArray[np.uint16] | None = None  # [N, layers]
    refused: str = ""  # an argument that could not be used, and why; the rest of the call is good

    @property
    def sequences(self) -> int:
        """Number of sequences."""
        return len(self.offsets) - 1

    @property
    def tokens(self) -> int:
        """Number of tokens, masked ones included."""
        return len(self.token_ids)

    def per_token(self, name: str) -> Array | None:
        """Return [N], or [N, layers] for routes, or None if the call has none."""
        if name == "token_ids":
            return self.token_ids
        if name == "mask":
            return self.full_mask()
        return self.routes if name == "routes" else self.floats.get(name)

    def full_mask(self) -> Array:
        """Return the mask, all True if the call has none."""
        return np.ones(len(self.token_ids), np.bool_) if self.mask is None else self.mask

    def part(self, first: int, last: int) -> Batch:
        """Return the sequences [first, last) as a view."""
        start, end = int(self.offsets[first]), int(self.offsets[last])
        return replace(
            self,
            offsets=self.offsets[first : last + 1] - start,
            token_ids=self.token_ids[start:end],
            floats={name: values[start:end] for name, values in self.floats.items()},
            missing={name: values[start:end] for name, values in self.missing.items()},
            mask=None if self.mask is None else self.mask[start:end],
            values={name: values[first:last] for name, values in self.values.items()},
            routes=None if self.routes is None else self.routes[start:end],
        )

    def take(self, keep_S: NDArray[np.bool_]) -> Batch:
        """Copy the given sequences, so that the batch's memory can be freed."""
        lengths = np.diff(self.offsets)
        kept_K = np.flatnonzero(np.repeat(keep_S, lengths))
        rows = np.flatnonzero(keep_S).tolist()
        return replace(
            self,
            offsets=arrays.offsets_of(lengths[keep_S]),
            token_ids=self.token_ids[kept_K],
            floats={name: values[kept_K] for name, values in self.floats.items()},
            missing={name: values[kept_K] for name, values in self.missing.items()},
            mask=None if self.mask is None else self.mask[kept_K],
            values={name: [values[row] for row in rows] for name, values in self.values.items()},
            routes=None if self.routes is None else self.routes[np.repeat(keep_S, lengths)],
        )

    def parts(self, tokens: int) -> Iterator[Batch]:
        """Split into parts of at most `tokens` tokens, or of one longer sequence."""
        if self.tokens <= tokens:
            yield self
            return
        first = 0
        while first < self.sequences:
            limit = self.offsets[first] + tokens
            last = max(int(np.searchsorted(self.offsets, limit, side="right")) - 1, first + 1)
            yield self.part(first, last)
            first = last


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """Cells of a call's arrays that are tokens of its sequences, shared by all arguments.

    `offsets`: offsets of the sequences among these tokens [S1]. `cells`: index of the tokens, or None for all cells.
    """

    offsets: NDArray[np.int64]
    cells: Array | slice | None = None

    @classmethod
    def of(cls, captured: Captured, raw: Raw) -> Selection:
        """Select the tokens by the call's layout. Raise `InputError` for invalid mask, lengths or `cu_seqlens`."""
        if captured.layout == "list":
            return cls(arrays.offsets_of(captured.lengths or []))
        if captured.layout == "packed":
            offsets = arrays.checked_offsets(raw["cu_seqlens"], captured.tokens)
            return cls(offsets - offsets[0], slice(int(offsets[0]), int(offsets[-1])))
        if "mask" in raw:
            cells, lengths = arrays.kept_under_mask(arrays.to_bool(raw["mask"]))
        else:
            lengths = np.asarray(_numbers(captured, raw, "lengths"), dtype=np.int64)
            cells = arrays.kept_under_lengths(lengths, raw["token_ids"].shape[1])
        return cls(arrays.offsets_of(lengths), None if cells.all() else cells)

    def flat(self, array: Array) -> Array:
        """Return the values of the tokens in order. Trailing dimensions may be flat, too."""
        return array.reshape(-1) if self.cells is None else array[self.cells]


def decode(captured: Captured) -> Batch:
    """Convert and trim the data copied from the host. The batch shares no memory with the captured block.

    Raises:
        InputError: the contents are inconsistent.
    """
    raw = captured.arrays()
    tokens = Selection.of(captured, raw)
    per_token = [
        name for name in (*TRAINING_FLOATS, "logprobs") if name in raw and raw[name].shape == raw["token_ids"].shape
    ]
    floats: dict[str, Array] = {name: arrays.to_float32(name, tokens.flat(raw[name])) for name in per_token}
    batch = Batch(
        time_us=captured.time_us,
        offsets=tokens.offsets,
        token_ids=arrays.to_token_ids(tokens.flat(raw["token_ids"])),
        floats=floats,
        missing=captured.missing or {},
        values=dict(captured.values),
        mask=arrays.to_bool(tokens.flat(raw["mask"])) if "mask" in raw else None,
        step=captured.step,
        number=captured.number,
        bfloat16=frozenset(n for n in floats if arrays.is_bfloat16(raw[n])),
    )
    _add_numbers_per_sequence(batch, captured, raw)
    if "routes" in raw:
        batch.routes = _routes(captured, raw["routes"], tokens)
    _add_versions(batch, raw, tokens)
    if captured.kind == "rollout" and "weight_version" in captured.values:
        lengths = np.diff(batch.offsets).tolist()
        batch.values["spans"] = [_spans(*pair) for pair in zip(captured.values["weight_version"], lengths, strict=True)]
    return batch


def _spans(version: Any, length: int) -> list[Span] | None:
    """Return the weight-version spans of one sequence. One version for all tokens is one span, and None is unknown."""
    if version is None:
        return None
    if not isinstance(version, list):
        return [(0, length, version)]
    spans = [(int(start), int(end), label) for start, end, label in version]
    for start, end, _ in spans:
        if not 0 <= start <= end <= length:
            raise InputError(
                f"weight_version: span [{start}, {end}) is outside the {length} sampled tokens; pass a span within them"
            )
    return spans


def _numbers(captured: Captured, raw: Raw, name: str) -> list[Any] | None:
    """Return one number per sequence from any accepted form, or None if absent."""
    if name in captured.values:
        return list(captured.values[name])
    array = raw.get(name)
    if array is None:
        return None
    if arrays.is_bfloat16(array):
        array = arrays.to_float32(name, array)
    return list(np.broadcast_to(array.reshape(-1), (captured.sequences,)).tolist())


def _add_numbers_per_sequence(batch: Batch, captured: Captured, raw: Raw) -> None:
    for name in ("rewards", "prompt_lengths", "cached_prefix_tokens", "adapter_ids"):
        values = _numbers(captured, raw, name)
        if values is not None:
            batch.values[name] = values
    if "advantages" not in batch.floats:
        advantages = _numbers(captured, raw, "advantages")
        if advantages is not None:
            per_sequence = np.array(advantages, dtype=np.float32)  # None becomes NaN: not reported
            batch.floats["advantages"] = np.repeat(per_sequence, np.diff(batch.offsets))


def _routes(captured: Captured, given: NDArray[Any], tokens: Selection) -> NDArray[np.uint16] | None:
    trailing = given.shape[2 if captured.layout == "padded" else 1 :]
    return routes.decode(tokens.flat(given), trailing, captured.values.get("routes_given"), np.diff(tokens.offsets))


def _add_versions(batch: Batch, raw: Raw, tokens: Selection) -> None:
    """Add the trainer's versions as spans. An invalid version does not discard the log-probs."""
    given = batch.values.pop("rollout_versions", None)
    numbers = raw.get("rollout_versions")
    mask = batch.full_mask()
    try:
        if given is not None:
            batch.values["rollout_versions"] = stated_versions.from_labels(given, batch.offsets, mask)
        elif numbers is not None:
            batch.values["rollout_versions"] = stated_versions.from_numbers(tokens.flat(numbers), batch.offsets, mask)
    except (InputError, ValueError, TypeError, OverflowError) as error:
        batch.refused = str(error)
