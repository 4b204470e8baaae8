"""Stored read statements of ``monitor/sql``, as functions of their source.

    rows = queries.cli_collectors(reader, run="qwen-3").to_pylist()

`queries.pyi` declares the parameters and columns of each, so that type checkers find typos. ``python
tests/query_stub.py`` generates it from the SQL.
"""

from __future__ import annotations

from typing import Any, Protocol

import pyarrow as pa

from logprobe.collectors.errors import QueryError
from logprobe.monitor.store.sql_files import statement


class Source(Protocol):
    """Source of stored statements: a `Reader`, a `Store`, or an object that forwards to one."""

    def read(self, name: str, /, **params: Any) -> pa.Table:
        """Return the rows of the stored statement `name`."""


class Query:
    """Stored statement."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, source: Source, /, *incoming: pa.Table, **params: Any) -> pa.Table:
        """Return the rows, with `params` for the ``$name`` parameters. A `Store` can join the table `incoming`. Raises
        as ``source.read`` does.
        """
        return source.read(self.name, *incoming, **params)


def __getattr__(name: str) -> Query:
    try:
        statement(name)
    except QueryError as error:
        raise AttributeError(str(error)) from None
    query = globals()[name] = Query(name)
    return query
