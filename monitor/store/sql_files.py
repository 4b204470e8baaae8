"""SQL statements of the monitor, read by name from ``monitor/sql``. The header of each states its grain and inputs.

A long statement has its own file. Short ones about a subject share one file. For example, ``outbox.sql`` contains
``outbox_due``, which begins with ``-- outbox_due: ``.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from importlib import resources
from importlib.resources.abc import Traversable

from logprobe.collectors.errors import QueryError


@cache
def statement(name: str) -> str:
    """Return the statement of that name. Raises `QueryError` if none exists."""
    subject = name if name.isidentifier() else ""
    while subject:
        if (sql := _of_subject(subject).get(name)) is not None:
            return sql
        subject = subject.rpartition("_")[0]
    raise QueryError(f"there is no stored query {name!r}; use a name from monitor/sql")


@lru_cache(maxsize=1024)  # other processes ask by name, too
def _of_subject(subject: str) -> dict[str, str]:
    """Return the statements in ``sql/<subject>.sql`` by name.

    The file has one statement of its name, or several whose names begin with it.
    """
    file = _folder() / f"{subject}.sql"
    if not file.is_file():
        return {}
    text = file.read_text(encoding="utf-8")
    _, *parts = re.split(rf"^-- ({subject}_\w+): ", text, flags=re.MULTILINE)
    return {name: f"-- {sql}" for name, sql in zip(parts[::2], parts[1::2], strict=True)} if parts else {subject: text}


def schema() -> str:
    """Return the statements that create all tables."""
    files = sorted((_folder() / "schema").iterdir(), key=lambda file: file.name)
    return "\n".join(file.read_text(encoding="utf-8") for file in files if file.name.endswith(".sql"))


def _folder() -> Traversable:
    return resources.files("logprobe.monitor") / "sql"
