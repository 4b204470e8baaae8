"""The store: its schema, transactions, read-only SQL, views, and a full disk."""

from __future__ import annotations

import threading
from hashlib import sha256
from pathlib import Path

import duckdb
import pytest
from segments import records, trained

from logprobe.collectors.errors import StoreDamagedError, StoreError
from logprobe.collectors.kernel.statistics import COLUMN_SPECS
from logprobe.collectors.spool.segments import SpoolWriter
from logprobe.monitor.home import Home
from logprobe.monitor.live.ingest import Ingester
from logprobe.monitor.live.step_rows import COUNTS
from logprobe.monitor.store import schema, sql_files
from logprobe.monitor.store.schema import VERSION
from logprobe.monitor.store.store import Store

VIEWS = (
    "tokens", "sequences", "steps", "metrics", "weights", "events", "rollouts", "runs", "raw_training", "raw_rollout",
)  # fmt: skip


def values(store: Store, sql: str) -> list[tuple]:
    return [tuple(row.values()) for row in store.query(sql).to_pylist()]


def mark(store: Store, step: int) -> None:
    with store.transaction() as cursor:
        cursor.execute("INSERT INTO all_step_records (run, step) VALUES ('run', ?)", [step])


# Schema


def test_a_new_store_has_the_schema_and_stays_as_it_is(home: Path):
    for _ in range(2):
        with Store.open(Home(home)) as store:
            assert values(store, "SELECT version FROM schema_versions") == [(VERSION,)]


def test_another_schema_has_another_number():
    """Its number alone refuses a store of other tables: raise `VERSION` with each change, and then this digest."""
    assert (VERSION, sha256(sql_files.schema().encode()).hexdigest()[:12]) == (50, "b517192d4c22")


def test_a_frozen_step_keeps_every_count():
    assert [name for name in COUNTS if f"'{name}': s.{name}" not in sql_files.statement("freeze_rows")] == []


@pytest.mark.parametrize(
    "of", ["statistics", "(SELECT unnest(pairs, max_depth := 2) FROM step_summaries)"], ids=["sequences", "steps"]
)
def test_every_sum_has_its_column(store: Store, of: str):
    there = {row["column_name"]: row["column_type"] for row in store.query(f"DESCRIBE FROM {of}").to_pylist()}
    assert {c.name: there.get(c.name) for c in COLUMN_SPECS} == {
        c.name: "BIGINT" if c.count else "DOUBLE" for c in COLUMN_SPECS
    }


