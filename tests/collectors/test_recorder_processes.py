"""Forks, exits and kills, with real processes."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from faultfs.faultfs import FaultyDisk
from spool_contents import by_sample, health_events, rows, segments

PRELUDE = """
import os, sys, threading, time
from pathlib import Path
import numpy as np
from logprobe.collectors import Recorder
from logprobe.collectors.recorder import runtime
runtime.EXIT_SECONDS = runtime._FORK_SECONDS = 60.0  # the disk and the processor are busy with other tests
home = sys.argv[1]

def record(recorder, name, time=8):
    tokens = np.arange(time)[None]
    ones = np.ones((1, time), np.float32)
    return recorder.training(step=1, sample_ids=[name], token_ids=tokens, trainer_logprobs=-ones, rollout_logprobs=-ones, mask=ones)
"""


def run(
    home: Path,
    code: str,
    *,
    seconds: float = 120,
    check: int | None = 0,
    python: tuple[str, ...] = (),
    environment: dict[str, str] | None = None,
) -> str:
    """Runs `code` after PRELUDE in an interpreter of its own; returns its stdout."""
    command = [sys.executable, *python, "-c", PRELUDE + code, str(home)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False, env=environment)
    assert check is None or done.returncode == check, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


# --- Imports ---


def test_recording_loads_nothing_heavy_and_the_recorders_thread_nothing_at_all(home: Path):
    """A child forked in the middle of an import keeps a half-initialised module; hosts fork data workers all the time."""
    heavy = {"duckdb", "polars", "streamlit", "plotly", "vllm", "transformers", "torch", "array_api_compat", "pandas"}
    heavy |= {"numpy.ma", "apscheduler"}
    code = f"""
recorder = Recorder(home, "run")
before = set(sys.modules)
assert record(recorder, "a") and recorder.training(step=1, sample_ids=["b"], token_ids=[[1]], trainer_logprobs=[[-1.0]],
    tags={{"a": "b"}}, rewards=[None], entropy=[[1.0]], advantages=[1.0], weight_version=1)
assert recorder.rollout(sample_ids=["a"], token_ids=[[1]], logprobs=[[None]], weight_version=[[(0, 1, "v")]], sampling={{"t": 1}})
assert recorder.step(1, loss=1.0) and recorder.weights(1, applied_at=time.time()) and recorder.report("e", "m", details=[1])
recorder.training(step="wrong", sample_ids=0, token_ids=0, trainer_logprobs=0)
assert recorder.flush() and recorder.close()
with Recorder(home, "reduced", raw_fraction=0, worst_sequences=1) as reduced:
    record(reduced, "c")
    lists = [np.full(5, -1.0), np.full(3, -2.0)]
    reduced.training(step=1, sample_ids=["d", "e"], token_ids=[np.arange(5), np.arange(3)], trainer_logprobs=lists, rollout_logprobs=lists)
print(sorted(set(sys.modules) - before), sorted({heavy} & set(sys.modules)))
"""
    assert run(home, code).strip() == "[] []"


# --- Ends of a process ---


RECORD = "recorder = Recorder(home, 'run', flush_interval=60)\nrecord(recorder, 'a')\n"
# How a process ends → its code; what is recorded; whether its writer closed; what the host is said to have failed with
ENDS: dict[str, tuple[str, int, set[str], bool, list[str]]] = {
    "without close": (RECORD, 0, {"a"}, True, []),
    "exit": (f"{RECORD}sys.exit(3)", 3, {"a"}, True, []),
    "uncaught": (f"{RECORD}raise ValueError('x')", 1, {"a"}, True, ["ValueError"]),
    "uncaught in a block": (f"{RECORD}with recorder:\n    raise KeyError('x')", 1, {"a"}, True, ["KeyError"]),
    "exit in a block": (f"{RECORD}with recorder:\n    sys.exit(0)", 0, {"a"}, True, []),
    "by force": (f"{RECORD}assert recorder.flush()\nrecord(recorder, 'b')\nos._exit(7)", 7, {"a"}, False, []),
}


@pytest.mark.parametrize("end", ENDS)
def test_an_end_loses_nothing_and_one_that_failed_does_not_look_finished(home: Path, end: str):
    """By force it keeps what was flushed; nothing hangs."""
    code, exit_code, recorded, closed, failed = ENDS[end]
    command = [sys.executable, "-c", PRELUDE + code, str(home)]
    done = subprocess.run(command, capture_output=True, timeout=120, check=False)
    assert done.returncode == exit_code, done.stderr
    assert set(by_sample(home, "training")) == recorded
    events = health_events(home)
    assert ("closed" in events) is closed
    said = [row["message"] for row in events.get("host_failed", [])]
    assert said == [f"the recording process ended with {error}" for error in failed]


def test_recording_while_the_interpreter_ends_is_harmless(home: Path):
    code = """
