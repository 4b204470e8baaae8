"""Token lists of records, from segments in the spool and from files of the archive."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from logprobe.collectors.errors import QueryError, SegmentError
from logprobe.collectors.files import is_gone
from logprobe.collectors.spool.segments import SegmentPath, read_segment
from logprobe.monitor import queries
from logprobe.monitor.store.archiving import SPOOL

if TYPE_CHECKING:
    from logprobe.monitor.store.store import Store

_ATTEMPTS = 3  # a segment may be merged between the look at the index and the look into its file


def lists(store: Store, name: str, kind: str, keys: pa.Table) -> pa.Table:
    """Return the rows of the stored statement `name` for the records in `keys`.

    Records in missing or damaged files are omitted. Raises `QueryError` if a file cannot be read now.

    Args:
        store: store of the records.
        name: statement with ``$<kind>_files`` that returns ``number`` and lists of tokens.
        kind: record kind, ``training`` or ``rollout``.
        keys: table of ``number, segment_id, row``.
    """
    with store.holding_files():
        for _ in range(_ATTEMPTS):
            files = queries.past_files(store, keys.select(["segment_id"]))
            places = dict(zip(files["segment_id"].to_pylist(), files["raw_file"].to_pylist(), strict=True))
            spooled = {segment: place for segment, place in places.items() if place.startswith(SPOOL)}
            tables, moved = _of_segments(store, spooled, keys)
            if not moved:
                break
            store.archive.note()
        merged = {place for place in places.values() if not place.startswith(SPOOL)}
        whole = sorted(place for place in merged if _is_whole(store, place))
        found = store.read(name, keys, **{f"{kind}_files": store.places_of(kind, whole)})
    if not tables:
        return found
    return pa.concat_tables([found, *(_like(table, found.schema) for table in tables)]).sort_by("number")


def _of_segments(store: Store, spooled: dict[str, str], keys: pa.Table) -> tuple[list[pa.Table], bool]:
    """Return the rows of spool segments with ``number``, and whether some segments are gone."""
    found, moved = [], False
    for segment, place in spooled.items():
        path = store.home.path / place
        try:
            table = read_segment(SegmentPath.parse(path)).table
        except FileNotFoundError:
            moved = True
        except SegmentError:
            continue
        except OSError as error:
            raise QueryError(f"{path} cannot be read now ({error.strerror or error}); retry, or restore it") from error
        else:
            some = keys.filter(pc.equal(keys["segment_id"], segment))
            found.append(table.take(some["row"]).append_column("number", some["number"]))
    return found, moved


def _like(table: pa.Table, schema: pa.Schema) -> pa.Table:
    return table.replace_schema_metadata().select(schema.names).cast(schema)


def _is_whole(store: Store, place: str) -> bool:
    path = store.home.path / place
    try:
        return not is_gone(path) and store.damaged.fault(path) is None
    except FileNotFoundError:
        return False
    except OSError as error:
        raise QueryError(f"{path} cannot be read now ({error.strerror or error}); retry, or restore it") from error
