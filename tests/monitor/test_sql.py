"""SQL that users write: attacks are refused or harmless, limits hold, and nothing else waits for it."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import duckdb
import pytest
from processes import eventually, logprobe, record, service
from recorded_home import feed
from segments import sampled, trained

from logprobe.collectors.errors import QueryError, ServiceUnavailableError
from logprobe.monitor.home import Home
from logprobe.monitor.reader import FlightReader
from logprobe.monitor.store.budgets import MIB
from logprobe.monitor.store.queries import MORE
from logprobe.monitor.store.sql import REFUSED_FUNCTIONS, Desk, Limits, Line
from logprobe.monitor.store.store import Store

SECRET = "never-to-be-read-4711"
ENDLESS = "SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b"
SMALL = Limits(seconds=20.0, rows=100_000, memory=512 * MIB)
# What writes, changes settings, loads code, or leaves the transaction. {home} and {outside} are filled in.
STATEMENTS = (
    "COPY (SELECT 1) TO '{home}/archive/run' (FORMAT parquet, PER_THREAD_OUTPUT true, OVERWRITE true)",
    "COPY segments FROM '{outside}'",
    "EXPORT DATABASE '{home}/archive/x'",
    "IMPORT DATABASE '{home}/archive'",
    "ATTACH '{home}/archive/x.duckdb' AS x",
    "INSTALL httpfs",
    "PRAGMA profiling_output = '{home}/archive/profile.json'",
    "PRAGMA database_list",
    "SET VARIABLE logprobe_raw_training = '{outside}'",
    "RESET lock_configuration",
    "CALL enable_logging(storage = 'file', storage_path = '{home}/archive')",
    "CALL pragma_version()",
    "CREATE TABLE t AS SELECT 1",
    "CREATE TEMP MACRO m() AS 1",
    "CREATE OR REPLACE VIEW tokens AS SELECT 1",
    "DROP TABLE segments",
    "DELETE FROM segments",
    "UPDATE segments SET run = 'x'",
    "INSERT INTO spooled VALUES ('a', now(), now()) RETURNING *",
    "MERGE INTO segments USING segments AS o ON true WHEN MATCHED THEN DELETE",
    "CHECKPOINT",
    "BEGIN",
    "PREPARE p AS SELECT 1",
    "USE memory",
    "COMMENT ON TABLE segments IS 'x'",
    "ALTER TABLE segments ADD COLUMN x INT",
    "SELECT 1; DELETE FROM segments",
    "not sql",
)
# What reads files, runs text as SQL, or writes by the way: never answered.
SOURCES = (
    "read_text('{outside}')",
    "read_text('{home}/archive/link')",
    "read_text('{home}/archive/up/token')",
    "read_text('{home}/archive/../token')",
    "read_blob('{home}/channels.yaml')",
    "read_csv('{outside}')",
    "read_csv('{home}/archive/*/*/*', store_rejects = true)",
    "read_json('{home}/token')",
    "read_parquet('{home}/archive/*/*/*.parquet')",
    "read_parquet('s3://bucket/x.parquet')",
    "read_duckdb('{home}/logprobe.duckdb')",
    "raw_training_in(['{home}/archive/link'])",
    "tokens_in(['{home}/archive/link'], ['{home}/archive/link'])",
    "parquet_metadata('{outside}')",
    "sniff_csv('{outside}')",
    "glob('{home}/*')",
    "glob('{home}/archive/*')",
    "'{outside}'",
    '"{home}/archive/link".csv',
    "'{home}/archive/link.csv'",
    "query('FROM read_text(''{outside}'')')",
    "query_table('segments')",
    "enable_logging(storage = 'file', storage_path = '{home}/archive')",
    "checkpoint('memory')",
    "copy_database('memory', 'main')",
    "json_execute_serialized_sql(json_serialize_sql('FROM read_text(''{outside}'')'))",
    "duckdb_secrets()",
    "python_variable",
    "(DELETE FROM segments RETURNING *)",
    "(SELECT pg_sleep(1000))",
    "(SELECT system.main.Sleep_MS(1000000))",
    "(SELECT list_transform([1], lambda x: sleep_ms(1000000)))",
    "(SELECT nextval('revision'))",
    "(SELECT write_log('x', level := 'error', scope := 'connection'))",
    "(SELECT set_config('temp_directory', '{home}/archive', true))",
    "(SELECT getenv('HOME'))",
)
HARMLESS = (
    "SELECT 1 AS a",
    "  -- a comment\n SELECT 1;",
    "FROM runs",
    "FROM main.tokens",
    "FROM raw_training",
    "VALUES (1)",
    "WITH a AS (SELECT 1) SELECT * FROM a",
    "WITH a AS MATERIALIZED (FROM segments) FROM a UNION ALL FROM a",
    "SHOW TABLES",
    "SHOW ALL TABLES",
    "DESCRIBE runs",
    "SUMMARIZE runs",
    "FROM range(3), unnest([1, 2])",
    "FROM runs_on_their_way(['run'], now()::TIMESTAMPTZ)",
    "FROM duckdb_columns()",
    "FROM information_schema.tables",
    "SELECT json_serialize_sql('DROP TABLE segments')",
    "SELECT current_setting('temp_directory')",
    "SELECT parse_path('{outside}')",
    "SELECT repeat('ρ', 1000), random(), uuid()",
    "SELECT $$ ; DROP TABLE segments /* $$",
)
DRESSINGS = (
    "{}",
    "EXPLAIN {}",
    "EXPLAIN ANALYZE /* /* */ SELECT 1 -- */ {}",  # DuckDB's comments nest
    "DESCRIBE {}",
    "WITH w AS ({} RETURNING *) SELECT * FROM w",
    "SELECT * FROM ({})",
    "{}; SELECT 1",
    "/*'*/ {} -- */",
)


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Desk, Store]]:
    """A store that can be written, with secrets in its home and beside it, and links to them where raw files lie."""
    home = tmp_path_factory.mktemp("attacked") / "home"
    with Store.open(Home(home)) as store:
        feed(store, training=[trained("a", 0)], rollout=[sampled("a")])
        for path in (home / "token", home / "channels.yaml", home.parent / "outside.csv"):
            path.write_text(f"word\n{SECRET}\n", encoding="utf-8")
        for name, target in (("link", "outside.csv"), ("link.csv", "outside.csv"), ("up", "home")):
            (home / "archive" / name).symlink_to(home.parent / target)
        assert store.checkpoint()
        yield Desk(store, SMALL), store


def contents(folder: Path) -> dict[str, str]:
    """Every file and folder below `folder`: mode, and a digest of its bytes or the target of a link."""
    return {str(path.relative_to(folder)): _digest(path) for path in sorted(folder.rglob("*"))}


def _digest(path: Path) -> str:
    if path.is_symlink():
        return f"-> {path.readlink()}"
    content = path.read_bytes() if path.is_file() else b""
    return f"{path.lstat().st_mode:o} {hashlib.sha256(content).hexdigest()}"


def filled(store: Store, sql: str) -> str:
    home = store.home.path
    return sql.replace("{home}", str(home)).replace("{outside}", str(home.parent / "outside.csv"))


@pytest.mark.parametrize("dressing", DRESSINGS)
def test_an_attack_is_refused_in_one_line_or_harmless(attacked: tuple[Desk, Store], dressing: str) -> None:
    desk, store = attacked
    before = contents(store.home.path.parent)
    answered = []
    for bare in (*STATEMENTS, *(f"SELECT * FROM {source}" for source in SOURCES)):
        statement = filled(store, dressing.replace("{}", bare))
        try:
            seen = str(desk.answer(statement, first=1000).to_pylist())
            answered.append(statement)
        except QueryError as refusal:
            seen = str(refusal)
            assert "\n" not in seen, statement
        assert SECRET not in seen, statement
    assert answered == []
    assert contents(store.home.path.parent) == before
    assert desk.answer("SELECT count(*) AS n FROM tokens")["n"].to_pylist() == [4]


def test_what_reads_is_answered(attacked: tuple[Desk, Store]) -> None:
    desk, store = attacked
    before = contents(store.home.path.parent)
    for statement in HARMLESS:
        assert desk.answer(filled(store, statement)).num_columns, statement
    assert contents(store.home.path.parent) == before


def test_every_function_that_is_not_only_a_value_is_known() -> None:
    """Of a newer DuckDB, too: what it calls volatile is named here or refused."""
    values = {
        "current_connection_id", "current_query", "current_query_id", "current_transaction_id", "error", "gen_random_uuid",
        "random", "stats", "uuid", "uuidv4", "uuidv7", "vector_type",
    }  # fmt: skip
    sql = "SELECT DISTINCT function_name FROM duckdb_functions() WHERE internal AND function_type = 'scalar' AND stability = 'VOLATILE'"
    volatile = {name for (name,) in duckdb.sql(sql).fetchall()}
    assert volatile - values <= REFUSED_FUNCTIONS


def test_it_is_the_same_through_a_service_and_on_the_command_line(tmp_path: Path) -> None:
    home = tmp_path / "home"
    record(home, steps=range(2))
    attack = filled_home(home, STATEMENTS[0])
    with service(home) as reader:
        reader.ingest()
        with pytest.raises(QueryError, match="COPY is refused"):
            reader.query(attack)
        assert reader.query("SELECT count(*) AS n, $number AS k FROM tokens", {"number": 5}).to_pylist() == [
            {"n": 128, "k": 5}
        ]
        assert "COPY is refused" in logprobe("sql", attack, "--home", home, code=1).stderr
    before = contents(home)
    assert "COPY is refused" in logprobe("sql", attack, "--home", home, code=1).stderr
    assert "128" in logprobe("sql", "SELECT count(*) AS n FROM tokens", "--home", home).stdout
    assert contents(home) == before


def filled_home(home: Path, sql: str) -> str:
    return sql.replace("{home}", str(home))


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SELECT * FROM range(100_001)", "more than 100000 rows; aggregate, or add a LIMIT"),
        ("SELECT repeat('x', 4000) FROM range(99_999)", "the result is larger than 256 MiB"),
        ("SELECT list(repeat('x', 1000) || range) FROM range(3000000)", "more than 512 MiB of memory"),
        (
            "SELECT repeat('x', 1100000) FROM range(2000)",
            "is larger than 256 MiB|more than 512 MiB",
        ),  # 2.05 GiB a batch
        ("SELECT 1/0 + 'x'::INT", "Could not convert"),
        ("SELECT CASE WHEN range > 90000 THEN error('late') END FROM range(99_999)", "late"),
    ],
)
def test_what_takes_too_much_gets_one_line(attacked: tuple[Desk, Store], sql: str, words: str) -> None:
    desk, _ = attacked
    with pytest.raises(QueryError, match=words) as refusal:
        desk.answer(sql)
    assert "\n" not in str(refusal.value)
    assert desk.answer("SELECT * FROM range(100_000)").num_rows == 100_000


def test_time_is_limited_and_a_stop_is_heard(attacked: tuple[Desk, Store]) -> None:
    desk, store = attacked
    with pytest.raises(QueryError, match=r"the query took longer than 0\.3 s and was stopped"):
        Desk(store, Limits(seconds=0.3)).answer(ENDLESS)
    with pytest.raises(QueryError, match="the query was stopped"):
        desk.answer(ENDLESS, gone=lambda: True)
    assert desk.answer("SELECT ? AS a, ? AS b", [1, "x"]).to_pylist() == [{"a": 1, "b": "x"}]


@pytest.mark.parametrize(
    ("sql", "first", "rows", "more"),
    [
        ("SELECT * FROM range(1_000_000_000_000)", 1000, 1000, True),  # the rest is never computed
        ("SELECT * FROM range(1000)", 1000, 1000, False),
        ("SELECT * FROM range(0)", 1000, 0, False),
        ("DESCRIBE runs", 2, 2, True),
        ("SELECT range(10_000) AS list FROM range(5000)", 1000, 206, True),  # 80 kB a row
    ],
)
def test_the_beginning_of_a_result_says_whether_there_is_more(attacked, sql, first, rows, more) -> None:
    table = attacked[0].answer(sql, first=first)
    assert (table.num_rows, MORE in (table.schema.metadata or {})) == (rows, more)


def test_one_runs_and_the_others_come_in_their_order() -> None:
    line, order = Line(longest=3), []
    waiting: list[threading.Thread] = []

    def take(number: int) -> None:
        with line.turn(lambda: None):
            order.append(number)

    with line.turn(lambda: None):
        for number in range(3):
            waiting.append(threading.Thread(target=take, args=(number,)))
            waiting[-1].start()
            eventually(lambda number=number: len(line._line) == number + 2, "it waits")
        with pytest.raises(QueryError, match="3 queries are waiting already"), line.turn(lambda: None):
            pass
        waiting.pop()
    with line.turn(lambda: None):  # whoever waited before has had its turn
        assert order == [0, 1, 2]
    with (
        line.turn(lambda: None),
        pytest.raises(QueryError, match=r"it took too long \(others came first"),
        line.turn(lambda: "it took too long"),
    ):
        pass
    assert len(line._line) == 0


def test_neither_ingest_nor_a_page_waits_for_a_heavy_query_and_one_nobody_waits_for_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    record(home, steps=range(1))
    with service(home) as reader:
        reader.ingest()
        monkeypatch.setattr("logprobe.monitor.reader._QUERY_SECONDS", 5.0)  # then a reader hangs up
        enough = threading.Event()
        threads = [threading.Thread(target=ask_in_vain, args=(reader, enough)) for _ in range(3)]
        for thread in threads:
            thread.start()
        time.sleep(0.5)
        record(home, "beside", steps=range(2))

        def stored() -> int:
            with suppress(ServiceUnavailableError):  # on a machine that is busier still
                return reader.read("cli_metrics", run="beside", first=0, last=1).num_rows
            return 0

        eventually(stored, "its steps are there")
        enough.set()
        for thread in threads:
            thread.join(90)
        assert reader.query("SELECT 7 AS n")["n"].to_pylist() == [7]


def ask_in_vain(reader: FlightReader, enough: threading.Event) -> None:
    """Ask for what never ends, hang up, and ask again."""
    while not enough.is_set():
        with pytest.raises(ServiceUnavailableError, match="took too long to answer"):
            reader.query(ENDLESS)
