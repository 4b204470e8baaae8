"""Some training records and where their raw tokens lie → what metrics are computed from. Reads Parquet, writes nothing.

The result of a record depends, in every bit, on its tokens alone (see `collectors.kernel.statistics`), not on the
partition.

Dimensions: ``_S`` training records of a partition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from logprobe.collectors.errors import LogprobeError
from logprobe.collectors.kernel.pairs import ENGINE_PAIRS
from logprobe.collectors.recorder.arrays import offsets_of, segment_sums
from logprobe.collectors.spool.schema import TRAINING_FLOATS
from logprobe.monitor import ragged
from logprobe.monitor.ingest.sequence_rows import align, joined_statistics, measured, source_logprobs
from logprobe.monitor.store.raw_damage import Compared
from logprobe.monitor.store.raw_files import RAW_SCHEMAS

KEY: Final = ("run", "step", "segment_id", "row", "rollout_source", "rollout_segment", "rollout_row")
_COMPARED: Final = Compared()
_NAMES: Final = {"training": ("token_ids", "mask", *TRAINING_FLOATS), "rollout": ("token_ids", "logprobs")}


@dataclass(frozen=True, slots=True)
class Partition:
    """Training records in the order of steps, as ``sql/recompute_sequences.sql`` has them, with addresses in place of
    file names.

    `steps`: those whose last records these are.
    """

    records: pa.Table
    steps: tuple[int, ...]


class GoneError(Exception):
    """A file, or rows of it, are not there."""


def compute(partition: Partition) -> tuple[pa.Table, int]:
    """`KEY`, the sums and the statistics of every pair of each record; and how many tokens, masked ones included.

    Raises `GoneError`, `LogprobeError`.
    """
    training = _lists(partition, "training")
    columns = _measured(partition, training)
    table = pa.table({**{name: partition.records[name] for name in KEY}, **columns})
    return table, int(ragged.lengths(training["token_ids"]).sum())


def _measured(partition: Partition, training: pa.Table) -> dict[str, object]:
    lengths_S = ragged.lengths(training["token_ids"])
    offsets_S1 = offsets_of(lengths_S)
    columns: dict[str, object] = measured(training, ragged.flat_mask(training["mask"], lengths_S), offsets_S1)
    joined_S = np.flatnonzero(pc.equal(partition.records["rollout_source"], "joined"))
    if len(joined_S):
        joined = _joined(partition, training, joined_S)
        place_S = np.arange(training.num_rows)
        place_S[joined_S] = training.num_rows + np.arange(len(joined_S))
        for pair in ENGINE_PAIRS:
            columns[pair] = pa.concat_arrays([columns[pair], joined[pair]]).take(pa.array(place_S))
    return columns


def _joined(partition: Partition, training: pa.Table, joined_S: NDArray[np.intp]) -> dict[str, pa.Array]:
    """Statistics with r of the rollout records, as the join computes them."""
    ours = training.take(pa.array(joined_S))
    parts_S = np.asarray(partition.records["logprobs"].is_valid())[joined_S]
    engine = _rollouts(partition, ours, joined_S, parts_S)
    lists = ours.append_column("rollout_token_ids", engine["token_ids"]).append_column("logprobs", engine["logprobs"])
    aligned = align(lists)
    return joined_statistics(lists, aligned, source_logprobs(lists, aligned))


def _rollouts(partition: Partition, ours: pa.Table, joined_S: NDArray[np.intp], parts_S: NDArray[np.bool_]) -> pa.Table:
    """The engine's records. Those made of several requests have their log-probs in the places of the tokens under the
    mask."""
    schema = pa.schema([RAW_SCHEMAS["rollout"].field(name) for name in _NAMES["rollout"]])
    single = _lists(partition, "rollout", joined_S[~parts_S])
    made = ours.filter(pa.array(parts_S))
    lengths_S = ragged.lengths(made["token_ids"])
    mask_N = ragged.flat_mask(made["mask"], lengths_S)
    offsets_S1 = offsets_of(segment_sums(mask_N, offsets_of(lengths_S)).astype(np.int64))
    ids = pa.ListArray.from_arrays(
        pa.array(offsets_S1.astype(np.int32)), pa.array(ragged.flat_ids(made["token_ids"])[mask_N])
    )
    logprobs = ragged.one_array(partition.records["logprobs"].take(pa.array(joined_S[parts_S])))
    whole = pa.concat_tables([single, pa.table([ids, logprobs], names=schema.names).cast(schema)])
    place_S = np.empty(len(joined_S), np.int64)
    place_S[np.concatenate([np.flatnonzero(~parts_S), np.flatnonzero(parts_S)])] = np.arange(len(joined_S))
    return whole.take(pa.array(place_S))


def _lists(partition: Partition, kind: str, chosen_S: NDArray[np.intp] | None = None) -> pa.Table:
    """Token lists of the records of one side, in the order of the partition. Raises `GoneError`."""
    prefix = "rollout_" if kind == "rollout" else ""
    names = [f"{prefix}segment_id" if kind == "training" else "rollout_segment", f"{prefix}row", f"{kind}_file"]
    wanted = partition.records.select(names).rename_columns(["segment_id", "row", "file"])
    if chosen_S is not None:
        wanted = wanted.take(pa.array(chosen_S))
    schema = pa.schema([field for field in RAW_SCHEMAS[kind] if field.name in ("segment_id", "row", *_NAMES[kind])])
    segments = wanted["segment_id"].unique()
    parts = [schema.empty_table()]
    for file in wanted["file"].unique().to_pylist():
        of_file = wanted.filter(pc.equal(wanted["file"], file))
        parts.append(_read(Path(file), schema, of_file["segment_id"].unique()))
    table = pa.concat_tables(parts)
    present, asked = (_numbers(rows, segments) for rows in (table, wanted))
    order = np.argsort(present, kind="stable")
    at = np.searchsorted(present, asked, sorter=order)
    if (at == len(present)).any() or (present[order[at]] != asked).any():
        raise GoneError(f"not all {kind} records are in their files")
    return table.take(pa.array(order[at])).select(list(_NAMES[kind]))


def _numbers(rows: pa.Table, segments: pa.Array) -> NDArray[np.int64]:
    """[rows] one number per (segment_id, row); −1 or less for other segments."""
    segment = pc.fill_null(pc.index_in(rows["segment_id"], value_set=segments), -1).to_numpy().astype(np.int64)
    return np.asarray((segment << 32) + rows["row"].to_numpy(), np.int64)


def _read(file: Path, schema: pa.Schema, segments: pa.Array) -> pa.Table:
    """The rows of a file that belong to `segments`, and some of their row groups' others."""
    try:
        if fault := _COMPARED.fault(file):
            raise LogprobeError(f"{file}: {fault}; restore that file, or move it away")
        with pq.ParquetFile(file) as parquet:
            groups = _groups(parquet.metadata, segments.to_pylist())
            names = [name for name in schema.names if name in parquet.schema_arrow.names]
            table = parquet.read_row_groups(groups, columns=names, use_threads=False)
    except FileNotFoundError as error:
        raise GoneError(str(file)) from error
    except (OSError, pa.ArrowException) as error:
        raise LogprobeError(f"{file}: cannot be read ({error})") from error
    for field in schema:  # columns that an earlier logprobe did not write
        if field.name not in names:
            table = table.append_column(field, pa.nulls(table.num_rows, field.type))
    return table.select(schema.names).filter(pc.is_in(table["segment_id"], value_set=segments)).cast(schema)


def _groups(metadata: pq.FileMetaData, segments: Sequence[str]) -> list[int]:
    """Row groups that may hold rows of these segments."""
    column = metadata.schema.names.index("segment_id")
    first, last = min(segments), max(segments)
    groups = []
    for number in range(metadata.num_row_groups):
        statistics = metadata.row_group(number).column(column).statistics
        bounded = statistics is not None and statistics.has_min_max
        if not bounded or (statistics.min <= last and statistics.max >= first):
            groups.append(number)
    return groups