import atexit
recorder = Recorder(home, "run", flush_interval=60)
record(recorder, "a")
class Late:
    def __del__(self):
        record(recorder, "c")
late = Late()
atexit.register(lambda: print(record(recorder, "b")))
threading.Thread(target=lambda: (time.sleep(0.3), print(record(recorder, "thread")))).start()
"""
    assert run(home, code).split() == ["True", "True"]
    assert set(by_sample(home, "training")) == {"a", "b", "thread"}


def test_a_disk_that_hangs_holds_the_exit_up_for_a_bounded_time(home: Path):
    code = """
runtime.EXIT_SECONDS = 2.0
recorder = Recorder(home, "run")
assert recorder.flush()
os.fsync = lambda descriptor: time.sleep(1000)
record(recorder, "a")
assert recorder.flush(0.2) is False
"""
    run(home, code)  # not 1,000 seconds


# --- Forks ---


def test_a_forked_child_writes_as_a_writer_of_its_own_and_one_that_records_nothing_leaves_no_trace(home: Path):
    code = """
recorder = Recorder(home, "run", flush_interval=60)
record(recorder, "parent before")
children = []
for name in ("child", None):
    children.append(os.fork())
    if children[-1] == 0:
        ok = recorder.health["accepted"]["calls"] == 0 and (name is None or record(recorder, name))
        os._exit(0 if ok and recorder.flush() and recorder.close() else 1)
record(recorder, "parent after")
assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
assert recorder.flush()
"""
    run(home, code)
    assert set(by_sample(home, "training")) == {"parent before", "child", "parent after"}
    assert len({segment.where.writer for segment in segments(home)}) == 2


def test_locks_held_while_forking_do_not_stop_the_child(home: Path):
    code = """
runtime._FORK_SECONDS = 2.0  # its thread may wait for one of the locks
recorder = Recorder(home, "run")
runtime = recorder._runtime
locks = [runtime._starting, runtime.call_queue._lock, runtime.call_queue.ring._lock, runtime.call_queue.health._lock]
for lock in locks:
    lock.acquire()
child = os.fork()
if child == 0:
    os._exit(0 if record(recorder, "child") and recorder.flush(100) else 1)
for lock in locks:
    lock.release()
assert os.waitpid(child, 0)[1] == 0
assert record(recorder, "parent") and recorder.flush()
"""
    run(home, code)
    assert set(by_sample(home, "training")) == {"child", "parent"}


def test_forks_under_load_neither_hang_nor_mix(home: Path):
    code = """
recorder = Recorder(home, "run", flush_interval=0.01)
stop = False
def load():
    number = 0
    while not stop:
        record(recorder, f"parent {number}", time=2000)
        number += 1
        time.sleep(0.001)
threads = [threading.Thread(target=load, daemon=True)]
for thread in threads: thread.start()
for number in range(6):
    time.sleep(0.02)
    child = os.fork()
    if child == 0:
        os._exit(0 if record(recorder, f"child {number}") and recorder.flush(100) else 1)
    assert os.waitpid(child, 0)[1] == 0
stop = True
for thread in threads: thread.join()
assert recorder.close()
print(recorder.health["accepted"]["calls"])
"""
    accepted = int(run(home, code))
    found = by_sample(home, "training")
    assert sum(name.startswith("parent") for name in found) == accepted
    assert sum(name.startswith("child") for name in found) == 6


def test_a_fork_waits_for_a_moment_in_which_no_allocator_is_at_work(home: Path, tmp_path: Path):
    # Arrow's allocator asks the system for memory under a lock of its own. Here that takes long, and forks fall into it.
    code = """
recorder = Recorder(home, "run", flush_interval=0.001)
children = []
for number in range(12):
    record(recorder, f"parent {number}")
    time.sleep(0.02)
    child = os.fork()
    if child == 0:
        os._exit(0 if record(recorder, f"child {number}") and recorder.flush(100) else 1)
    children.append(child)
