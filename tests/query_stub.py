"""Writes `monitor/queries.pyi`: the parameters and columns of every stored statement that reads, as DuckDB names them on an empty store.

Run as a program it writes the file. Nothing is said of which columns may be null: DuckDB does not know.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import duckdb

from logprobe.monitor.home import Home
from logprobe.monitor.store import raw_places
from logprobe.monitor.store.raw_files import RAW_KINDS, empty_file, empty_rows
from logprobe.monitor.store.sql_files import statement
from logprobe.monitor.store.store import Store

SQL: Final = Path(__file__).parents[1] / "monitor" / "sql"
FILE: Final = SQL.parent / "queries.pyi"
_PARTS: Final = (
    "macro_",
    "view_",
)  # of views and macros: nobody reads them by name
_HEAD: Final = """\
# What each stored statement takes and gives. Written by ``python tests/query_stub.py`` from the SQL; do not edit.

from typing import Any, Generic, Protocol, TypedDict, TypeVar

_Row = TypeVar("_Row")

class Rows(Generic[_Row]):
    # An Arrow table whose rows are known.
    num_rows: int
    schema: Any
    column_names: list[str]
    def to_pylist(self) -> list[_Row]: ...
    def __getitem__(self, column: str) -> Any: ...
    def __getattr__(self, name: str) -> Any: ...

class Source(Protocol):
    # What stored statements are read from: a `Reader`, a `Store`, or what hands them on.
    def read(self, name: str, /, **params: Any) -> Any: ...

"""


def names() -> list[str]:
    """Of all stored statements, in order."""
    found: list[str] = []
    for file in sorted(SQL.glob("*.sql")):
        several = re.findall(rf"^-- ({file.stem}_\w+): ", file.read_text(), flags=re.MULTILINE)
        found += several or [file.stem]
    return sorted(found)


def stub() -> str:
    """The whole file, formatted."""
    with tempfile.TemporaryDirectory() as folder, Store.open(Home(Path(folder) / "home")) as store:
        text = _HEAD + "".join(_functions(store))
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(FILE), "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True, cwd=SQL.parent).stdout


def _functions(store: Store) -> Iterator[str]:
    with store.transaction() as cursor:
        for kind in RAW_KINDS:
            cursor.register(f"spooled_{kind}", empty_rows(kind))
        for name in names():
            if not name.startswith(_PARTS) and (parsed := _reading(cursor, name)) is not None:
                yield _function(cursor, store.home, name, parsed)


def _reading(cursor: duckdb.DuckDBPyConnection, name: str) -> duckdb.Statement | None:
    """The statement, if it reads."""
    (parsed,) = cursor.extract_statements(statement(name).replace("{table}", "runs"))  # templates write
    return parsed if parsed.type == duckdb.StatementType.SELECT else None


def _function(cursor: duckdb.DuckDBPyConnection, home: Home, name: str, parsed: duckdb.Statement) -> str:
    sql = statement(name)
    wanted = raw_places.wanted(sql, {})
    asked = sorted(set(parsed.named_parameters) - set(wanted))
    params = "".join(f", {each}: Any" for each in asked) + "".join(f", {each}: Any = ..." for each in sorted(wanted))
    star = ", *" if params else ""
    if re.search(r"\b(?:FROM|JOIN) incoming\b", sql):  # of any columns
        return f"\ndef {name}(source: Any, incoming: Any = ..., /{star}{params}) -> Rows[dict[str, Any]]: ...\n"
    columns = _columns(cursor, home, parsed)
    row = "".join(part.capitalize() for part in name.split("_"))
    fields = "".join(f"    {column}: Any  # {kind}\n" for column, kind in columns)
    return f"\nclass {row}(TypedDict):\n{fields}\ndef {name}(source: Source, /{star}{params}) -> Rows[{row}]: ...\n"


def _columns(cursor: duckdb.DuckDBPyConnection, home: Home, parsed: duckdb.Statement) -> list[tuple[str, str]]:
    kinds = {"files": "rollout", "training_files": "training", "rollout_files": "rollout"}
    given = {
        name: [raw_places.pattern(empty_file(home, kinds[name]))] if name in kinds else None
        for name in parsed.named_parameters
    }
    result = cursor.execute(parsed, given or None)
    return [(column[0], str(column[1])) for column in result.description]


if __name__ == "__main__":
    FILE.write_text(stub())
