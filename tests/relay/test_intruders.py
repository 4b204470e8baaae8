"""What strangers, and writers that go beyond their own runs, send to the receiver: refused, audited, and without a trace in the spool."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from processes import connected, end, eventually, start_service
from pyarrow import flight
from relay_processes import handshake, port_of, prepare, receiver, relay, token
from segments import on_small_disk, records, trained

from logprobe.collectors.relay import protocol
from logprobe.collectors.spool.schema import segment_metadata
from logprobe.monitor.home import Home
from logprobe.monitor.relay import files, tokens
from logprobe.monitor.relay.files import RelayFiles
from logprobe.monitor.relay.listening import Connections, Observations
from logprobe.monitor.relay.receiver import Receiver, Settings

WRITER = "trainer-host-1-abcd"


@dataclass
class Target:
    """A receiver, run in this process to see what it tells the service; its spool; tokens of two writers."""

    home: Path
    port: int
    own: str
    other: str
    observations: Observations
    connections: Connections

    def client(self, **options: Any) -> flight.FlightClient:
        ca = RelayFiles.of(Home(self.home)).authority.read_bytes()
        return flight.FlightClient(f"grpc+tls://localhost:{self.port}", tls_root_certs=ca, **options)

    def send(self, *chunks: pa.RecordBatch, key: str | None = None, schema: pa.Schema = protocol.CHUNKS) -> list[dict]:
        """What the receiver answers to one upload."""
        with self.client() as client:
            writer, answers = client.do_put(
                flight.FlightDescriptor.for_path(protocol.UPLOAD),
                schema,
                self.options(self.own if key is None else key),
            )
            with writer:
                for chunk in chunks:
                    writer.write_batch(chunk)
                writer.done_writing()
                return json.loads(answers.read().to_pybytes())["segments"]

    def sync(self, document: Any, key: str | None = None) -> dict:
        with self.client() as client:
            body = document if isinstance(document, bytes) else json.dumps(document).encode()
            (answer,) = client.do_action(flight.Action("sync", body), self.options(self.own if key is None else key))
            return json.loads(answer.body.to_pybytes())

    def directives(self, document: Any, key: str | None = None) -> dict:
        with self.client() as client:
            body = document if isinstance(document, bytes) else json.dumps(document).encode()
            call = flight.Action("directives", body)
            (answer,) = client.do_action(call, self.options(self.own if key is None else key))
            return json.loads(answer.body.to_pybytes())

    def options(self, key: str) -> flight.FlightCallOptions:
        return flight.FlightCallOptions(timeout=120, headers=[(b"authorization", f"Bearer {key}".encode())])

    def refusals(self) -> str:
        """What the audit is told."""
        news = self.observations.take()
        self.observations.give_back({**news, "refusals": []})
        return "\n".join(f"{row['who']} {row['what']} {row['peer']} {row['words']}" for row in news["refusals"])

    @property
    def files(self) -> list[Path]:
        """Everything that is in the spool or on its way."""
        folders = (self.home / "spool", self.home / "relay" / "incoming")
        return [path for folder in folders for path in folder.rglob("*") if not path.is_dir()]

    @property
    def waiting(self) -> list[Path]:
        """… without the copies of what is ingested, which go at a checkpoint: on a busy machine that takes minutes."""
        return [path for path in self.files if not path.name.endswith(".ingested")]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    home = tmp_path_factory.mktemp("receiver") / "home"
    own = prepare(home, writer="own", runs=("mine-*",)).read_text()
    other = token(home, "other", ("theirs",)).read_text()
    stop, ports, listening = threading.Event(), [], threading.Event()

    def on_port(port: int) -> None:
        ports.append(port)
        listening.set()

    receiver = Receiver(Settings(Home(home), "127.0.0.1", 0), stop, on_port)
    receiver._tell = lambda: None  # nobody takes what the test wants to see
    thread = threading.Thread(target=_run, args=(receiver,))
    thread.start()
    assert listening.wait(90)
    yield Target(home, ports[0], own, other, receiver._observations, receiver._connections)
    stop.set()
    thread.join(90)


def _run(receiver: Receiver) -> None:
    import logprobe.monitor.relay.receiver as module

    module.limit_memory = lambda _: None  # of this process
    receiver.run()


def segment(run: str = "mine-1", writer: str = WRITER, number: int = 1, kind: str = "training") -> tuple[str, bytes]:
    """Name and bytes of a sound one."""
    table = records("training", trained(f"{run}-{number}"))
    data = encoded(table, segment_metadata(kind=kind, run=run, writer=writer, number=number))
    return name_of(data, run, writer, number, kind), data


def encoded(table: pa.Table, metadata: dict[bytes, bytes], **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(
        sink, table.schema.with_metadata(metadata), options=pa.ipc.IpcWriteOptions(**options)
    ) as writer:
        writer.write_table(table.replace_schema_metadata(metadata))
    return sink.getvalue().to_pybytes()


def name_of(data: bytes, run: str, writer: str, number: int, kind: str = "training") -> str:
    return f"{run}/{writer}/{number:08d}.{kind}.{zlib.crc32(data):08x}.arrow"


def chunk(name: str, content: bytes, **changes: Any) -> pa.RecordBatch:
    row = {"segment": name, "size": len(content), "raw": len(content), "codec": "", "data": content, **changes}
    return pa.RecordBatch.from_pylist([row], schema=protocol.CHUNKS)


def test_a_sound_segment_is_taken_and_a_replayed_one_is_the_same_file(target):
    name, data = segment()
    for _ in range(3):
        assert [row["status"] for row in target.send(chunk(name, data))] == ["stored"]
    assert [path.relative_to(target.home / "spool").as_posix() for path in target.files] == [name]
    assert target.files[0].read_bytes() == data
    target.files[0].unlink()


@pytest.mark.parametrize("key", ["", "own", "own.", "own.wrong", "nobody.x", "x" * 100_00, "ö.é"])
def test_without_a_valid_token_nothing_is_taken(target, key):
    name, data = segment()
    with pytest.raises((flight.FlightUnauthenticatedError, flight.FlightError, pa.ArrowException)):
        target.send(chunk(name, data), key=key)
    with pytest.raises((flight.FlightUnauthenticatedError, flight.FlightError, pa.ArrowException)):
        target.sync({"node": "n", "runs": {}}, key=key)
    with pytest.raises((flight.FlightUnauthenticatedError, flight.FlightError, pa.ArrowException)):
        target.directives({"run": "mine-1"}, key=key)
    assert not target.files
    if len(key) < 1000 and key.isascii():  # others do not even get through HTTP/2
        assert "token that is missing, wrong" in target.refusals()


def test_another_writers_runs_are_denied_for_segments_marks_and_directives(target):
    name, data = segment("mine-1")
    (row,) = target.send(chunk(name, data), key=target.other)
    assert row["status"] == "denied"
    mark = json.dumps({"version": "1", "applied_at": 1.0})
    said = {"queue": {}, "marks": [mark], "cursor": 0}
    answer = target.sync({"node": "n", "time": 1.0, "runs": {"mine-1": said}}, key=target.other)
    assert answer["runs"] == {}
    with pytest.raises(flight.FlightError, match="refused: run 'mine-1' is not one of its own"):
        target.directives({"run": "mine-1"}, key=target.other)
    assert target.directives({"run": "mine-1"}) == {"directives": None, "stopped": False}
    assert not (target.home / "versions").exists()
    assert not target.files
    refusals = target.refusals()
    assert "other segment (denied) 127.0.0.1" in refusals
    assert "other marks 127.0.0.1" in refusals
    assert "other directives 127.0.0.1" in refusals


def test_revoked_expired_and_replaced_tokens(target):
    """Rotation without a restart: both count for a while, then only the new one."""
    place = RelayFiles.of(Home(target.home)).tokens
    name, data = segment(number=9)
    first = token(target.home, "rotating", ("mine-*",)).read_text()
    second = token(target.home, "rotating", (), overlap=timedelta(hours=1)).read_text()
    for key in (first, second):
        assert target.send(chunk(name, data), key=key)[0]["status"] == "stored"
    third = token(target.home, "rotating", (), overlap=timedelta(0)).read_text()
    for key in (first, second):
        with pytest.raises(flight.FlightUnauthenticatedError):
            target.send(chunk(name, data), key=key)
    assert target.send(chunk(name, data), key=third)[0]["status"] == "stored"
    tokens.save(place, tokens.load(place).revoke("rotating"))
    with pytest.raises(flight.FlightUnauthenticatedError):
        target.send(chunk(name, data), key=third)
    assert not any(key.partition(".")[2] in place.read_text() for key in (first, second, third))
    assert place.stat().st_mode & 0o777 == 0o600
    for path in target.files:
        path.unlink()


def test_a_token_that_is_revoked_during_an_upload_stores_nothing_more(target):
    key = token(target.home, "leaving", ("mine-*",)).read_text()
    with pytest.raises(flight.FlightUnauthenticatedError, match="no longer valid"):
        _revoked_while_sending(target, key)
    eventually(lambda: not target.files, "what had come is removed")
    assert "no longer valid" in target.refusals()


def _revoked_while_sending(target: Target, key: str) -> None:
    place = RelayFiles.of(Home(target.home)).tokens
    with target.client() as client:
        descriptor = flight.FlightDescriptor.for_path(protocol.UPLOAD)
        writer, answers = client.do_put(descriptor, protocol.CHUNKS, target.options(key))
        with writer:
            for number in range(1, 41):
                name, data = segment(number=number)
                writer.write_batch(chunk(name, data))
                if number == 6:
                    eventually(lambda: len(target.files) == 6, "six have come")
                    tokens.save(place, tokens.load(place).revoke("leaving"))
            writer.done_writing()
            answers.read()


RESERVE = """
import shutil, sys
from pathlib import Path
import pyarrow as pa
from logprobe.monitor.home import Home
from logprobe.monitor.relay import incoming

