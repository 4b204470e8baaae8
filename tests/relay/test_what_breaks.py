"""A service that restarts, a network that cuts and delays, relays and collectors that are killed: what was acknowledged is stored, once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import node_program
import pyarrow as pa
import pytest
from faultfs.faultfs import preloaded
from network import Proxy, stored, waiting
from processes import connected, end, eventually, record, start_service
from relay_processes import port_of, port_so_far, prepare, receiver, relay
from relay_processes import receiving as receiving_at
from segments import records, trained

from logprobe.app.runs import runs_of
from logprobe.collectors.locks import RELAY, FileLock
from logprobe.collectors.recorder.recorder import Recorder
from logprobe.collectors.relay.pacing import Backoff, Bandwidth, Compression
from logprobe.collectors.spool.segments import SpoolWriter
from logprobe.monitor import queries
from logprobe.monitor.deletion.tombstones import Tombstone, Tombstones
from logprobe.monitor.diagnosis.judged import judged_as_of
from logprobe.monitor.home import Home
from logprobe.monitor.ingest.ingest import Ingester
from logprobe.monitor.relay.files import RelayFiles
from logprobe.monitor.store.store import Store

PROGRAM = Path(node_program.__file__)


def test_nothing_acknowledged_is_lost_or_stored_twice_whatever_is_killed_or_cut(tmp_path: Path) -> None:
    """Two nodes record through a proxy that delays and cuts, while relay, receiver and service are killed again and again."""
    home = tmp_path / "service" / "home"
    key = prepare(home)
    service, receiving = start_service(home), receiver(home).start()
    proxy = Proxy(port_of(receiving))
    nodes = [tmp_path / "first", tmp_path / "second"]
    relays = [relay(node, proxy.port, home, key).start() for node in nodes]
    trainers = [
        subprocess.Popen([sys.executable, str(PROGRAM), str(node), "run", node.name, "60", "4", "64", "0.02"])
        for node in nodes
    ]
    chance = random.Random(5)
    try:
        for _ in range(8):
            time.sleep(chance.uniform(0.3, 1.0))
            # Each receiver listens elsewhere: the port of the one before may be somebody's by then.
            proxy.target = port_so_far(receiving) or proxy.target
            victim = chance.choice(["relay", "receiver", "service", "cut", "delay", "half"])
            if victim == "relay":
                each = chance.choice(relays)
                each.kill()
                each.start()
            elif victim == "receiver":
                receiving.kill()
                receiving.start()
            elif victim == "service":
                service.kill()
                service.wait()
                service = start_service(home)
            elif victim == "delay":
                proxy.delay = 0.01
            else:
                proxy.cut_after = 20_000 if victim == "half" else None
                proxy.cut()
        proxy.delay, proxy.cut_after, proxy.target = 0.0, None, port_of(receiving)
        proxy.cut()
        assert [trainer.wait(200) for trainer in trainers] == [0, 0]
        eventually(lambda: not any(waiting(node) for node in nodes), "the nodes' spools are empty", 120)
        acknowledged = [name for node in nodes for name in node_program.acknowledged(node)]
        assert len(acknowledged) == 2 * 240
        with connected(home) as reader:
            eventually(lambda: len(stored(reader, "run")) >= len(acknowledged), "everything is stored", 120)
            eventually(lambda: not waiting(home), "nothing is on its way any more")
            assert sorted(stored(reader, "run")) == sorted(acknowledged)
            sums = reader.query("SELECT count(*) AS n, count(DISTINCT segment_id) AS once FROM segments").to_pylist()
            assert sums[0]["n"] == sums[0]["once"]
            assert not list((home / "quarantine").rglob("*.arrow"))
    finally:
        for trainer in trainers:
            trainer.kill()
            trainer.wait()
        for each in [*relays, receiving]:
            each.end()
        proxy.close()
        end(service)


def test_duplicates_an_older_collector_a_wrong_clock_and_a_quarantined_file(tmp_path: Path) -> None:
    """Delivered twice: counted once. A day off: stored, and said. From before numbers were in segments: stored. Damaged: set aside."""
    home, node = tmp_path / "service" / "home", tmp_path / "node"
    key = prepare(home)
    record(node, "run", steps=range(2))
    copies = {path: path.read_bytes() for path in (node / "spool").rglob("*.arrow")}
    old = _older_segment(node, "run")
    damaged = SpoolWriter(node, "run", "damaged-host-1-aa").write("training", records("training", trained("d"))).path
    damaged.write_bytes(damaged.read_bytes()[:-30])
    yesterday = preloaded(_clock_library(tmp_path))
    receiving = receiver(home).start()
    service = start_service(home)
    try:
        port = port_of(receiving)
        for _ in range(3):
            for path, content in copies.items():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            sending = relay(node, port, home, key, "--drain", **yesterday).start()
            assert sending.process.wait(120) == 0, sending.words
        with connected(home) as reader:
            eventually(lambda: len(stored(reader, "run")) == 9, "everything is stored")
            assert len(set(stored(reader, "run"))) == 9
            eventually(lambda: _node(reader) is not None, "the node is known")
            assert _node(reader)["clock_ahead_seconds"] == pytest.approx(-86_400, abs=30)
            assert "old" in stored(reader, "run")
            assert not old.exists()
            audit = eventually(
                lambda: reader.query("SELECT * FROM alert_audit WHERE subject = 'relay'").to_pylist(),
                "the refusal is audited",
            )
            assert "checksum in its name" in audit[0]["words"]
            refused = "SELECT message FROM health_records WHERE event = 'relay_refused'"
            eventually(lambda: reader.query(refused).to_pylist(), "and a health record of the run")
        assert [path.name for path in (node / "quarantine").rglob("*.arrow")] == [damaged.name]
    finally:
        receiving.end()
        end(service)


_PACED = """
import sys, time
import numpy as np
from logprobe.collectors import Recorder
with Recorder(sys.argv[1], sys.argv[2], rank=0) as recorder:
    for step in range(200):
        tokens = {"token_ids": [np.arange(8)], "trainer_logprobs": [np.full(8, -0.5, np.float32)]}
        recorder.training(step=step, sample_ids=[f"s{step}"], rollout_logprobs=[np.full(8, -0.4, np.float32)], **tokens)
        recorder.flush()
        time.sleep(1.5)
