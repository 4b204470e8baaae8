"""Attacks by SQL on a running service, through the endpoint and the command line: nothing written, nothing else read, the host unharmed."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import hungry_program
import psutil
import pytest
from free_sql_homes import SECRET, contents, plant
from processes import (
    ENDLESS,
    ask_until_stopped,
    connected,
    end,
    eventually,
    logprobe,
    record,
    service_process,
    start_service,
    stop_all,
)

from logprobe.collectors.errors import LogprobeError, QueryError
from logprobe.monitor.reader import FlightReader

# DuckDB's block comments nest: the first comment ends behind "SELECT 1 -- */", and what is explained, and so run, is the COPY.
NESTED = (
    "EXPLAIN ANALYZE /* /* */ SELECT 1 -- */ COPY (SELECT 1 AS forged) TO '{home}/raw/{target}' "
    "(FORMAT parquet, PER_THREAD_OUTPUT true, OVERWRITE true)"
)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, FlightReader, psutil.Process]]:
    """A service, what it serves, and its process."""
    home = tmp_path_factory.mktemp("attacked") / "home"
    record(home, steps=range(3))
    with service_process(home) as (reader, process):
        reader.ingest()
        plant(home)
        yield home, reader, psutil.Process(process.pid)


@pytest.mark.parametrize("target", ["toy", "toy/training", "forged"])
def test_a_nested_comment_does_not_hide_a_copy(served, target: str) -> None:
    home, reader, _ = served
    before, tokens = contents(home, without_service=True), reader.query("SELECT count(*) FROM tokens")
    assert any(name.endswith(".parquet") and "toy" in name for name in before)
    with pytest.raises(QueryError, match="COPY is refused"):
        reader.query(NESTED.format(home=home, target=target))
    done = logprobe("sql", NESTED.format(home=home, target=target), "--home", home, code=1)
    assert "COPY is refused" in done.stderr
    assert contents(home, without_service=True) == before
    assert reader.query("SELECT count(*) FROM tokens") == tokens


def test_nor_does_it_without_a_service(tmp_path: Path) -> None:
    home = tmp_path / "home"
    record(home, steps=range(2))
    logprobe("ingest", "--once", "--home", home)
    before = contents(home)
    done = logprobe("sql", NESTED.format(home=home, target="toy"), "--home", home, code=1)
    assert "COPY is refused" in done.stderr
    assert contents(home) == before


@pytest.mark.parametrize(
    "source",
    [
        "read_text('{home}/token')",
        "read_blob('{home}/service.json')",
        "read_csv('{home}/channels.yaml')",
        "read_text('{home}/raw/link')",
        "read_text('{home}/raw/up/token')",
        "read_text('{home}/raw/../token')",
        "glob('{home}/*')",
        "read_csv('{outside}')",
        "'{outside}'",
        "read_text('/proc/self/environ')",
        "sniff_csv('{outside}')",
        "query('FROM read_text(''{outside}'')')",
    ],
)
def test_nothing_else_is_read(served, source: str) -> None:
    home, reader, _ = served
    try:
        rows = reader.query(
            f"SELECT * FROM {source.format(home=home, outside=home.parent / 'outside.csv')}"
        ).to_pylist()
    except QueryError as refusal:
        rows = str(refusal)
    assert SECRET not in str(rows)
    assert "token" not in str(rows).replace("/token", "")
    assert not isinstance(rows, list)


def test_a_query_that_asks_for_gibibytes_takes_neither_the_service_nor_the_host(served) -> None:
    _, reader, process = served
    before = process.memory_info().rss
    most, over = [0], threading.Event()

    def watch() -> None:
        while not over.wait(0.02):
            most[0] = max(most[0], process.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with pytest.raises(QueryError, match="logprobe up --memory-limit") as refusal:
            reader.query("SELECT repeat('x', 1000000) FROM range(2048)")
    finally:
        over.set()
        watcher.join()
    assert "\n" not in str(refusal.value)
    assert most[0] - before < 256 << 20
    assert reader.query("SELECT 1 AS n")["n"].to_pylist() == [1]


def test_one_process_with_fifty_readers_keeps_nobody_waiting(served) -> None:
    home, reader, _ = served
    with hungry(home, readers=50) as greedy:
        assert greedy.stdout.readline() == "refused\n", "the queue is full"
        for number in range(8):
            assert reader.query("SELECT count(*) AS n, $number AS k FROM steps", {"number": number}).num_rows == 1
        record(home, "beside", steps=range(2))
        seen = "SELECT count(DISTINCT step) AS n FROM sequences WHERE run = 'beside'"
        eventually(lambda: reader.read("cli_metrics", run="beside", first=0, last=1).num_rows, "ingest goes on")
        eventually(lambda: reader.query(seen)["n"].to_pylist() == [2], "another process has its turn")
        assert greedy.poll() is None


def test_queries_that_run_and_wait_are_stopped_by_their_label(served) -> None:
    _, reader, _ = served
    refusals: list[str] = []
    threads = {
        label: threading.Thread(target=lambda label=label: refusals.append(ask_until_stopped(reader, label)))
        for label in ("slow0", "slow1", "slow2")
    }
    for thread in threads.values():
        thread.start()
    stop_all(reader, threads)
    assert refusals == ["the query was stopped"] * 3


@contextmanager
def hungry(home: Path, *, readers: int) -> Iterator[subprocess.Popen[str]]:
    """A process that asks for more than there is over many connections; it says when it is refused for the first time."""
    command = [sys.executable, hungry_program.__file__, str(home), str(readers)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_query_that_kills_its_process_harms_nobody(served) -> None:
    _, reader, process = served
    for child in process.children():
        with suppress(psutil.NoSuchProcess):  # the one before was about to end
            child.kill()
        eventually(lambda child=child: _is_dead(child), "it is dead")
    assert reader.query("SELECT 1 AS n")["n"].to_pylist() == [1]


def test_workers_end_with_a_service_that_is_killed(tmp_path: Path) -> None:
    home = tmp_path / "home"
    record(home, steps=range(1))
    process = start_service(home)
    with connected(home) as reader:
        reader.query("SELECT 1")
        asking = threading.Thread(target=_ask_in_vain, args=(reader,), daemon=True)
        asking.start()
        workers = eventually(lambda: psutil.Process(process.pid).children(), "there are workers")
        time.sleep(0.5)
        process.kill()
        end(process)
        eventually(lambda: all(map(_is_dead, workers)), "they end, too")
        asking.join(90)


def _is_dead(process: psutil.Process) -> bool:
    """With all of its threads: its first one may be dead before the others are."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE and process.num_threads() <= 1
    except psutil.NoSuchProcess:
        return True


def _ask_in_vain(reader: FlightReader) -> None:
    with pytest.raises(LogprobeError):
        reader.query(ENDLESS)
