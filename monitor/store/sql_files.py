"""SQL statements of the monitor, read by name from ``monitor/sql``: one statement per file, grain and inputs in its header."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

from logprobe.collectors.errors import QueryError
from logprobe.collectors.kernel.statistics import sql_columns


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the store's schema; `version` counts from 1 without gaps."""

    version: int
    name: str
    sql: str


@cache
def statement(name: str) -> str:
    """The statement in ``sql/<name>.sql``. Raises `QueryError` when there is none."""
    file = _folder() / f"{name}.sql"
    if not name.isidentifier() or not file.is_file():
        raise QueryError(f"there is no stored query {name!r}")
    return file.read_text(encoding="utf-8")


@cache
def migrations() -> tuple[Migration, ...]:
    """All migrations, oldest first."""
    files = sorted((_folder() / "migrations").iterdir(), key=lambda file: file.name)
    return tuple(_migration(file) for file in files if file.name.endswith(".sql"))


def _migration(file: Traversable) -> Migration:
    number, _, name = file.name.removesuffix(".sql").partition("_")
    sql = file.read_text(encoding="utf-8").replace("{statistics_columns}", sql_columns())
    return Migration(version=int(number), name=name, sql=sql)


def _folder() -> Traversable:
    return resources.files("logprobe.monitor") / "sql"