"""


@pytest.mark.long
def test_runs_of_nodes_with_different_clocks_are_live_while_their_records_come(tmp_path: Path) -> None:
    """One node's clock is a day behind: its run is as live as that of the other node, and says so."""
    home, yesterday = tmp_path / "service" / "home", preloaded(_clock_library(tmp_path))
    key, service = prepare(home), start_service(home)
    receiving = receiver(home).start()
    started = []
    try:
        for name, environment in (("behind", yesterday), ("right", {})):
            node = tmp_path / name
            program = [sys.executable, "-c", _PACED, str(node), name]
            started.append(subprocess.Popen(program, env={**os.environ, **environment}))
            started.append(relay(node, port_of(receiving), home, key, **environment).start().process)

        def states() -> dict[str, tuple[str, bool]]:
            found = runs_of(queries.app_runs(reader), datetime.now(UTC))
            return {run.name: (run.liveness.state.value, "dated 24 h before" in run.liveness.reason) for run in found}

        with connected(home) as reader:
            wanted = {"behind": ("live", True), "right": ("live", False)}
            eventually(lambda: states() == wanted, "both are live", 180)
            eventually(
                lambda: all(judged_as_of(reader, run).live for run in wanted), "and are judged as live runs are", 180
            )
    finally:
        for process in started:
            process.kill()
            process.wait()
        receiving.end()
        end(service)


def test_what_a_node_still_has_of_a_deleted_run_is_removed_and_its_relay_says_so(tmp_path: Path) -> None:
    home, node = tmp_path / "service" / "home", tmp_path / "node"
    key = prepare(home)
    record(node, "gone")
    record(node, "kept")
    Tombstones(Home(home)).change("gone", lambda _: Tombstone("gone", "2026-01-02T03:04:05+00:00", "ada"))
    with receiving_at(home) as port:
        sending = relay(node, port, home, key, "--drain").start()
        assert sending.process.wait(120) == 0, sending.words
    assert not waiting(node)
    assert sending.words.count("run 'gone' was deleted at 2026-01-02T03:04:05+00:00 by ada: what arrives") == 1
    assert "'kept'" not in sending.words
    with Store.open(Home(home)) as store:
        report = Ingester(store).run_once()
        assert (report.quarantined, report.remaining) == (0, 0)
        assert store.query("SELECT DISTINCT run FROM training_sequences")["run"].to_pylist() == ["kept"]
        (listed,) = Tombstones(store.home).all().values()
        assert listed.late == report.late > 0


def test_a_collector_starts_the_relay_and_it_ends_after_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, node = tmp_path / "service" / "home", tmp_path / "node"
    key = prepare(home)
    receiving = receiver(home).start()
    lock = FileLock(node / RELAY)
    try:
        files = f"ca={RelayFiles.of(Home(home)).authority},token={key}"
        monkeypatch.setenv("LOGPROBE_SERVICE", f"grpc+tls://localhost:{port_of(receiving)},{files}")
        with Recorder(node, "run", flush_interval=0.1) as first:
            first.step(1, loss=0.5)
            assert first.flush()
            eventually(lambda: lock.held_elsewhere, "a relay runs")
            pid = _relay_of(node)
            assert os.getsid(pid) == pid  # Ctrl-C in the trainer's terminal does not reach it
            with Recorder(node, "run", flush_interval=0.1) as second:
                second.step(2, loss=0.5)
                assert second.flush()
            os.kill(pid, signal.SIGKILL)
            first._runtime._writer._relay._next = 0.0  # ten seconds are long in a test
            eventually(lambda: _relay_of(node) not in {0, pid}, "and is started again when it dies")
            assert first.health["problems"].get("relay_not_started", 0) == 1
        eventually(lambda: not lock.held_elsewhere, "it ends after the last collector")
        assert not waiting(node)
        assert len(waiting(home)) >= 3
        with Recorder(node, "run", flush_interval=0.1) as third:
            third.step(3, loss=0.5)
            eventually(lambda: lock.held_elsewhere, "and a later collector starts another")
        eventually(lambda: not waiting(node) and not lock.held_elsewhere, "which ships what is left")
    finally:
        receiving.end()


