"""Views of the store for SQL users.

Each view is the statement in ``sql/view_<name>.sql``. One with parameters is in ``sql/macro_<name>.sql``, as are
expressions with parameters. They are compared at every start, so they follow the code. The files of raw records are
variables of the cursor, so a data directory can be moved.
"""

from __future__ import annotations

import hashlib
from typing import Final

import duckdb
import pyarrow as pa

from logprobe.monitor.home import Home
from logprobe.monitor.store.raw_files import RAW_KINDS, RAW_SCHEMAS, empty_file
from logprobe.monitor.store.raw_places import escape_glob, literal
from logprobe.monitor.store.sql_files import statement

# In the order of their dependencies.
VIEWS: Final = (
    "returns",
    "abandoned_steps",
    "sequences",
    "tokens",
    "metrics",
    "scalars",
    "steps",
    "weights",
    "fingerprints",
    "rollouts",
    "events",
    "runs",
    "judgements",
)
MACROS: Final = {  # views with parameters, in the order of their dependencies
    "live_runs": ("looked_at",),
    "steps_of": ("of_run", "first := NULL", "last := NULL"),
    "runs_on_their_way": ("of_runs", "looked_at"),
}
# Expressions with parameters, in the order of their dependencies; views use them.
EXPRESSIONS: Final = {
    "deciding": ("document",),
    "at_its_pace": ("made", "came"),
    "dated_ahead": ("made", "came", "kept"),
    "engine_spans": ("spans", "decisions", "clock_offset", "trained_at"),
    "known_versions": ("spans", "pieces"),
    "version_counts": ("pieces",),
    "version_source": ("spans", "pieces", "alignment"),
}
_FILES: Final = """
SET VARIABLE logprobe_raw_{kind} = [{empty}] || coalesce((
    SELECT list(regexp_replace(file, '([*?[])', '[\\1]', 'g'))  -- each a pattern of one file
    FROM glob({files}) WHERE file IN (SELECT {home} || path FROM raw_files WHERE kind = '{kind}')
), [])
"""
_TOKENS_IN: Final = ("training_files", "rollout_files")
_MARK: Final = "SELECT comment FROM duckdb_views() WHERE view_name = 'steps' AND NOT internal"

_SQL_TYPES: Final = {  # of raw files' columns; a new one fails every test
    "bool": "BOOLEAN",
    "uint16": "USMALLINT",
    "int32": "INTEGER",
    "int64": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "VARCHAR",
    "timestamp[us, tz=UTC]": "TIMESTAMP WITH TIME ZONE",
}


def place(cursor: duckdb.DuckDBPyConnection, home: Home) -> None:
    """Point the views of a cursor to no file with raw records. See `place_files`."""
    for kind in RAW_KINDS:
        cursor.execute(f"SET VARIABLE logprobe_raw_{kind} = [{_empty(home, kind)}]")


def place_files(cursor: duckdb.DuckDBPyConnection, home: Home) -> None:
    """Point the views of a cursor to the existing files that the index lists, in the open transaction.

    Other files below the archive are never opened.
    """
    for kind in RAW_KINDS:
        files = literal(f"{escape_glob(str(home.raw))}/*/{kind}/*.parquet")
        cursor.execute(_FILES.format(kind=kind, empty=_empty(home, kind), files=files, home=literal(f"{home.path}/")))


def _empty(home: Home, kind: str) -> str:
    return literal(escape_glob(str(empty_file(home, kind))))


def create(cursor: duckdb.DuckDBPyConnection) -> None:
    """Create or replace all views in one transaction. If all are up to date, do nothing and need no disk space.

    `cursor`: cursor after `place`.
    """
    wanted = mark()
    if are_current(cursor):
        return
    cursor.execute("BEGIN TRANSACTION")
    for definition in _definitions():
        cursor.execute(f"CREATE OR REPLACE {definition}")
    cursor.execute(f"COMMENT ON VIEW steps IS {literal(wanted)}")
    cursor.execute("COMMIT")


def mark() -> str:
    """Return a fingerprint of the views' definitions, which is a comment on one of them if all are up to date."""
    # A view with "*" is bound to the columns of the day it was made, so the schemas are part of what it says.
    columns = [str(schema.names) for schema in RAW_SCHEMAS.values()]
    return hashlib.sha256("".join([*_definitions(), *columns]).encode()).hexdigest()


def _definitions() -> list[str]:
    """Return the statements that create macros and views, in the order of dependencies."""
    return [
        *(f"MACRO {name}({', '.join(given)}) AS ({statement(f'macro_{name}')})" for name, given in EXPRESSIONS.items()),
        *(f"VIEW raw_{kind} AS {_raw_rows(kind)}" for kind in RAW_KINDS),
        *(f"VIEW {name} AS {statement(f'view_{name}')}" for name in VIEWS),
        *(f"MACRO {name}({', '.join(given)}) AS TABLE {statement(f'macro_{name}')}" for name, given in MACROS.items()),
        *(f"MACRO raw_{kind}_in(files) AS TABLE {statement('macro_raw_in')}" for kind in RAW_KINDS),
        f"MACRO tokens_in({', '.join(_TOKENS_IN)}) AS TABLE {_in_files(statement('view_tokens'))}",
    ]


def _in_files(sql: str) -> str:
    """Return the statement of ``tokens`` for given files."""
    return sql.replace("raw_training AS", "raw_training_in(training_files) AS").replace(
        "raw_rollout AS", "raw_rollout_in(rollout_files) AS"
    )


def are_current(cursor: duckdb.DuckDBPyConnection) -> bool:
    """Return whether the store's views match this code."""
    return bool(cursor.execute(_MARK).fetchall() == [(mark(),)])


def _raw_rows(kind: str) -> str:
    return statement("view_raw").replace("{columns}", _stated_columns(kind)).replace("{kind}", literal(kind))


def _stated_columns(kind: str) -> str:
    """Return the columns of raw files, so that ``read_parquet`` opens none before a statement needs it."""
    columns = (
        f"{literal(field.name)}: {{'name': {literal(field.name)}, 'type': {literal(_sql_type(field.type))}, "
        f"'default_value': NULL}}"
        for field in RAW_SCHEMAS[kind]
    )
    return f"MAP {{{', '.join(columns)}}}"


def _sql_type(column: pa.DataType) -> str:
    """Return DuckDB's name of an Arrow type in a raw file."""
    if pa.types.is_map(column):
        return f"MAP({_sql_type(column.key_type)}, {_sql_type(column.item_type)})"
    if pa.types.is_list(column):
        return f"{_sql_type(column.value_type)}[]"
    if pa.types.is_struct(column):
        return f"STRUCT({', '.join(f'{chr(34)}{field.name}{chr(34)} {_sql_type(field.type)}' for field in column)})"
    return _SQL_TYPES[str(column)]
