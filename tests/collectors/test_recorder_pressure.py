"""A disk that is full or refuses, and a host that is faster than the disk: memory stays bounded, statistics survive."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import full_disk_program
import numpy as np
import pyarrow as pa
import pytest
from processes import eventually
from spool_contents import by_sample, health_events, rows, segments

from logprobe.collectors import Recorder
from logprobe.collectors.files import Disk
from logprobe.collectors.health import Health
from logprobe.collectors.kernel.statistics import COLUMNS, sequence_statistics
from logprobe.collectors.recorder import outbox
from logprobe.collectors.recorder.outbox import Outbox
from logprobe.collectors.recorder.tables import rows_table
from logprobe.collectors.recorder.token_hash import token_hash
from logprobe.collectors.spool.segments import SpoolWriter

PROGRAM = Path(full_disk_program.__file__)


@pytest.fixture(scope="module")
def full_disk(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, Path]:
    """What the program saw on its full disk, and a copy of the home."""
    copy = tmp_path_factory.mktemp("copy")
    mount = tmp_path_factory.mktemp("mount") / "home"
    unshare = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    command = [*unshare, sys.executable, str(PROGRAM), str(mount)]
    environment = {**os.environ, "COPY_TO": str(copy)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), copy


def test_full_disk_accepts_and_says_that_nothing_is_durable(full_disk):
    seen, _ = full_disk
    assert seen["flush while there was room"] is True
    assert [seen[f"accepted {step}"] for step in (1, 2, 3)] == [True] * 3
    assert [seen[f"flush {step}"] for step in (1, 2, 3)] == [False] * 3
    assert "No space left" in seen["health while full"]["disk"]
    assert seen["temporary files while full"] == []


def test_full_disk_keeps_the_statistics_of_all_sequences(full_disk):
    _, home = full_disk
    found = by_sample(home, "statistics")
    for step in (1, 2, 3):
        arrays = full_disk_program.arrays(step)
        mask = arrays["mask"]
        offsets = np.concatenate([[0], np.cumsum(mask.sum(axis=1))])
        flat = {name: array[mask] for name, array in arrays.items()}
        expected = sequence_statistics(flat["rollout_logprobs"], flat["trainer_logprobs"], None, offsets)
        hashes = token_hash(flat["token_ids"].astype(np.int32), offsets)
        for row, length in enumerate(full_disk_program.LENGTHS):
            record = found[f"{step}/{row}"]
            assert (record["step"], record["n_total"], record["n_expected"]) == (step, length, length)
            assert record["token_hash"] == hashes[row]
            assert record["reward"] == [1.0, 0.0, None, 1.0][row]
            assert record["backend"] == {name: expected[name][row] for name in COLUMNS}
            assert (record["update"], record["total"], record["entropy_sum"]) == (None, None, None)
    assert len(found) == 3 * len(full_disk_program.LENGTHS)


def test_full_disk_says_what_raw_data_is_missing(full_disk):
    seen, home = full_disk
    events = health_events(home)
    tokens = sum(full_disk_program.LENGTHS)
    assert seen["health"]["dropped"]["raw_reduced"] == {"calls": 0, "sequences": 12, "tokens": 3 * tokens}
    assert seen["health"]["dropped"]["raw_dropped"] == {"calls": 3, "sequences": 3, "tokens": 6}
    assert sum(event["tokens"] for event in events["raw_reduced"]) == 3 * tokens
    assert events["raw_reduced"][0]["step"] == 1
    assert sum(event["tokens"] for event in events["raw_dropped"]) == 6
    assert events["disk_refused"][0]["severity"] == "error"


def test_full_disk_that_has_room_again_takes_raw_tokens_again(full_disk):
    seen, home = full_disk
    assert (seen["accepted 4"], seen["flush 4"], seen["close"]) == (True, True, True)
    assert set(by_sample(home, "training")) == {f"4/{row}" for row in range(4)}
    assert set(by_sample(home, "rollout")) == {"4/r"}


RECORD_WITH_LIMIT = """
import json, resource, signal, sys
sys.path.insert(0, sys.argv[2])
import full_disk_program
full_disk_program.LENGTHS = (30_000, 0, 5_000, 41)
from full_disk_program import record
from logprobe.collectors import Recorder
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, resource.RLIM_INFINITY))
recorder = Recorder(sys.argv[1], "run")
print(record(recorder, 1), recorder.flush(), recorder.close(), recorder.health["disk"])
"""


def test_a_limit_of_the_file_size_is_a_full_disk_for_raw_tokens_only(home: Path):
    command = [sys.executable, "-c", RECORD_WITH_LIMIT, str(home), str(PROGRAM.parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.startswith("True False")
    assert not rows(home, "training")
    assert len(by_sample(home, "statistics")) == 4  # small enough, and tried at once
    assert "raw_reduced" in health_events(home)


# --- A home that cannot be written ---


def batch(step: int, rows_: int = 4, time_: int = 50, **changes) -> dict:
    shape = (rows_, time_)
    arguments = {
        "step": step,
        "sample_ids": [f"{step}/{row}" for row in range(rows_)],
        "token_ids": np.ones(shape, np.int64),
        "trainer_logprobs": np.full(shape, -0.5, np.float32),
        "rollout_logprobs": np.full(shape, -0.25, np.float32),
        "mask": np.ones(shape, bool),
    }
    return {**arguments, **changes}


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry after a tenth of the usual pauses; what repeats is said once, however slow the machine."""
    monkeypatch.setattr("logprobe.collectors.health.REPEAT_SECONDS", 3600.0)
    monkeypatch.setattr("logprobe.collectors.recorder.outbox._FIRST_PAUSE", 0.05)
    monkeypatch.setattr("logprobe.collectors.recorder.outbox._LONGEST_PAUSE", 0.2)


