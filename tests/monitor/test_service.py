"""The service as a real process: reads, jobs, ownership, ends of all kinds."""

from __future__ import annotations

import json
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
from logprobe.monitor.home import Home, ServiceInfo
from logprobe.monitor.reader import FlightReader, connect, open_reader
from logprobe.monitor.service.jobs import Job, Part
from logprobe.monitor.service.service import Service
from logprobe.monitor.store.queries import MORE
from logprobe.monitor.store.store import Store

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


def test_what_was_flushed_is_measured_and_read_over_the_wire(served, monkeypatch) -> None:
    home, _ = served
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):  # a proxy for the internet is not asked
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with connect(home) as reader:
        assert reader.source == "service"
        assert steps_of(reader) == 3
        table = reader.read("cli_metrics", run="toy", first=1, last=1)
        values = dict(zip(table["metric"].to_pylist(), table["value"].to_pylist(), strict=True))
        assert 0 < values["backend.k3_kl"] < 1e-3
        assert values["reward"] == 1.5
        assert reader.query("SELECT ? + ? AS n", [1, 2])["n"].to_pylist() == [3]
        found = reader.query(
            "SELECT list_sum($xs) AS n, $word AS w, $no::INT AS x", {"xs": [1, 2], "word": "ρ", "no": None}
        )
        assert found.to_pylist() == [{"n": 3, "w": "ρ", "x": None}]
        large = reader.query("SELECT range AS n, repeat('x', 20) AS s FROM range(300_000)")
        assert (large.num_rows, large["n"][299_999].as_py()) == (300_000, 299_999)
        empty = reader.query("SELECT step, run FROM step_summaries WHERE false")
        assert (empty.num_rows, empty.schema.field("step").type) == (0, pa.int64())
        beginning = reader.query("SELECT * FROM range(1_000_000_000)", first=10)
        assert beginning["range"].to_pylist() == list(range(10))
        assert MORE in beginning.schema.metadata


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda reader: reader.query("SELECT ?", [object()]), "cannot be a query parameter"),
        (lambda reader: reader.query("SELECT 1", first=0), "number of rows"),
        (lambda reader: reader.query("SELECT nothing FROM step_summaries"), "nothing"),
        (lambda reader: reader.query(""), "one statement"),
        (lambda reader: reader.read("../../etc/passwd"), "no stored query"),
    ],
    ids=["parameter", "rows", "column", "empty", "name"],
)
def test_a_refused_query_says_why_in_one_line(served, ask, words) -> None:
    with pytest.raises(QueryError, match=words) as caught:
        ask(served[1])
    assert "\n" not in str(caught.value)
    assert "gRPC" not in str(caught.value)


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


def test_a_ticket_that_is_no_request_is_refused(served) -> None:
    home, reader = served
    info = Home(home).service_info()
    options = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {info.token}".encode())])
    with flight.FlightClient((info.host, info.port)) as client:
        for ticket in (b"", b"[]", b"{}", b'{"sql": "SELECT 1", "name": "x"}', b'{"name": "x", "params": [1]}'):
            with pytest.raises(flight.FlightServerError) as caught:
                client.do_get(flight.Ticket(ticket), options).read_all()
            assert json.loads(caught.value.extra_info)["class"] == "QueryError", ticket
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
    mapped = [part.path for part in psutil.Process(status["pid"]).memory_maps()]
    assert [path for path in mapped if "/pandas/" in path] == [], "it never loads pandas"


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


def test_a_second_service_names_the_first(served) -> None:
    home, reader = served
    line = called(service_program.main, "--home", home, code=1).stderr
    assert line.startswith(f"logprobe: {home} is in use by process {reader.status()['pid']}")
    assert line.count("\n") == 1
    assert steps_of(reader) == 3


def test_a_signal_ends_it_cleanly(home) -> None:
    record(home)
    process = start_service(home)
    with connected(home) as reader:
        reader.ingest()
        process.send_signal(signal.SIGTERM)
        assert process.wait(90) == 0
        assert "Traceback" not in end(process)
        with pytest.raises(ServiceUnavailableError, match="logprobe up --home"):
            reader.status()
    assert Home(home).owner() is None
    assert Home(home).service_info() is None
    with open_reader(home) as reader:  # no service: straight from the file
        assert reader.source == "file"
        assert steps_of(reader) == 3
        assert reader.status() == {"running": False}


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
            reader.shutdown()
            eventually(lambda: Home(home).owner() is None, "it ends when it is told to over the wire")


def _answers(reader: FlightReader) -> bool:
    try:
        return reader.status()["running"]
    except ServiceUnavailableError:
        return False


def test_a_stranger_at_its_port_is_no_service_and_the_file_is_read_beside_it(home) -> None:
    """A port that a killed service had may belong to another program."""
    Store.open(Home(home).create()).close()
    with flight.FlightServerBase("grpc://127.0.0.1:0") as stranger:  # which has none of our calls
        Home(home).write_service_info(ServiceInfo("127.0.0.1", stranger.port, "token", 1, "2026-01-01T00:00:00+00:00"))
        with pytest.raises(ServiceUnavailableError, match="is not responding"):
            connect(home)
        with open_reader(home) as reader:
            assert reader.source == "file"
            assert steps_of(reader) == 0


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
