"""Checkpoints on a disk that is full; run in a mount namespace of its own: `python full_disk_checkpoint_program.py FOLDER`. Prints JSON."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from full_disk_program import fill
from training_calls import call

from logprobe.collectors.errors import StoreError
from logprobe.collectors.recorder.recorder import Recorder
from logprobe.monitor.home import Home
from logprobe.monitor.live.ingest import Ingester
from logprobe.monitor.store.store import Store

STEPS, SEQUENCES = 20, 100
COUNT = "SELECT count(*) AS n, count(DISTINCT sample_id) AS ids FROM training_sequences"


def ingested(store: Store, run: str) -> None:
    with Recorder(store.home.path, run) as recorder:
        for step in range(STEPS):
            recorder.training(**call(step, SEQUENCES))
        assert recorder.flush(120)
    Ingester(store).run_once()


def refused(store: Store) -> str:
    """What a checkpoint says; nothing of what was ingested is lost in this process, full disk or not."""
    try:
        store.checkpoint()
    except StoreError as error:
        return str(error)
    return ""


def killed(home: Home, filler: Path) -> None:
    """Ends as SIGKILL ends it, after a checkpoint that the full disk refused."""
    store = Store.open(home)
    ingested(store, "second")
    fill(filler)
    said = refused(store)
    os._exit(0 if said else 1)


def main(disk: Path) -> dict[str, object]:
    home, filler = Home(disk / "home"), disk / "filler"
    seen: dict[str, object] = {}
    with Store.open(home) as store:
        ingested(store, "first")
        fill(filler)
        seen["said"] = refused(store)
        seen["while full"] = store.query(COUNT).to_pylist()[0]
        filler.unlink()
        store.checkpoint()
    child = os.fork()
    if child == 0:
        killed(home, filler)
    seen["killed"] = os.waitpid(child, 0)[1]
    filler.unlink()
    with Store.open(home) as store:
        report = Ingester(store).run_once()
        store.checkpoint()
        seen["problems"] = [*report.problems, *store.archive.problems()]
        seen["runs"] = store.query(f"{COUNT} GROUP BY run").to_pylist()
    return seen


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
