"""A bucket between a node and a service: what was acknowledged arrives once, whatever is interrupted, damaged or refused."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest
import system_tools
from bucket_servers import AZURITE, Server, credentials, endpoint, environment
from processes import end, eventually, logprobe, record, service
from segments import records, trained
from spool_contents import waiting

from logprobe.alerts.controller.job import recall
from logprobe.app.text.nodes import clock
from logprobe.collectors import Recorder, weights
from logprobe.collectors.addresses import folder_of
from logprobe.collectors.directives import DirectiveFile, Directives
from logprobe.collectors.errors import ConfigurationError, StoreError
from logprobe.collectors.shipping.bucket import ARCHIVE, SPOOL, Bucket
from logprobe.collectors.spool.segments import SpoolWriter
from logprobe.collectors.switch import CorrectionSwitch
from logprobe.monitor import queries
from logprobe.monitor.home import Home
from logprobe.monitor.live.ingest import Ingester
from logprobe.monitor.shipped import landing, mirror, part, pulling
from logprobe.monitor.shipped.pulling import Puller
from logprobe.monitor.store import archive
from logprobe.monitor.store.store import Store

NAMES = ("toy", "a/b", "..", "50% off", ".hidden", "日本語")
SEQUENCES = "SELECT run, count(*) AS n, count(DISTINCT sample_id) AS different FROM training_sequences GROUP BY run ORDER BY run"
NOWHERE = 9  # a port that no one listens on
WRONG = "d3Jvbmc="  # a secret; Azure's are base64


def reach(port: int, server: Server, patched: pytest.MonkeyPatch) -> None:
    """Go to another port instead of a server's."""
    for variable, value in endpoint(port, server.kind).items():
        patched.setenv(variable, value)


def write(folder: Path, run: str, *, writer: str = "w-1", steps: range = range(3)) -> None:
    """Segments of a trainer, as they lie in a spool."""
    spool = SpoolWriter(folder, run, writer)
    for step in steps:
        spool.write("training", records("training", *(trained(f"{writer}-{step}-{row}", step) for row in range(4))))


class Taking:
    """The jobs of a service on one home, each run by hand."""

    def __init__(self, address: str, store: Store) -> None:
        self.store = store
        jobs = part.part(address)(store, threading.Event()).jobs
        self.pull, self.keep, self.tell, self.notes, *_ = (job._work for job in jobs)
        self.ingest = Ingester(store).run_once

    def all(self) -> dict[str, Any]:
        """Take everything and merge it; the bucket is as the home then."""
        done = self.pull()
        self.ingest()
        self.store.archive.merge()
        self.keep()
        return dict(done)


@contextmanager
def taking(address: str, home: Path) -> Iterator[Taking]:
    """What a service does with a home and a bucket, from its start on."""
    made = Home(home).create()
    part.restore(address)(made)
    with Store.open(made) as store:
        yield Taking(address, store)


def taken(address: str, home: Path) -> list[dict[str, Any]]:
    """Sequences of each run of a home once everything that lies in the bucket was taken."""
    with taking(address, home) as service:
        service.all()
        return service.store.query(SEQUENCES).to_pylist()


def names(address: str, prefix: str = "") -> list[str]:
    return [entry.name for entry in Bucket(address).entries(prefix)]


