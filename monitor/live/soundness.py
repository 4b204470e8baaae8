"""Validate the rows of a segment. A usable row has lists of one length and names its sample.

An inconsistent row, or one with impossible numbers, is omitted and counted. The other rows of the segment are kept. A
segment without a required column is refused as a whole (`SegmentError`, reason ``columns``) and goes to quarantine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from logprobe.collectors.errors import SegmentError
from logprobe.collectors.kernel.pairs import PAIRS
from logprobe.collectors.recorder.arrays import offsets_of, segment_sums
from logprobe.collectors.spool.schema import LARGEST, TRAINING_FLOATS
from logprobe.collectors.spool.segments import Segment
from logprobe.monitor import ragged

# Without these a row says nothing that could be stored; every other column may be null.
_REQUIRED: Final[dict[str, tuple[str, ...]]] = {
    "training": ("step", "sample_id", "token_ids"),
    "rollout": ("sample_id", "token_ids"),
    "step": ("step",),
    "weights": (),
    "config": ("fingerprint", "kind", "document"),
    "health": ("event",),
    "statistics": ("step", "sample_id", "n_total", "n_expected"),
}
_MOST_TOKENS: Final = 1 << 31  # of one sequence
_LISTS: Final[dict[str, tuple[str, ...]]] = {
    "training": ("mask", *TRAINING_FLOATS),
    "rollout": ("logprobs", "step_times"),
}


@dataclass(frozen=True, slots=True)
class SoundRows:
    """Usable rows of a segment after ``run, segment_id, row``, and the faults of the others."""

    table: pa.Table
    tokens: int
    bad_rows: int
    bad_tokens: int
    reasons: dict[str, int]
    first_bad_step: int | None


def sound_rows(segments: Sequence[Segment]) -> list[SoundRows]:
    """Check the rows of segments of one kind, many small ones at the cost of one.

    Raises `SegmentError` (reason ``columns``) if one of the segments has no usable row.
    """
    for segment in segments:
        _check_required(segment)
    kind = segments[0].where.kind
    tables = [segment.table.replace_schema_metadata() for segment in segments]
    table = pa.concat_tables(tables)
    faults = {reason: bad for reason, bad in _faults(kind, table) if bad.any()}
    tokens, found, end = _tokens(kind, table), [], 0
    for segment, part in zip(segments, tables, strict=True):
        own = slice(end, end := end + part.num_rows)
        found.append(_usable(segment, part, {reason: bad[own] for reason, bad in faults.items()}, tokens[own]))
    return found


def _usable(
    segment: Segment, table: pa.Table, faults: Mapping[str, NDArray[np.bool_]], tokens: NDArray[np.int64]
) -> SoundRows:
    bad = np.logical_or.reduce([np.zeros(table.num_rows, np.bool_), *faults.values()])
    rows = pa.array(np.flatnonzero(~bad).astype(np.int32))
    steps = table["step"].filter(pa.array(bad)).drop_null() if "step" in table.column_names and bad.any() else ()
    return SoundRows(
        table=_with_key(segment, table.take(rows) if bad.any() else table, rows),
        tokens=int(tokens[~bad].sum()),
        bad_rows=int(bad.sum()),
        bad_tokens=int(tokens[bad].sum()),
        reasons={reason: int(rows.sum()) for reason, rows in faults.items() if rows.any()},
        first_bad_step=pc.min(steps).as_py() if len(steps) else None,
    )


def _check_required(segment: Segment) -> None:
    table = segment.table
    names = [name for name in _REQUIRED[segment.where.kind] if table[name].null_count == table.num_rows]
    if table.num_rows and names:
        raise SegmentError(
            "columns", f"{segment.where.path}: no row has {', '.join(names)}; write it with a logprobe collector"
        )


def _faults(kind: str, table: pa.Table) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Return by reason a mask of the faulty rows [S]."""
    for name in _REQUIRED[kind]:
        yield f"{name} is null", np.asarray(table[name].is_null())
    for name in table.column_names:
        low, high = _bounds(kind, name)
        if (beyond := _beyond(table[name], low, high)) is not None:
            yield f"{name} is beyond what it can be", beyond
    if kind not in _LISTS:
        return
    expected = ragged.lengths(table["token_ids"])
    for name in _LISTS[kind]:
        if table[name].null_count == table.num_rows:
            continue
        lengths = ragged.lengths(table[name])
        yield f"{name} and token_ids differ in length", (lengths >= 0) & (lengths != expected)
    routes = ragged.lengths(table["routes"])
    yield "the length of routes is not a multiple of token_ids", (routes > 0) & (routes % np.maximum(expected, 1) != 0)
    for name in ("token_ids", "mask"):
        if name in table.column_names:
            yield f"{name} contains nulls", _lists_with_nulls(table[name])


