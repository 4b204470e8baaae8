"""A short, seeded part of `make campaign NAME=chaos`: kills on a disk that refuses now and then; nothing is lost and nothing counts twice."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import chaos

SEED = 20
KILLS = 8


def test_nothing_acknowledged_is_lost_or_doubled_on_a_disk_that_refuses(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    program = Path(next(iter(chaos.__path__))) / "run.py"
    command = [
        sys.executable,
        program,
        "--alone",
        tmp_path,
        "--scenario",
        "errors",
        "--seed",
        str(SEED),
        "--kills",
        str(KILLS),
    ]
    done = subprocess.run([*map(str, command)], stdout=subprocess.PIPE, text=True, check=True, timeout=200)
    outcome = json.loads(done.stdout.splitlines()[-1])
    broken = {
        name: outcome[name] for name in ("lost", "doubled", "damaged", "quarantined", "left_over") if outcome[name]
    }
    assert broken == {}
    assert outcome["recorder_kills"] + outcome["service_kills"] == KILLS
    assert outcome["faults"] > 0
    assert outcome["acknowledged"] > 0
