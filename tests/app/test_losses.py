"""What is lost, or was never recorded, is said by doctor and status."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import record
from segments import RUN, records, sampled
from training_calls import call

from logprobe.app.cli import main
from logprobe.app.doctor import examine
from logprobe.collectors import Recorder
from logprobe.collectors.spool.segments import SegmentPath, SpoolWriter, read_segment, spool_dir
from logprobe.monitor.home import Home
from logprobe.monitor.live.ingest import Ingester
from logprobe.monitor.service.pipeline import backlog, note_spooled
from logprobe.monitor.store.store import Store


def train(recorder: Recorder, step: int, largest: int = 3) -> None:
    tokens = np.array([0, 1, largest])
    logprobs = [np.full(3, -1.0)]
    recorder.training(
        step=step, sample_ids=[f"s{step}"], token_ids=[tokens], trainer_logprobs=logprobs, rollout_logprobs=logprobs
    )
    recorder.flush(120)


def said(home: Path, capsys: pytest.CaptureFixture[str]) -> tuple[list[str], str]:
    """Problems and notes of doctor about runs, and the text of status, once everything is ingested."""
    with Store.open(Home(home)) as store:
        Ingester(store).run_once()
    main(["show", RUN, "--home", str(home)])
    return [
        f"{each.level}: {each.text}" for each in examine(str(home)) if each.section == "runs"
    ], capsys.readouterr().out


def test_a_spool_that_somebody_removed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorder = Recorder(home, RUN, rank=0)
    train(recorder, 1)
    spool_dir(home).rename(home / "gone")  # at once: its writer may be at work
    shutil.rmtree(home / "gone")
    train(recorder, 2)
    recorder.close()
    doctor, status = said(home, capsys)
    words = "1 of 2 sequences that collectors wrote are neither stored nor in the spool: it was removed or lost"
    assert f"problem: {RUN}: {words}" in doctor
    assert words in status


def test_a_trainer_whose_records_nobody_reads_is_neither_dead_nor_judged(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a machine that is too busy for the service: what is not read yet is not known, and nothing else is said of it."""
    with Recorder(home, RUN, rank=0) as recorder:
        train(recorder, 1)
        main(["up", "--once", "--home", str(home)])
        with Store.open(Home(home)) as store, store.transaction() as cursor:
            for table, column in (("health_records", "time"), ("segments", "ingested_at"), ("step_summaries", "time")):
                cursor.execute(f"UPDATE {table} SET {column} = {column} - INTERVAL 1 HOUR")
        train(recorder, 2)
        waiting = sorted(spool_dir(home).rglob("*.training.*"))
        os.utime(waiting[0], (time.time() - 20,) * 2)
        unknown = SpoolWriter(home, "another", "engine").write("rollout", records("rollout", sampled("0/0")))
        os.utime(unknown.path, (time.time() - 20,) * 2)  # of a run that was deleted, for all the store knows
        with Store.open(Home(home)) as store:
            assert note_spooled(store, backlog(Home(home)), datetime.now(UTC)) == 1
        capsys.readouterr()
        main(["show", RUN, "--home", str(home)])
        status = capsys.readouterr().out
        assert re.search(r"run +live: newer records wait in the spool, the newest written", status)
        status = " ".join(status.split())
        assert re.search(r"judged +not judged since step 1: newer records have waited in the spool for 2\d s", status)
        assert "without closing" not in status
        assert not [each.text for each in examine(str(home)) if "neither stored" in each.text]
        main(["up", "--once", "--home", str(home)])
        capsys.readouterr()
        main(["show", RUN, "--home", str(home)])
        assert "in the spool for" not in capsys.readouterr().out


def test_dropped_tokens(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorder = Recorder(home, RUN, rank=0)
    train(recorder, 1)
    train(recorder, 2, largest=1 << 40)  # no token id
    recorder.close()
    doctor, status = said(home, capsys)
    words = "trainer lost 1 sequences, 3 tokens (bad_input)"
    assert any(words in line and line.startswith("problem") for line in doctor), doctor
    assert words in status


RANK = """
import os, signal, sys
import numpy as np
from logprobe.collectors import Recorder

recorders = [Recorder(sys.argv[1], "run", rank=rank) for rank in (0, 1)]
for step in range(1, 6):
    for rank, recorder in enumerate(recorders):
        if (rank, step) <= (1, 2):
            tokens, logprobs = [np.arange(3)], [np.full(3, -1.0)]
            recorder.training(
                step=step, sample_ids=[f"{rank}-{step}"], token_ids=tokens, trainer_logprobs=logprobs, rollout_logprobs=logprobs
            )
            recorder.flush(120)
recorders[0].close()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_rank_that_is_killed(home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Which one, after which step, and what of it may be missing; the rank that closed is not named."""
    assert RUN == "run"
    killed = subprocess.run([sys.executable, "-c", RANK, str(home)], timeout=120, check=False)
    assert killed.returncode == -signal.SIGKILL

    def after(seconds: float) -> tuple[list[str], str]:
        monkeypatch.setattr("logprobe.app.text.gaps.SILENT_SECONDS", seconds)
        return said(home, capsys)

    assert "without closing" not in after(1e9)[1], "a rank that gave a sign a moment ago may be alive"
    doctor, status = after(0)
    (ended,) = [line for line in doctor if "without closing" in line]
    assert ended.startswith(f"problem: {RUN}: trainer of rank 1 (")
    words = "ended without closing after step 2; what it recorded in the last 1 s may be lost; 3 later steps have no sequences of this rank"
    assert words in ended
    assert words in status
    assert status.count("without closing") == 1


def copied(where: SegmentPath) -> None:
    """As a writer that did not know better would have written it again."""
    SpoolWriter(where.path.parents[3], "toy", where.writer, after=0).write("training", read_segment(where).table)


def cut(where: SegmentPath) -> None:
    where.path.write_bytes(where.path.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            None,
            "54 sequence records of engine and trainer together, as reported by 2 collectors; all stored, each once",
        ),
        (copied, "12 more than that are stored"),
        (cut, "12 of them are not stored: quarantined, lost, or still in the spool"),
    ],
    ids=["all", "copied", "cut"],
)
def test_what_is_stored_is_compared_with_what_the_collectors_sent(
    home: Path, capsys: pytest.CaptureFixture[str], change: Any, words: str
) -> None:
    record(home)
    for path in spool_dir(home).rglob("*.training.*.arrow") if change else ():
        change(SegmentPath.parse(path))
    with Recorder(
        home, "toy", raw_fraction=0.5, worst_sequences=0
    ) as recorder:  # statistics and the engine's count, too
        assert recorder.training(**call(9))
        assert recorder.rollout(sample_ids=["x", "y"], token_ids=[[1], [2]], logprobs=[[-1.0], [-2.0]])
    with Store.open(Home(home)) as store:
        Ingester(store).run_once()
    assert main(["show", "toy", "--home", str(home)]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  sent")]
    assert words in line
