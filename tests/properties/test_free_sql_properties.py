"""Whatever is asked of free SQL, no byte of the home changes and nothing outside the store and its raw tokens is read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from free_sql_homes import SECRET, contents, plant
from hypothesis import example, given, settings
from hypothesis import strategies as st
from processes import logprobe, record

from logprobe.collectors.errors import QueryError
from logprobe.monitor.free_sql.limits import MIB, Limits
from logprobe.monitor.free_sql.service import Question, SqlService
from logprobe.monitor.home import Home
from logprobe.monitor.store.store import Store

# What writes, reads files, changes settings, or has a file read or written by the way. {home} and {outside} are filled in.
STATEMENTS = (
    "COPY (SELECT 1) TO '{home}/raw/toy' (FORMAT parquet, PER_THREAD_OUTPUT true, OVERWRITE true)",
    "COPY (SELECT 1) TO '{home}/raw/x.csv'",
    "COPY segments TO '{home}/raw/x.parquet' (FORMAT parquet)",
    "COPY segments FROM '{outside}'",
    "COPY FROM DATABASE memory TO main",
    "EXPORT DATABASE '{home}/raw/x'",
    "IMPORT DATABASE '{home}/raw'",
    "ATTACH '{home}/raw/x.duckdb' AS x",
    "ATTACH '{home}/logprobe.duckdb' AS x (READ_ONLY)",
    "DETACH memory",
    "INSTALL httpfs",
    "LOAD '{home}/raw/x.duckdb_extension'",
    "PRAGMA enable_profiling = 'json'",
    "PRAGMA profiling_output = '{home}/raw/profile.json'",
    "PRAGMA database_list",
    "SET enable_external_access = true",
    "SET GLOBAL temp_directory = '{home}/raw'",
    "SET allowed_directories = ['/']",
    "RESET lock_configuration",
    "CALL enable_logging(storage = 'file', storage_path = '{home}/raw')",
    "CALL pragma_version()",
    "CREATE TABLE t AS SELECT 1",
    "CREATE TEMP MACRO m() AS 1",
    "CREATE SECRET s (TYPE s3)",
    "CREATE OR REPLACE VIEW tokens AS SELECT 1",
    "DROP TABLE segments",
    "DELETE FROM segments",
    "UPDATE segments SET run = 'x'",
    "INSERT INTO older_step_records (run, step) VALUES ('a', 1)",
    "MERGE INTO segments USING segments AS o ON true WHEN MATCHED THEN DELETE",
    "TRUNCATE segments",
    "VACUUM",
    "CHECKPOINT",
    "FORCE CHECKPOINT",
    "BEGIN",
    "COMMIT",
    "PREPARE p AS SELECT 1",
    "EXECUTE p",
    "USE memory",
    "COMMENT ON TABLE segments IS 'x'",
    "ALTER TABLE segments ADD COLUMN x INT",
)
SOURCES = (
    "read_text('{outside}')",
    "read_text('{home}/token')",
    "read_text('{home}/raw/link')",
    "read_text('{home}/raw/up/token')",
    "read_text('{home}/raw/../token')",
    "read_blob('{home}/channels.yaml')",
    "read_csv('{outside}')",
    "read_csv('{home}/raw/*/*/*', store_rejects = true)",
    "read_csv('{outside}', rejects_table = 'segments')",
    "read_json('{home}/token')",
    "read_parquet('{home}/raw/*/*/*.parquet')",
    "read_parquet('s3://bucket/x.parquet')",
    "read_csv('https://example.org/x.csv')",
    "read_duckdb('{home}/logprobe.duckdb')",
    "parquet_metadata('{outside}')",
    "sniff_csv('{outside}')",
    "glob('{home}/*')",
    "glob('/etc/*')",
    "'{outside}'",
    "query('FROM read_text(''{outside}'')')",
    "query('COPY (SELECT 1) TO ''{home}/raw/x.csv''')",
    "query_table('segments')",
    "enable_logging(storage = 'file', storage_path = '{home}/raw')",
    "enable_profiling(save_location = '{home}/raw/profile.json')",
    "checkpoint('memory')",
    "force_checkpoint('memory')",
    "copy_database('memory', 'main')",
    "import_database('{home}/raw')",
    "json_execute_serialized_sql(json_serialize_sql('FROM read_text(''{outside}'')'))",
    "duckdb_secrets()",
    "duckdb_logs()",
    "segments",
    "tokens",
    "steps",
    "(DELETE FROM segments RETURNING *)",
    "(SHOW ALL TABLES)",
)
EXPRESSIONS = (
    "getenv('HOME')",
    "write_log('x', level := 'error', scope := 'connection')",
    "nextval('revision')",
    "current_setting('temp_directory')",
    "parse_path('{outside}')",
    "(SELECT content FROM read_text('{outside}'))",
    "json_serialize_sql('DROP TABLE segments')",
    "txid_current()",
    "repeat('ρ', 1000)",
    "set_config('temp_directory', '{home}/raw', true)",
    "1",
)
COMMENTS = st.sampled_from(
    [
        "",
        " ",
        "\n",
        "/* a */",
        "/* /* */ SELECT 1 -- */ ",
        "/* /* */ */",
        "-- '\n",
        "/*'*/",
        "/*$$*/",
        "\u00a0",
        "/* ρ -- */",
    ]
)
QUOTED = st.sampled_from(["'{}'", "$${}$$", "$x${}$x$", "E'{}'", "U&'{}'", '"{}"'])
WORDS = st.text(st.sampled_from("abρ'\"$;-/*\\\n\0😀 "), max_size=12)


@dataclass(frozen=True)
class Attacked:
    """A home, what it held in the beginning, and the one service that is asked."""

    home: Path
    before: dict[str, str]
    service: SqlService


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    home = tmp_path_factory.mktemp("properties") / "home"
    record(home, steps=range(2))
    logprobe("ingest", "--once", "--home", home)
    plant(home)
    with (
        Store.open(Home(home), read_only=True) as store,
        SqlService(store.home, store.snapshot, Limits(memory=512 * MIB, seconds=120.0)) as service,
    ):
        yield Attacked(home, contents(home.parent), service)


selects = st.builds(
    lambda gaps, expression, source: f"SELECT{gaps[0]} {expression}, * {gaps[1]}FROM {gaps[2]}{source}",
    st.tuples(COMMENTS, COMMENTS, COMMENTS),
    st.sampled_from(EXPRESSIONS),
    st.sampled_from(SOURCES),
)
plain = st.one_of(
    st.sampled_from(STATEMENTS),
    st.sampled_from(SOURCES).map("FROM {}".format),
    st.sampled_from(EXPRESSIONS).map("SELECT {}".format),
    selects,
    st.builds(lambda quotes, word: "SELECT " + quotes.format(word), QUOTED, WORDS),
)
dressed = st.builds(
    lambda before, gap, inner, after: f"{before[0]}{gap}{before[1]}{inner}{after}",
    st.sampled_from(
        [
            ("", ""),
            ("EXPLAIN ", ""),
            ("EXPLAIN ", "ANALYZE "),
            ("EXPLAIN ", "(ANALYZE) "),
            ("EXPLAIN (FORMAT json) ", ""),
            ("EXPLAIN ANALYZE ", "EXPLAIN "),
            ("DESCRIBE ", ""),
            ("SUMMARIZE ", ""),
            ("WITH w AS (", ""),
            ("WITH w AS MATERIALIZED (", ""),
            ("SELECT * FROM (", ""),
            ("SELECT 1; ", ""),
            ("FROM query($q$", ""),
            ("(", "("),
        ]
    ),
    COMMENTS,
    plain,
    st.sampled_from(["", ";", ") SELECT * FROM w", " RETURNING *) SELECT * FROM w", ")", "))", "; SELECT 1", " UNION ALL SELECT 1", "$q$)", "\\;", " -- */"]),
)  # fmt: skip


hidden = st.builds(
    lambda explain, gap, inner: f"{explain}{gap}{inner}",
    st.sampled_from(["EXPLAIN ANALYZE ", "EXPLAIN (ANALYZE) ", "EXPLAIN "]),
    COMMENTS,
    st.sampled_from(STATEMENTS[:3]),
)


@given(statement=st.one_of(hidden, plain, dressed, st.lists(dressed, min_size=2, max_size=3).map("; ".join)))
@example(statement=f"EXPLAIN ANALYZE /* /* */ SELECT 1 -- */ {STATEMENTS[0]}")
@settings(max_examples=150, deadline=None)
def test_no_statement_changes_a_byte_or_reads_a_secret(attacked: Attacked, statement: str) -> None:
    filled = statement.replace("{home}", str(attacked.home)).replace(
        "{outside}", str(attacked.home.parent / "outside.csv")
    )
    try:
        seen = str(attacked.service.answer(Question(filled, first=1000)).table().to_pylist())
    except QueryError as refusal:
        seen = str(refusal)
        assert "\n" not in seen
    assert SECRET not in seen
    assert "root:" not in seen
    assert contents(attacked.home.parent) == attacked.before


def test_the_desk_still_answers(attacked: Attacked) -> None:
    assert attacked.service.answer(Question("SELECT count(*) AS n FROM tokens")).table()["n"].to_pylist() == [
        2 * 4 * 16
    ]