def test_tables_that_cannot_all_be_created_are_taken_back(home: Path, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patched:
        patched.setattr(schema, "schema", lambda: "CREATE TABLE one (a INTEGER); INSERT INTO nowhere VALUES (1)")
        with pytest.raises(StoreError, match="cannot be created"):
            Store.open(Home(home))
    with Store.open(Home(home)) as store:
        assert values(store, "SELECT count(*) FROM duckdb_tables() WHERE table_name = 'one'") == [(0,)]


def test_what_is_no_store_is_refused_and_looking_makes_none(home: Path):
    with pytest.raises(StoreError, match="logprobe up --once"):
        Store.open(Home(home), read_only=True)
    assert not home.exists()
    place = Home(home).create()
    place.database.write_bytes(b"not a database" * 1000)
    with pytest.raises(StoreDamagedError, match=r"is damaged .*Move it and"):
        Store.open(place)


def test_a_store_can_be_read_without_writing_and_says_that_it_is_closed(store: Store):
    mark(store, 1)
    store.close()
    with pytest.raises(StoreError, match="is closed"):
        store.query("SELECT 1")
    with Store.open(store.home, read_only=True) as reader:
        assert values(reader, "SELECT step FROM step_records") == [(1,)]
        with pytest.raises(StoreError, match="write failed"):
            mark(reader, 2)


def test_a_home_that_was_moved_finds_its_raw_files_again(tmp_path: Path):
    with Store.open(Home(tmp_path / "it's [a] *home* #%20")) as store:
        writer = SpoolWriter(store.home.path, "run", "w")
        writer.write("training", records("training", trained("a")))
        Ingester(store).run_once()
        assert values(store, "SELECT count(*) FROM tokens") == [(4,)]
    store.home.path.rename(tmp_path / "it's new")
    for read_only in (True, False):
        with Store.open(Home(tmp_path / "it's new"), read_only=read_only) as store:
            assert values(store, "SELECT count(*) FROM tokens") == [(4,)]


def test_views_follow_the_code_and_those_of_other_code_are_not_read(store: Store):
    store.close()
    with duckdb.connect(str(store.home.database)) as connection:
        connection.execute("CREATE OR REPLACE VIEW weights AS SELECT 1 AS of_an_older_version")
        connection.execute("COMMENT ON VIEW steps IS 'of an older version'")
    with pytest.raises(StoreError, match=r"by other code.*logprobe up"):
        Store.open(store.home, read_only=True)
    Store.open(store.home).close()
    with Store.open(store.home, read_only=True) as again:
        assert "version" in again.query("SELECT * FROM weights").column_names


# Transactions


def test_a_transaction_that_raises_leaves_nothing(store: Store):
    with pytest.raises(KeyError), store.transaction() as cursor:  # noqa: PT012
        cursor.execute("INSERT INTO all_step_records (run, step) VALUES ('run', 1)")
        raise KeyError
    with pytest.raises(StoreError, match="rolled back"), store.transaction() as cursor:  # noqa: PT012
        cursor.execute("INSERT INTO all_step_records (run, step) VALUES ('run', 2)")
        cursor.execute("INSERT INTO nowhere VALUES (1)")
    mark(store, 3)
    assert values(store, "SELECT step FROM step_records") == [(3,)]


def test_transactions_do_not_nest_and_a_read_beside_one_sees_what_is_committed(store: Store):
    with pytest.raises(StoreError, match="open transaction; use its cursor"), store.transaction(), store.transaction():
        pass
    mark(store, 1)
    with store.transaction() as cursor:
        cursor.execute("INSERT INTO all_step_records (run, step) VALUES ('run', 2)")
        assert values(store, "SELECT step FROM step_records") == [(1,)]
    assert values(store, "SELECT count(*) FROM step_records") == [(2,)]


def test_writers_take_turns_and_readers_do_not_wait(store: Store):
    failures: list[Exception] = []
    with store.transaction() as cursor:
        cursor.execute("INSERT INTO step_metrics VALUES ('run', 0, 'n', 0)")

    def work(number: int) -> None:
        try:
            for step in range(10):
                with store.transaction() as cursor:
                    # Without turns, DuckDB would refuse the second of two updates of one row.
                    cursor.execute("UPDATE step_metrics SET value = ?", [number * 10 + step])
                store.query("SELECT count(*) FROM step_metrics")
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert values(store, "SELECT count(*) FROM step_metrics") == [(1,)]


# Views


def test_every_view_works_without_any_data(store: Store):
    for view in VIEWS:
        assert store.query(f"SELECT * FROM {view}").num_rows == 0, view


def test_steps_are_measured_recorded_or_both(store: Store):
    with store.transaction() as cursor:
        cursor.execute("INSERT INTO step_metrics VALUES ('run', 1, 'backend.k3_kl', 0.5), ('run', 1, 'reward', NULL)")
        cursor.execute(
            "INSERT INTO step_summaries (run, step, tokens, sequences, time, computed_at, revision)"
            " VALUES ('run', 1, 10, 2, NULL, now(), 7), ('run', 3, 5, 1, NULL, now(), 8)"
        )
        cursor.execute(
            "INSERT INTO all_step_records VALUES ('run', 1, 0, now(), MAP {'loss': 2.0, 'reward': 3.0}, NULL, NULL),"
            " ('run', 1, 1, now(), MAP {'loss': 9.0}, NULL, NULL), ('run', 2, 0, now(), MAP {'loss': 1.0}, 'tis', NULL)"
        )
        cursor.execute(
            "INSERT INTO step_summaries (run, step, tokens, sequences, time, computed_at, revision)"
            " VALUES ('other', 1, 1, 1, NULL, now(), 9)"
        )
    rows = store.query("SELECT * EXCLUDE (time, computed_at) FROM steps_of('run') ORDER BY step").to_pylist()
    known = [{key: dict(value) if isinstance(value, list) else value for key, value in row.items()} for row in rows]
    assert known == [
        {"run": "run", "step": 1, "tokens": 10, "sequences": 2, "correction": None, "revision": 7}
        | {"metrics": {"backend.k3_kl": 0.5, "reward": None}, "scalars": {"loss": 5.5, "reward": 3.0}},
        {"run": "run", "step": 2, "tokens": None, "sequences": None, "correction": "tis", "revision": None}
        | {"metrics": None, "scalars": {"loss": 1.0}},
        {"run": "run", "step": 3, "tokens": 5, "sequences": 1, "correction": None, "revision": 8}
        | {"metrics": None, "scalars": None},
    ]
    plain = "SELECT * EXCLUDE (time, computed_at) FROM steps WHERE run = 'run' ORDER BY step"
    assert store.query(plain).to_pylist() == [
        {key: value for key, value in row.items() if key not in {"metrics", "scalars"}} for row in known
    ]
    for bounds, numbers in (("first := 2", [2, 3]), ("last := 2", [1, 2]), ("first := 2, last := 2", [2])):
        of_steps = store.query(f"SELECT step FROM steps_of('run', {bounds}) ORDER BY step")
        assert of_steps["step"].to_pylist() == numbers
