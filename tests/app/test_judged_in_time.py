"""A live run is judged in time, or every place that shows a judgement says that it is not."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from processes import eventually, logprobe, service
from processes import record as record_run

from logprobe.monitor.judgement import SECONDS, STEPS

PROGRAM = Path(__file__).parent.parent / "support" / "pacing_program.py"
LIVE, PACED_STEPS = "armed", 60


def test_an_armed_live_run_is_judged_in_time_or_it_is_said_that_it_is_not(home: Path, tmp_path: Path) -> None:
    """Beside an ended run and busy loops; how fast it is judged is nothing that a test can promise."""
    record_run(home, "ended", steps=range(30))
    (home / "logprobe.yaml").write_text("correction: {mode: armed}\n")
    told = tmp_path / "told"
    with ExitStack() as stack:
        stack.enter_context(service(home))
        for _ in range(2):
            busy = subprocess.Popen(["nice", "-n", "10", sys.executable, "-c", "while True: pass"])
            stack.callback(busy.wait)
            stack.callback(busy.kill)
        with told.open("w") as out:
            trainer = subprocess.Popen([sys.executable, PROGRAM, home, LIVE, str(PACED_STEPS), "0.05"], stdout=out)
        stack.callback(trainer.wait)
        stack.callback(trainer.kill)
        eventually(lambda: LIVE in logprobe("runs", "--home", home).stdout and judged_of(home), "a step is computed")
        looks = 0
        while trainer.poll() is None or looks == 0:
            check_what_is_said(home, told)
            looks += 1
        eventually(lambda: judged_of(home)["step"] == PACED_STEPS - 1, "all of it is judged")
        assert judged_of(home)["late"] is None


def judged_of(home: Path) -> dict[str, Any]:
    judged: dict[str, Any] = json.loads(logprobe("show", LIVE, "--json", "--home", home).stdout)["judgement"]
    return judged


def check_what_is_said(home: Path, told: Path) -> None:
    """More than ten steps that have been in the spool for more than two seconds are judged, or missed aloud."""
    before = time.time()
    recorded = [line.split() for line in told.read_text().splitlines(keepends=True) if line.endswith("\n")]
    old = [int(step) for step, at in recorded if before - float(at) > SECONDS]
    judged = judged_of(home)
    behind = [step for step in old if judged["step"] is None or step > judged["step"]]
    if len(behind) > STEPS:
        assert judged["late"] is not None, (judged, behind)
        assert judged["late"].startswith(("not judged since step", "not judged yet"))
        assert judged["overdue"]
