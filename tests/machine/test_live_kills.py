"""A service that is killed with -9 in the middle of its transactions: in the end the store has what it has of all records at once."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
from live_worlds import WORLDS, History
from mirror import UNPLACED, Mirror, arrived, rows, started

from logprobe.monitor.home import Home
from logprobe.monitor.store.store import Store

PROGRAM = Path(__file__).parents[1] / "support" / "killed_ingest_program.py"
KILLS = 6
MOST_STATEMENTS = 60  # before which it is killed


def test_kill_nine_changes_no_value(home: Path) -> None:
    history = History(WORLDS["attempts"], 5).make()
    Home(home).create()
    rng, killed = np.random.default_rng(7), 0
    for _ in history.bring(home, "run", rng.permutation(len(history.segments)).tolist()):
        pass
    for number in [*rng.integers(0, MOST_STATEMENTS, KILLS).tolist(), 1 << 30]:
        done = subprocess.run([sys.executable, str(PROGRAM), str(home), str(number)], check=False)
        killed += done.returncode == -signal.SIGKILL
        assert done.returncode in {0, -signal.SIGKILL}
    assert killed >= KILLS // 2
    assert done.returncode == 0
    whole = Mirror()
    whole.write(started(whole).add(arrived("run", enumerate(history.segments))))
    with Store.open(Home(home)) as store:
        for table, sql in UNPLACED.items():
            assert rows(store.query, sql) == rows(whole.query, sql), table
