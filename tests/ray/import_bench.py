"""`logprobe import` on a Ray of two raylets with one processor each, over the time of this machine's processes on the same two.

    python tests/ray/import_bench.py [--files N] [--rounds N]

Only the files' way into the spool is timed; the ingest after it is the same. Exit code 1 above 1.3, or when a bit differs. Each way runs
once to warm up and then `--rounds` times, in turns; what counts is the median of the ratios of neighbours, which had the same load.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import ray
from ray.cluster_utils import Cluster

from logprobe.collectors.spool.segments import run_dir
from logprobe.monitor.home import Home
from logprobe.monitor.importers.formats import named
from logprobe.monitor.importers.importing import Importer
from logprobe.monitor.parallel.pool import LocalPool, Pool
from logprobe.monitor.parallel.ray_pool import RayPool
from logprobe.monitor.store.store import Store

NODES = 2
ROWS, LENGTH = 128, 800  # of a file: 3 MB
MOST = 1.3


def main() -> int:
    """Prints times and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return _measure(Path(folder), arguments.files, arguments.rounds)


def _measure(folder: Path, files: int, rounds: int) -> int:
    _write(folder / "in", files)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(NODES):
        cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    ways: dict[str, Callable[[], Pool]] = {"local": lambda: LocalPool(NODES), "ray": lambda: RayPool(cluster.address)}
    taken: dict[str, list[float]] = {name: [] for name in ways}
    found = set()
    try:
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        ray.get([ray.remote(num_cpus=1)(_import).remote() for _ in range(4 * NODES)])  # workers outlive a command
        for number in range(rounds + 1):
            for name, pool in ways.items():
                with pool() as workers:
                    seconds, content = _time(folder, workers)
                found.add(content)
                if number:
                    taken[name].append(seconds)
                    print(f"{name}: {seconds:.1f} s, load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
    finally:
        ray.shutdown()
        cluster.shutdown()
    ratio = median(theirs / ours for ours, theirs in zip(taken["local"], taken["ray"], strict=True))
    print(
        f"{files} files, {files * ROWS * LENGTH:,} tokens: local {median(taken['local']):.1f} s, "
        f"Ray {median(taken['ray']):.1f} s, ratio {ratio:.2f} (at most {MOST}), "
        f"{'equal to the last bit' if len(found) == 1 else 'BITS DIFFER'}"
    )
    return 0 if ratio <= MOST and len(found) == 1 else 1


def _import() -> None:
    import logprobe.monitor.importers.importing  # noqa: F401

    time.sleep(0.5)


def _write(folder: Path, files: int) -> None:
    """NeMo-RL's train data, a file per step."""
    folder.mkdir()
    rng = np.random.default_rng(1)
    for step in range(files):
        with (folder / f"train_data_step{step}.jsonl").open("w") as file:
            for _ in range(ROWS):
                r = -rng.exponential(0.7, LENGTH)
                row = {
                    "token_ids": [rng.integers(0, 100_000, LENGTH).tolist()],
                    "token_loss_mask": [[1] * LENGTH],
                    "generation_logprobs": [np.round(r, 6).tolist()],
                    "prev_logprobs": [np.round(r + rng.normal(0, 0.05, LENGTH), 6).tolist()],
                    "rewards": [1.0],
                }
                file.write(json.dumps(row) + "\n")


def _time(folder: Path, pool: Pool) -> tuple[float, tuple[str, ...]]:
    """Seconds, and names of the segments with rows: number, kind, checksum."""
    home = Home(folder / "home")
    with Store.open(home) as store:
        importer = Importer(home, "r", named("nemo-rl"), store)
        began = time.perf_counter()
        importer.run(folder / "in", pool)
        seconds = time.perf_counter() - began
    names = sorted(file.name for file in (run_dir(home.path, "r") / "import-nemo-rl").glob("*.training.*"))
    shutil.rmtree(home.path)
    return seconds, tuple(names)


if __name__ == "__main__":
    sys.exit(main())