def test_what_is_recorded_for_a_bucket_arrives_once_and_trainers_are_told(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real processes: the first recorder starts the shipper, the service pulls, and the switch hears of it."""
    home, node = tmp_path / "home", folder_of(address)
    with service(home, "--bucket", address) as reader:
        recorders = [record(address, run, close=False) for run in NAMES]
        assert weights.mark(7, step=3, home=address, run="toy", recorder=recorders[0])
        expected = [{"run": run, "n": 12, "different": 12} for run in sorted(NAMES)]
        eventually(lambda: reader.query(SEQUENCES).to_pylist() == expected, "all runs are stored")
        marks = "SELECT version FROM weights WHERE run = 'toy' AND source = 'trainer'"
        eventually(lambda: reader.query(marks)["version"].to_pylist() == ["7"], "a mark travels as a record")

        DirectiveFile(home, "toy").write(Directives("toy").issue(5, None, "test"), None)
        began = time.monotonic()
        with CorrectionSwitch(address, "toy", poll_seconds=0.05) as switch:
            eventually(lambda: switch.version == 1, "a directive reaches the trainer")
            assert time.monotonic() - began < 30
            DirectiveFile(home, "toy").stop("somebody")
            eventually(DirectiveFile(node, "toy").stop_path.exists, "the kill switch reaches the node")
            eventually(lambda: switch._watch.directives.stopped)
            DirectiveFile(home, "toy").release()
            eventually(lambda: not DirectiveFile(node, "toy").stop_path.exists(), "it is released there, too")
        eventually(lambda: "up to date" in logprobe("show", "toy", "--home", home).stdout, "its node is listed")
        for recorder in recorders:
            recorder.close()
        eventually(lambda: not waiting(node), "nothing waits on the node")
        assert reader.query(SEQUENCES).to_pylist() == expected


def archived(home: Path) -> set[str]:
    return {path.relative_to(home).as_posix() for path in (home / ARCHIVE).glob("[!!]*/*/*.parquet")}


def test_the_bucket_is_as_small_as_the_archive_and_keeps_what_someone_removes_by_hand(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "_ALL_SECONDS", 0.0)
    monkeypatch.setattr(archive, "SMALL_FILES", 3)
    home = tmp_path / "home"
    with taking(address, home) as service:
        for step in range(4):
            write(folder_of(address), "toy", writer=f"w-{step}", steps=range(step, step + 1))
            logprobe("ship", "--home", address)
            service.all()
        before = archived(home)
        assert len(before) == 4
        assert service.store.archive.compact("toy") == 4
        service.keep()
        (left,) = archived(home)
        assert {name for name in names(address, ARCHIVE) if name.endswith(".parquet")} == {left}
        (home / left).unlink()
        service.keep()
        assert left in names(address, ARCHIVE)
    assert taken(address, tmp_path / "other") == [{"run": "toy", "n": 16, "different": 16}]


def test_segments_that_land_at_the_same_time_are_whole(tmp_path: Path) -> None:
    """Of two nodes whose writers have one name, and twice of one that had no answer and sent again."""
    home, contents = Home(tmp_path / "home").create().path, {}
    for node in ("a", "b"):
        spool = SpoolWriter(tmp_path / node, "toy", "w-1")
        spool.write("training", records("training", *(trained(f"{node}-{row}", 0) for row in range(4))))
        (path,) = waiting(tmp_path / node)
        contents[path.relative_to(tmp_path / node / "spool").as_posix()] = path.read_bytes()
    assert len(contents) == 2

    def land_all(_: int) -> None:
        for name, content in contents.items():
            landing.land(home, name, content)
            assert (home / "spool" / name).read_bytes() == content

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(land_all, range(40)))
    assert len(list(home.glob("spool/toy/w-1/*"))) == 2


def test_an_object_that_is_not_what_its_name_says_stays_is_named_and_is_taken_once_it_was_repaired(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulling, "_AGAIN_SECONDS", (0.0, 0.0))
    home, bucket = tmp_path / "home", Bucket(address)
    write(folder_of(address), "toy", steps=range(1))
    (path,) = waiting(folder_of(address))
    name, content = path.relative_to(folder_of(address)).as_posix(), path.read_bytes()
    changed = bytearray(content)
    changed[len(changed) // 2] ^= 1
    bucket.put(name, bytes(changed))
    bucket.put(f"{SPOOL}toy/w-1/../../escaped".replace("/../..", "/%2e%2e"), b"no segment")
    with taking(address, home) as service:
        done = service.all()
        assert done["bad"] == 2
        assert "does not match the checksum" in str(done["problem"])
        assert len(names(address, SPOOL)) == 2
        bucket.put(name, content)
        assert service.all()["bad"] == 1
        assert service.store.query(SEQUENCES).to_pylist() == [{"run": "toy", "n": 4, "different": 4}]


class Expired(BaseHTTPRequestHandler):
    """As S3 answers to a token that has expired."""

    def answer(self) -> None:
        body = b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"
        self.send_response(400)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PUT = do_HEAD = do_DELETE = answer

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def test_wrong_and_expired_credentials_keep_everything_and_say_so(
    address: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder_of(address), "toy")
    with monkeypatch.context() as patched:
        for variable, value in credentials(server.kind, secret=WRONG).items():
            patched.setenv(variable, value)
        wrong = logprobe("ship", "--home", address, code=1).stderr
        with pytest.raises(PermissionError):
            list(Bucket(address).entries(SPOOL))
    with ThreadingHTTPServer(("127.0.0.1", 0), Expired) as expired, monkeypatch.context() as patched:
        threading.Thread(target=expired.serve_forever, daemon=True).start()
        reach(expired.server_port, server, patched)
        old = logprobe("ship", "--home", address, code=1).stderr
        expired.shutdown()
    assert "403" in wrong
    assert "The provided token has expired" in old
    for said in (wrong, old):
        assert "3 segments stay" in said
    assert len(waiting(folder_of(address))) == 3
    assert "3 segments shipped, 0 left" in logprobe("ship", "--home", address).stderr


def test_what_is_refused_for_a_while_is_sent_again(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the same shipper; bytes that change on their way and answers that are lost: the machine's network."""
    write(folder_of(address), "toy")
    put, refusals = Bucket.put, iter([True, True])

    def refusing(self: Bucket, *arguments: Any) -> Any:
        if next(refusals, False):
            raise OSError("refused")
        return put(self, *arguments)

    monkeypatch.setattr(Bucket, "put", refusing)
    assert "3 segments shipped, 0 left" in logprobe("ship", "--home", address, "--seconds", "60").stderr
    assert next(refusals, None) is None


def test_a_clock_that_is_an_hour_off_loses_nothing_and_is_named(address: str, server: Server, tmp_path: Path) -> None:
    """S3 refuses requests from a quarter of an hour away: records wait until the clock is set. Azurite takes them."""
    node = folder_of(address)
    write(node, "toy")
    wrong = ("env", "FAKETIME_DONT_FAKE_MONOTONIC=1", system_tools.path("faketime"), "-f", "+1h")
    command = [*wrong, sys.executable, "-m", "logprobe.app.cli", "ship", "--home", address, "--seconds", "60"]
    shipped = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=200, check=False)
    if server.kind == AZURITE:
        assert shipped.returncode == 0
        with taking(address, tmp_path / "home") as service:
            service.all()
            service.notes()
            (row,) = queries.nodes_of(service.store, run="toy", now=datetime.now(UTC)).to_pylist()
            assert re.fullmatch("(1 h|59 min) fast", clock(row))
    else:
        assert shipped.returncode == 1, shipped.stderr
        assert "set this machine's clock" in shipped.stderr
        assert len(waiting(node)) == 3
        logprobe("ship", "--home", address)
    assert taken(address, tmp_path / "home") == [{"run": "toy", "n": 12, "different": 12}]


