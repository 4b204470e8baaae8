"""Captured calls → flat batches → Arrow tables of the wire contract. Runs in the recorder's thread.

A batch's arrays are numpy's, or torch tensors while it lies on the device where it is to be reduced.

Dimensions: ``_N`` flat tokens, ``_S`` sequences, ``_S1`` sequences + 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from logprobe.collectors import routes
from logprobe.collectors.errors import InputError
from logprobe.collectors.recorder import arrays, stated_versions
from logprobe.collectors.recorder.arrays import Array
from logprobe.collectors.recorder.capture import Captured
from logprobe.collectors.recorder.columns import column, lists, maps, numbers, repeated, strings
from logprobe.collectors.spool.schema import DECISION, ROLLOUT, SPAN, STATED_SPAN, TRAINING, TRAINING_FLOATS

Raw: TypeAlias = dict[str, Array]
Span: TypeAlias = tuple[int, int, Any]  # start, end, version


@dataclass(slots=True, eq=False)  # arrays have no truth value
class Batch:
    """Sequences of one call, flat: `offsets` int64 [S1], `token_ids` int32 [N], `mask` bool [N] (None: all True).

    `floats` (float32) and `missing` (True where a list said None) hold one value per token, `values` one per sequence.
    All but `token_ids`, `mask` and `floats` always lie on the host.
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
    routes: NDArray[np.uint16] | None = None  # [N, layers], on the host
    refused: str = ""  # an argument that could not be used, and why; the rest of the call is good

    @property
    def sequences(self) -> int:
        """How many."""
        return len(self.offsets) - 1

    @property
    def tokens(self) -> int:
        """How many, of all sequences, masked ones included."""
        return len(self.token_ids)

    def full_mask(self) -> Array:
        """The mask, all True where the call had none."""
        xp = arrays.namespace(self.token_ids)
        return xp.ones_like(self.token_ids, dtype=xp.bool) if self.mask is None else self.mask

    def part(self, first: int, last: int) -> Batch:
        """Sequences [first, last) as a view."""
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
        """Those sequences, as a copy that does not keep the others' memory."""
        lengths = np.diff(self.offsets)
        kept_K = np.flatnonzero(np.repeat(keep_S, lengths))
        rows = np.flatnonzero(keep_S).tolist()
        return replace(
            self,
            offsets=arrays.offsets_of(lengths[keep_S]),
            token_ids=arrays.taken(self.token_ids, kept_K),
            floats={name: arrays.taken(values, kept_K) for name, values in self.floats.items()},
            missing={name: values[kept_K] for name, values in self.missing.items()},
            mask=None if self.mask is None else arrays.taken(self.mask, kept_K),
            values={name: [values[row] for row in rows] for name, values in self.values.items()},
            routes=None if self.routes is None else self.routes[np.repeat(keep_S, lengths)],
        )

    def on_host(self) -> Batch:
        """The same with numpy arrays."""
        return replace(
            self,
            token_ids=arrays.to_host(self.token_ids),
            floats={name: arrays.to_host(values) for name, values in self.floats.items()},
            mask=None if self.mask is None else arrays.to_host(self.mask),
        )

    def parts(self, tokens: int) -> Iterator[Batch]:
        """Cut into parts of at most `tokens` tokens, or one sequence."""
        if self.tokens <= tokens:
            yield self
            return
        first = 0
        while first < self.sequences:
            limit = self.offsets[first] + tokens
            last = max(int(np.searchsorted(self.offsets, limit, side="right")) - 1, first + 1)
            yield self.part(first, last)
            first = last