@pytest.mark.usefixtures("hurried")
def test_a_home_that_cannot_be_written_and_then_can(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    blocker = tmp_path / "blocker"
    blocker.write_text("a file where a directory is needed")
    home = blocker / "home"
    with Recorder(home, "run", flush_interval=0.02) as recorder:
        for step in range(5):
            assert recorder.training(**batch(step))
            assert recorder.config({"step": step})
            assert recorder.step(step, loss=1.0)
        assert recorder.flush() is False
        assert str(blocker) in recorder.health["disk"]
        before = recorder.health["problems"]["disk_refused"]
        eventually(lambda: recorder.health["problems"]["disk_refused"] > before + 1, "the disk is tried again")
        blocker.unlink()
        eventually(lambda: recorder.health["disk"] == "ok", "the disk takes it")
        assert recorder.training(**batch(5))
        assert recorder.flush()
    assert set(by_sample(home, "statistics")) == {f"{step}/{row}" for step in range(5) for row in range(4)}
    assert set(by_sample(home, "training")) == {f"5/{row}" for row in range(4)}
    assert [row["step"] for row in rows(home, "step")] == list(range(5))
    assert len(rows(home, "config")) == 5
    refusals = [record for record in caplog.records if "cannot be written" in record.getMessage()]
    assert [record.levelno for record in refusals] == [logging.ERROR]


@pytest.mark.usefixtures("hurried")
def test_a_home_that_never_can_be_written_ends_in_order(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    blocker = tmp_path / "blocker"
    blocker.write_text("")
    with Recorder(blocker / "home", "run", flush_interval=0.02) as recorder:
        assert recorder.training(**batch(1))
        assert recorder.step(1, loss=0.5)
        assert recorder.close() is False
    assert "statistics of 4 sequences and 1 records unwritten" in caplog.text
    assert recorder.health["dropped"]["unwritten"] == {"calls": 1, "sequences": 4, "tokens": 0}


@pytest.mark.usefixtures("hurried")
def test_a_large_call_that_the_disk_refuses_is_reduced_whole(tmp_path: Path):
    blocker = tmp_path / "blocker"
    blocker.write_text("")
    home = blocker / "home"
    with Recorder(home, "run", segment_tokens=60, flush_interval=0.02) as recorder:
        assert recorder.training(**batch(1, rows_=40, time_=25))  # many parts, two of them to a segment
        assert recorder.flush() is False
        blocker.unlink()
    assert len(by_sample(home, "statistics")) == 40
    assert recorder.health["dropped"] == {"raw_reduced": {"calls": 0, "sequences": 40, "tokens": 1000}}


def test_one_failure_of_a_network_disk_costs_nothing(home: Path, monkeypatch: pytest.MonkeyPatch):
    failures = iter([OSError(116, "Stale file handle")])
    write = Disk.write

    def fail_once(disk: Disk, path: Path, content: bytes, **mode: int | None) -> None:
        for error in failures:
            raise error
        write(disk, path, content, **mode)

    with Recorder(home, "run") as recorder:
        assert recorder.flush()
        monkeypatch.setattr(Disk, "write", fail_once)
        assert recorder.training(**batch(1))
        assert recorder.flush() is True
    assert len(by_sample(home, "training")) == 4


@pytest.mark.usefixtures("hurried")
def test_what_is_kept_for_a_refusing_disk_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("logprobe.collectors.recorder.outbox.KEPT_BYTES", 150_000)
    blocker = tmp_path / "blocker"
    blocker.write_text("")
    home = blocker / "home"
    with Recorder(home, "run", flush_interval=0.01) as recorder:
        for step in range(120):
            recorder.training(**batch(step, rows_=16, time_=2))
            recorder.config({"step": step, "long": "x" * 2000})
            if step % 4 == 0:
                recorder.flush()
        recorder.flush()
        dropped = recorder.health["dropped"]
        blocker.unlink()
        eventually(lambda: recorder.health["disk"] == "ok", "the disk takes it")
    kept = by_sample(home, "statistics")
    assert dropped["statistics_dropped"]["sequences"] + len(kept) == 120 * 16
    assert 20 < len(kept) < 400
    assert {f"119/{row}" for row in range(16)} <= set(kept)  # the newest are kept
    documents = [json.loads(row["document"])["step"] for row in rows(home, "config")]
    assert dropped["retained_full"]["calls"] + len(documents) == 120
    assert 8 < len(documents) < 100
    assert documents[-1] == 119
    assert health_events(home)["statistics_dropped"][0]["step"] == 0


def test_a_row_that_is_larger_than_what_is_kept_is_written_or_dropped_and_never_stands_above_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(outbox, "KEPT_BYTES", 400_000)
    lost: list[tuple[str, int]] = []
    (tmp_path / "blocker").write_text("")
    settings = {"health": Health(), "lose": lambda kind, table: lost.append((kind, table.num_rows))}
    refusing = Outbox(SpoolWriter(tmp_path / "blocker", "run", "w-1"), **settings)
    taking = Outbox(SpoolWriter(tmp_path / "home", "run", "w-1"), **settings)

    def config(size: int) -> pa.Table:
        row = {"config_id": "a", "kind": "trainer_config", "time": 0, "document": "x" * size}
        return rows_table("config", [row])

    room = 400_000 - config(0).nbytes
    for box in (refusing, taking):
        box.keep("config", config(room))
        assert box.waiting() == {"config": 1}
    for _ in range(2):
        taking.keep("config", config(room + 1))
        assert taking.waiting() == {}
    assert lost == []
    refusing.keep("config", config(room + 1))
    assert lost == [("config", 1), ("config", 1)]  # the older half, and the one that is too large alone
    assert refusing.waiting() == {}
    refusing.keep("config", config(10))
    refusing.keep("config", config(room + 1))
    assert lost[2:] == [("config", 1), ("config", 1)]
    refusing.keep("config", config(10))
    assert refusing.waiting() == {"config": 1}


# --- A host that is faster than the disk ---


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """A disk that takes nothing until this is set."""
    write, ready = Outbox.write, threading.Event()

    def slow(self, kind, table):
        ready.wait()
        return write(self, kind, table)

    monkeypatch.setattr(Outbox, "write", slow)
    return ready


def test_beyond_half_the_queue_raw_tokens_give_way_to_statistics(home: Path, disk: threading.Event):
    with Recorder(home, "run", queue_bytes=4 << 20, flush_interval=0.01, segment_tokens=20_000) as recorder:
        accepted = [recorder.training(**batch(step, rows_=8, time_=1000)) for step in range(60)]
        disk.set()
        flushed = recorder.flush()
        health = recorder.health
    names = {f"{step}/{row}" for step, ok in enumerate(accepted) for row in range(8) if ok}
    raw, reduced = set(by_sample(home, "training")), set(by_sample(home, "statistics"))
    assert raw | reduced == names
    assert not raw & reduced
    assert reduced
    assert raw
    assert flushed is False
    assert health["dropped"]["raw_reduced"]["sequences"] == len(reduced)
    assert health["dropped"]["queue_full"]["calls"] == accepted.count(False) > 0
    (event, *_) = health_events(home)["queue_full"]
    assert "queue_bytes" in event["message"]


def test_a_call_never_waits_for_a_slow_disk(home: Path, disk: threading.Event):
    recorder = Recorder(home, "run", queue_bytes=1 << 20, flush_interval=0.01)
    for step in range(200):  # each would wait for ever
        recorder.training(**batch(step, time_=500))
    assert recorder.close(0.1) is False
    disk.set()
    recorder.close(90)
    assert recorder.health["dropped"]["queue_full"]["calls"] > 0


FLOOD = """
import resource, sys, threading, time
import numpy as np
from logprobe.collectors import Recorder
home, megabytes = sys.argv[1], int(sys.argv[2])

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20

random = np.random.default_rng(0)
batches = []
for time_ in (512, 700, 2000, 333, 1500):
    shape = (64, time_)
    batches.append(dict(token_ids=random.integers(0, 9, shape), trainer_logprobs=-random.random(shape, np.float32),
                        rollout_logprobs=-random.random(shape, np.float32), mask=np.ones(shape, bool)))
names = [f"s{n}" for n in range(64)]
with Recorder(home, "warm") as recorder:
    for arrays in batches:
        recorder.training(step=0, sample_ids=names, **arrays)
    recorder.flush()
before = resident()
highest, refused, calls = before, 0, 0
recorder = Recorder(home, "run", queue_bytes=megabytes << 20)
ends = time.monotonic() + 1
while time.monotonic() < ends or not refused or calls - refused <= 50:
    refused += not recorder.training(step=calls, sample_ids=names, **batches[calls % 5])
    calls += 1
    if calls % 10 == 0:
        highest = max(highest, resident())
recorder.close()
print(calls, refused, highest - before, resident() - before, recorder.health["written"]["tokens"])
"""


def test_a_flood_fills_the_stated_memory_and_no_more(home: Path):
    megabytes = 48
    done = subprocess.run(
        [sys.executable, "-c", FLOOD, str(home), str(megabytes)],
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    calls, refused, growth, left, written = (float(word) for word in done.stdout.split())
    assert refused > 0, "the flood was none"
    assert calls - refused > 50
    assert written > 0
    # The queue, the largest call converted (2000×64 tokens, some 3 MB, three times), statistics and segments under way.
    assert growth < megabytes + 64
    assert left < megabytes + 64
    for segment in segments(home):
        assert segment.table.num_rows > 0
