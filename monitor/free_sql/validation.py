"""Which statements are answered: exactly one that reads, as DuckDB's own parser sees it. No text is looked at but by
that parser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import duckdb

from logprobe.collectors.errors import QueryError

# DESCRIBE, SHOW and SUMMARIZE are SELECTs to DuckDB's parser.
_READING_NODES: Final = frozenset({"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"})
_ASK: Final = "use SELECT, EXPLAIN, DESCRIBE or SHOW"
_OPTION_TOKENS: Final = ("(", ")", ",")


def validated(connection: duckdb.DuckDBPyConnection, sql: str) -> str:
    """The statement to run. Raises `QueryError` unless `sql` is one statement that reads, and `duckdb.Error` if it is
    none."""
    statement = _only(connection, sql)
    if statement.type == duckdb.StatementType.EXPLAIN:
        return _explained(connection, statement.query)
    _check_selects(connection, statement)
    return statement.query


def _only(connection: duckdb.DuckDBPyConnection, sql: str) -> duckdb.Statement:
    statements = connection.extract_statements(sql)
    if len(statements) != 1:
        raise QueryError(f"one statement at a time, not {len(statements)}")
    return statements[0]


def _check_selects(connection: duckdb.DuckDBPyConnection, statement: duckdb.Statement) -> None:
    """An INSERT within a WITH is part of a SELECT, hence the look at every node of the parsed statement."""
    if statement.type != duckdb.StatementType.SELECT:
        raise _refusal(statement.type.name)
    ((text,),) = connection.execute("SELECT json_serialize_sql(?)", [statement.query]).fetchall()
    tree = json.loads(text)
    if tree["error"]:
        raise QueryError(f"the statement was rejected: {tree['error_message']}")
    for kind in _nodes(tree):
        if kind not in _READING_NODES:
            raise _refusal(kind.removesuffix("_NODE").removesuffix("_QUERY"))


def _refusal(kind: str) -> QueryError:
    return QueryError(f"{kind} is refused: this store is read-only here; {_ASK}")


def _nodes(tree: Any) -> Iterator[str]:
    """The kinds of query nodes in a serialised statement; without recursion, for statements are nested as deep as
    people like."""
    waiting = [tree]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            kind = item.get("type")
            if isinstance(kind, str) and kind.endswith("_NODE"):
                yield kind
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)


def _explained(connection: duckdb.DuckDBPyConnection, sql: str) -> str:
    """An EXPLAIN put together from options and a statement that was judged by itself: EXPLAIN ANALYZE runs what it
    explains."""
    why: Exception | None = None
    for options, inner in _splits(sql):
        try:
            statement = _only(connection, inner)
            _check_selects(connection, statement)
        except (duckdb.Error, QueryError) as error:
            why = why or error
            continue
        whole = f"EXPLAIN {options}\n{statement.query}"
        if _only(connection, whole).type == duckdb.StatementType.EXPLAIN:
            return whole
    raise why or QueryError(f"nothing to explain; {_ASK}")


def _splits(sql: str) -> Iterator[tuple[str, str]]:
    """Where the explained statement may begin: after ANALYZE, after options in brackets, or at once."""
    content = sql.encode()
    tokens = [(start, kind) for start, kind in duckdb.tokenize(sql) if kind != duckdb.token_type.comment]
    ends = [*(start for start, _ in tokens[1:]), len(content)]
    words = [
        content[start:end].decode(errors="replace").split(maxsplit=1)[0] if content[start:end].strip() else ""
        for (start, _), end in zip(tokens, ends, strict=True)
    ]
    begins = [start for start, _ in tokens]
    for count in _option_counts(words[1:]):
        if len(begins) > count + 1:
            yield " ".join(words[1 : count + 1]), content[begins[count + 1] :].decode()


def _option_counts(words: list[str]) -> Iterator[int]:
    """How many tokens may be options, the most likely first."""
    if words and words[0].upper() in {"ANALYZE", "ANALYSE"}:
        yield 1
    if words and words[0] == "(" and ")" in words:
        closing = words.index(")") + 1
        if all(word in _OPTION_TOKENS or word.isalnum() for word in words[:closing]):
            yield closing
    yield 0