def decode(captured: Captured) -> Batch:
    """Convert and trim what was copied from the host; the batch shares no memory with the captured block.

    Raises:
        InputError: contents that do not fit together.
    """
    raw = captured.arrays()
    bounds, select = _selection(captured, raw)
    per_token = [
        name for name in (*TRAINING_FLOATS, "logprobs") if name in raw and raw[name].shape == raw["token_ids"].shape
    ]
    floats: dict[str, Array] = {name: arrays.to_float32(name, select(raw[name])) for name in per_token}
    batch = Batch(
        time_us=captured.time_us,
        offsets=bounds,
        token_ids=arrays.to_token_ids(select(raw["token_ids"])),
        floats=floats,
        missing=captured.missing or {},
        values=dict(captured.values),
        mask=arrays.to_bool(select(raw["mask"])) if "mask" in raw else None,
        step=captured.step,
        number=captured.number,
        bfloat16=frozenset(n for n in floats if arrays.is_bfloat16(raw[n])),
    )
    _add_numbers_per_sequence(batch, captured, raw)
    _add_routes(batch, captured, raw)
    _add_versions(batch, raw, select)
    if captured.kind == "rollout" and "weight_version" in captured.values:
        lengths = np.diff(batch.offsets).tolist()
        batch.values["spans"] = [_spans(*pair) for pair in zip(captured.values["weight_version"], lengths, strict=True)]
    return batch


def _spans(version: Any, length: int) -> list[Span] | None:
    """Weight-version spans of one sequence; one version for all its tokens is one span, None is unknown."""
    if version is None:
        return None
    if not isinstance(version, list):
        return [(0, length, version)]
    spans = [(int(start), int(end), label) for start, end, label in version]
    for start, end, _ in spans:
        if not 0 <= start <= end <= length:
            raise InputError(f"weight_version: span [{start}, {end}) lies outside of the {length} sampled tokens")
    return spans


def _selection(captured: Captured, raw: Raw) -> tuple[NDArray[np.int64], Any]:
    """Offsets of the sequences, and a function that flattens an array to their tokens."""
    if captured.layout == "list":
        return arrays.offsets_of(captured.lengths or []), lambda array: array
    if captured.layout == "packed":
        offsets = arrays.checked_offsets(raw["cu_seqlens"], captured.tokens)
        start, end = int(offsets[0]), int(offsets[-1])
        return offsets - start, lambda array: array[start:end]
    keep, lengths = _padded_cells(captured, raw)
    if keep.all():
        return arrays.offsets_of(lengths), lambda array: array.reshape(-1)
    return arrays.offsets_of(lengths), lambda array: array[keep]


def _padded_cells(captured: Captured, raw: Raw) -> tuple[Array, NDArray[np.int64]]:
    if "mask" in raw:
        return arrays.kept_under_mask(arrays.to_bool(raw["mask"]))
    time = raw["token_ids"].shape[1]
    lengths = np.asarray(_numbers(captured, raw, "lengths"), dtype=np.int64)
    if (lengths < 0).any() or (lengths > time).any():
        raise InputError(f"lengths: must lie in [0, {time}]")
    return arrays.kept_under_lengths(lengths, time), lengths


def _numbers(captured: Captured, raw: Raw, name: str) -> list[Any] | None:
    """One number per sequence, however it was given; None: absent."""
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
            per_token = np.repeat(per_sequence, np.diff(batch.offsets))
            batch.floats["advantages"] = arrays.beside(batch.token_ids, per_token)


def _add_routes(batch: Batch, captured: Captured, raw: Raw) -> None:
    if "routes" not in raw:
        return
    on_host: Raw = {name: arrays.to_host(raw[name]) for name in ("mask", "cu_seqlens", "lengths") if name in raw}
    _, select = _selection(captured, {"token_ids": raw["token_ids"], **on_host})
    trailing = raw["routes"].shape[2 if captured.layout == "padded" else 1 :]
    given = captured.values.get("routes_given")
    batch.routes = routes.decode(select(raw["routes"]), trailing, given, np.diff(batch.offsets))


def _add_versions(batch: Batch, raw: Raw, select: Any) -> None:
    """The trainer's versions as spans; a wrong one costs what it says, not the log-probs beside it."""
    given = batch.values.pop("rollout_versions", None)
    numbers = raw.get("rollout_versions")
    if given is None and numbers is None:
        return
    mask = arrays.to_host(batch.full_mask())
    try:
        batch.values["rollout_versions"] = (
            stated_versions.from_labels(given, batch.offsets, mask)
            if given is not None
            else stated_versions.from_numbers(arrays.to_host(select(numbers)), batch.offsets, mask)
        )
    except (InputError, ValueError, TypeError, OverflowError) as error:
        batch.refused = str(error)