assert [os.waitpid(child, 0)[1] for child in children] == [0] * 12
assert recorder.close()
"""
    disk = FaultyDisk(tmp_path / "faults")
    slow = disk.rule("map", delay=0.15, times=20, active=False)
    code = f"import mmap\nrules = mmap.mmap(os.open({str(tmp_path / 'faults')!r}, os.O_RDWR), 4)\nrules[0] = 1\n{code}"
    run(home, code, environment=disk.environment())
    assert slow.injected > 0
    assert set(by_sample(home, "training")) == {f"{who} {n}" for who in ("parent", "child") for n in range(12)}


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_processes_of_multiprocessing_end_in_order(home: Path, tmp_path: Path, method: str):
    """Like vLLM's engine core: the process ends without atexit, and nobody calls close(); one makes a recorder itself."""
    program = tmp_path / "program.py"
    program.write_text(
        PRELUDE
        + f"""
import multiprocessing

def work(recorder, name):
    record(recorder or Recorder(home, "run", flush_interval=60), name)

if __name__ == "__main__":
    context = multiprocessing.get_context({method!r})
    recorder = Recorder(home, "run", flush_interval=60)
    processes = [context.Process(target=work, args=(given, f"worker {{n}}")) for n, given in enumerate((recorder, None))]
    for process in processes: process.start()
    for process in processes: process.join()
    assert [process.exitcode for process in processes] == [0, 0]
"""
    )
    subprocess.run([sys.executable, program, str(home)], timeout=120, check=True)
    assert set(by_sample(home, "training")) == {"worker 0", "worker 1"}
    assert len(health_events(home)["closed"]) == 3


# --- Kills ---

RECORD_FOR_EVER = """
recorder = Recorder(home, "run", rank=int(sys.argv[2]), flush_interval=0.005)
number = 0
while True:
    for _ in range(3):
        assert record(recorder, f"{sys.argv[2]}/{number}", time=500)
        number += 1
    assert recorder.flush()
    print(number, flush=True)
"""


def test_who_dies_before_anything_was_flushed_was_there(home: Path):
    """Its rank is known, although nothing that it recorded would be written within the hour."""
    code = """
recorder = Recorder(home, "run", rank=1, flush_interval=3599)
record(recorder, "a")
spool = Path(home)
while not list(spool.rglob("*.arrow")):
    time.sleep(0.01)
os.kill(os.getpid(), 9)
"""
    run(home, code, check=-9)
    [started] = health_events(home)["started"]
    assert json.loads(started["details"])["rank"] == 1


def test_kill_9_loses_nothing_acknowledged_with_two_ranks_in_one_run(home: Path):
    random_ = random.Random(3)
    acknowledged: dict[str, int] = {}
    for attempt in range(3):
        ranks = [f"{2 * attempt + rank}" for rank in range(2)]
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", PRELUDE + RECORD_FOR_EVER, str(home), rank], stdout=subprocess.PIPE, text=True
            )
            for rank in ranks
        ]
        first = [process.stdout.readline() for process in processes]
        time.sleep(random_.random() * 0.2)
        for process in processes:
            process.send_signal(signal.SIGKILL)
        for rank, process, line in zip(ranks, processes, first, strict=True):
            with process:
                lines = (line + process.stdout.read()).splitlines(keepends=True)
            acknowledged[rank] = max(int(line) for line in lines if line.endswith("\n"))
    found = by_sample(home, "training")  # verifies every segment, and that nothing is there twice
    for rank, count in acknowledged.items():
        assert count > 0
        assert {f"{rank}/{number}" for number in range(count)} <= set(found)
        assert found[f"{rank}/0"]["rank"] == int(rank)


def test_a_stopped_process_is_visible_in_its_last_heartbeat(home: Path):
    code = """
from logprobe.collectors.recorder import writer
writer.HEARTBEAT_SECONDS = 0.1
recorder = Recorder(home, "run", flush_interval=0.05)
record(recorder, "a")
while recorder.health["written"]["tokens"] < 8:
    time.sleep(0.02)
rows = recorder.health["written"]["rows"]
while recorder.health["written"]["rows"] < rows + 3:  # heartbeats since then
    time.sleep(0.02)
os.kill(os.getpid(), 9)
"""
    run(home, code, check=-signal.SIGKILL)
    events = health_events(home)
    assert "closed" not in events
    assert json.loads(events["heartbeat"][-1]["details"])["written"]["tokens"] == 8
    assert rows(home, "training")
