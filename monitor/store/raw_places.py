"""Paths of raw files as parameters of statements."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import duckdb

from logprobe.collectors.files import is_gone
from logprobe.monitor.home import Home
from logprobe.monitor.store.raw_damage import Damaged
from logprobe.monitor.store.raw_files import RAW_KINDS, empty_file
from logprobe.monitor.store.sql_files import statement

_TOKENS: Final = re.compile(r"\b(raw_training|raw_rollout|raw_files|tokens)\b", re.IGNORECASE)


def reads_tokens(sql: str) -> bool:
    """Return whether a statement may read tokens from files."""
    return _TOKENS.search(sql) is not None


def wanted(sql: str, params: Mapping[str, Any]) -> list[str]:
    """Return the file parameters of a statement that its caller did not set."""
    return [name for name in (f"{kind}_files" for kind in RAW_KINDS) if f"${name}" in sql and name not in params]


def reads_spool(sql: str) -> bool:
    """Return whether a statement also reads unmerged segments in the spool."""
    return "spooled_training" in sql


def files_of(
    cursor: duckdb.DuckDBPyConnection,
    home: Home,
    names: Iterable[str],
    params: Mapping[str, Any],
    damaged: Damaged,
) -> dict[str, list[str]]:
    """Return the values of the parameters `names`: the files that may hold the requested records, by the ledger.

    A view over all runs opens each file. Raises `QueryError` for a corrupt file.
    """
    asked = {"run": params["run"], "segments": params.get("segments"), **_steps(params)}
    places = cursor.execute(statement("raw_places"), asked).fetchall()
    files = {name: list(_empty(home, name)) for name in names}
    for kind, path in places:
        name = f"{kind}_files"
        if name not in files or is_gone(home.path / path):
            continue  # somebody has removed it: retention strikes it out of the ledger
        damaged.require([path])
        files[name].append(pattern(home.path / path))
    return files


def pattern(path: Path) -> str:
    """Return a pattern that matches this file only."""
    return escape_glob(str(path))


def escape_glob(path: str) -> str:
    """Return `path` as a pattern that matches itself only."""
    return "".join(f"[{char}]" if char in "*?[" else char for char in path)


def literal(text: str) -> str:
    """Return `text` as a string literal of SQL."""
    return "'" + text.replace("'", "''") + "'"


def _steps(params: Mapping[str, Any]) -> dict[str, int | None]:
    """Return the first and last step among a statement's parameters, None for no bound."""
    if "step" in params:
        return {"first": params["step"], "last": params["step"]}
    if params.get("steps"):
        return {"first": min(params["steps"]), "last": max(params["steps"])}
    return {"first": params.get("first"), "last": params.get("last")}


def _empty(home: Home, name: str) -> Iterator[str]:
    """Yield the empty file of a kind. It has columns that files of an earlier logprobe may lack."""
    yield from (pattern(empty_file(home, kind)) for kind in RAW_KINDS if kind in name)
