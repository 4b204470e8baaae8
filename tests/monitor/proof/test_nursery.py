"""Arms forked from a process that has imported what they need: they answer, one after the other, and end with who asked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from logprobe.monitor.proof.scorers.nursery import Nursery
from logprobe.monitor.proof.scorers.running import ENGINE, FORWARD
from logprobe.monitor.proof.scoring import REFERENCE

pytestmark = pytest.mark.engine


def _job(model: Path) -> dict:
    return {"model": str(model), "arguments": "", "overrides": {}, "sequences": [], "paths": ["decode"]}


def test_jobs_are_answered_by_processes_of_their_own(tmp_path: Path):
    with Nursery() as nursery:
        outcomes = [nursery(ENGINE, _job(tmp_path / name), seconds=400) for name in ("a", "b")]
        (process,) = nursery._processes.values()
    assert [outcome.answered for outcome in outcomes] == [True, True]
    assert all(str(outcome.error).count("\n") == 0 and outcome.error for outcome in outcomes)
    assert process.poll() is not None


def test_the_reference_is_forked_beside_torch_and_without_vllm():
    code = (
        "import sys; from logprobe.monitor.proof.scorers import nursery_process as process\n"
        "process._PRELOADED[sys.argv[1]](); print([name in sys.modules for name in ('torch', 'transformers', 'vllm')])"
    )
    done = subprocess.run([sys.executable, "-c", code, FORWARD], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[True, True, False]"


def test_only_a_trainers_own_module_starts_afresh(tmp_path: Path):
    code = "import sys; LOADED = 'torch' in sys.modules\ndef score(sequences, model): return [[float(LOADED)] * 2]\n"
    (tmp_path / "mine.py").write_text(code)
    sequences = [{"prompt_ids": [1], "response_ids": [2, 3], "temperature": 1.0}]
    job = {"model": str(tmp_path), "settings": {}, "folder": str(tmp_path), "sequences": sequences}
    with Nursery() as nursery:
        own = nursery(FORWARD, {**job, "function": "mine:score"}, seconds=400)
        assert nursery._processes == {}
        outcome = nursery(FORWARD, {**job, "function": REFERENCE}, seconds=400)  # there is no checkpoint
        assert [module for module, _ in nursery._processes] == [FORWARD]
    assert own.answer is not None
    assert own.answer["values"] == [[0.0, 0.0]]
    assert (outcome.answer, outcome.answered) == (None, True)


def test_an_engine_that_takes_too_long_ends(tmp_path: Path):
    with Nursery() as nursery:
        outcome = nursery(ENGINE, _job(tmp_path), seconds=0.01)
        assert (outcome.error, outcome.answered) == ("not finished within 0 s", False)
        assert nursery._processes == {}


def test_kill_leaves_no_process(tmp_path: Path):
    code = (
        "import sys; from logprobe.monitor.proof.scorers.nursery import Nursery; from logprobe.monitor.proof.scorers.running import ENGINE\n"
        "nursery = Nursery(); process = nursery._started((ENGINE, ()), {}); print(process.pid, flush=True); process.wait()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        os.kill(process.pid, signal.SIGKILL)
    for _ in range(2400):
        if not Path(f"/proc/{child}").exists():
            return
        time.sleep(0.1)
    raise AssertionError("still there after four minutes")
