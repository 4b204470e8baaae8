"""Folds a home's store batch by batch, as its service does, and says so after each: for tests that kill it in between.

python tests/support/folding_program.py HOME
"""

from __future__ import annotations

import sys
from datetime import timedelta

from logprobe.monitor.home import Home
from logprobe.monitor.store import folding
from logprobe.monitor.store.store import Store

if __name__ == "__main__":
    folding.STEPS_PER_BATCH, folding._BATCHES_PER_CHECKPOINT, folding._REST = 4, 1, 0.0
    with Store.open(Home(sys.argv[1])) as store:
        folder = folding.Folder(store, folding.StoreBudget(0), quiet=timedelta(0), protected=4)
        print("begun", flush=True)
        report = folder.run_once()
        print(f"folded {report.steps}", flush=True)
