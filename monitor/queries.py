"""The stored statements of ``monitor/sql`` that read, as functions of their source.

    rows = queries.cli_behind(reader, run="qwen-3").to_pylist()

`queries.pyi` has the parameters and the columns of each, so that a typo is a type error. ``python tests/query_stub.py``
generates it from the SQL.
"""

from __future__ import annotations

from typing import Any, Protocol

import pyarrow as pa

from logprobe.collectors.errors import QueryError
from logprobe.monitor.store.sql_files import statement


class Source(Protocol):
    """Source that stored statements are read from: a `Reader`, a `Store`, or an object that hands them on."""

    def read(self, name: str, /, **params: Any) -> pa.Table:
        """Return the rows of the stored statement `name`."""


class Query:
    """A stored statement."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, source: Source, /, *incoming: pa.Table, **params: Any) -> pa.Table:
        """Return its rows, with `params` for its ``$name`` places. A `Store` can join the table `incoming`. Raises as
        ``source.read`` does."""
        return source.read(self.name, *incoming, **params)


def __getattr__(name: str) -> Query:
    try:
        statement(name)
    except QueryError as error:
        raise AttributeError(str(error)) from None
    query = globals()[name] = Query(name)
    return query