incoming.FREE_BYTES = 16 << 20
home = Home(Path(sys.argv[1]) / "home").create()
free = shutil.disk_usage(home.path).free
intake = incoming.Intake(home, most=free, spool_most=1 << 40)
place = incoming.place_of(home, "run/writer/00000001.training.00000000.arrow")
third = (free - incoming.FREE_BYTES) // 3 - 4096

def refused(size):
    try:
        intake.begin(place, size).close()
    except incoming.BusyError as error:
        return "kept free" in str(error)
    return False

under_way = [intake.begin(place, third) for _ in range(3)]
assert refused(1 << 20), "announced by others"
under_way[0].add(pa.py_buffer(b"x" * third))
assert refused(1 << 20), "announced by others, or here already"
under_way.pop(0).close()
assert not refused(third - (1 << 20)), "one has ended"
for each in under_way:
    each.close()
assert not refused(3 * third), "all have ended"
assert refused(3 * third + (1 << 20)), "the first byte too many"
print("kept")
"""


def test_all_uploads_together_leave_the_store_its_reserve(tmp_path):
    """Each alone would fit; what is under way counts with the size it was announced with, before a byte of it has come."""
    script = tmp_path / "script.py"
    script.write_text(RESERVE)
    assert on_small_disk(tmp_path / "disk", 64, script) == "kept\n"


def test_a_tokens_file_that_others_may_read_counts_for_nobody(target):
    place = RelayFiles.of(Home(target.home)).tokens
    content, (name, data) = place.read_bytes(), segment()
    place.write_bytes(content + b"\n")
    place.chmod(0o644)
    with pytest.raises(flight.FlightUnauthenticatedError):
        target.send(chunk(name, data))
    files.write(place, content, secret=True)
    assert target.send(chunk(name, data))[0]["status"] == "stored"
    target.files[0].unlink()


PATHS = [
    "../../etc/x/00000001.training.00000000.arrow",
    "mine-1/../../../x/00000001.training.00000000.arrow",
    "mine-1/..",
    "mine-1/../00000001.training.00000000.arrow",
    "mine-1/./00000001.training.00000000.arrow",
    "/mine-1/w/00000001.training.00000000.arrow",
    "mine-1//00000001.training.00000000.arrow",
    "mine-1/w/../../x",
    "mine-1/w/.00000001.training.tmp",
    "mine-1/w/00000001.training.00000000.arrow/x",
    "mine-1/w/00000001.training.00000000.arrow\0",
    "mine-1/w\n/00000001.training.00000000.arrow",
    "mine-1/.hidden/00000001.training.00000000.arrow",
    "mine-1%2F..%2F../w/00000001.training.00000000.arrow",
    "%2E%2E/w/00000001.training.00000000.arrow",
    ".mine-1/w/00000001.training.00000000.arrow",
    "mine-1%2f/w/00000001.training.00000000.arrow",
    "mine-%31/w/00000001.training.00000000.arrow",
    "mine-1/" + "w" * 300 + "/00000001.training.00000000.arrow",
    "mine-" + "1" * 300 + "/w/00000001.training.00000000.arrow",
    "mine-1/w/00000001.unknown.00000000.arrow",
    "mine-1/w/1.training.00000000.arrow",
    "mine-1/ｗ/00000001.training.00000000.arrow",
    "mine‐1/w/00000001.training.00000000.arrow",  # a hyphen that is none
    "mine-1/w/0000000１.training.00000000.arrow",
    "mine-1／w／00000001.training.00000000.arrow",
    "m%D1%96ne-1/w/00000001.training.00000000.arrow",  # a Cyrillic letter: the name of another run, not of this token's
    "m\u200bine-1/w/00000001.training.00000000.arrow",
    "",
]


def test_names_that_lead_elsewhere_are_refused(target):
    before = set(target.home.parent.rglob("*"))
    for name in PATHS:
        (row,) = target.send(chunk(name, b"x" * 10))
        assert row["status"] in {"refused", "denied"}, (name, row)
    assert set(target.home.parent.rglob("*")) == before
    assert "is not a segment's name" in target.refusals()


def test_forged_content_is_refused(target):
    name, data = segment()
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 1
    other_run = encoded(
        records("training", trained("a")), segment_metadata(kind="training", run="theirs", writer=WRITER, number=1)
    )
    other_writer = encoded(
        records("training", trained("a")), segment_metadata(kind="training", run="mine-1", writer="x", number=1)
    )
    future = encoded(
        records("training", trained("a")),
        {**segment_metadata(kind="training", run="mine-1", writer=WRITER, number=1), b"logprobe.schema": b"99"},
    )
    not_ours = encoded(pa.table({"a": [1]}), {})
    columns = encoded(
        pa.table({"step": ["text"]}), segment_metadata(kind="training", run="mine-1", writer=WRITER, number=1)
    )
    packed = encoded(
        records("training", *(trained(f"s{i}", n=2000) for i in range(50))),
        segment_metadata(kind="training", run="mine-1", writer=WRITER, number=1),
        compression="zstd",
    )
    forged = {
        "bits flipped": (name, bytes(flipped)),
        "another run in its content": (name_of(other_run, "mine-1", WRITER, 1), other_run),
        "another writer in its content": (name_of(other_writer, "mine-1", WRITER, 1), other_writer),
        "a newer schema": (name_of(future, "mine-1", WRITER, 1), future),
        "somebody's Arrow file": (name_of(not_ours, "mine-1", WRITER, 1), not_ours),
        "columns of another type": (name_of(columns, "mine-1", WRITER, 1), columns),
        "compressed buffers, which could expand without limit": (name_of(packed, "mine-1", WRITER, 1), packed),
        "no Arrow": (name_of(b"x" * 99, "mine-1", WRITER, 1), b"x" * 99),
        "cut short": (name, data[:-20]),
    }
    for words, (place, content) in forged.items():
        (row,) = target.send(chunk(place, content))
        assert row["status"] == "refused", (words, row)
    assert not target.files
    assert "own segment (checksum) 127.0.0.1" in (said := target.refusals())
    assert "own segment (foreign) 127.0.0.1" in said


def test_sizes_that_do_not_fit_are_refused_and_cost_no_memory(target):
    name, data = segment()
    bomb = pa.Codec("zstd").compress(b"\0" * (64 << 20), asbytes=True)
    wrong = [
        {"size": 1 << 40},  # larger than a segment may be
        {"size": -1},
        {"size": 0},
        {"size": None},
        {"size": len(data) - 1},  # more than announced
        {"size": len(data) + 1},  # less than announced
        {"raw": 1 << 30},  # a chunk that expands beyond a chunk's size
        {"raw": -1},
        {"raw": None},
        {"codec": "gzip"},
        {"codec": "zstd"},  # it is not
        {"codec": "zstd", "data": bomb, "raw": 1 << 20, "size": 1 << 20},  # expands to more than it says
        {"data": None},
    ]
    for changes in wrong:
        (row,) = target.send(chunk(name, data, **changes))
        assert row["status"] == "refused", (changes.keys(), row)
    assert not target.files


def test_other_columns_other_calls_and_documents_that_are_none(target):
    with pytest.raises(flight.FlightError, match="columns"):
        target.send(pa.RecordBatch.from_pydict({"x": [1]}), schema=pa.schema([("x", pa.int64())]))
    with target.client() as client:
        options = target.options(target.own)
        calls = [
            lambda: list(client.list_flights(options=options)),
            lambda: client.get_flight_info(flight.FlightDescriptor.for_path("x"), options),
            lambda: client.do_get(flight.Ticket(b'{"sql": "SELECT 1"}'), options).read_all(),
            lambda: list(client.do_action("shutdown", options)),
            lambda: list(client.do_action("relay.note", options)),
            lambda: list(client.list_actions(options)),
        ]
        for call in calls:
            with pytest.raises((flight.FlightError, pa.ArrowException)):
                call()
    deep = b"[" * 100_000
    for document in (
        b"",
        b"\xff",
        b"[]",
        b"1",
        deep,
        {"node": 1},
        {"node": "n", "runs": []},
        {"node": "n", "runs": {"mine-1": 1}},
    ):
        with pytest.raises(flight.FlightError, match="refused"):
            target.sync(document)
    for document in (b"", b"[]", deep, {}, {"run": 7}, {"run": ["mine-1"]}, {"run": "mine-1" + "1" * 2000}):
        with pytest.raises(flight.FlightError, match="refused"):
            target.directives(document)
    assert "own sync 127.0.0.1 an invalid request" in target.refusals()


def test_marks_that_are_none_and_numbers_that_are_none(target):
    strange = ["x", "[]", "{}", "x" * 10_000, json.dumps({"version": "1", "applied_at": "soon"}), 7, None, "a\nb"]
    good = json.dumps({"version": "1", "applied_at": 1.0})
    queue = {"segments": "many", "bytes": -1, "oldest_seconds": float("nan")}
    document = {
        "node": "n" * 999,
        "time": "never",
        "problem": "p" * 9999,
        "runs": {"mine-marks": {"queue": queue, "marks": [*strange, good], "cursor": -5}},
    }
    answer = target.sync(document)
    assert answer["runs"]["mine-marks"]["marks"] == [good]
    assert target.sync(document)["runs"]["mine-marks"]["marks"] == [good]
    (row,) = [row for row in target.observations.take()["nodes"] if row["run"] == "mine-marks"]
    assert [row[name] for name in ("segments", "bytes", "oldest_seconds", "clock_ahead_seconds")] == [None] * 4
    assert len(row["node"]) + len(row["problem"]) < 500


def test_two_nodes_with_one_name_are_told_so_and_a_restarted_relay_is_not(target):
    def problem(relay: str, node: str) -> str | None:
        said = {"queue": {}, "marks": [], "cursor": 0}
        target.sync({"node": node, "relay": relay, "time": 1.0, "runs": {"mine-1": said}})
        rows = target.observations.take()["nodes"]
        return next(row["problem"] for row in rows if row["node"] == node)

    assert [problem(relay, "restarted") for relay in ("a", "a", "b", "b", "c")] == [None] * 5
    assert [problem(relay, "twin") for relay in ("a", "b")] == [None] * 2
    assert "another relay also calls itself 'twin'; write ,node=NAME in LOGPROBE_SERVICE" in str(problem("a", "twin"))
    assert "another relay" in str(problem("b", "twin"))
    assert problem("b", "twin") is None, "the other one is gone"


def test_more_runs_than_a_call_may_ask_about_are_refused_rather_than_left_out(target: Target) -> None:
    said = {"node": "n", "relay": "r"}
    runs = {f"mine-{at}": {"marks": [], "cursor": 0, "queue": {}} for at in range(protocol.SYNC_RUNS + 1)}
    with pytest.raises(flight.FlightError, match=f"more than {protocol.SYNC_RUNS} runs in one call"):
        target.sync({**said, "runs": runs})
    assert len(target.sync({**said, "runs": dict(list(runs.items())[:-1])})["runs"]) == protocol.SYNC_RUNS


def test_without_tls_with_an_old_tls_or_a_strange_certificate_nothing_is_sent(target, tmp_path):
    name, data = segment()
    with (
        flight.FlightClient(f"grpc://localhost:{target.port}") as client,
        pytest.raises((flight.FlightError, pa.ArrowException)),
    ):
        list(client.do_action("sync", target.options(target.own)))
    for version in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1):
        assert handshake(target.port, version) is None
    assert handshake(target.port, ssl.TLSVersion.TLSv1_2) == "TLSv1.2"
    with socket.create_connection(("127.0.0.1", target.port), timeout=60) as plain:
        plain.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        with suppress(OSError):
            assert b"SETTINGS" not in plain.recv(1000)
    node = tmp_path / "node"
    (place := node / "spool" / name).parent.mkdir(parents=True)
    place.write_bytes(data)
    key = tmp_path / "key"
    key.write_text(target.own)
    key.chmod(0o600)
    stranger = tmp_path / "stranger" / "home"
    prepare(stranger)
    wary = relay(node, target.port, stranger, key, "--drain").start()  # trusts another authority
    plaintext = relay(node, target.port, target.home, key, "--drain", "--to", f"grpc://localhost:{target.port}")
    plaintext.log = tmp_path / "plaintext.log"
    assert plaintext.start().process.wait(120) == 1
    assert "without TLS nothing is sent" in plaintext.words
    _until(lambda: "the spool keeps everything" in wary.words)
    wary.end()
    assert place.exists()
    assert not target.files


ATTACKS = {  # who, what and why, as the audit says it
    "no token": ("nobody known", "call", "missing, wrong or no longer valid"),
    "another run's token": ("other", "segment (denied)", "may not write run 'mine-1'"),
    "forged": ("own", "segment (checksum)", "does not match the checksum"),
    "too large": ("own", "segment (too_large)", "at most"),
    "another run's directives": ("other", "directives", "run 'mine-1' is not one of its own"),
    "a path": ("own", "segment (foreign)", "is not a segment's name"),
    "another call": ("own", "action", "'shutdown'"),
    "plain text": ("nobody known", "connection", "no TLS 1.2 or newer"),
}
ENDLESS = 384  # MiB


def test_connections_that_never_come_to_a_call_are_ended(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    def is_over(connection: socket.socket) -> bool:
        with suppress(ConnectionError):
            return connection.recv(65536) == b""
        return True

    said = {"node": "n", "relay": "r", "runs": {}}
    with (
        socket.create_connection(("127.0.0.1", target.port), 90) as silent,
        socket.create_connection(("127.0.0.1", target.port), 90) as halfway,
        target.client() as client,
    ):
        halfway.sendall(b"\x16\x03\x01\x02\x00\x01\x00")  # the beginning of a handshake
        call = flight.Action("sync", json.dumps(said).encode())
        list(client.do_action(call, target.options(target.own)))
        ended = {silent.getsockname()[1], halfway.getsockname()[1]}
        before = _clients(target.port)
        monkeypatch.setattr(target.connections, "_seconds", 0.0)
        assert is_over(silent)
        assert is_over(halfway)
        monkeypatch.undo()
        list(client.do_action(call, target.options(target.own)))
        assert _clients(target.port) - ended == before - ended != set(), "the one that is used stays"
    assert "no valid call within 20 s" in target.refusals()


def _clients(port: int) -> set[int]:
    """Ports of this process's connections to `port`."""
    rows = psutil.Process().net_connections("tcp")
    return {row.laddr.port for row in rows if row.raddr and row.raddr.port == port and row.status == "ESTABLISHED"}


