"""Free SQL over a store without a service: limits, turns, what is handed over, and that answers are those of the store itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from processes import ENDLESS, eventually

from logprobe.collectors.errors import QueryError
from logprobe.monitor.free_sql.limits import MIB, Limits
from logprobe.monitor.free_sql.service import FairQueue, Question, SqlService
from logprobe.monitor.free_sql.tables import needed
from logprobe.monitor.home import Home
from logprobe.monitor.store.store import Store

SMALL = Limits(memory=512 * MIB, at_once=2, seconds=200.0, rows=100_000)


@pytest.fixture(scope="module")
def store(recorded_runs: Path) -> Iterator[Store]:
    with Store.open(Home(recorded_runs), read_only=True) as opened:
        yield opened


@pytest.fixture(scope="module")
def service(store: Store) -> Iterator[SqlService]:
    with SqlService(store.home, store.snapshot, SMALL) as opened:
        yield opened


def rows(table: pa.Table) -> list[str]:
    return sorted(map(str, table.to_pylist()))


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM steps WHERE run = 'v1-initial' AND step BETWEEN 3 AND 9",
        "SELECT * FROM steps WHERE run LIKE 'v%' AND step % 7 = 3",
        "SELECT run, count(*) AS n, round(sum(sum_k3), 9) AS k3 FROM sequences WHERE step IN (1, 5) GROUP BY run",
        "SELECT * FROM sequences WHERE run IN ('v0-reference', 'nobody') AND step = 4",
        "SELECT * FROM tokens WHERE run = 'v1-initial' AND step = 2 ORDER BY abs(log_ratio) DESC, sample_id, position LIMIT 20",
        "FROM scalars WHERE name = 'loss' OR (run = 'v1-fixed' AND step < 3)",
        "FROM metrics WHERE run <> 'late-growth' AND metric = 'backend.k3_kl'",
        "FROM runs",
        "FROM rollouts WHERE run = 'v0-reference' LIMIT 0",
        "SELECT max(time) AS t, kind FROM events GROUP BY kind",
        "FROM weights",
        """SELECT a.step, a.value - b.value AS d FROM metrics a JOIN metrics b USING (run, step)
        WHERE a.metric = 'backend.k3_kl' AND b.metric = 'coverage' AND run = 'v1-initial'""",
        "WITH w AS (SELECT * FROM training_sequences WHERE NOT (step > 1)) SELECT run, count(*) AS n FROM w GROUP BY ALL",
        "FROM steps_on_their_way('v1-initial', TIMESTAMPTZ '2020-01-01')",
        "SELECT DISTINCT run FROM segments WHERE run > 'v1'",
        "SELECT count(*) AS n FROM step_metrics",
        "SELECT '1' AS a, 2::HUGEINT AS b, NULL AS c, [1.5, NULL] AS d, {'x': DATE '2020-02-02'} AS e, MAP {'k': 1} AS f",
    ],
)
def test_the_answer_is_the_stores_own(store: Store, service: SqlService, sql: str) -> None:
    answer, wanted = service.answer(Question(sql)).table(), store.query(sql)
    assert answer.schema == wanted.schema
    if "ORDER BY" in sql:
        assert answer.to_pylist() == wanted.to_pylist()
    assert rows(answer) == rows(wanted)


def test_only_the_rows_and_columns_that_are_needed_are_handed_over(store: Store) -> None:
    with store.snapshot() as snapshot:
        asked = {"table": "step_metrics", "columns": ["run", "step", "value"], "runs": ["v1-initial"], "steps": (5, 7)}
        handed = snapshot.rows(asked).read_all()
        wanted = "SELECT run, step, value FROM step_metrics WHERE run = 'v1-initial' AND step BETWEEN 5 AND 7"
        assert rows(handed) == rows(store.query(wanted))
        known = [tuple(row.values()) for row in snapshot.runs("step_metrics").to_pylist()]
    condition = (ds.field("run") == "v1-initial") & (ds.field("step") >= 5) & (ds.field("step") < 8)
    assert needed(handed.schema, known, condition) == (["v1-initial"], (5, 7))
    assert needed(handed.schema, known, ds.field("value") > 0)[0] == [run for run, _, _ in known]
    assert needed(handed.schema, known, ds.field("run") == "nobody") == ([], None)


@pytest.mark.parametrize("kind", [pa.int64(), pa.int32()])
def test_no_row_that_meets_a_condition_is_left_out(kind: pa.DataType) -> None:
    schema = pa.schema([("run", pa.string()), ("step", kind), ("value", pa.float64())])
    known = [("a", -5, 9000), ("ü'\"", 3, 3), (None, 0, 10), ("late", 10**6, 10**6 + 70)]
    step, run = ds.field("step"), ds.field("run")
    for condition, wanted in [
        (step == 8999, (["a"], (8999, 8999))),
        (run == "ü'\"", (["ü'\""], (3, 3))),
        (run.is_null() & (step > 4), ([None], (5, 10))),
        ((run == "a") & ((step == 1) | (step == 4000)), (["a"], (1, 4000))),
        (step > 10**6 + 68, (["late"], (10**6 + 69, 10**6 + 70))),
        (run.isin(["late", "a"]) & (step >= 9000), (["a", "late"], (9000, 10**6 + 70))),
    ]:
        runs, steps = needed(schema, known, condition)
        assert set(runs) >= set(wanted[0]), str(condition)
        assert steps is not None
        assert steps[0] <= wanted[1][0] <= wanted[1][1] <= steps[1], str(condition)


def test_a_damaged_raw_file_keeps_nobody_from_what_needs_no_raw_tokens(tmp_path: Path) -> None:
    home = Home(tmp_path / "home").create()
    damaged = home.raw / "run" / "training" / "cut.parquet"
    with Store.open(home) as store:
        damaged.parent.mkdir(parents=True)
        damaged.touch()
        with SqlService(home, store.snapshot, SMALL, warm=False) as service:
            steps, tokens = (Question(f"SELECT count(*) AS n FROM {view}") for view in ("steps", "tokens"))
            assert service.answer(steps).table()["n"].to_pylist() == [0]
            with pytest.raises(QueryError, match=r"raw tokens cannot be read: .*cut\.parquet.*move it away"):
                service.answer(tokens)
            damaged.unlink()
            assert service.answer(tokens).table()["n"].to_pylist() == [0]


def test_too_much_of_the_store_is_refused_with_what_to_do(store: Store) -> None:
    class Little(Limits):
        table_bytes = 10_000

    with SqlService(store.home, store.snapshot, Little(memory=512 * MIB), warm=False) as service:
        with pytest.raises(QueryError, match=r"reads more than .* \(step_metrics\).*WHERE run = .*--memory-limit"):
            service.answer(Question("SELECT sum(value) FROM step_metrics"))
        narrow = "SELECT count(value) AS n FROM step_metrics WHERE run = 'v1-initial' AND step = 3"
        assert service.answer(Question(narrow)).table()["n"][0].as_py() > 0


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SELECT * FROM range(100_001)", "more than 100000 rows; aggregate, or add a LIMIT"),
        ("SELECT repeat('x', 2000) FROM range(99_999)", "the result is larger than 128 MiB"),
        ("SELECT repeat('x', 1000000) FROM range(2048)", "logprobe up --memory-limit"),
        ("SELECT list(repeat('x', 1000) || range) FROM range(1000000)", "logprobe up --memory-limit"),
        ("SELECT range FROM range(100000000) ORDER BY hash(range)", "needs more than 256 MiB of memory"),
        ("SELECT 1/0 + 'x'::INT", "Could not convert"),
        ("SELECT CASE WHEN range > 90000 THEN error('late') END FROM range(99_999)", "late"),
    ],
)
def test_what_takes_too_much_gets_one_line(service: SqlService, sql: str, words: str) -> None:
    with pytest.raises(QueryError, match=words) as refusal:
        service.answer(Question(sql)).table()
    assert "\n" not in str(refusal.value)
    assert service.answer(Question("SELECT 7 AS n")).table()["n"].to_pylist() == [7]


def test_time_is_limited_and_a_stop_is_heard(store: Store) -> None:
    with SqlService(store.home, store.snapshot, Limits(memory=512 * MIB, seconds=1.0), warm=False) as service:
        eventually(
            lambda: _outcome(service, ENDLESS) == "the query took longer than 1 s and was stopped; narrow it down",
            "it ends",
        )
        stop = threading.Event()
        stop.set()
        with pytest.raises(QueryError, match="the query was stopped"):
            service.answer(Question(ENDLESS, stop=stop)).table()


def _outcome(service: SqlService, sql: str) -> str:
    """The refusal of a statement; a process that is slow to start on a busy machine may use up its second before it begins."""
    with pytest.raises(QueryError) as refusal:
        service.answer(Question(sql)).table()
    return str(refusal.value)


def test_an_answer_that_is_not_read_to_its_end_frees_its_place(service: SqlService) -> None:
    for _ in range(4):
        service.answer(Question("FROM range(99_999)")).close()
    assert service.answer(Question("SELECT 7 AS n")).table()["n"].to_pylist() == [7]


def test_new_columns_and_views_are_seen_at_once(tmp_path: Path) -> None:
    with Store.open(Home(tmp_path / "home")) as store, SqlService(store.home, store.snapshot, SMALL) as service:
        assert service.answer(Question("FROM steps")).table().num_rows == 0
        with store.transaction() as cursor:
            cursor.execute("INSERT INTO step_metrics VALUES ('run', 0, 'new_metric', 0.1)")
            cursor.execute("INSERT INTO step_summaries VALUES ('run', 0, 1, 1, NULL, now(), 1)")
            cursor.execute("CREATE VIEW new_view AS SELECT metrics['new_metric'] AS new_column FROM steps")
        assert service.answer(Question("SELECT new_column FROM new_view")).table()["new_column"].to_pylist() == [0.1]


def test_turns_are_fair_and_no_process_has_all_places() -> None:
    queue, order, go = FairQueue(Limits(at_once=2, seconds=None)), [], threading.Event()

    def take(process: str) -> None:
        with queue.of(process, None):
            order.append(process)
            go.wait(90)

    threads = [threading.Thread(target=take, args=(process,)) for process in "aaaab"]
    for asked, thread in enumerate(threads, start=1):
        thread.start()
        eventually(lambda asked=asked: len(order) + len(queue._waiting) == asked, "it has asked")
    eventually(lambda: len(order) == 2, "whoever has a place has seen so")  # until then it waits, too
    assert order == ["a", "b"]
    go.set()
    for thread in threads:
        thread.join(90)
    assert sorted(order) == list("aaaab")


def test_of_a_full_queue_the_longest_loses_first() -> None:
    queue, go = FairQueue(Limits(at_once=1, waiting=3, seconds=None)), threading.Event()
    answered: list[int] = []
    lost: list[int] = []

    def take(number: int, process: str) -> None:
        try:
            with queue.of(process, None):
                go.wait(90)
                answered.append(number)
        except QueryError:
            lost.append(number)

    threads = [threading.Thread(target=take, args=who) for who in enumerate("aaaabca")]
    for number, thread in enumerate(threads):
        thread.start()
        eventually(lambda: len(queue._waiting) + len(lost) == number, "it has asked")  # noqa: B023 - at once
    assert lost == [3, 2, 6]
    go.set()
    for thread in threads:
        thread.join(90)
    assert sorted(answered) == [0, 1, 4, 5]


def test_a_wait_that_is_too_long_is_told() -> None:
    queue = FairQueue(Limits(at_once=1, waiting=4, seconds=0.2))
    with (
        queue.of("a", None),
        pytest.raises(QueryError, match=r"no free slot within 0\.2 s"),
        queue.of("b", None),
    ):
        pass
    with queue.of("b", None):
        pass
