"""Where raw files lie, as statements name them: paths on the disk, addresses in the object store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import duckdb

from logprobe.collectors.files import is_gone
from logprobe.monitor.home import Home
from logprobe.monitor.store.raw_damage import DamagedFiles
from logprobe.monitor.store.raw_files import RAW_KINDS, empty_file
from logprobe.monitor.store.sql_files import statement

PREFIX: Final = "object://"  # of an address, for DuckDB: it opens those through `objects.files`
SCHEMES: Final = ("s3", "gs", "abfs", "abfss", "file")  # of addresses
_TIMES: Final = ("sampled_from", "sampled_to")


def wanted(sql: str, params: Mapping[str, Any]) -> list[str]:
    """The parameters of a statement that are the files of its run, and that its caller has not named."""
    names = [*(f"{kind}_files" for kind in RAW_KINDS), *_TIMES]
    return [name for name in names if f"${name}" in sql and name not in params]


def files_of(
    cursor: duckdb.DuckDBPyConnection,
    home: Home,
    names: Iterable[str],
    params: Mapping[str, Any],
    damaged: DamagedFiles,
) -> dict[str, list[str] | datetime | None]:
    """Values of the parameters `names`: the files that may hold what `params` ask for, by the ledger; and times, if
    there are objects.

    A view over all runs opens every file of the home; an object that is not needed costs a round trip, and is not
    opened. Raises `QueryError` when a file is not what was written.
    """
    asked = {"run": params["run"], "segments": params.get("segments"), **_steps(params)}
    places = cursor.execute(statement("raw_places"), asked).fetchall()
    files = {name: list(_empty(home, name)) for name in names if name not in _TIMES}
    for kind, path, location in places:
        if location is None and is_gone(home.path / path):
            continue  # somebody has removed it: retention strikes it out of the ledger
        if f"{kind}_files" not in files:
            continue
        if location is None:
            damaged.require([path])
        files[f"{kind}_files"].append(place(home, path, location))
    times: dict[str, datetime | None] = {}
    if set(_TIMES) & set(names):
        times = _times(cursor, asked) if objects_in([files.get("rollout_files")]) else dict.fromkeys(_TIMES)
    return {**files, **times}


def _times(cursor: duckdb.DuckDBPyConnection, asked: Mapping[str, Any]) -> dict[str, datetime | None]:
    """Between which times the engine sampled what these steps trained on: of a merged file, only rows of that time are
    read."""
    if asked["first"] is None or asked["last"] is None:
        return dict.fromkeys(_TIMES)
    steps = {name: asked[name] for name in ("run", "first", "last")}
    return dict(zip(_TIMES, cursor.execute(statement("raw_times"), steps).fetchall()[0], strict=True))


def objects_in(values: Iterable[Any]) -> list[str]:
    """The files in the object store that these parameters name."""
    lists = (value for value in values if isinstance(value, list))
    return [name for value in lists for name in value if isinstance(name, str) and name.startswith(PREFIX)]


def place(home: Home, path: str, location: str | None) -> str:
    """A registered file as DuckDB reads it. `path`: relative to the home."""
    return pattern(home.path / path) if location is None else object_path(location)


def object_path(location: str) -> str:
    """An address as DuckDB is given it, without "%": DuckDB decodes those of an address, and refuses one that leads
    upwards then."""
    return PREFIX + location.replace("=", "=3D").replace("%", "=25")


def object_location(path: str) -> str:
    """The address that `object_path` was given."""
    return path.removeprefix(PREFIX).replace("=25", "%").replace("=3D", "=")


def pattern(path: Path) -> str:
    """A pattern that matches this file only."""
    return escape_glob(str(path))


def escape_glob(path: str) -> str:
    """`path` as a pattern that matches itself only."""
    return "".join(f"[{char}]" if char in "*?[" else char for char in path)


def literal(text: str) -> str:
    """`text` as a string literal of SQL."""
    return "'" + text.replace("'", "''") + "'"


def _steps(params: Mapping[str, Any]) -> dict[str, int | None]:
    """First and last step that a statement's parameters leave; None: no bound."""
    if "step" in params:
        return {"first": params["step"], "last": params["step"]}
    if params.get("steps"):
        return {"first": min(params["steps"]), "last": max(params["steps"])}
    return {"first": params.get("first"), "last": params.get("last")}


def _empty(home: Home, name: str) -> Iterator[str]:
    """The file without rows: it has the columns that an earlier logprobe did not write."""
    yield from (pattern(empty_file(home, kind)) for kind in RAW_KINDS if kind in name)
