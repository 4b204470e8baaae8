"""A recorder that is closed before it could write everything: the last it writes is what it could not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from faultfs.faultfs import FaultyDisk
from spool_contents import by_sample, health_events, rows, segments

from logprobe.app.cli import main
from logprobe.monitor.home import Home
from logprobe.monitor.live.ingest import Ingester
from logprobe.monitor.store.store import Store

FLOOD = """
import json, os, sys, time
import numpy as np
from logprobe.collectors import Recorder
from logprobe.collectors.recorder import runtime
runtime.EXIT_SECONDS = 5.0
recorder = Recorder(sys.argv[1], "run", rank=0, segment_tokens=1000)
logprobs = -1 - np.random.default_rng(0).random((4, 250), np.float32)
token_ids = np.arange(1000).reshape(4, 250)
content = {"token_ids": token_ids, "rollout_logprobs": logprobs, "trainer_logprobs": logprobs, "mask": logprobs != 0}
with recorder._runtime.call_queue.at_work:  # nothing is written before it is closed
    for step in range(90):
        assert recorder.training(step=step, sample_ids=[f"{step}/{row}" for row in range(4)], **content)
        assert recorder.step(step, loss=0.5)
closed = recorder.close(float(sys.argv[2]))
print(json.dumps([closed, recorder.health["accepted"]]), flush=True)
while not recorder._runtime._writer.outbox.slowest:  # by the first write it knows how much time to keep for its last words
    time.sleep(0.02)
"""


WAIT_FOR_WORD = """
from pathlib import Path
from spool_contents import health_events
while not health_events(Path(sys.argv[1]))["closing"]:
    time.sleep(0.05)
os._exit(0)
"""


def flooded(home: Path, disk: FaultyDisk, end: str = "", *, seconds: float = 0.2) -> tuple[bool, dict]:
    done = subprocess.run(
        [sys.executable, "-c", FLOOD + end, str(home), str(seconds)],
        env=disk.environment(PYTHONPATH=str(Path(__file__).parents[1] / "support")),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "closing timed out" in done.stderr or end
    return tuple(json.loads(done.stdout))


def test_a_flood_that_closing_cannot_write_is_counted_by_the_last_record(home: Path, tmp_path: Path, capsys):
    disk = FaultyDisk(tmp_path / "faults")
    # From it the recorder knows how much time to keep for its last words
    disk.rule("fsync", within=home, only="files", delay=0.6, times=1)
    disk.rule("fsync", within=home, only="files", delay=0.12)
    closed, accepted = flooded(home, disk)
    assert closed is False
    assert accepted == {"calls": 180, "sequences": 360}
    (lost,) = health_events(home)["out_of_time"]
    assert lost["severity"] == "error"
    kinds = json.loads(lost["details"])
    assert sum(kinds.values()) == lost["count"] > 0
    assert lost["sequences"] + len(by_sample(home, "training")) == accepted["sequences"]
    assert lost["tokens"] == 250 * lost["sequences"]
    assert kinds["step"] + len(rows(home, "step")) == 90
    assert f"steps {lost['step']} to 89" in lost["message"]
    assert max(segments(home), key=lambda segment: segment.sequence).where.kind == "health"
    with Store.open(Home(home)) as store:
        Ingester(store).run_once()
    assert main(["show", "run", "--home", str(home)]) == 0
    said = capsys.readouterr().out
    assert lost["message"][:60] in said
    assert str(lost["sequences"]) in said


def test_a_process_that_ends_by_force_while_closing_has_said_what_was_left(home: Path, tmp_path: Path, capsys):
    disk = FaultyDisk(tmp_path / "faults")
    disk.rule("fsync", within=home, only="files", delay=0.3)
    flooded(home, disk, WAIT_FOR_WORD)
    events = health_events(home)
    (left,) = events["closing"]
    assert left["count"] == sum(json.loads(left["details"]).values()) > 0
    assert "closed" not in events
    lost = 360 - len(by_sample(home, "training"))
    assert 0 < lost <= 4 * json.loads(left["details"])["training"] + 12  # what was at work when it was said
    with Store.open(Home(home)) as store:
        Ingester(store).run_once()
    assert main(["show", "run", "--home", str(home)]) == 0
    assert left["message"] in capsys.readouterr().out


def test_closing_late_loses_nothing_while_the_process_lives_on(home: Path, tmp_path: Path):
    disk = FaultyDisk(tmp_path / "faults")
    slow = disk.rule("fsync", within=home, only="files", delay=0.15, times=8)
    closed, _ = flooded(home, disk, "recorder._runtime._thread.join()\nassert recorder.close(1.0)")
    assert (closed, slow.injected) == (False, 8)
    assert len(by_sample(home, "training")) == 360
    assert set(health_events(home)) - {"heartbeat"} == {"started", "closing", "closed"}
