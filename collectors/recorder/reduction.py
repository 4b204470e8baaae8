"""Raw training batches → rows of the `statistics` kind: what is written when raw tokens cannot or need not be.

About 2 % of the raw bytes, and everything the metrics need: bit for bit what ingest would compute from the raw tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from logprobe.collectors.kernel.pairs import SIDES
from logprobe.collectors.kernel.statistics import DEFAULT_BOUNDS, ZERO_IS_PLACEHOLDER, Statistics, sequence_statistics
from logprobe.collectors.recorder.arrays import Array, offsets_of, segment_sums
from logprobe.collectors.recorder.batches import Batch
from logprobe.collectors.recorder.tables import batch_table, column
from logprobe.collectors.recorder.token_hash import token_hash
from logprobe.collectors.spool.schema import STATISTICS


@dataclass(frozen=True, slots=True)
class Reduced:
    """A batch as rows of the `statistics` kind, and the statistics [S] of every pair its call carried."""

    table: pa.Table
    pairs: dict[str, Statistics]

    def rows(self, keep_S: NDArray[np.bool_]) -> pa.Table:
        """Those rows of the table, copied: `Table.filter` would import pyarrow.compute in the recorder's thread."""
        edges = np.flatnonzero(np.diff(keep_S.astype(np.int8), prepend=0, append=0)).reshape(-1, 2).tolist()
        slices = [self.table.slice(first, last - first) for first, last in edges]
        return pa.concat_tables(slices or [self.table.slice(0, 0)]).combine_chunks()


def reduce(batch: Batch, rank: int | None) -> Reduced:
    """The statistics of one batch.

    Raises:
        InputError: a value per sequence is not of its column's type.
    """
    mask = batch.full_mask()
    pairs = {pair: sums for pair in SIDES if (sums := _sums_of_pair(batch, mask, pair)) is not None}
    expected = segment_sums(mask, batch.offsets).astype(np.int64)
    entropy_sum, entropy_n = _finite_sums(batch, "entropy", mask)
    advantage_abs_sum, _ = _finite_sums(batch, "advantages", mask, absolute=True)
    computed = {
        "n_total": column(np.diff(batch.offsets).astype(np.int32), pa.int32()),
        "n_expected": column(expected.astype(np.int32), pa.int32()),
        "advantage_abs_sum": advantage_abs_sum,
        "entropy_sum": entropy_sum,
        "entropy_n": entropy_n,
        "token_hash": column(token_hash(batch.token_ids[mask], offsets_of(expected)), pa.uint64()),
        **{pair: _structs(pair, pairs.get(pair), batch.sequences) for pair in SIDES},
    }
    return Reduced(batch_table("statistics", [batch], rank, computed), pairs)


def _sums_of_pair(batch: Batch, mask: Array, pair: str) -> Statistics | None:
    behaviour, policy = (batch.floats.get(name) for name in SIDES[pair])
    if behaviour is None or policy is None:
        return None
    return sequence_statistics(
        behaviour,
        policy,
        mask,
        batch.offsets,
        bounds=DEFAULT_BOUNDS[pair],
        advantages_N=batch.floats.get("advantages"),
        zero_is_placeholder=pair in ZERO_IS_PLACEHOLDER,
    )


def _structs(pair: str, sums: Statistics | None, sequences: int) -> pa.Array:
    kind = STATISTICS.field(pair).type
    if sums is None:
        return pa.nulls(sequences, kind)
    return pa.StructArray.from_arrays([column(sums[field.name], field.type) for field in kind], fields=list(kind))


def _finite_sums(batch: Batch, name: str, mask: Array, *, absolute: bool = False) -> tuple[pa.Array, pa.Array]:
    """Sum and number of finite values under the mask, per sequence; null where the call had none."""
    values = batch.floats.get(name)
    if values is None:
        return pa.nulls(batch.sequences, pa.float64()), pa.nulls(batch.sequences, pa.int32())
    usable = mask & np.isfinite(values)
    wide = np.where(usable, values, 0).astype(np.float64)
    sums = segment_sums(np.abs(wide) if absolute else wide, batch.offsets)
    counts = segment_sums(usable, batch.offsets).astype(np.int32)
    return column(sums, pa.float64()), column(counts, pa.int32())
