"""The SQL box of the Data page: a query under way in its own thread, its result as text, examples, and what there is to
read."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from logprobe.app.text.numbers import counted, number
from logprobe.app.text.tables import cell, csv_text
from logprobe.collectors.errors import LogprobeError
from logprobe.collectors.plain_text import harmless
from logprobe.monitor import queries
from logprobe.monitor.store.queries import MORE
from logprobe.monitor.store.sql_files import statement


class RunningQuery:
    """A query from the moment someone pressed Run. Safe to look at from any thread.

    Attributes:
        sql: as it was typed.
        label: by which the service can be told to stop it.
        table: what came back, None before; its schema says whether there is more, see `Reader.query`.
        refusal: why nothing came back, one line; "": nothing was refused.
        seconds: how long it took; None: it has not ended.
    """

    def __init__(self, sql: str, ask: Callable[[str, str], pa.Table]) -> None:
        """Begins at once. `ask(sql, label)` returns the rows, or raises `LogprobeError`."""
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
        """Whether it continues."""
        return not self._ended.is_set()

    @property
    def elapsed(self) -> float:
        """Seconds since it began, or for which it ran."""
        return time.monotonic() - self._begun if self.seconds is None else self.seconds

    def wait(self, seconds: float) -> bool:
        """Waits for its end, at most so long; whether it has ended."""
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


Block = dict[str, Any]

ROWS: Final = 1000
_WIDEST: Final = 240  # characters of a cell on the page; the CSV has all of it
_LIST_ITEMS: Final = 8
_CSV_BYTES: Final = 4 << 20

_EXAMPLES: Final = ("steps", "sequences", "versions", "metrics", "events", "runs")


def examples(run: str | None) -> list[list[str]]:
    """Titles and statements about `run`, from ``monitor/sql/example.sql``."""
    quoted = "'" + (run or "my-run").replace("'", "''") + "'"
    return [[title, sql.replace("$run", quoted)] for title, sql in map(_example, _EXAMPLES)]


def _example(name: str) -> tuple[str, str]:
    header, _, sql = statement(f"example_{name}").strip().partition("\n")
    return header.removeprefix("-- ").partition(".")[0], sql


def schema_of(rows: Sequence[queries.AppDataSchema]) -> list[Block]:
    """Rows of `app_data_schema` by view or table."""
    by_name: dict[str, Block] = {}
    for column in rows:
        view = by_name.setdefault(column["name"], {"name": column["name"], "view": column["is_view"], "columns": []})
        view["columns"].append([column["column"], _short(column["type"])])
    return list(by_name.values())


def _short(kind: str) -> str:
    """A type's name without its insides.

    >>> _short("STRUCT(a INTEGER)[]"), _short("TIMESTAMP WITH TIME ZONE")
    ('list of struct', 'timestamp')
    """
    name = kind.partition("(")[0].partition(" ")[0].removesuffix("[]").lower()
    return f"list of {name}" if kind.endswith("[]") else name


def answer(query: RunningQuery | None) -> Block:
    """What became of a query, as `browser/sql.js` draws it."""
    if query is None:
        return {"state": "none"}
    if query.running:
        return {"state": "running", "sql": query.sql, "seconds": round(query.elapsed, 1)}
    took = f"{number(query.elapsed)} s"
    if query.table is None:
        return {"state": "refused", "sql": query.sql, "words": f"No result, after {took}: {harmless(query.refusal)}"}
    return {"state": "done", "sql": query.sql, **_result(query.table, took)}


def _result(table: pa.Table, took: str) -> Block:
    more = MORE in (table.schema.metadata or {})
    count = f"the first {table.num_rows:,} rows; there are more" if more else counted(table.num_rows, "row")
    return {
        "words": f"{count}, {counted(len(table.column_names), 'column')}, in {took}",
        "more": "Add a LIMIT, an aggregate or a condition to see the rest." if more else "",
        "columns": [[harmless(field.name), str(field.type), _numeric(field.type)] for field in table.schema],
        "rows": list(zip(*(_texts(column) for column in table.columns), strict=True)),
        **_csv(table),
    }


def _numeric(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _texts(column: pa.ChunkedArray) -> list[str | None]:
    """A column as people read it; None where it is null."""
    if pa.types.is_list(column.type):
        return _lists(column)
    return [None if value is None else cell(value, _WIDEST) for value in column.to_pylist(maps_as_pydicts="lossy")]


def _lists(column: pa.ChunkedArray) -> list[str | None]:
    """Only as much of long lists as is shown: a thousand sequences are millions of numbers."""
    starts = pc.list_slice(column, 0, _LIST_ITEMS).to_pylist(maps_as_pydicts="lossy")
    lengths = pc.list_value_length(column).to_pylist()
    return [
        None if items is None else cell(_listed(items, length), _WIDEST)
        for items, length in zip(starts, lengths, strict=True)
    ]


def _listed(items: Sequence[Any], length: int) -> str:
    shown = ", ".join(cell(item) for item in items)
    return f"[{shown}]" if length <= len(items) else f"[{shown}, … {length:,} in all]"


def _csv(table: pa.Table) -> Block:
    if table.nbytes > _CSV_BYTES:
        return {"csv": None, "large": "Too large to download here: use `logprobe sql … --csv`."}
    return {"csv": csv_text(table), "large": ""}