def test_a_running_service_audits_each_attack_and_nothing_grows(tmp_path):
    """Who, what, why, how often and when, for people; an endless stream costs the receiver no memory."""
    home = tmp_path / "home"
    own = prepare(home, writer="own", runs=("mine-*",)).read_text()
    other = token(home, "other", ("theirs",)).read_text()
    service, receiving = start_service(home), receiver(home).start()
    try:
        target = Target(home, port_of(receiving), own, other, Observations(), Connections())
        name, data = segment()
        with connected(home) as reader:
            assert target.send(chunk(name, data))[0]["status"] == "stored"
            stored = "SELECT count(*) AS n FROM training_sequences"
            eventually(lambda: reader.query(stored)["n"].to_pylist() == [1], "a sound one is stored")
            before = _most_memory(receiving)
            with pytest.raises(flight.FlightError):
                target.send(chunk(name, data), key="")
            target.send(chunk(name, data), key=other)
            with pytest.raises(flight.FlightError):
                target.directives({"run": "mine-1"}, key=other)
            target.send(chunk(name, data[:100] + b"forged" + data[106:]))
            target.send(chunk(PATHS[0], data))
            with target.client() as client, pytest.raises(flight.FlightError):
                list(client.do_action("shutdown", target.options(own)))
            assert handshake(target.port, ssl.TLSVersion.TLSv1_1) is None
            endless = chunk(name, b"\0" * (1 << 20), size=1 << 40)
            assert target.send(*[endless] * ENDLESS)[0]["status"] == "refused"
            for _ in range(3):  # replayed: an acknowledgement may have been lost, so that this is no offence
                assert target.send(chunk(name, data))[0]["status"] == "stored"
            audit = "SELECT author, action, words, time FROM alert_audit WHERE subject = 'relay'"

            def missing() -> set[str]:
                rows = reader.query(audit).to_pylist()
                assert all(row["time"].tzinfo and "(times: " in row["words"] for row in rows)
                return {
                    attack
                    for attack, (who, what, why) in ATTACKS.items()
                    if not any(
                        row["author"].startswith(f"{who} at ")
                        and row["action"] == f"was refused: {what}"
                        and why in row["words"]
                        for row in rows
                    )
                }

            eventually(lambda: not missing(), "every attack is in the audit")
            eventually(lambda: not target.waiting, "what was sent again is gone from the spool")
            assert reader.query(stored)["n"].to_pylist() == [1], "and counts once"
            assert _most_memory(receiving) - before < 0.75 * (ENDLESS << 20), "it is not kept"
    finally:
        receiving.end()
        end(service)


def _most_memory(process) -> int:
    """Bytes that a process ever had."""
    status = Path(f"/proc/{process.process.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) << 10


def _until(condition) -> None:
    eventually(condition, "the relay says why it sends nothing")
