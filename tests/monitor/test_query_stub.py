"""`monitor/queries.pyi` says what the statements are, and a statement that is not there is an error wherever it is asked for."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest
import query_stub

from logprobe.collectors.errors import QueryError
from logprobe.monitor import queries
from logprobe.monitor.store.sql_files import statement
from logprobe.monitor.store.store import Store


def test_it_says_what_the_statements_are() -> None:
    assert query_stub.FILE.read_text() == query_stub.stub(), "run: python tests/query_stub.py"


def test_every_file_is_one_statement_or_several_that_begin_with_its_name(repository: Path) -> None:
    for file in sorted((repository / "monitor" / "sql").glob("*.sql")):
        text = file.read_text(encoding="utf-8")
        names = re.findall(rf"^-- ({file.stem}_\w+): ", text, re.MULTILINE)
        # A shared file has nothing before its first statement.
        assert not names or text.startswith(f"-- {names[0]}: "), file.name
        assert len(names) == len(set(names)), file.name
        for name in names or [file.stem]:
            assert statement(name).startswith("-- "), name
    progress = statement("outbox_progress")
    assert (progress.count("UPDATE deliveries"), "outbox_channels" in progress) == (1, False), "its own part alone"


def test_a_statement_that_joins_is_given_a_table_and_there_is_no_other(store: Store) -> None:
    assert queries.freeze_rows(store, pa.table({"run": ["run"], "step": [1]})).num_rows == 0
    with pytest.raises(AttributeError, match="there is no stored query 'app_runz'"):
        queries.app_runz  # noqa: B018
    for name in ("outbox", "outbox_", "nothing", "../secrets", "outbox_nothing", ""):
        with pytest.raises(QueryError, match="there is no stored query"):
            statement(name)