def listening(process: psutil.Process) -> set[tuple[str, int]]:
    """Where a process and its children listen."""
    found = set()
    for each in (process, *process.children(recursive=True)):
        with suppress(psutil.Error):
            places = [place for place in each.net_connections("inet") if place.status == psutil.CONN_LISTEN]
            found |= {(place.laddr.ip, place.laddr.port) for place in places}
    return found


def shippers_of_this_process() -> list[psutil.Process]:
    return [each for each in psutil.Process().children() if "logprobe.collectors.shipping" in each.cmdline()]


def test_no_port_is_open_but_those_of_dashboard_and_service_on_this_machine(address: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "logprobe.app.cli", "up", "--home", str(tmp_path / "home"), "--port", "0"]
    started = subprocess.Popen([*command, "--bucket", address], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    up = psutil.Process(started.pid)
    try:
        eventually(lambda: len(listening(up)) >= 3, "dashboard, service and its /healthz listen", 300)
        with record(address, close=False):
            shippers = eventually(shippers_of_this_process, "the recorder starts a shipper")
            eventually(lambda: not waiting(folder_of(address)), "all is shipped")
            assert not set().union(*map(listening, shippers))
            assert {ip.removeprefix("::ffff:") for ip, _ in listening(up)} == {"127.0.0.1"}
            assert len(listening(up)) == 3
    finally:
        end(started)


def test_a_full_disk_of_the_service_leaves_objects_where_they_are(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    write(folder_of(address), "toy")
    logprobe("ship", "--home", address)
    with monkeypatch.context() as patched:
        patched.setattr(landing, "FREE_BYTES", 1 << 60)
        with taking(address, home) as service, pytest.raises(OSError, match="kept free"):
            service.pull()
    assert len(names(address, SPOOL)) == 3
    assert taken(address, home) == [{"run": "toy", "n": 12, "different": 12}]


def test_the_service_that_started_last_pulls_and_one_before_it_stops(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulling, "_OWNER_SECONDS", 0.0)
    first, second = (Puller(Bucket(address), Home(tmp_path / name).create()) for name in ("first", "second"))
    first.once()
    second.once()
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="another service pulls"):
            first.once()
    second.once()


def test_a_bucket_belongs_to_one_home(address: str, tmp_path: Path) -> None:
    for run, place in (("toy", address), ("other", f"{address}/other")):
        write(folder_of(place), run)
        logprobe("ship", "--home", place)
        taken(place, tmp_path / run)
    with pytest.raises(ConfigurationError, match="belongs to another home"):
        taken(address, tmp_path / "other")


def test_a_new_home_begins_with_its_bucket_or_not_at_all(
    address: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    write(folder_of(address), "toy")
    logprobe("ship", "--home", address)
    taken(address, old)
    with monkeypatch.context() as patched:
        reach(NOWHERE, server, patched)
        with pytest.raises(StoreError, match="a new home begins with what its bucket has"):
            taken(address, new)
        part.restore(address)(Home(old))  # it has all of it
    (file,) = archived(old)
    content = Bucket(address).get(file)
    assert content is not None
    Bucket(address).put(file, content[:-1])
    assert taken(address, new) == [], "a damaged file is no file"
    Bucket(address).put(file, content)
    assert taken(address, new) == [{"run": "toy", "n": 12, "different": 12}]


def test_what_trainers_were_told_survives_the_loss_of_the_service(address: str, tmp_path: Path) -> None:
    """A new home takes it from the bucket, once; after that the home decides."""
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))

    def told(home: Path) -> None:
        with taking(address, home) as service:
            service.all()
            service.tell()

    Home(first).create()
    DirectiveFile(first, "toy").write(Directives("toy").issue(5, None, "test"), None)
    DirectiveFile(first, "a/b").stop("somebody")
    told(first)
    told(second)
    assert DirectiveFile(second, "toy").read(None).version == 1
    with Store.open(Home(second)) as store:
        assert recall(store, "toy").directives.version == 1, "the next one is the second"
    assert DirectiveFile(second, "a/b").read(None).stopped
    DirectiveFile(second, "a/b").release()  # while no service runs
    told(second)
    told(second)
    told(third)
    assert not DirectiveFile(third, "a/b").read(None).stopped


