"""Token lists of records, from segments in the spool and from files of the archive."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from logprobe.collectors.errors import QueryError, SegmentError
from logprobe.collectors.spool.schema import SCHEMAS
from logprobe.collectors.spool.segments import SegmentPath, read_segment
from logprobe.monitor import queries
from logprobe.monitor.store.archive_file import parts_of
from logprobe.monitor.store.archiving import SPOOL

if TYPE_CHECKING:
    from logprobe.monitor.store.store import Store

_ATTEMPTS: Final = 3  # a segment may be merged between the look at the index and the look into its file


def lists(store: Store, kind: str, names: Sequence[str], keys: pa.Table) -> pa.Table:
    """Return ``number`` and the columns `names` of records of a kind, by number.

    Records in missing or damaged files are omitted. Raises `QueryError` if a file cannot be read now.

    Args:
        store: store of the records.
        kind: record kind, ``training`` or ``rollout``.
        names: columns with lists of tokens.
        keys: table of ``number, segment_id, row``.
    """
    fields = pa.schema([SCHEMAS[kind].field(name) for name in names])
    with store.holding_files():
        for _ in range(_ATTEMPTS):
            files = queries.past_files(store, keys.select(["segment_id"]))
            tables, moved = [], False
            for place in files["raw_file"].unique().to_pylist():
                segments = files.filter(pc.equal(files["raw_file"], place))["segment_id"]
                try:
                    tables.append(_of_file(store, place, fields, keys.filter(pc.is_in(keys["segment_id"], segments))))
                except FileNotFoundError:
                    moved |= place.startswith(SPOOL)
                except SegmentError:
                    continue
                except OSError as error:
                    why = error.strerror or error
                    raise QueryError(
                        f"{store.home.path / place} cannot be read now ({why}); retry, or restore it"
                    ) from error
            if not moved:
                break
            store.archive.note()
    return pa.concat_tables([_like(keys.slice(0, 0), fields), *tables]).sort_by("number")


def _of_file(store: Store, place: str, fields: pa.Schema, keys: pa.Table) -> pa.Table:
    """Return the rows of `keys` in a file.

    Raises `SegmentError` if it is damaged, `FileNotFoundError` if it was removed, `OSError` if it cannot be read now.
    """
    path, rows = store.home.path / place, keys["row"].to_numpy()
    if place.startswith(SPOOL):
        where = SegmentPath.parse(path)
        kept = None if store.read_only else store.archive.kept(where)
        table = (kept or read_segment(where)).table
    elif (fault := store.damaged.fault(path)) is not None:
        raise SegmentError("checksum", f"{path}: {fault}")
    else:
        with pq.ParquetFile(path) as file:
            first = parts_of(file.read(["segment_id"])["segment_id"])
            rows = rows + np.array([first[segment][0] for segment in keys["segment_id"].to_pylist()])
            table, rows = _row_groups(file, fields.names, rows)
    table = table.select([name for name in fields.names if name in table.column_names]).take(pa.array(rows))
    return _like(table.append_column("number", keys["number"]), fields)


def _row_groups(
    file: pq.ParquetFile, names: Collection[str], rows: NDArray[np.int64]
) -> tuple[pa.Table, NDArray[np.int64]]:
    """Return the row groups of a file that have `rows`, and the places of the rows in them."""
    sizes = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
    ends = np.cumsum(sizes)
    group = np.searchsorted(ends, rows, "right")
    needed = np.unique(group)
    skipped = (ends - np.cumsum(np.where(np.isin(np.arange(len(sizes)), needed), sizes, 0)))[group]
    present = [name for name in file.schema_arrow.names if name in names]
    return file.read_row_groups(needed.tolist(), present), rows - skipped


def _like(table: pa.Table, fields: pa.Schema) -> pa.Table:
    """Return ``number`` and all `fields`. Files of an earlier logprobe may lack some."""
    columns = [
        table[name].cast(kind) if name in table.column_names else pa.nulls(len(table), kind)
        for name, kind in zip(fields.names, fields.types, strict=True)
    ]
    return pa.table([table["number"], *columns], names=["number", *fields.names])