def _bounds(kind: str, name: str) -> tuple[int, int]:
    """Return the bounds of whole numbers. Bounds of token counts also keep their sums from overflowing."""
    if kind == "statistics" and (name in PAIRS or name in {"n_total", "n_expected", "entropy_n"}):
        return 0, _MOST_TOKENS
    if name in {"spans", "rollout_versions", "decisions"}:  # of tokens, and of times
        return 0, LARGEST
    return -LARGEST, LARGEST


def _beyond(column: pa.ChunkedArray, low: int, high: int) -> NDArray[np.bool_] | None:
    """Return a mask of the rows with numbers or times out of bounds, or None if the type of the column has neither.

    Lists and structs are searched as well.
    """
    kind = column.type
    if pa.types.is_timestamp(kind):  # before 1970 no clock was right
        return _beyond(column.cast(pa.int64()), 0, high)
    if pa.types.is_integer(kind) and kind != pa.uint64():  # a hash is no measurement
        ends = pc.min_max(column).as_py()
        if ends["min"] is None or (ends["min"] >= low and ends["max"] <= high):
            return np.zeros(len(column), np.bool_)
        bad = pc.or_(pc.less(column, low), pc.greater(column, high))
        return np.asarray(bad.fill_null(False))
    if pa.types.is_list(kind) and (pa.types.is_struct(kind.value_type) or kind.value_type == pa.int64()):
        within = _beyond(pa.chunked_array([ragged.one_array(column).flatten()]), low, high)
        offsets = offsets_of(np.maximum(ragged.lengths(column), 0))
        return None if within is None else segment_sums(within, offsets) > 0
    parts = ragged.one_array(column).flatten() if pa.types.is_struct(kind) else []
    faults = [bad for part in parts if (bad := _beyond(pa.chunked_array([part]), low, high)) is not None]
    return np.logical_or.reduce(faults) if faults else None


def _lists_with_nulls(column: pa.ChunkedArray) -> NDArray[np.bool_]:
    array = ragged.one_array(column)
    elements = array.flatten()
    if elements.null_count == 0:
        return np.zeros(len(array), np.bool_)
    offsets = offsets_of(np.maximum(ragged.lengths(column), 0))
    return segment_sums(np.asarray(elements.is_null()), offsets) > 0


def _tokens(kind: str, table: pa.Table) -> NDArray[np.int64]:
    if kind in _LISTS:
        return np.maximum(ragged.lengths(table["token_ids"]), 0)
    if kind == "statistics":
        return np.asarray(table["n_total"].fill_null(0), dtype=np.int64)
    return np.zeros(table.num_rows, np.int64)


def _with_key(segment: Segment, table: pa.Table, rows: pa.Array) -> pa.Table:
    key = [pa.repeat(segment.where.run, len(rows)), pa.repeat(segment.segment_id, len(rows)), rows]
    return pa.Table.from_arrays([*key, *table.columns], names=["run", "segment_id", "row", *table.column_names])