def test_a_service_that_is_not_there_costs_the_host_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGPROBE_SERVICE", f"grpc+tls://localhost:1,token={tmp_path / 'missing'}")
    with Recorder(tmp_path / "node", "run", flush_interval=0.1) as recorder:
        recorder.step(1, loss=0.5)
        assert recorder.flush()
        process = eventually(lambda: recorder._runtime._writer._relay._process, "a relay is tried")
        assert recorder.health["dropped"] == {}
    process.terminate()
    assert process.wait(120) is not None


def test_a_renewed_certificate_is_taken_over_without_a_restart(tmp_path: Path) -> None:
    from datetime import UTC, datetime

    from logprobe.monitor.relay import certificate

    home, node = tmp_path / "service" / "home", tmp_path / "node"
    key = prepare(home)
    receiving = receiver(home).start()
    port = port_of(receiving)
    sending = relay(node, port, home, key).start()
    try:
        record(node, "run", steps=range(1))
        eventually(lambda: not waiting(node), "the first step is sent")
        certificate.make(RelayFiles.of(Home(home)), ["localhost"], 30, datetime.now(UTC))
        eventually(lambda: "listening again with the new one" in receiving.words, "the new certificate is seen")
        record(node, "run", steps=range(1, 2))
        eventually(lambda: not waiting(node), "the next step is sent, too")
        assert receiving.process.poll() is None
    finally:
        sending.end()
        receiving.end()


def test_pauses_grow_with_jitter_bandwidth_is_kept_and_compression_pays_where_the_network_is_slow() -> None:
    backoff = Backoff(random.Random(1))
    pauses = [backoff.failed() for _ in range(12)]
    assert all(0.25 * 2**n <= pause <= 0.5 * 2**n for n, pause in enumerate(pauses[:5]))
    assert max(pauses) <= 15
    assert len({round(pause / min(0.5 * 2**n, 15), 3) for n, pause in enumerate(pauses)}) > 6
    now = [0.0]
    bandwidth = Bandwidth(1000.0, clock=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds))
    for _ in range(50):
        bandwidth.spend(200)
    assert now[0] == pytest.approx(10.0, abs=0.5)
    data = pa.py_buffer(b"abcdefgh" * 20_000)
    slow, fast = Compression(), Compression()
    for _ in range(20):
        slow.sent(1 << 20, 1.0)
        fast.sent(1 << 20, 1e-7)
        slow.apply(data), fast.apply(data)
    assert slow.pays
    assert not fast.pays
    assert slow.apply(data)[0] == "zstd"


def _relay_of(node: Path) -> int:
    """The process that holds the node's lock."""
    inode = (node / RELAY).stat().st_ino
    for line in Path("/proc/locks").read_text().splitlines():
        parts = line.split()
        if parts[1] == "FLOCK" and parts[3] == "WRITE" and parts[5].endswith(f":{inode}"):
            return int(parts[4])
    return 0


def _node(reader):
    return next(iter(reader.query("SELECT * FROM relay_nodes").to_pylist()), None)


def _older_segment(node: Path, run: str) -> Path:
    """As collectors wrote them before the writer and its number were in the content."""
    import zlib

    table = records("training", trained("old")).drop_columns(["part_ids", "routes"])
    metadata = {b"logprobe.schema": b"1", b"logprobe.kind": b"training", b"logprobe.run": run.encode()}
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema.with_metadata(metadata)) as writer:
        writer.write_table(table.replace_schema_metadata(metadata))
    data = sink.getvalue().to_pybytes()
    place = node / "spool" / run / "trainer-old-1-ffff" / f"00000001.training.{zlib.crc32(data):08x}.arrow"
    place.parent.mkdir(parents=True)
    place.write_bytes(data)
    return place


def _clock_library(folder: Path) -> Path:
    """A library that sets a process's wall clock back by a day."""
    source = folder / "clock.c"
    source.write_text(
        "#define _GNU_SOURCE\n#include <time.h>\n#include <sys/time.h>\n#include <sys/syscall.h>\n#include <unistd.h>\n"
        "int clock_gettime(clockid_t id, struct timespec *t) {\n"
        "  int r = syscall(SYS_clock_gettime, id, t); if (id == CLOCK_REALTIME) t->tv_sec -= 86400; return r; }\n"
    )
    library = folder / "clock.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source)], check=True)
    return library
