"""Which batches may hold sequences that are in the store already: only those with records as old as what is there.

The same record has the same time, whatever segment it comes in. Statements that look for it (``sql/find_doubled_*.sql``) take as long as all that a
small batch writes, and in almost every batch all records are newer than any before.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

import pyarrow as pa

from logprobe.collectors.errors import QueryError, StoreError
from logprobe.monitor.store.store import Store

# Statement → what reads the newest times there are, and the column that, beside run and time, is the same for the same record.
_PLACES: Final = {
    "find_doubled_training": ("newest_training", "rank"),
    "find_doubled_rollout": ("newest_rollout", "replica"),
}
_Key = tuple[str, Any]  # run, and rank or replica


class NewestTimes:
    """Times of the newest records of each run, by rank or replica, of a store that nobody else brings sequences into."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._newest: dict[str, dict[_Key, datetime]] = {name: {} for name in _PLACES}
        self._runs: dict[str, set[str]] = {name: set() for name in _PLACES}  # of which these are known

    def needs(self, name: str, arriving: pa.Table) -> bool:
        """Whether the statement `name` can find anything about the rows of `arriving`, which from now on count as being in the store.

        A batch that is not committed after all leaves times that are too new: then the statement runs once more than it need. Raises
        `StoreError`.
        """
        if name not in _PLACES:
            return True
        statement, column = _PLACES[name]
        self._learn(name, statement, set(arriving["run"].unique().to_pylist()))
        keys = ["run", column, "segment_id"]
        spans = arriving.select([*keys, "time"]).group_by(keys).aggregate([("time", "min"), ("time", "max")])
        rows = zip(*(spans[each].to_pylist() for each in ("run", column, "time_min", "time_max")), strict=True)
        return self._advance(self._newest[name], (row for row in rows if row[2] is not None))

    def _learn(self, name: str, statement: str, runs: set[str]) -> None:
        unknown = runs - self._runs[name]
        if not unknown:
            return
        try:
            rows = self._store.read(statement, runs=sorted(unknown)).to_pylist()
        except QueryError as error:  # of the store, not of what arrives
            raise StoreError(f"{self._store.home.database}: the newest times cannot be read ({error})") from error
        for row in rows:
            if row["newest"] is not None:
                self._newest[name][row["run"], row["place"]] = row["newest"]
        self._runs[name] |= unknown

    @staticmethod
    def _advance(newest: dict[_Key, datetime], spans: Iterable[tuple[str, Any, datetime, datetime]]) -> bool:
        """Whether any span of time, of one segment each, does not lie behind all before it."""
        overlaps = False
        for run, place, first, last in sorted(spans, key=lambda span: span[2]):
            before = newest.get((run, place))
            overlaps |= before is not None and first <= before
            newest[run, place] = last if before is None else max(before, last)
        return overlaps
