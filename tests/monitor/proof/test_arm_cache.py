"""Finished arms survive: a second call, kill -9 in the middle, a checkpoint that changed, a full disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from processes import eventually
from segments import on_small_disk

from logprobe.monitor.proof.experiments.arm_cache import ArmCache
from logprobe.monitor.proof.scorers.running import FORWARD

# A trainer's function that leaves a mark each time it runs; with `wait`, it does not return by itself.
FUNCTION = """
import os, time
def score(sequences, model, *, name, wait=False):
    with open(os.path.join(os.path.dirname(__file__), name), "a") as marks:
        marks.write("x")
    while wait:
        time.sleep(0.1)
    return [[-1.0] * len(sequence["response_ids"]) for sequence in sequences]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "ours.py").write_text(FUNCTION)
    return tmp_path


def _job(folder: Path, **settings) -> dict:
    return {
        "model": str(folder / "model"),
        "function": "ours:score",
        "folder": str(folder),
        "settings": settings,
        "sequences": [{"prompt_ids": [1], "response_ids": [2, 3], "temperature": 1.0}],
    }


def _ran(folder: Path, name: str) -> int:
    return len((folder / name).read_text()) if (folder / name).exists() else 0


def test_an_arm_runs_once_per_configuration_and_weights(folder: Path):
    cache = ArmCache(folder / "arms")
    first = cache(FORWARD, _job(folder, name="a"), seconds=120)
    assert first.answer["values"] == [[-1.0, -1.0]]
    again = ArmCache(folder / "arms")(FORWARD, _job(folder, name="a"), seconds=120)
    assert (again.answer, _ran(folder, "a")) == (first.answer, 1)
    (folder / "model" / "config.json").write_text('{"other": 1}')
    cache(FORWARD, _job(folder, name="a"), seconds=120)
    assert _ran(folder, "a") == 2
    refused = cache(FORWARD, _job(folder, name="b", dropout=0.1), seconds=120)  # what the function says is a result
    assert refused.error == "TypeError: ours:score takes no setting 'dropout'"
    assert cache(FORWARD, _job(folder, name="b", dropout=0.1), seconds=0) == refused  # no process is that fast


def test_kill_in_the_middle_loses_no_finished_arm_and_leaves_no_process(folder: Path):
    code = (
        "import json, sys; from pathlib import Path\n"
        "from logprobe.monitor.proof.experiments.arm_cache import ArmCache; from logprobe.monitor.proof.scorers.running import FORWARD\n"
        "for job in json.loads(sys.argv[2]): ArmCache(Path(sys.argv[1]))(FORWARD, job, seconds=600)"
    )
    jobs = [_job(folder, name="done"), _job(folder, name="endless", wait=True)]
    with subprocess.Popen([sys.executable, "-c", code, str(folder / "arms"), json.dumps(jobs)]) as process:
        eventually(lambda: _ran(folder, "endless"))
        os.kill(process.pid, signal.SIGKILL)
    eventually(lambda: not _processes(str(folder / "model")))
    cache = ArmCache(folder / "arms")
    assert cache(FORWARD, jobs[0], seconds=120).answer is not None
    assert _ran(folder, "done") == 1
    assert len(list((folder / "arms").iterdir())) == 1


def test_an_arm_that_takes_too_long_ends_and_is_not_kept(folder: Path):
    cache = ArmCache(folder / "arms")
    outcome = cache(FORWARD, _job(folder, name="c", wait=True), seconds=1)
    assert outcome.error == "not finished within 1 s"
    assert not (folder / "arms").exists()


def test_a_full_disk_gives_one_clear_line(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys; from pathlib import Path\n"
        "from logprobe.collectors.errors import StoreError\n"
        "from logprobe.monitor.proof.experiments import arm_cache; from logprobe.monitor.proof.scorers.running import Outcome\n"
        "disk = Path(sys.argv[1]); (disk / 'model').mkdir()\n"
        "try:\n"
        "    with open(disk / 'filler', 'wb') as filler:\n"
        "        while True: filler.write(b'x' * 65536); filler.flush()\n"
        "except OSError: pass\n"
        "arm_cache.run_scorer = lambda *_, **__: Outcome({'values': [[-1.0] * 100000]}, None, 1.0, answered=True)\n"
        "try: arm_cache.ArmCache(disk / 'arms')('m', {'model': str(disk / 'model')}, seconds=1)\n"
        "except StoreError as error: print(error)\n"
    )
    printed = on_small_disk(tmp_path / "disk", 1, script)
    assert "cannot write to" in printed
    assert "free some space, finished arms are kept" in printed


def _processes(words: str) -> list[str]:
    """Processes of the scorer whose job names `words`; the job is a file, so its module is what is looked for."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError, IndexError):  # it has ended meanwhile, and its job is gone; or it only speaks of scorers
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if FORWARD in line and words in Path(line.split()[-2]).read_text(errors="replace"):
                found.append(line)
    return found
