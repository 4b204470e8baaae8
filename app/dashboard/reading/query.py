"""The SQL form of the Data page: a query in a separate thread, and its rows for a table."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from logprobe.app.text.tables import cell
from logprobe.collectors.errors import LogprobeError
from logprobe.collectors.plain_text import harmless
from logprobe.monitor.store.queries import MORE

ROWS: Final = 1000
_WIDEST: Final = 240  # characters of a cell on the page
_LIST_ITEMS: Final = 8


class RunningQuery:
    """A query in progress or finished. Thread-safe for readers.

    The service stops a statement that takes long.

    Attributes:
        rows: result of `frame_of`, or None before the end and after a refusal.
        more: true if more rows exist than those of the result.
        refusal: reason for a refusal in one line, or "".
        seconds: duration, or None before the end.
    """

    def __init__(self, ask: Callable[[], pa.Table]) -> None:
        """Start the query. `ask` returns the rows or raises `LogprobeError`. Their schema states whether more rows
        exist, see `Reader.query`.
        """
        self.rows: pl.DataFrame | None = None
        self.more = False
        self.refusal = ""
        self.seconds: float | None = None
        self.begun = time.monotonic()
        self._ask = ask
        self._thread = threading.Thread(target=self._run, name="logprobe-sql", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        """True until the query ends."""
        return self._thread.is_alive()

    def wait(self, seconds: float) -> None:
        """Wait for the end of the query, up to a limit in seconds."""
        self._thread.join(seconds)

    def _run(self) -> None:
        try:
            table = self._ask()
            self.more = MORE in (table.schema.metadata or {})
            self.rows = frame_of(table)
        except LogprobeError as error:
            self.refusal = str(error).partition("\n")[0]
        except BaseException as error:
            self.refusal = f"it failed ({type(error).__name__}); the output of `logprobe up` has the details"
            raise
        finally:
            self.seconds = time.monotonic() - self.begun


def frame_of(table: pa.Table) -> pl.DataFrame:
    """Return rows for the page, with numbers unchanged, other values as text, and long lists shortened.

    A repeated column name gets a number.
    """
    columns: dict[str, pl.Series] = {}
    for at, field in enumerate(table.schema):
        name = harmless(field.name)
        name = name if name not in columns else f"{name} ({at + 1})"
        plain = pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
        columns[name] = pl.Series(
            name, pl.from_arrow(table.column(at)) if plain else _texts(table.column(at)), strict=False
        )
    return pl.DataFrame(list(columns.values()))


def _texts(column: pa.ChunkedArray) -> list[str | None]:
    """Return a column as text for users, None for null."""
    if pa.types.is_list(column.type):  # a thousand sequences are millions of numbers
        starts = pc.list_slice(column, 0, _LIST_ITEMS).to_pylist(maps_as_pydicts="lossy")
        lengths = pc.list_value_length(column).to_pylist()
        pairs = zip(starts, lengths, strict=True)
        return [None if items is None else cell(_listed(items, length), _WIDEST) for items, length in pairs]
    return [None if value is None else cell(value, _WIDEST) for value in column.to_pylist(maps_as_pydicts="lossy")]


def _listed(items: Sequence[object], length: int) -> str:
    shown = ", ".join(cell(item) for item in items)
    return f"[{shown}]" if length <= len(items) else f"[{shown}, … {length:,} in all]"
