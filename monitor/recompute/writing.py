"""Recomputed statistics into the store, by its one writer: the running service, which is handed a file, or this
process."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.files import open_no_follow, replace_file
from logprobe.collectors.kernel.pairs import PAIRS
from logprobe.collectors.spool.schema import STATISTICS
from logprobe.monitor import queries
from logprobe.monitor.deletion.tombstones import Tombstones
from logprobe.monitor.home import Home
from logprobe.monitor.live.store import Within
from logprobe.monitor.live.writing import write_stored
from logprobe.monitor.recompute.partition import KEY
from logprobe.monitor.service import actions
from logprobe.monitor.service.jobs import Part
from logprobe.monitor.store.store import Store

WRITE: Final = "recompute.write"
_FOLDER: Final = "recomputed"
_LEFT_SECONDS: Final = 3600.0
_NAME: Final = re.compile(r"[0-9a-f]{32}\.arrow")
_SUMS: Final = ("advantage_abs_sum", "entropy_sum", "entropy_n")


def part(store: Store, _: threading.Event) -> Part:
    """What the service offers."""
    return Part(actions=actions.offered(_ACTIONS, store))


def hand_over(home: Home, name: str, table: pa.Table) -> Path:
    """Writes a table to where the service looks for it. Raises `OSError`."""
    path = home.path / _FOLDER / f"{name}.arrow"
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    replace_file(path, sink.getvalue().to_pybytes())
    return path


def sweep(home: Home) -> None:
    """Removes what commands that were killed have left."""
    for path in (home.path / _FOLDER).glob("*.arrow"):
        with suppress(OSError):
            if path.stat().st_mtime < time.time() - _LEFT_SECONDS:
                path.unlink()


def write(store: Store, table: pa.Table, steps: Sequence[int]) -> int:
    """Replaces the statistics of training records and the metrics of `steps` in one transaction; → how many statistics.

    `table`: `partition.Computed.table`. Doing it twice changes nothing. Raises `StoreError`, `RunDeletedError`.
    """
    run = table["run"][0].as_py()
    Tombstones(store.home).refuse(run)
    keys = table.select(list(KEY)).append_column("number", pa.array(np.arange(table.num_rows)))
    span = {"first": min(table["step"].to_pylist()), "last": max(table["step"].to_pylist())}
    with store.transaction() as cursor:  # nobody else writes: what is read now stays where it is
        places = queries.recompute_places(store, keys, run=run, **span)
        rows = _rows(table, places)
        store.execute(cursor, "recompute_forget", places.filter(places["place"].is_valid()).select(["place"]))
        store.execute(cursor, "live_statistics", rows, table="statistics")
        store.execute(cursor, "recompute_sums", table.select([*KEY[:4], *_SUMS]))
        write_stored(Within(store, cursor), [(run, step) for step in sorted(steps)], datetime.now(UTC))
        store.rewritten.note([run])
    return int(rows.num_rows)


def _rows(table: pa.Table, places: pa.Table) -> pa.Table:
    """Rows of ``statistics``, in the order of the places that they had; new ones at the end."""
    number, pair = places["number"].to_numpy(), places["pair"].to_numpy(zero_copy_only=False)
    place = places["place"].to_numpy(zero_copy_only=False).astype(np.float64)
    parts, order = [], []
    for name in PAIRS:
        values = table[name].combine_chunks()
        chosen = np.flatnonzero(pair == name)
        chosen = chosen[np.asarray(values.is_valid())[number[chosen]]]
        taken = pa.array(number[chosen])
        key = table.select(list(KEY[:4])).take(taken).append_column("pair", pa.repeat(name, len(taken)))
        fields = values.take(taken).flatten()
        columns = dict(zip(values.type.names, fields, strict=True))
        parts.append(pa.table({**{column: key[column] for column in key.column_names}, **columns}))
        order.append(place[chosen])
    return pa.concat_tables(parts).take(pa.array(np.argsort(np.concatenate(order), kind="stable")))  # NaN comes last


def _write(store: Store, document: Mapping[str, Any], _: datetime) -> dict[str, object]:
    """``{"file": a name in ``recomputed/`` of the home, "steps": [of which nothing more is to come]}``."""
    name, steps = actions.text(document, "file"), document.get("steps")
    if not _NAME.fullmatch(name) or not isinstance(steps, list) or not all(type(step) is int for step in steps):
        raise ConfigurationError(f"{WRITE}: not a file name and a list of steps")
    try:
        with open_no_follow(store.home.path / _FOLDER / name) as file, pa.ipc.open_file(file) as reader:
            table = reader.read_all()
            table.validate(full=True)
    except (OSError, pa.ArrowException) as error:
        raise ConfigurationError(f"{WRITE}: {name} cannot be read ({error})") from error
    if table.column_names != [*KEY, *_SUMS, *PAIRS] or any(table[p].type != STATISTICS.field(p).type for p in PAIRS):
        raise ConfigurationError(f"{WRITE}: {name} does not hold recomputed statistics of this version")
    return {"statistics": write(store, table, steps) if table.num_rows else 0}


_ACTIONS: Final[actions.Actions] = {WRITE: ("replace statistics of sequences by recomputed ones", _write)}