# --- Tables ---


def training_table(batches: Sequence[Batch], rank: int | None) -> pa.Table:
    """Rows of the `training` kind."""
    floats = {name: _floats(batches, name) for name in TRAINING_FLOATS}
    data = {
        **trainer_columns(batches, rank),
        "token_ids": _lists(batches, [batch.token_ids for batch in batches], pa.int32()),
        "mask": _lists(batches, [batch.full_mask() for batch in batches], pa.bool_()),
        "routes": _routes(batches),
        **floats,
    }
    return pa.Table.from_arrays([data[name] for name in TRAINING.names], schema=TRAINING)


def trainer_columns(batches: Sequence[Batch], rank: int | None) -> dict[str, pa.Array]:
    """What the `training` and `statistics` kinds have in common: everything of a sequence but its tokens."""
    rows = sum(batch.sequences for batch in batches)
    return {
        "time": _times(batches),
        "step": numbers([batch.step for batch in batches for _ in range(batch.sequences)], pa.int64(), "step"),
        "rank": repeated(rank, rows, pa.int32()),
        "sample_id": _texts(batches, "sample_ids"),
        "group_id": _texts(batches, "prompt_ids"),
        "reward": numbers(_concatenated(batches, "rewards"), pa.float64(), "rewards"),
        "weight_version": _texts(batches, "weight_version"),
        "tags": _tags(batches),
        "part_ids": _name_lists(_concatenated(batches, "part_ids")),
        "rollout_versions": _struct_lists(_concatenated(batches, "rollout_versions"), STATED_SPAN),
    }


def rollout_table(batches: Sequence[Batch]) -> pa.Table:
    """Rows of the `rollout` kind."""
    data = {
        "time": _times(batches),
        "sample_id": _texts(batches, "sample_ids"),
        "request_id": _texts(batches, "request_ids"),
        "group_id": _texts(batches, "prompt_ids"),
        "replica": _texts(batches, "replica"),
        "token_ids": _lists(batches, [batch.token_ids for batch in batches], pa.int32()),
        "logprobs": _floats(batches, "logprobs"),
        "spans": _struct_lists(_concatenated(batches, "spans"), SPAN),
        "prompt_length": _whole(batches, "prompt_lengths"),
        "prompt_hash": _texts(batches, "prompt_hashes"),
        "cached_prefix_tokens": _whole(batches, "cached_prefix_tokens"),
        "finish_reason": _texts(batches, "finish_reasons"),
        "sampling_id": _texts(batches, "sampling_id"),
        "engine_config_id": _texts(batches, "engine_config_id"),
        "routes": _routes(batches),
        "adapter": _texts(batches, "adapters"),
        "adapter_id": numbers(_concatenated(batches, "adapter_ids"), pa.int64(), "adapter_ids"),
        "step_times": _integer_lists(_concatenated(batches, "step_times"), pa.int64()),
        "decisions": _struct_lists(_concatenated(batches, "step_decisions"), DECISION),
        "machine": _texts(batches, "machine"),
        "clock_offset": numbers(_concatenated(batches, "clock_offset"), pa.int64(), "clock_offset"),
        "engine_started": numbers(_concatenated(batches, "engine_started"), pa.int64(), "engine_started"),
        "trajectory": _texts(batches, "trajectories"),
        "prompt_token_ids": _integer_lists(_concatenated(batches, "prompt_token_ids"), pa.int32()),
    }
    return pa.Table.from_arrays([data[name] for name in ROLLOUT.names], schema=ROLLOUT)


def _concatenated(batches: Sequence[Batch], name: str) -> list[Any]:
    """Values per sequence over all batches; None where a call had none."""
    return [item for batch in batches for item in batch.values.get(name) or [None] * batch.sequences]


def _texts(batches: Sequence[Batch], name: str) -> pa.Array:
    return strings(_concatenated(batches, name))


def _whole(batches: Sequence[Batch], name: str) -> pa.Array:
    return numbers(_concatenated(batches, name), pa.int32(), name)


