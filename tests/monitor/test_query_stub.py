"""`monitor/queries.pyi` says what the statements are, and a statement that is not there is an error wherever it is asked for."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
import query_stub

from logprobe.monitor import queries
from logprobe.monitor.home import Home
from logprobe.monitor.store.store import Store


def test_it_says_what_the_statements_are() -> None:
    assert query_stub.FILE.read_text() == query_stub.stub(), "run: python tests/query_stub.py"


def test_a_statement_is_read_from_what_has_it(tmp_path: Path) -> None:
    with Store.open(Home(tmp_path)) as store:
        found = queries.app_runs(store)
    assert isinstance(found, pa.Table)
    assert found.num_rows == 0


def test_one_that_joins_is_given_a_table(tmp_path: Path) -> None:
    incoming = pa.table({"run": ["run"], "step": [1]})
    with Store.open(Home(tmp_path)) as store:
        assert queries.freeze_rows(store, incoming).num_rows == 0


def test_there_is_no_other() -> None:
    with pytest.raises(AttributeError, match="there is no stored query 'app_runz'"):
        queries.app_runz  # noqa: B018
