"""The SQL form of the Data page: a query in a separate thread, its rows as text, and the schema."""

from __future__ import annotations

import secrets
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
from logprobe.monitor import queries

ROWS: Final = 1000
_WIDEST: Final = 240  # characters of a cell on the page
_LIST_ITEMS: Final = 8


class RunningQuery:
    """A query in progress or finished. Thread-safe for readers.

    Attributes:
        sql: statement as typed.
        label: label by which the service can stop it.
        table: result, or None before the end. Its schema states whether more rows exist, see `Reader.query`.
        refusal: reason for a refusal in one line, or "".
        seconds: duration, or None before its end.
    """

    def __init__(self, sql: str, ask: Callable[[str, str], pa.Table]) -> None:
        """Start the query. `ask(sql, label)` returns the rows or raises `LogprobeError`."""
        self.sql = sql
        self.label = secrets.token_hex(8)
        self.table: pa.Table | None = None
        self.refusal = ""
        self.seconds: float | None = None
        self._ask = ask
        self._begun = time.monotonic()
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="logprobe-sql", daemon=True).start()

    @property
    def running(self) -> bool:
        """True until the query ends."""
        return not self._ended.is_set()

    @property
    def elapsed(self) -> float:
        """Seconds since the start, or the duration of a finished query."""
        return time.monotonic() - self._begun if self.seconds is None else self.seconds

    def wait(self, seconds: float) -> bool:
        """Wait for the end of the query, up to a limit in seconds. Return true if the query has ended."""
        return self._ended.wait(seconds)

    def _run(self) -> None:
        try:
            self.table = self._ask(self.sql, self.label)
        except LogprobeError as error:
            self.refusal = str(error).partition("\n")[0]
        except BaseException as error:
            self.refusal = f"it failed ({type(error).__name__}); the output of `logprobe up` has the details"
            raise
        finally:
            self.seconds = time.monotonic() - self._begun
            self._ended.set()


def lines_of_schema(rows: Sequence[queries.AppDataSchema]) -> list[list[str]]:
    """Return rows of `app_data_schema` by view or table: its name, and its columns with their types."""
    by_name: dict[str, list[str]] = {}
    for column in rows:
        name = f"{column['name']}{'' if column['is_view'] else ' (table)'}"
        by_name.setdefault(name, []).append(f"`{column['column']}` {_short(column['type'])}")
    return [[name, ", ".join(columns)] for name, columns in by_name.items()]


def _short(kind: str) -> str:
    """Return the name of a type without its details.

    >>> _short("STRUCT(a INTEGER)[]"), _short("TIMESTAMP WITH TIME ZONE")
    ('list of struct', 'timestamp')
    """
    name = kind.partition("(")[0].partition(" ")[0].removesuffix("[]").lower()
    return f"list of {name}" if kind.endswith("[]") else name


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
