"""Stored statements: found by name, whether they have a file or share one."""

import re
from pathlib import Path

import pytest

from logprobe.collectors.errors import QueryError
from logprobe.monitor.store.sql_files import statement


def test_a_statement_of_a_shared_file_is_its_own_part_alone():
    begin = statement("outbox_begin")
    assert begin.startswith("-- Notes that an attempt begins")
    assert begin.count("UPDATE deliveries") == 1
    assert "outbox_channels" not in begin


def test_every_file_is_one_statement_or_several_that_begin_with_its_name(repository: Path):
    for file in sorted((repository / "monitor" / "sql").glob("*.sql")):
        text = file.read_text(encoding="utf-8")
        names = re.findall(rf"^-- ({file.stem}_\w+): ", text, re.MULTILINE)
        # A shared file has nothing before its first statement.
        assert not names or text.startswith(f"-- {names[0]}: "), file.name
        assert len(names) == len(set(names)), file.name
        for name in names or [file.stem]:
            assert statement(name).startswith("-- "), name


@pytest.mark.parametrize("name", ["outbox", "outbox_", "nothing", "../secrets", "outbox_nothing", ""])
def test_what_is_no_statement_is_refused(name):
    with pytest.raises(QueryError, match="there is no stored query"):
        statement(name)