def _tags(batches: Sequence[Batch]) -> pa.Array:
    items = _concatenated(batches, "tags")
    return maps([None if item is None else list(item.items()) for item in items], TRAINING.field("tags").type)


def _times(batches: Sequence[Batch]) -> pa.Array:
    return numbers([batch.time_us for batch in batches for _ in range(batch.sequences)], TRAINING.field("time").type)


def _name_lists(rows: list[list[Any] | None]) -> pa.Array:
    """Lists of labels; None becomes null."""
    values = strings([name for row in rows for name in row or ()])
    absent = np.array([row is None for row in rows], dtype=np.bool_)
    return lists(arrays.offsets_of([len(row or ()) for row in rows]), values, absent if absent.any() else None)


def _integer_lists(rows: list[NDArray[np.integer[Any]] | None], kind: pa.DataType) -> pa.Array:
    values = [row for row in rows if row is not None]
    if not values:
        return pa.nulls(len(rows), pa.list_(kind))
    absent = np.array([row is None for row in rows], dtype=np.bool_)
    lengths = [0 if row is None else len(row) for row in rows]
    return lists(arrays.offsets_of(lengths), column(np.concatenate(values), kind), absent if absent.any() else None)


def _struct_lists(rows: list[list[tuple[Any, ...]] | None], kind: pa.StructType) -> pa.Array:
    """Lists of structs from tuples of their fields; None becomes null."""
    items = [item for row in rows for item in row or ()]
    parts = [_struct_field([item[place] for item in items], field) for place, field in enumerate(kind)]
    values = pa.StructArray.from_arrays(parts, fields=list(kind))
    absent = np.array([row is None for row in rows], dtype=np.bool_)
    return lists(arrays.offsets_of([len(row or ()) for row in rows]), values, absent if absent.any() else None)


def _struct_field(values: list[Any], field: pa.Field) -> pa.Array:
    return strings(values) if pa.types.is_string(field.type) else numbers(values, field.type, field.name)


def _floats(batches: Sequence[Batch], name: str) -> pa.Array:
    return _lists(batches, [batch.floats.get(name) for batch in batches], pa.float32(), name)


def _lists(
    batches: Sequence[Batch], pieces: Sequence[NDArray[Any] | None], kind: pa.DataType, name: str = ""
) -> pa.Array:
    """A list column; rows of a call without this argument are null."""
    present = [piece for piece in pieces if piece is not None]
    sequences = [batch.sequences for batch in batches]
    if not present:
        return pa.nulls(sum(sequences), pa.list_(kind))
    absent = np.repeat([piece is None for piece in pieces], sequences)
    lengths = np.concatenate([np.diff(batch.offsets) for batch in batches])
    lengths[absent] = 0
    values = column(np.concatenate(present), kind, _valid(batches, pieces, name))
    return lists(arrays.offsets_of(lengths), values, absent if len(present) < len(pieces) else None)


def _routes(batches: Sequence[Batch]) -> pa.Array:
    """A list of [tokens × layers] per sequence; null for those of a call without."""
    present = [batch.routes.reshape(-1) for batch in batches if batch.routes is not None]
    sequences = [batch.sequences for batch in batches]
    if not present:
        return pa.nulls(sum(sequences), pa.list_(pa.uint16()))
    layers = np.repeat([0 if batch.routes is None else batch.routes.shape[1] for batch in batches], sequences)
    lengths = np.concatenate([np.diff(batch.offsets) for batch in batches]) * layers
    absent = layers == 0
    values = column(np.concatenate(present), pa.uint16())
    return lists(arrays.offsets_of(lengths), values, absent if absent.any() else None)


def _valid(batches: Sequence[Batch], pieces: Sequence[NDArray[Any] | None], name: str) -> NDArray[np.bool_] | None:
    """False where a list said None; None: nowhere."""
    if not any(name in batch.missing for batch in batches):
        return None
    pairs = zip(batches, pieces, strict=True)
    return ~np.concatenate([b.missing.get(name, np.zeros(len(p), np.bool_)) for b, p in pairs if p is not None])