def test_a_deleted_run_leaves_the_bucket_and_never_comes_back(address: str, tmp_path: Path) -> None:
    home, gone = tmp_path / "home", [{"run": "other", "n": 12, "different": 12}]
    for run in ("toy", "other"):
        write(folder_of(address), run)
    with service(home, "--bucket", address) as reader:
        DirectiveFile(home, "toy").stop("somebody")
        logprobe("ship", "--home", address)
        eventually(lambda: len(reader.query(SEQUENCES)) == 2, "both are stored")
        eventually(lambda: names(address, "control/"), "trainers are told")
        logprobe("store", "delete", "toy", "--home", home, "--force", "--yes")
        at_run = re.compile(r"(spool|archive|control)/toy")
        eventually(lambda: not any(map(at_run.match, names(address))), "it is gone from the bucket")
        write(folder_of(address), "toy", writer="w-late")
        logprobe("ship", "--home", address)
        eventually(lambda: not any(map(at_run.match, names(address))), "what comes late goes, too")
    assert taken(address, home) == taken(address, tmp_path / "fresh") == gone


def test_a_recorder_imports_nothing_of_buckets_and_refuses_what_is_no_address(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = (
        "import sys; from logprobe.collectors import Recorder; Recorder(sys.argv[1], 'toy').close();"
        "assert not {'obstore', 'duckdb'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", program, address], check=True, env=dict(os.environ), timeout=120)
    for wrong in ("s3://", "s3:///team", "gs://a b", "s3://bucket/team?versionId=1"):
        with pytest.raises(ConfigurationError, match="not the address of a bucket"):
            Recorder(wrong, "toy")
    with pytest.raises(ConfigurationError, match="neither a folder nor a bucket"):
        Recorder("hdfs://bucket/team", "toy")
    with pytest.raises(ConfigurationError, match="--bucket"):
        Home(address)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match=r"logprobe\[bucket\]"):
        Recorder(address, "toy")


def test_the_folder_in_front_of_a_bucket_is_this_users_alone(address: str, tmp_path: Path) -> None:
    above = folder_of(address).parent
    assert above.stat().st_mode & 0o777 == 0o700
    above.chmod(0o777)
    with pytest.raises(ConfigurationError, match="others can change it"):
        Recorder(address, "toy")
    shutil.rmtree(above)
    (tmp_path / "elsewhere").mkdir()
    above.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigurationError, match="is a link"):
        Recorder(address, "toy")


def test_a_spool_that_waits_leaves_room_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = os.statvfs(tmp_path)
    free = disk.f_bavail * disk.f_frsize
    spool = SpoolWriter(tmp_path, "toy", "w-1", keep_free=1 << 30)
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result([*disk[:4], 1000, *disk[5:]]))
    with pytest.raises(OSError, match="would be left free"):
        spool.write("training", records("training", trained("a", 1)))
    assert spool.settled
    assert not waiting(tmp_path)
    monkeypatch.undo()
    assert free > 2 << 30, "this disk is too full for the other half of the test"
    SpoolWriter(tmp_path, "toy", "w-1", keep_free=1 << 30).write("training", records("training", trained("a", 1)))


def test_two_shippers_of_one_folder_take_turns(address: str, server: Server) -> None:
    write(folder_of(address), "toy", steps=range(40))
    command = [sys.executable, "-m", "logprobe.app.cli", "ship", "--home", address]
    variables = {**os.environ, **environment(server.port, server.kind)}
    both = [subprocess.Popen(command, env=variables, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=120)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert len(names(address, SPOOL)) == 40
    assert not waiting(folder_of(address))
