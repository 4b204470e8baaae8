"""Answers that are kept while nothing is written: never older than what is committed, and of nothing but tables."""

from __future__ import annotations

import re
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from segments import spool, trained

from logprobe.alerts.controller.job import Controller
from logprobe.alerts.controller.policy import Policy
from logprobe.alerts.rules.watch import Watch
from logprobe.alerts.sending.delivery import Dispatcher
from logprobe.collectors.errors import StoreError
from logprobe.monitor import queries
from logprobe.monitor.service.pipeline import Pipeline
from logprobe.monitor.store.kept import Kept
from logprobe.monitor.store.sql_files import statement
from logprobe.monitor.store.store import Store
from logprobe.monitor.store.views import EXPRESSIONS, MACROS, VIEWS

ROOT = Path(__file__).parents[2]
INSERT = "INSERT INTO quarantine VALUES (?, '', NULL, 'foreign', '', 0, now())"
ASKED = re.compile(r"queries\.(\w+)\(\s*(?:self\._)?store\.kept(?:_records)?\b")
# What may answer otherwise although no table has changed.
ELSEWHERE = re.compile(
    r"\b(now\(|today\(|current_\w+|get_current\w+|random\(|read_\w+\(|raw_\w+\b|local_\w+|tokens_in\(|duckdb_\w+\()"
)


@pytest.fixture
def asked(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements that the store was asked, in order."""
    names: list[str] = []
    real = Store.read

    def read(self: Store, name: str, *incoming: pa.Table, **params: Any) -> pa.Table:
        names.append(name)
        return real(self, name, *incoming, **params)

    monkeypatch.setattr(Store, "read", read)
    return names


def mark(store: Store, step: int) -> None:
    with store.transaction() as cursor:
        cursor.execute(INSERT, [f"{step}"])


def test_it_is_asked_again_once_something_was_written_and_with_other_parameters(store: Store, asked: list[str]) -> None:
    for step in range(3):
        for _ in range(3):
            assert queries.quarantine_list(store.kept, run=None).num_rows == step
        mark(store, step)
    assert asked == ["quarantine_list"] * 3
    for run in ("run", None, "run", None):
        queries.quarantine_list(store.kept, run=run)
    assert asked == ["quarantine_list"] * 5


def test_what_is_rolled_back_and_what_is_no_news_are_no_harm(store: Store, asked: list[str]) -> None:
    queries.quarantine_list(store.kept, run=None)
    with store.transaction(news=False) as cursor:
        cursor.execute("DELETE FROM spooled")
    assert queries.quarantine_list(store.kept, run=None).num_rows == 0
    assert asked == ["quarantine_list"]
    with pytest.raises(StoreError), store.transaction() as cursor:  # noqa: PT012
        cursor.execute(INSERT, ["1"])
        cursor.execute("INSERT INTO nowhere VALUES (1)")
    assert queries.quarantine_list(store.kept, run=None).num_rows == 0


def test_what_is_known_of_records_is_not_asked_again_for_what_was_made_of_them(store: Store, asked: list[str]) -> None:
    for write in ({"records": False}, {"news": False}, {}):
        queries.runs_now(store.kept_records)
        with store.transaction(**write) as cursor:
            cursor.execute("DELETE FROM spooled")
    assert asked == ["runs_now"]
    queries.runs_now(store.kept_records)
    assert asked == ["runs_now"] * 2


def test_neither_a_failed_answer_is_kept_nor_one_during_which_something_was_written(store: Store) -> None:
    class Beside:
        """Another thread writes after it was asked, and before it has answered."""

        fails = True

        def read(self, name: str, *_: Any, **params: Any) -> pa.Table:
            if self.fails:
                self.fails = False
                raise ZeroDivisionError
            answer = store.read(name, **params)
            mark(store, answer.num_rows)
            return answer

    kept = Kept(Beside(), lambda: store.written)
    with pytest.raises(ZeroDivisionError):
        kept.read("quarantine_list", run=None)
    assert [kept.read("quarantine_list", run=None).num_rows for _ in range(4)] == [0, 1, 2, 3]


def test_of_many_questions_the_oldest_answers_go(store: Store, asked: list[str]) -> None:
    for number in range(65):
        queries.quarantine_list(store.kept, run=f"{number}")
    queries.quarantine_list(store.kept, run="64")
    assert len(asked) == 65
    queries.quarantine_list(store.kept, run="0")
    assert len(asked) == 66


def test_at_rest_no_job_asks_what_there_is_to_do(home: Path, store: Store, asked: list[str]) -> None:
    pipeline = Pipeline(store, threading.Event())
    watch = Watch(store, tuple, threading.Event(), quiet=timedelta(0))
    controller = Controller(store, lambda _: Policy())
    dispatcher = Dispatcher(store, list, clock=lambda: datetime.now(UTC), random=Random(1), stopping=threading.Event())
    jobs = [
        pipeline.profile, pipeline.diagnose,
        watch.run_once, controller.run_once, dispatcher.run_once,
    ]  # fmt: skip
    for step in range(3):
        spool(home, training=[trained(f"{step}", step)])
    pipeline.ingest(lambda _: None)
    queries.runs_now(store.kept_records)
    for _ in range(4):  # what one writes is news for another
        for job in jobs:
            job()
    assert store.written > store.recorded
    assert queries.runs_now(store.kept_records).equals(queries.runs_now(store))  # of records all of this says nothing
    written = store.written
    asked.clear()
    for job in jobs:
        job()
    assert (store.written, asked) == (written, [])


def sql_of(name: str) -> str:
    """A statement, with all views, macros and expressions that it goes through."""
    found, left = "", [name]
    seen = set()
    while left:
        sql = re.sub(r"--.*", "", statement(left.pop()))
        found += sql
        for kind, names, used in (
            ("view", VIEWS, r"(?:FROM|JOIN)\s+{}\b"),
            ("macro", (*MACROS, *EXPRESSIONS), r"\b{}\("),
        ):
            for other in names:
                if other not in seen and re.search(used.format(other), sql):
                    seen.add(other)
                    left.append(f"{kind}_{other}")
    return found


def test_what_is_kept_asks_tables_and_nothing_else() -> None:
    files = [path for top in ("monitor", "alerts", "app") for path in (ROOT / top).rglob("*.py")]
    names = {name for file in files for name in ASKED.findall(file.read_text())}
    assert {"diagnosis_done", "alert_runs", "runs_now"} <= names
    assert sum(len(re.findall(r"store\.kept(?:_records)?\b(?! import)", file.read_text())) for file in files) == len(
        [name for file in files for name in ASKED.findall(file.read_text())]
    )
    assert {name: ELSEWHERE.findall(sql_of(name)) for name in names if ELSEWHERE.search(sql_of(name))} == {}
    assert ELSEWHERE.search(sql_of("app_tokens_sequence"))  # it can be told
