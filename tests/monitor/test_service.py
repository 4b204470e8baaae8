"""The service as a real process: reads, jobs, ownership, ends of all kinds."""

from __future__ import annotations

import json
import resource
import signal
import stat
import threading

import psutil
import pyarrow as pa
import pytest
from processes import (
    SECONDS,
    called,
    connected,
    end,
    eventually,
    record,
    service,
    service_process,
    start_service,
)
from pyarrow import flight

from logprobe.app.processes import service as service_program
from logprobe.collectors.errors import QueryError, ServiceUnavailableError, StoreError
from logprobe.collectors.recorder.recorder import Recorder
from logprobe.monitor.home import Home
from logprobe.monitor.reader import FlightReader, connect, open_reader
from logprobe.monitor.service.jobs import Job, Part
from logprobe.monitor.service.service import Service
from logprobe.monitor.store.queries import MORE

STEPS = "SELECT count(*) AS n FROM step_summaries WHERE run = $run"


def steps_of(reader, run: str = "toy") -> int:
    return reader.query(STEPS, {"run": run})["n"][0].as_py()


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A service with one ingested run, for tests that only read."""
    home = tmp_path_factory.mktemp("served") / "home"
    record(home, steps=range(3))
    with service_process(home) as (reader, _):
        reader.ingest()
        yield home, reader


def test_what_was_flushed_is_measured_and_visible(served) -> None:
    _, reader = served
    assert reader.source == "service"
    assert steps_of(reader) == 3
    table = reader.read("cli_metrics", run="toy", first=1, last=1)
    values = dict(zip(table["metric"].to_pylist(), table["value"].to_pylist(), strict=True))
    assert 0 < values["backend.k3_kl"] < 1e-3
    assert values["reward"] == 1.5


def test_both_kinds_of_parameters_travel(served) -> None:
    _, reader = served
    assert reader.query("SELECT ? + ? AS n", [1, 2])["n"].to_pylist() == [3]
    assert reader.query("SELECT list_sum($xs) AS n, $word AS w", {"xs": [1, 2], "word": "ρ"}).to_pylist() == [
        {"n": 3, "w": "ρ"}
    ]
    assert reader.query("SELECT $none::INT AS n", {"none": None})["n"].to_pylist() == [None]
    with pytest.raises(QueryError, match="cannot be a query parameter"):
        reader.query("SELECT ?", [object()])


def test_large_and_empty_results_arrive_whole(served) -> None:
    _, reader = served
    table = reader.query("SELECT range AS n, repeat('x', 20) AS s FROM range(300_000)")
    assert table.num_rows == 300_000
    assert table["n"][299_999].as_py() == 299_999
    empty = reader.query("SELECT step, run FROM step_summaries WHERE false")
    assert empty.num_rows == 0
    assert empty.schema.field("step").type == pa.int64()


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("DELETE FROM step_summaries", "read-only"),
        ("SELECT nothing FROM step_summaries", "nothing"),
        ("SELECT 1; SELECT 2", "one statement"),
        ("ATTACH '/tmp/x.db'", "read-only"),
        ("", "one statement"),
    ],
)
def test_a_refused_query_says_why_in_one_line(served, sql, words) -> None:
    _, reader = served
    with pytest.raises(QueryError, match=words) as caught:
        reader.query(sql)
    assert "\n" not in str(caught.value)
    assert "gRPC" not in str(caught.value)
    assert steps_of(reader) == 3


def test_an_unknown_stored_query_is_refused(served) -> None:
    _, reader = served
    with pytest.raises(QueryError, match="no stored query"):
        reader.read("../../etc/passwd")


def test_nobody_reads_without_the_token(served) -> None:
    home, _ = served
    info = Home(home).service_info()
    assert stat.S_IMODE((home / "service.json").stat().st_mode) == 0o600
    client = flight.FlightClient((info.host, info.port))
    for headers in ([], [(b"authorization", b"Bearer wrong")], [(b"authorization", info.token.encode())]):
        options = flight.FlightCallOptions(headers=headers)
        with pytest.raises(flight.FlightUnauthenticatedError, match=r"service\.json"):
            client.do_get(flight.Ticket(b'{"sql": "SELECT 1"}'), options).read_all()
        with pytest.raises(flight.FlightUnauthenticatedError):
            list(client.do_action(flight.Action("shutdown", b""), options))
    client.close()


@pytest.mark.parametrize(
    "ticket", [b"", b"[]", b"{}", b'{"sql": "SELECT 1", "name": "x"}', b'{"name": "x", "params": [1]}']
)
def test_a_ticket_that_is_no_request_is_refused(served, ticket) -> None:
    home, reader = served
    info = Home(home).service_info()
    options = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {info.token}".encode())])
    with flight.FlightClient((info.host, info.port)) as client, pytest.raises(flight.FlightServerError) as caught:
        client.do_get(flight.Ticket(ticket), options).read_all()
    assert json.loads(caught.value.extra_info)["class"] == "QueryError"
    assert steps_of(reader) == 3


def test_status_tells_jobs_and_backlog(served) -> None:
    home, reader = served
    status = reader.status()
    assert status["running"] is True
    assert status["home"] == str(home)
    assert status["backlog"] == {
        "segments": 0,
        "bytes": 0,
        "oldest_seconds": None,
        "waiting_seconds": {},
        "newest_seconds": {},
        "unreadable": 0,
    }
    assert status["stuck"] == {"number": 0, "seconds": None, "files": []}
    assert {"ingest", "diagnosis", "health"} <= set(status["jobs"])
    assert status["jobs"]["ingest"]["runs"] >= 1
    assert status["jobs"]["ingest"]["failures"] == 0
    assert "lag_seconds" in status["jobs"]["ingest"]["progress"]


def test_the_service_never_loads_pandas(served) -> None:
    _, reader = served
    process = psutil.Process(reader.status()["pid"])
    assert [part.path for part in process.memory_maps() if "/pandas/" in part.path] == []


def test_many_readers_at_once(served) -> None:
    home, _ = served
    failures = []

    def ask() -> None:
        try:
            with connect(home) as reader:
                for _ in range(10):
                    assert steps_of(reader) == 3
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []


def test_a_query_is_stopped_by_its_label(served) -> None:
    _, reader = served
    outcome = []

    def ask() -> None:
        with pytest.raises(QueryError) as refused:
            reader.query("SELECT sum(a.range * b.range) FROM range(1000000) a, range(1000000) b", label="mine")
        outcome.append(str(refused.value))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    assert not reader.stop("another's")
    eventually(lambda: reader.stop("mine"), "the query is under way")
    thread.join(90)
    assert outcome == ["the query was stopped"]
    assert not reader.stop("mine")


def test_the_first_rows_of_many(served) -> None:
    _, reader = served
    table = reader.query("SELECT * FROM range(1_000_000_000)", first=10)
    assert table["range"].to_pylist() == list(range(10))
    assert MORE in table.schema.metadata
    with pytest.raises(QueryError, match="number of rows"):
        reader.query("SELECT 1", first=0)


def test_a_second_service_names_the_first(served) -> None:
    home, reader = served
    line = called(service_program.main, "--home", home, code=1).stderr
    assert line.startswith(f"logprobe: {home} is in use by process {reader.status()['pid']}")
    assert line.count("\n") == 1
    assert steps_of(reader) == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(home, number) -> None:
    record(home)
    process = start_service(home)
    with connected(home) as reader:
        reader.ingest()
        process.send_signal(number)
        assert process.wait(90) == 0
        errors = end(process)
        assert "Traceback" not in errors
        with pytest.raises(ServiceUnavailableError, match="logprobe up --home"):
            reader.status()
    assert Home(home).owner() is None
    assert Home(home).service_info() is None
    with open_reader(home) as reader:  # no service: straight from the file
        assert reader.source == "file"
        assert steps_of(reader) == 3
        assert reader.status() == {"running": False}


def test_shutdown_over_the_wire(home) -> None:
    with service(home) as reader:
        reader.shutdown()
        eventually(lambda: Home(home).owner() is None, "it ends")


def test_a_killed_service_is_read_from_its_file_and_found_again_when_it_comes_back(home) -> None:
    with Recorder(home, "toy", rank=0) as recorder, service_process(home) as (reader, first):
        record(home, "before")
        reader.ingest()
        old = Home(home).service_info()
        first.kill()
        first.wait(SECONDS)
        assert Home(home).service_info() == old  # a killed service cannot take its address back
        with pytest.raises(ServiceUnavailableError, match="is not responding"):
            reader.status()
        with open_reader(home) as beside:
            assert beside.source == "file"
            assert steps_of(beside, "before") == 3
        recorder.step(0, loss=1.0)
        assert recorder.flush()
        with service(home):
            eventually(lambda: _answers(reader), "the old reader works again")
            reader.ingest()
            counted = reader.query("SELECT count(*) AS n FROM step_records WHERE run = 'toy'")
            assert counted["n"][0].as_py() == 1
            assert Home(home).service_info().token != old.token


def _answers(reader: FlightReader) -> bool:
    try:
        return reader.status()["running"]
    except ServiceUnavailableError:
        return False


def test_a_full_disk_costs_time_and_no_data(home) -> None:
    """The disk refuses every larger write for a while (RLIMIT_FSIZE); afterwards all is there, once."""
    process = start_service(home)
    try:
        with connected(home) as reader:
            reader.ingest()
            psutil.Process(process.pid).rlimit(psutil.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
            record(home, steps=range(20))
            eventually(lambda: reader.status()["jobs"]["ingest"]["failures"], "ingest fails")
            status = reader.status()  # it still answers
            assert status["backlog"]["segments"] > 0
            assert status["jobs"]["ingest"]["last_error"]
            psutil.Process(process.pid).rlimit(psutil.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
            eventually(lambda: steps_of(reader) == 20, "all steps are there")
            counted = reader.query("SELECT count(*) AS n, count(DISTINCT sample_id) AS d FROM training_sequences")
            assert counted.to_pylist() == [{"n": 80, "d": 80}]
            # A segment is removed after its transaction, and steps may be computed in between.
            eventually(lambda: reader.status()["backlog"]["segments"] == 0, "nothing waits any more")
    finally:
        errors = end(process)
    assert process.returncode == 0
    assert errors.count("job ingest:") <= 5  # told, not repeated twice a second


def test_an_empty_home_says_what_to_do(home) -> None:
    with pytest.raises(ServiceUnavailableError, match="logprobe up --home"):
        connect(home)
    with pytest.raises(StoreError, match="logprobe up --once --home"):
        open_reader(home)
    assert not home.exists()  # looking makes nothing


def test_a_port_that_is_taken_is_named(home, tmp_path) -> None:
    with service(home):
        taken = Home(home).service_info().health_port
        (tmp_path / "other").mkdir()
        (tmp_path / "other/logprobe.yaml").write_text(f"server: {{health_port: {taken}}}\n")
        other = called(service_program.main, "--home", tmp_path / "other", code=1)
        assert f"cannot listen on 127.0.0.1:{taken}" in other.stderr


def test_a_proxy_for_the_internet_is_not_asked(served, monkeypatch) -> None:
    home, _ = served
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with connect(home) as reader:
        assert steps_of(reader) == 3


def test_jobs_that_follow_are_asked_for_news_of_armed_runs_only(home) -> None:
    """Of 200 runs that are not, looking takes a tenth of a core."""
    part = Part(jobs=[Job("follower", 3600.0, dict, follows=True)], armed="armed".__eq__)
    running = Service(Home(home), parts=[lambda _store, _stopping: part])
    thread = threading.Thread(target=running.run)
    thread.start()
    try:
        with connected(home) as reader:

            def looks() -> int:
                return reader.status()["jobs"]["follower"]["runs"]

            def diagnosed(run: str) -> bool:
                return reader.read("diagnosis_latest", run=run).num_rows == 1

            eventually(lambda: looks() == 1, "it has begun")
            record(home, run="other", steps=range(3))
            reader.ingest()
            eventually(lambda: diagnosed("other"), "the other run is diagnosed")
            assert looks() == 1
            record(home, run="armed", steps=range(3))
            reader.ingest()
            eventually(lambda: looks() >= 2, "it is asked as the growth of the armed run is judged")
    finally:
        running.shutdown()
        thread.join()
