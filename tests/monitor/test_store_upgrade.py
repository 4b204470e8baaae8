"""A file that an older version wrote, when all that is wanted is to read it."""

from __future__ import annotations

from pathlib import Path

import pytest

from logprobe.monitor.home import Home
from logprobe.monitor.store import migrations, sql_files
from logprobe.monitor.store import store as store_module
from logprobe.monitor.store.store import Store


def version(store: Store) -> int:
    return store.query("SELECT max(version) AS version FROM schema_versions")["version"][0].as_py()


def test_a_file_of_an_older_schema_is_upgraded_before_it_is_read(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = sql_files.migrations()
    with monkeypatch.context() as older:
        for module in (migrations, store_module):
            older.setattr(module, "migrations", lambda: known[:-1])
        older.setattr(store_module.views, "create", lambda *_: None)  # today's views may need today's columns
        with Store.open(Home(home)) as store:
            assert version(store) == known[-2].version
    with Store.open(Home(home), read_only=True) as store:
        assert store.read_only
        assert version(store) == known[-1].version
